//! Committed entries become changes, the same on every member.
//!
//! Pure in what it decides: no await, no clock, no randomness; what an entry does depends on the entries before it and
//! nothing else. A refusal is such a decision: it is answered, and the entry counts as applied. A failure of the store
//! is not: the process stops, since it no longer knows what it holds.
//!
//! The apply thread ([`thread`]) takes everything that is committed, applies it as one batch, commits that batch with
//! its applied index to the store, hands the events to the watchers, and then answers.

pub(crate) mod plugin;
pub(crate) mod thread;
mod txn;

use kuorum_proto::etcdserverpb::{
    AlarmRequest, AlarmResponse, AlarmType, CompactionRequest, CompactionResponse, DeleteRangeRequest,
    DeleteRangeResponse, LeaseCheckpointRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, PutRequest, PutResponse, ReadSetEntry, RequestHeader, ResponseHeader, TxnResponse,
    alarm_request,
};

use kuorum_proto::kuorum::v1::TimelineMark;
use kuorum_proto::membershippb::ClusterMemberAttrSetRequest;

use crate::admission::{shape, space};
use crate::alarm::{self, Alarms};
use crate::cluster::{self, Change, Member, MemberId, Members, Reconfiguration};
use crate::command::Command;
use crate::consensus::answers::Answer;
use crate::lease::{LeaseId, LeaseRow, Leases};
use crate::log::{EntryKind, LogEntry};
use crate::metrics;
use crate::mvcc::revision::Revision;
use crate::mvcc::{AppliedMark, Committed, Store, WriteTxn, Writer};
use crate::policy::plugins::{self, Registry};
use crate::policy::{epoch, timeline};
use crate::refusal::Refusal;
use crate::sabotage::{Sabotage, is_on};
use crate::storage::StorageError;

pub(crate) use thread::Task;
pub(crate) use txn::read_only as read_only_txn;

/// What an applied entry answers. Headers carry the revision alone; the front door fills in the rest.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    /// Nothing to say: a read barrier, or an entry of the leader's own.
    Empty,
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    LeaseGrant(LeaseGrantResponse),
    LeaseRevoke(LeaseRevokeResponse),
    Alarm(AlarmResponse),
    /// The members as they are after a change.
    Members(Vec<Member>),
    /// What a change of the plugins came to, and the policy epoch in force after it.
    Plugin(plugins::Outcome, u64),
}

