//! Before the log: what is malformed, too large or over quota never gets further.
//!
//! Only an [`Admitted`] command can be proposed, and only this module makes one: the type is the proof that the checks
//! were made. The order is etcd's: space first, then shape, then size. Everything that could make apply go wrong is
//! refused here and, since a peer's entry has not passed here, checked again in apply.

pub(crate) mod shape;
pub(crate) mod space;

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{
    AlarmRequest, CompactionRequest, DeleteRangeRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, ReadSetEntry, TxnRequest,
};
use kuorum_proto::kuorum::v1::{PluginCommand, TimelineMark, plugin_command};
use kuorum_proto::membershippb::ClusterMemberAttrSetRequest;
use prost::Message;

use crate::cluster::Change;
use crate::command::{self, Command, Judgement};
use crate::lease::LeaseId;
use crate::log::EntryKind;
use crate::mvcc::query::RangeQuery;
use crate::policy::epoch::Epoch;
use crate::refusal::Refusal;

/// Largest TTL a lease may have, in seconds (etcd: lease.MaxLeaseTTL).
const LEASE_TTL_SECONDS_MAX: i64 = 9_000_000_000;

/// A command that passed every check, and what policies said of it rests on.
pub(crate) struct Admitted(Command, Judgement);

/// Keys that policies read while they judged a request, as they found them.
pub(crate) type ReadSet = Vec<ReadSetEntry>;

/// For those who have no policies to ask.
#[cfg(any(test, feature = "sim", feature = "bench"))]
pub(crate) fn unjudged<Q>(_: &Q) -> Result<ReadSet, Refusal> {
    Ok(ReadSet::new())
}

impl Admitted {
    /// What its entry holds, under the number by which its proposer finds it again.
    pub(crate) fn into_entry(self, number: u64) -> (EntryKind, Bytes) {
        (self.0.kind(), self.0.encode(number, self.1))
    }
}

/// Bounds of this member, from its flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) request_bytes_max: usize,
    pub(crate) txn_operations_max: usize,
    /// Size of the store past which writes are refused; `None` when the quota is off.
    pub(crate) quota_bytes: Option<u64>,
}

/// The gate every request passes.
#[derive(Clone)]
pub(crate) struct Gate {
    limits: Limits,
    sizes: space::Sizes,
    room: space::Room,
    epoch: Epoch,
}

impl Gate {
    pub(crate) fn new(limits: Limits, sizes: space::Sizes, room: space::Room, epoch: Epoch) -> Gate {
        Gate { limits, sizes, room, epoch }
    }

    /// # Errors
    /// `NoSpace` when the store would outgrow its quota, else what is wrong with the request, or what `judge` says, which
    /// asks the policies in force.
    pub(crate) fn put(
        &self,
        request: PutRequest,
        judge: impl FnOnce(&PutRequest) -> Result<ReadSet, Refusal>,
    ) -> Result<Admitted, Refusal> {
        let epoch = self.epoch.get();
        let cost_bytes = space::put_cost(&request);
        self.check_space(cost_bytes)?;
        shape::check_put(&request)?;
        let judgement = Judgement { epoch, read_set: judge(&request)? };
        self.admit_under(judgement, cost_bytes, Command::Put(request))
    }

    pub(crate) fn delete_range(&self, request: DeleteRangeRequest) -> Result<Admitted, Refusal> {
        shape::check_delete(&request)?;
        self.admit(Command::DeleteRange(request))
    }

    /// Checks a transaction that writes. See [`Gate::read_only_txn`] for one that only reads.
    pub(crate) fn txn(
        &self,
        request: TxnRequest,
        judge: impl FnOnce(&TxnRequest) -> Result<ReadSet, Refusal>,
    ) -> Result<Admitted, Refusal> {
        let epoch = self.epoch.get();
        let cost_bytes = space::txn_cost(&request);
        self.check_space(cost_bytes)?;
        shape::check_txn(&request, self.limits.txn_operations_max)?;
        let judgement = Judgement { epoch, read_set: judge(&request)? };
        self.admit_under(judgement, cost_bytes, Command::Txn(request))
    }