/// Why an entry was not carried out.
#[derive(Debug)]
enum Failure {
    /// Every member refuses alike.
    Refused(Refusal),
    /// This member's store failed; going on would diverge.
    Fatal(StorageError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<crate::mvcc::query::Refusal> for Failure {
    fn from(refusal: crate::mvcc::query::Refusal) -> Failure {
        Failure::Refused(refusal.into())
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Failure {
        Failure::Fatal(error)
    }
}

/// The replicated state and the rules that change it.
pub(crate) struct Applier {
    writer: Writer,
    leases: Leases,
    alarms: Alarms,
    members: Members,
    /// Of the plugins, with the policy epoch and the timeline.
    registry: Registry,
    /// Whether plugins changed since the last look.
    plugins_changed: bool,
    /// Compactions applied since the last look, in order, for whoever carries them out on disk.
    compacted: Vec<Revision>,
    /// What the change of the members applied last means for raft, until it is looked at.
    reconfiguration: Option<Reconfiguration>,
}

impl Applier {
    pub(crate) fn new(writer: Writer, leases: Leases, alarms: Alarms, members: Members, registry: Registry) -> Applier {
        let (compacted, reconfiguration, plugins_changed) = (Vec::new(), None, false);
        Applier { writer, leases, alarms, members, registry, plugins_changed, compacted, reconfiguration }
    }

    /// Whether plugins changed since this was asked last.
    pub(crate) fn take_plugins_changed(&mut self) -> bool {
        std::mem::take(&mut self.plugins_changed)
    }

    /// What the entry applied last means for who votes, if it was of the kind that raft must hear of.
    pub(crate) fn take_reconfiguration(&mut self) -> Option<Reconfiguration> {
        self.reconfiguration.take()
    }

    /// Goes on with another store, and with leases, alarms and members as it has them.
    ///
    /// # Errors
    /// When its rows can't be read, which is fatal.
    pub(crate) fn replace(&mut self, store: &Store, writer: Writer) -> Result<(), StorageError> {
        self.writer = writer;
        recover(store, &self.leases, &self.alarms, &self.registry)?;
        let row = store.sys_get(cluster::MEMBERS_ROW)?.unwrap_or_default();
        let removed = store.sys_get(cluster::REMOVED_ROW)?;
        let members = Members::from_rows(&row, removed.as_deref());
        self.members.replace(&members.map_err(|_| StorageError::Damaged { what: "the list of members" })?);
        Ok(())
    }

    /// Commits the batch under way and makes it visible.
    pub(crate) fn commit(&mut self, applied: AppliedMark) -> Result<Committed, StorageError> {
        self.writer.commit(applied)
    }

    /// Carries out one entry, as part of the batch under way.
    ///
    /// # Errors
    /// A failure of the store, which is fatal.
    pub(crate) fn apply(&mut self, entry: LogEntry) -> Result<Answer, StorageError> {
        match entry.kind {
            EntryKind::Normal if entry.data.is_empty() => return Ok(Ok(Reply::Empty)),
            EntryKind::Normal => {}
            // Raft hears of each, also of one that is refused.
            EntryKind::ConfChange | EntryKind::ConfChangeV2 => self.reconfiguration = Some(Reconfiguration::None),
        }
        let (index, entry_bytes) = (entry.index, entry.data.len());
        let command = match Command::decode(entry.kind, entry.data) {
            Ok((header, command)) => match self.fence(&command, &header) {
                Ok(()) => command,
                Err(refusal) => return Ok(Err(refusal)),
            },
            Err(error) => {
                crate::warn!("skipped a log entry that is no command", index = index, error = error.to_string());
                return Ok(Err(Refusal::Internal(error.to_string())));
            }
        };
        match self.carry_out(command, entry_bytes) {
            Ok(reply) => Ok(Ok(reply)),
            Err(Failure::Refused(refusal)) => Ok(Err(refusal)),
            Err(Failure::Fatal(error)) => Err(error),
        }
    }

    fn carry_out(&mut self, command: Command, entry_bytes: usize) -> Result<Reply, Failure> {
        self.check_alarms(&command)?;
        match command {
            Command::Put(request) => self.put(request, entry_bytes),
            Command::DeleteRange(request) => self.delete_range(&request),
            Command::Txn(request) => {
                // A peer's entry has not passed this member's admission; what could harm is looked at again.
                shape::check_txn(&request, usize::MAX)?;
                metrics::get().mvcc.txns.increment(1);
                let mut txn = self.writer.txn().within(entry_bytes);
                let response = txn::execute(&mut txn, &self.leases, request)?;
                txn.finish();
                Ok(Reply::Txn(response))
            }
            Command::Compact(request) => self.compact(&request),
            Command::LeaseGrant(request) => self.lease_grant(&request),
            Command::LeaseRevoke(request) => self.lease_revoke(&request),
            Command::LeaseCheckpoint(request) => Ok(self.lease_checkpoint(&request)),
            Command::Alarm(request) => self.alarm(&request),
            Command::MemberAttributes(request) => self.member_attributes(request),
            Command::Plugin(change) => self.plugin(&change),
            Command::Mark(mark) => Ok(self.mark(mark)),
            Command::Membership(change) => self.membership(&change),
        }
    }

    /// Refuses what policies were asked about when their answer rests on something that has changed since: the policies in
    /// force, or a key that they read.
    fn fence(&mut self, command: &Command, header: &RequestHeader) -> Result<(), Refusal> {
        let is_judged = match command {
            Command::Put(_) | Command::Txn(_) | Command::LeaseGrant(_) => true,
            Command::DeleteRange(_)
            | Command::Compact(_)
            | Command::LeaseRevoke(_)
            | Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::MemberAttributes(_)
            | Command::Plugin(_)
            | Command::Mark(_)
            | Command::Membership(_) => false,
        };
        if !is_judged {
            return Ok(());
        }
        if header.policy_epoch != self.registry.epoch().get() && !is_on(Sabotage::PolicyEpochUnchecked) {
            return Err(Refusal::StalePolicy);
        }
        if header.read_set.is_empty() || is_on(Sabotage::ReadSetUnchecked) {
            return Ok(());
        }
        let txn = self.writer.txn();
        let has_changed = |read: &ReadSetEntry| {
            let modified = txn.state(&read.key).map_or(0, |state| state.modified.main.0);
            modified != read.mod_revision
        };
        if header.read_set.iter().any(has_changed) { Err(Refusal::StaleReads) } else { Ok(()) }
    }

    /// What raised alarms forbid: NOSPACE whatever needs space, CORRUPT everything but clearing it.
    fn check_alarms(&self, command: &Command) -> Result<(), Refusal> {
        if self.alarms.corrupt()
            && !matches!(
                command,
                Command::Alarm(_) | Command::LeaseCheckpoint(_) | Command::MemberAttributes(_) | Command::Membership(_)
            )
        {
            return Err(Refusal::Corrupt);
        }
        let needs_space = match command {
            Command::Put(_) | Command::LeaseGrant(_) => true,
            Command::Txn(request) => space::txn_cost(request) > 0,
            Command::Plugin(change) => plugin::needs_space(change),
            Command::DeleteRange(_)
            | Command::Compact(_)
            | Command::LeaseRevoke(_)
            | Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::MemberAttributes(_)
            | Command::Mark(_)
            | Command::Membership(_) => false,
        };
        if needs_space && self.alarms.no_space() { Err(Refusal::NoSpace) } else { Ok(()) }
    }

    fn put(&mut self, request: PutRequest, entry_bytes: usize) -> Result<Reply, Failure> {
        shape::check_put(&request)?;
        let mut txn = self.writer.txn().within(entry_bytes);
        txn::check_put(&txn, &self.leases, &request)?;
        let response = txn::put(&mut txn, &self.leases, request)?;
        txn.finish();
        Ok(Reply::Put(response))
    }

    fn delete_range(&mut self, request: &DeleteRangeRequest) -> Result<Reply, Failure> {
        shape::check_delete(request)?;
        let mut txn = self.writer.txn();
        let response = txn::delete_range(&mut txn, &self.leases, request)?;
        txn.finish();
        Ok(Reply::DeleteRange(response))
    }

    fn compact(&mut self, request: &CompactionRequest) -> Result<Reply, Failure> {
        self.writer.compact(Revision(request.revision))?;
        self.compacted.push(Revision(request.revision));
        Ok(Reply::Compact(CompactionResponse { header: self.header() }))
    }

    fn lease_grant(&mut self, request: &LeaseGrantRequest) -> Result<Reply, Failure> {
        if request.id == 0 {
            return Err(Refusal::LeaseNotFound.into());
        }
        let (ttl, row) = self.leases.grant(LeaseId(request.id), request.ttl)?;
        let metrics = &metrics::get().lease;
        metrics.granted.increment(1);
        #[expect(clippy::cast_precision_loss, reason = "the sample of a histogram is a float")]
        metrics.ttl_seconds.record(ttl as f64);
        self.keep(row);
        Ok(Reply::LeaseGrant(LeaseGrantResponse { header: self.header(), id: request.id, ttl, error: String::new() }))
    }

    fn lease_revoke(&mut self, request: &LeaseRevokeRequest) -> Result<Reply, Failure> {
        let (keys, row) = self.leases.revoke(LeaseId(request.id))?;
        metrics::get().lease.revoked.increment(1);
        let mut txn = self.writer.txn();
        for key in keys {
            // The lease is gone, and so are its attachments: nothing to detach.
            txn.delete_range(&key, &[]);
        }
        txn.finish();
        self.keep(row);
        Ok(Reply::LeaseRevoke(LeaseRevokeResponse { header: self.header() }))
    }

    fn lease_checkpoint(&mut self, request: &LeaseCheckpointRequest) -> Reply {
        for checkpoint in &request.checkpoints {
            // A lease that was revoked meanwhile needs no checkpoint.
            if let Some(row) = self.leases.checkpoint(LeaseId(checkpoint.id), checkpoint.remaining_ttl) {
                self.keep(row);
            }
        }
        Reply::Empty
    }

    fn mark(&mut self, mark: TimelineMark) -> Reply {
        let (revision, compacted) = (self.writer.revision(), self.writer.compacted());
        if let Some(row) = self.registry.timeline().add(mark, revision, compacted) {
            self.writer.sys_put(timeline::ROW, row);
        }
        Reply::Empty
    }

    fn alarm(&mut self, request: &AlarmRequest) -> Result<Reply, Failure> {
        shape::check_alarm(request)?;
        let action = alarm_request::AlarmAction::try_from(request.action)
            .map_err(|_| Refusal::Invalid(format!("alarm action {}", request.action)))?;
        let alarms = match action {
            alarm_request::AlarmAction::Get => self.alarms.list(request.alarm),
            // etcd takes a request to raise "none" and raises nothing.
            alarm_request::AlarmAction::Activate if request.alarm == i32::from(AlarmType::None) => Vec::new(),
            alarm_request::AlarmAction::Activate => vec![self.alarms.activate(request.member_id, request.alarm)],
            alarm_request::AlarmAction::Deactivate => {
                self.alarms.deactivate(request.member_id, request.alarm).into_iter().collect()
            }
        };
        if action != alarm_request::AlarmAction::Get {
            self.writer.sys_put(alarm::ROW, self.alarms.to_row());
        }
        Ok(Reply::Alarm(AlarmResponse { header: self.header(), alarms }))
    }

    fn member_attributes(&mut self, request: ClusterMemberAttrSetRequest) -> Result<Reply, Failure> {
        let id = MemberId(request.member_id);
        let mut member = self.members.get(id).ok_or(Refusal::MemberNotFound)?;
        let attributes = request.member_attributes.unwrap_or_default();
        member.name = attributes.name;
        member.client_urls = attributes.client_urls;
        if member.data_dir == 0 {
            member.data_dir = attributes.data_dir;
        }
        self.members.put(member);
        self.keep_members();
        Ok(Reply::Empty)
    }

    fn membership(&mut self, change: &Change) -> Result<Reply, Failure> {
        if let Change::Promote(id) = change
            && self.members.is_learner(*id)
            && !self.registry.is_prepared(*id)
        {
            return Err(Refusal::LearnerNotPrepared.into());
        }
        self.reconfiguration = Some(self.members.change(change)?);
        self.keep_members();
        Ok(Reply::Members(self.members.list()))
    }

    fn keep_members(&mut self) {
        for (name, row) in self.members.to_rows() {
            self.writer.sys_put(name, row);
        }
    }

    fn keep(&mut self, row: LeaseRow) {
        match row.value {
            Some(value) => self.writer.sys_put(&row.name, value),
            None => self.writer.sys_remove(&row.name),
        }
    }

    fn header(&self) -> Option<ResponseHeader> {
        header(self.writer.revision())
    }
}

/// Leases, alarms, plugins, the policy epoch and the timeline as the store keeps them, and the keys attached to each lease,
/// in place of what was known.
///
/// # Errors
/// When a row can't be read.
pub(crate) fn recover(
    store: &Store,
    leases: &Leases,
    alarms: &Alarms,
    registry: &Registry,
) -> Result<(), StorageError> {
    leases.clear();
    for (name, value) in store.sys_scan(Leases::row_prefix())? {
        if !leases.recover_row(&name, &value) {
            return Err(StorageError::Damaged { what: "a lease's row" });
        }
    }
    store.leased_keys(&mut |lease, key| leases.reattach(&bytes::Bytes::copy_from_slice(key), 0, lease));
    let row = store.sys_get(alarm::ROW)?.unwrap_or_default();
    if !alarms.recover(&row) {
        return Err(StorageError::Damaged { what: "the alarms' row" });
    }
    registry.replace(plugin::read(store)?);
    let row = store.sys_get(timeline::ROW)?.unwrap_or_default();
    if !registry.timeline().recover(&row) {
        return Err(StorageError::Damaged { what: "the timeline's row" });
    }
    let row = store.sys_get(epoch::ROW)?;
    if registry.epoch().recover(row.as_deref()) {
        Ok(())
    } else {
        Err(StorageError::Damaged { what: "the policy epoch's row" })
    }
}

fn header(revision: Revision) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision: revision.0, ..ResponseHeader::default() })
}

/// The revision that a response inside `txn` names: the one under way once something changed.
fn header_in(txn: &WriteTxn<'_>) -> Option<ResponseHeader> {
    header(txn.revision())
}