    /// Checks a transaction of reads alone, which is not proposed.
    pub(crate) fn read_only_txn(&self, request: &TxnRequest) -> Result<(), Refusal> {
        shape::check_txn(request, self.limits.txn_operations_max)
    }

    /// Decodes a transaction from the wire. One that nests deeper than its budget of operations allows is refused
    /// without being decoded.
    pub(crate) fn decode_txn(&self, bytes: Bytes) -> Result<TxnRequest, Refusal> {
        // Each level needs at least one operation of the budget to hold the next.
        if command::txn_depth(&bytes) > (self.limits.txn_operations_max + 1).min(command::TXN_DEPTH_MAX) {
            return Err(Refusal::TooManyOperations);
        }
        command::decode_txn(bytes).map_err(|error| Refusal::Internal(error.to_string()))
    }

    pub(crate) fn compact(&self, request: CompactionRequest) -> Result<Admitted, Refusal> {
        self.admit(Command::Compact(request))
    }

    /// Checks a grant. The id must be chosen by now: every member has to use the same.
    pub(crate) fn lease_grant(
        &self,
        request: LeaseGrantRequest,
        judge: impl FnOnce(&LeaseGrantRequest) -> Result<ReadSet, Refusal>,
    ) -> Result<Admitted, Refusal> {
        let epoch = self.epoch.get();
        self.check_space(space::LEASE_COST)?;
        assert!(request.id != 0, "the front door chooses an id for a grant that names none");
        if request.ttl > LEASE_TTL_SECONDS_MAX {
            return Err(Refusal::LeaseTtlTooLarge);
        }
        let judgement = Judgement { epoch, read_set: judge(&request)? };
        self.admit_under(judgement, space::LEASE_COST, Command::LeaseGrant(request))
    }

    pub(crate) fn lease_revoke(&self, request: LeaseRevokeRequest) -> Result<Admitted, Refusal> {
        self.admit(Command::LeaseRevoke(request))
    }

    /// Notes how much of leases is left; the leader's own doing, so there is nothing to check.
    pub(crate) fn lease_checkpoints(remaining: Vec<(LeaseId, i64)>) -> Admitted {
        let checkpoint = |(id, remaining_ttl): (LeaseId, i64)| LeaseCheckpoint { id: id.0, remaining_ttl };
        let checkpoints = remaining.into_iter().map(checkpoint).collect();
        Admitted(Command::LeaseCheckpoint(LeaseCheckpointRequest { checkpoints }), Judgement::default())
    }

    /// Takes back what was noted of a lease that is renewed.
    pub(crate) fn lease_renewed(id: LeaseId) -> Admitted {
        Gate::lease_checkpoints(vec![(id, 0)])
    }

    /// Checks an alarm request. etcd 3.7 dies of an action outside the enum; here it is refused.
    pub(crate) fn alarm(&self, request: AlarmRequest) -> Result<Admitted, Refusal> {
        shape::check_alarm(&request)?;
        self.admit(Command::Alarm(request))
    }

    /// A change of the plugins, which no policy is asked about. What it meets is looked at when it is applied.
    ///
    /// # Errors
    /// `NoSpace` when a piece of a component would make the store outgrow its quota.
    pub(crate) fn plugin(&self, change: plugin_command::Change) -> Result<Admitted, Refusal> {
        if let plugin_command::Change::Chunk(chunk) = &change {
            let cost_bytes = chunk.data.len() as u64;
            self.check_space(cost_bytes)?;
            self.room.take(cost_bytes);
        }
        // Its parts have bounds of their own: --max-request-bytes is for clients' keys and values.
        Ok(Admitted(Command::Plugin(Box::new(PluginCommand { change: Some(change) })), Judgement::default()))
    }

    /// A mark of the timeline; the leader's own doing, so there is nothing to check.
    pub(crate) fn mark(mark: TimelineMark) -> Admitted {
        Admitted(Command::Mark(mark), Judgement::default())
    }

    /// A change of the members. What it meets is looked at when it is applied; its URLs must be well-formed by now.
    pub(crate) fn membership(change: Change) -> Admitted {
        Admitted(Command::Membership(change), Judgement::default())
    }

    /// What a member says of itself at start; not a client's request, so there is nothing to check.
    pub(crate) fn member_attributes(request: ClusterMemberAttrSetRequest) -> Admitted {
        Admitted(Command::MemberAttributes(request), Judgement::default())
    }

    /// Checks a read and turns it into what the store is asked.
    pub(crate) fn range(&self, request: RangeRequest) -> Result<RangeQuery, Refusal> {
        shape::range_query(request)
    }

    /// The size of the store as last looked at, and its quota, 0 being none. In bytes.
    pub(crate) fn space(&self) -> (u64, u64) {
        (self.sizes.allocated_bytes(), self.limits.quota_bytes.unwrap_or(0))
    }

    /// Of the disk that the store is on, as last looked at.
    pub(crate) fn disk_free_bytes(&self) -> u64 {
        self.sizes.disk_free_bytes()
    }

    /// Whether an alarm can be written to the log at all.
    pub(crate) fn can_raise_alarms(&self) -> bool {
        !self.room.log_waits()
    }

    fn check_space(&self, cost_bytes: u64) -> Result<(), Refusal> {
        if cost_bytes == 0 {
            return Ok(());
        }
        if !self.room.fits(cost_bytes) {
            return Err(Refusal::NoSpace);
        }
        match self.limits.quota_bytes {
            Some(quota) if self.sizes.allocated_bytes() + cost_bytes >= quota => Err(Refusal::NoSpace),
            _ => Ok(()),
        }
    }

    fn admit(&self, command: Command) -> Result<Admitted, Refusal> {
        self.admit_under(Judgement::default(), 0, command)
    }

    /// The epoch was looked up before the command was judged: policies that came meanwhile must judge it too. What it adds to
    /// the store counts from here on, however often it was judged.
    fn admit_under(&self, judgement: Judgement, cost_bytes: u64, command: Command) -> Result<Admitted, Refusal> {
        if command.encoded_len() > self.limits.request_bytes_max {
            return Err(Refusal::RequestTooLarge);
        }
        self.room.take(cost_bytes);
        Ok(Admitted(command, judgement))
    }
}

impl Command {
    /// Bytes of the request inside the entry, near enough to etcd's measure: the entry's own framing is a few bytes.
    fn encoded_len(&self) -> usize {
        match self {
            Command::Put(request) => request.encoded_len(),
            Command::DeleteRange(request) => request.encoded_len(),
            Command::Txn(request) => request.encoded_len(),
            Command::Compact(request) => request.encoded_len(),
            Command::LeaseGrant(request) => request.encoded_len(),
            Command::LeaseRevoke(request) => request.encoded_len(),
            Command::LeaseCheckpoint(request) => request.encoded_len(),
            Command::Alarm(request) => request.encoded_len(),
            Command::MemberAttributes(request) => request.encoded_len(),
            Command::Plugin(change) => change.encoded_len(),
            Command::Mark(mark) => mark.encoded_len(),
            Command::Membership(change) => change.encode(0).len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Unjudged;

    #[test]
    fn a_put_that_is_judged_again_and_again_takes_its_room_once() {
        let limits = Limits { request_bytes_max: 1 << 20, txn_operations_max: 128, quota_bytes: None };
        let room = space::Room::default();
        room.look(20_000, 0);
        let gate = Gate::new(limits, space::Sizes::default(), room, Epoch::default());
        let put = PutRequest { key: "k".into(), value: vec![0; 4_000].into(), ..PutRequest::default() };
        let waits = || Refusal::Unjudged(Box::new(Unjudged { plugin: "slow".to_owned(), failure: None }));
        for _ in 0..100 {
            assert_eq!(gate.put(put.clone(), |_| Err(waits())).err(), Some(waits()));
        }
        assert!(gate.put(put.clone(), unjudged).is_ok());
        // Three times two of them would be more than there is.
        assert_eq!(gate.put(put, unjudged).err(), Some(Refusal::NoSpace));
    }
}
