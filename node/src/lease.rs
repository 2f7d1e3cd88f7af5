//! Leases: their TTLs, the keys attached to them, and when they run out.
//!
//! What is granted, revoked and attached changes only in apply and is the same on every member. When a lease runs out
//! is this member's own reckoning, made by the leader from a clock handed in as `now_ms`; expiry is then proposed as a
//! revocation. Apply reads no clock: a lease it grants starts to run at the next look at the clock, never before it was
//! promised.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::refusal::Refusal;
use crate::sabotage::{Sabotage, is_on};

/// Leases given out for revocation in one look at the clock (etcd: half of defaultLeaseRevokeRate, twice a second).
const EXPIRED_MAX: usize = 500;
/// How long a revocation may take before it is asked for again (etcd: defaultExpiredleaseRetryInterval).
const REVOKE_RETRY_MS: u64 = 3_000;
/// Leases whose remaining time is noted in one look at the clock (etcd: maxLeaseCheckpointBatchSize).
const CHECKPOINTS_MAX: usize = 1_000;
/// Prefix of the rows in the store's `sys` space; the id follows, big-endian.
const ROW_PREFIX: &[u8] = b"lease/";

/// The id of a lease; never 0 in the store, where 0 says that a key has none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LeaseId(pub(crate) i64);

/// What a client may ask of a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaseInfo {
    pub(crate) granted_ttl_seconds: i64,
    pub(crate) remaining_ttl_seconds: i64,
    /// In key order.
    pub(crate) keys: Vec<Bytes>,
}

/// What became of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewal {
    /// The lease runs for its TTL in seconds from now.
    Renewed(i64),
    /// A checkpoint of 0 has to be applied before.
    TakeBackFirst,
    /// The lease is unknown or has run out.
    Gone,
}

/// A row of the `sys` space that an applied command changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaseRow {
    pub(crate) name: Vec<u8>,
    /// `None` removes the row.
    pub(crate) value: Option<Vec<u8>>,
}

/// The leases of this member. Cheap to clone.
// A lock, since every shard renews leases while apply grants, revokes and attaches; held for map operations only.
#[derive(Clone)]
pub(crate) struct Leases(Arc<Mutex<Lessor>>);

struct Lessor {
    ttl_seconds_min: i64,
    leases: HashMap<LeaseId, Lease>,
    /// (expiry, lease) of every lease that runs.
    schedule: BTreeSet<(u64, LeaseId)>,
    /// How often the time left of a lease is noted for the next leader; `None`: never.
    checkpoint_interval_ms: Option<u64>,
    /// (when it is to be noted, lease) of every lease that has longer than that to run.
    checkpoints: BTreeSet<(u64, LeaseId)>,
    /// Granted, renewed from the log or recovered since the last look at the clock.
    unstarted: Vec<LeaseId>,
    /// The term of leadership that the reckoning belongs to.
    term: u64,
}

struct Lease {
    ttl_seconds: i64,
    /// From a checkpoint; 0 when there is none.
    remaining_ttl_seconds: i64,
    keys: BTreeSet<Bytes>,
    /// When it runs out; `None` until it has been started.
    expiry_ms: Option<u64>,
    /// When its remaining time is to be noted.
    checkpoint_ms: Option<u64>,
    /// Its remaining time was given out to be noted, and no renewal has taken that back.
    is_noted: bool,
    /// It has run out and waits for its revocation. This member's own reckoning, so kept apart from what the log says.
    expired: bool,
}

impl Leases {
    /// `ttl_seconds_min` is the least TTL granted; see [`ttl_seconds_min`].
    pub(crate) fn new(ttl_seconds_min: i64) -> Leases {
        Leases(Arc::new(Mutex::new(Lessor::new(ttl_seconds_min, None))))
    }

    /// As [`Leases::new`], with the time left of leases noted so often, so that a new leader need not start long leases from
    /// the beginning (etcd: the feature gate LeaseCheckpoint).
    pub(crate) fn with_checkpoints(ttl_seconds_min: i64, interval_ms: u64) -> Leases {
        Leases(Arc::new(Mutex::new(Lessor::new(ttl_seconds_min, Some(interval_ms)))))
    }

    // ---- applied commands

    /// Grants a lease and says which row keeps it and the TTL granted.
    pub(crate) fn grant(&self, id: LeaseId, ttl_seconds: i64) -> Result<(i64, LeaseRow), Refusal> {
        let mut lessor = self.0.lock();
        if lessor.leases.contains_key(&id) {
            return Err(Refusal::LeaseExists);
        }
        let ttl_seconds = ttl_seconds.max(lessor.ttl_seconds_min);
        lessor.insert(id, ttl_seconds, 0);
        Ok((ttl_seconds, row(id, Some((ttl_seconds, 0)))))
    }

    /// Ends a lease; returns the keys that die with it, in key order.
    pub(crate) fn revoke(&self, id: LeaseId) -> Result<(Vec<Bytes>, LeaseRow), Refusal> {
        let mut lessor = self.0.lock();
        let lease = lessor.leases.remove(&id).ok_or(Refusal::LeaseNotFound)?;
        if let Some(checkpoint_ms) = lease.checkpoint_ms {
            lessor.checkpoints.remove(&(checkpoint_ms, id));
        }
        if let Some(expiry_ms) = lease.expiry_ms {
            lessor.schedule.remove(&(expiry_ms, id));
        }
        Ok((lease.keys.into_iter().collect(), row(id, None)))
    }

    /// Notes how much of a lease is left, for the next leader.
    pub(crate) fn checkpoint(&self, id: LeaseId, remaining_ttl_seconds: i64) -> Option<LeaseRow> {
        let mut lessor = self.0.lock();
        let lease = lessor.leases.get_mut(&id)?;
        lease.remaining_ttl_seconds = remaining_ttl_seconds;
        Some(row(id, Some((lease.ttl_seconds, remaining_ttl_seconds))))
    }

    pub(crate) fn exists(&self, id: LeaseId) -> bool {
        self.0.lock().leases.contains_key(&id)
    }

    /// Moves a key from the lease it was attached to, if any, to another, if any. Ids of 0 mean none.
    pub(crate) fn reattach(&self, key: &Bytes, from: i64, to: i64) {
        if from == 0 && to == 0 {
            return;
        }
        let mut lessor = self.0.lock();
        if from != 0
            && from != to
            && let Some(lease) = lessor.leases.get_mut(&LeaseId(from))
        {
            lease.keys.remove(key);
        }
        if let Some(lease) = lessor.leases.get_mut(&LeaseId(to))
            && !lease.keys.contains(key)
        {
            // A copy: the key may be a slice of a log entry, with a value that is written over long before.
            lease.keys.insert(Bytes::copy_from_slice(key));
        }
    }

    // ---- start

    /// Forgets every lease.
    pub(crate) fn clear(&self) {
        let mut lessor = self.0.lock();
        let term = lessor.term;
        *lessor = Lessor { term, ..Lessor::new(lessor.ttl_seconds_min, lessor.checkpoint_interval_ms) };
    }

    /// Takes in a row of the `sys` space at start. Returns false when it is not a lease's row.
    pub(crate) fn recover_row(&self, name: &[u8], value: &[u8]) -> bool {
        let id = name.strip_prefix(ROW_PREFIX).and_then(|id| id.try_into().ok());
        let (Some(id), Some((ttl, remaining))) = (id, value.split_first_chunk::<8>()) else { return false };
        let Ok(remaining) = remaining.try_into() else { return false };
        self.0.lock().insert(LeaseId(i64::from_be_bytes(id)), i64::from_be_bytes(*ttl), i64::from_be_bytes(remaining));
        true
    }

    /// The prefix of the rows that [`Leases::recover_row`] wants to see.
    pub(crate) fn row_prefix() -> &'static [u8] {
        ROW_PREFIX
    }

    // ---- the leader's clock

    /// Starts the leases that do not run yet, and returns those that have run out and should be revoked, oldest first.
    /// `term` is the one in which this member leads: in a new one every lease starts anew, since another leader may have
    /// renewed it meanwhile.
    pub(crate) fn expire(&self, now_ms: u64, term: u64) -> Vec<LeaseId> {
        let mut lessor = self.0.lock();
        lessor.lead(term);
        for id in std::mem::take(&mut lessor.unstarted) {
            lessor.start(id, now_ms);
        }
        let due: Vec<(u64, LeaseId)> =
            lessor.schedule.iter().take_while(|(expiry, _)| *expiry <= now_ms).take(EXPIRED_MAX).copied().collect();
        for (expiry, id) in &due {
            // Looked at again later, should the revocation be lost; the lease's own expiry stays in the past.
            lessor.schedule.remove(&(*expiry, *id));
            lessor.schedule.insert((now_ms + REVOKE_RETRY_MS, *id));
            if let Some(lease) = lessor.leases.get_mut(id) {
                lease.expiry_ms = Some(now_ms + REVOKE_RETRY_MS);
                lease.expired = true;
            }
        }
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// The leases whose remaining time should be noted now, and that time in whole seconds, never less than it is.
    pub(crate) fn checkpoints_due(&self, now_ms: u64, term: u64) -> Vec<(LeaseId, i64)> {
        let mut lessor = self.0.lock();
        lessor.lead(term);
        let due: Vec<(u64, LeaseId)> =
            lessor.checkpoints.iter().take_while(|(at, _)| *at <= now_ms).take(CHECKPOINTS_MAX).copied().collect();
        let mut noted = Vec::with_capacity(due.len());
        for (_, id) in due {
            let expiry_ms = lessor.leases.get(&id).and_then(|lease| lease.expiry_ms);
            lessor.schedule_checkpoint(id, now_ms);
            if let Some(left_ms) = expiry_ms.and_then(|expiry| expiry.checked_sub(now_ms)).filter(|left| *left > 0) {
                if let Some(lease) = lessor.leases.get_mut(&id) {
                    lease.is_noted = true;
                }
                noted.push((id, i64::try_from(left_ms.div_ceil(1_000)).unwrap_or(i64::MAX)));
            }
        }
        noted
    }

    /// Renews a lease. What was noted of its remaining time must be taken back first: the next leader would start the lease
    /// with that.
    pub(crate) fn keep_alive(&self, id: LeaseId, now_ms: u64, term: u64) -> Renewal {
        let mut lessor = self.0.lock();
        lessor.lead(term);
        let Some(lease) = lessor.leases.get_mut(&id) else { return Renewal::Gone };
        // A lease that ran out stays dead even if its revocation is still on the way: its holder must not go on.
        if lease.expired || lease.expiry_ms.is_some_and(|expiry| expiry <= now_ms) {
            return Renewal::Gone;
        }
        // Also what is on its way into the log only, and would be applied after the renewal.
        if std::mem::take(&mut lease.is_noted) || lease.remaining_ttl_seconds != 0 {
            lessor.schedule_checkpoint(id, now_ms);
            return Renewal::TakeBackFirst;
        }
        let ttl = lease.ttl_seconds;
        lessor.start(id, now_ms);
        Renewal::Renewed(ttl)
    }

    pub(crate) fn time_to_live(&self, id: LeaseId, now_ms: u64, term: u64) -> Option<LeaseInfo> {
        let mut lessor = self.0.lock();
        lessor.lead(term);
        let lease = lessor.leases.get(&id)?;
        Some(LeaseInfo {
            granted_ttl_seconds: lease.ttl_seconds,
            remaining_ttl_seconds: lease.remaining_seconds(now_ms),
            keys: lease.keys.iter().cloned().collect(),
        })
    }

    /// Every lease, the one that runs out first first.
    pub(crate) fn list(&self) -> Vec<LeaseId> {
        let lessor = self.0.lock();
        let mut leases: Vec<(u64, LeaseId)> =
            lessor.leases.iter().map(|(id, lease)| (lease.expiry_ms.unwrap_or(u64::MAX), *id)).collect();
        leases.sort_unstable();
        leases.into_iter().map(|(_, id)| id).collect()
    }
}

impl Lessor {
    fn new(ttl_seconds_min: i64, checkpoint_interval_ms: Option<u64>) -> Lessor {
        Lessor {
            ttl_seconds_min,
            leases: HashMap::new(),
            schedule: BTreeSet::new(),
            checkpoint_interval_ms,
            checkpoints: BTreeSet::new(),
            unstarted: Vec::new(),
            term: 0,
        }
    }

    fn insert(&mut self, id: LeaseId, ttl_seconds: i64, remaining_ttl_seconds: i64) {
        let keys = BTreeSet::new();
        let lease = Lease {
            ttl_seconds,
            remaining_ttl_seconds,
            keys,
            expiry_ms: None,
            checkpoint_ms: None,
            is_noted: false,
            expired: false,
        };
        self.leases.insert(id, lease);
        self.unstarted.push(id);
    }

    /// Forgets what was reckoned in another term.
    fn lead(&mut self, term: u64) {
        if self.term == term {
            return;
        }
        self.term = term;
        self.schedule.clear();
        self.checkpoints.clear();
        for lease in self.leases.values_mut() {
            (lease.expiry_ms, lease.checkpoint_ms, lease.expired) = (None, None, false);
            // What an earlier leader gave out is in the log by now, or will never be.
            lease.is_noted = false;
        }
        self.unstarted = self.leases.keys().copied().collect();
    }

    /// (Re)starts the lease's time from now.
    fn start(&mut self, id: LeaseId, now_ms: u64) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        if let Some(expiry_ms) = lease.expiry_ms {
            self.schedule.remove(&(expiry_ms, id));
        }
        let seconds = if lease.remaining_ttl_seconds > 0 { lease.remaining_ttl_seconds } else { lease.ttl_seconds };
        let second_ms = if is_on(Sabotage::EarlyLeaseExpiry) { 500 } else { 1_000 };
        let expiry_ms = now_ms.saturating_add(u64::try_from(seconds).unwrap_or(0).saturating_mul(second_ms));
        lease.expiry_ms = Some(expiry_ms);
        self.schedule.insert((expiry_ms, id));
        self.schedule_checkpoint(id, now_ms);
    }

    /// Notes when the lease's remaining time is to be noted next: not at all if it runs out before.
    fn schedule_checkpoint(&mut self, id: LeaseId, now_ms: u64) {
        let Some(interval_ms) = self.checkpoint_interval_ms else { return };
        let Some(lease) = self.leases.get_mut(&id) else { return };
        if let Some(earlier_ms) = lease.checkpoint_ms.take() {
            self.checkpoints.remove(&(earlier_ms, id));
        }
        let at_ms = now_ms.saturating_add(interval_ms);
        if lease.expiry_ms.is_some_and(|expiry_ms| expiry_ms > at_ms) {
            lease.checkpoint_ms = Some(at_ms);
            self.checkpoints.insert((at_ms, id));
        }
    }
}

impl Lease {
    fn remaining_seconds(&self, now_ms: u64) -> i64 {
        if self.expired {
            return 0;
        }
        match self.expiry_ms {
            None => self.ttl_seconds,
            Some(expiry_ms) => i64::try_from(expiry_ms.saturating_sub(now_ms) / 1_000).unwrap_or(i64::MAX),
        }
    }
}

fn row(id: LeaseId, value: Option<(i64, i64)>) -> LeaseRow {
    let name = [ROW_PREFIX, &id.0.to_be_bytes()].concat();
    LeaseRow { name, value: value.map(|(ttl, remaining)| [ttl.to_be_bytes(), remaining.to_be_bytes()].concat()) }
}

/// The least TTL a lease may have: one and a half election timeouts, rounded up to seconds (etcd: minTTL).
pub(crate) fn ttl_seconds_min(election_ticks: u64, tick_ms: u64) -> i64 {
    let ms = (3 * election_ticks).div_ceil(2) * tick_ms;
    i64::try_from(ms.div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId(10);

    fn granted(ttl_seconds: i64) -> Leases {
        let leases = Leases::new(2);
        leases.grant(A, ttl_seconds).unwrap();
        leases
    }

    #[test]
    fn a_lease_runs_from_the_first_look_at_the_clock() {
        let leases = granted(5);
        assert_eq!(leases.expire(100_000, 1), []);
        assert_eq!(leases.expire(104_999, 1), []);
        assert_eq!(leases.expire(105_000, 1), [A]);
    }

    #[test]
    fn a_lost_revocation_is_asked_for_again() {
        let leases = granted(5);
        leases.expire(0, 1);
        assert_eq!(leases.expire(5_000, 1), [A]);
        assert_eq!(leases.expire(5_100, 1), []);
        assert_eq!(leases.expire(5_000 + REVOKE_RETRY_MS, 1), [A]);
    }

    #[test]
    fn a_lease_that_ran_out_is_not_renewed() {
        let leases = granted(5);
        leases.expire(0, 1);
        assert_eq!(leases.keep_alive(A, 4_000, 1), Renewal::Renewed(5));
        assert_eq!(leases.expire(8_999, 1), []);
        assert_eq!(leases.keep_alive(A, 9_000, 1), Renewal::Gone);
        assert_eq!(leases.expire(9_000, 1), [A]);
        assert_eq!(leases.keep_alive(A, 9_001, 1), Renewal::Gone);
        assert_eq!(leases.time_to_live(A, 9_001, 1).unwrap().remaining_ttl_seconds, 0);
    }

    #[test]
    fn what_is_left_of_a_long_lease_is_noted_and_never_less_than_is_left() {
        let leases = Leases::with_checkpoints(2, 10_000);
        leases.grant(A, 25).unwrap();
        leases.grant(LeaseId(11), 10).unwrap();
        assert_eq!(leases.checkpoints_due(0, 1), []);
        leases.expire(0, 1);
        assert_eq!(leases.checkpoints_due(9_999, 1), []);
        assert_eq!(leases.checkpoints_due(10_400, 1), [(A, 15)], "the other runs out before");
        leases.checkpoint(A, 15);
        assert_eq!(leases.checkpoints_due(20_000, 1), []);
        assert_eq!(leases.checkpoints_due(20_400, 1), [(A, 5)]);
        leases.checkpoint(A, 5);
        assert_eq!(leases.checkpoints_due(24_000, 1), []);
        // The next leader starts it with what was left.
        leases.expire(100_000, 2);
        assert_eq!(leases.expire(104_999, 2), []);
        assert_eq!(leases.expire(105_000, 2), [LeaseId(11), A][1..]);
    }

    #[test]
    fn a_renewed_lease_has_its_checkpoint_put_off() {
        let leases = Leases::with_checkpoints(2, 10_000);
        leases.grant(A, 25).unwrap();
        leases.expire(0, 1);
        assert_eq!(leases.keep_alive(A, 9_000, 1), Renewal::Renewed(25));
        assert_eq!(leases.checkpoints_due(18_999, 1), []);
        assert_eq!(leases.checkpoints_due(19_000, 1), [(A, 15)]);
        // On its way, it would be applied after the renewal; so it is taken back behind it, and none is given out meanwhile.
        assert_eq!(leases.keep_alive(A, 19_100, 1), Renewal::TakeBackFirst);
        leases.checkpoint(A, 15);
        assert_eq!(leases.checkpoints_due(29_099, 1), []);
        leases.checkpoint(A, 0);
        assert_eq!(leases.keep_alive(A, 19_200, 1), Renewal::Renewed(25));
        leases.revoke(A).unwrap();
        assert_eq!(leases.checkpoints_due(50_000, 1), []);
        // Without the interval nothing is ever noted.
        let leases = granted(1_000_000);
        leases.expire(0, 1);
        assert_eq!(leases.checkpoints_due(900_000_000, 1), []);
    }

    #[test]
    fn a_later_term_starts_every_lease_anew() {
        let leases = granted(5);
        leases.expire(0, 1);
        assert_eq!(leases.expire(5_000, 1), [A]);
        // Another member led meanwhile and renewed it.
        assert_eq!(leases.expire(60_000, 3), []);
        assert_eq!(leases.time_to_live(A, 60_000, 3).unwrap().remaining_ttl_seconds, 5);
        assert_eq!(leases.expire(65_000, 3), [A]);
        assert_eq!(leases.keep_alive(A, 65_000, 3), Renewal::Gone);
        assert_eq!(leases.keep_alive(A, 65_000, 4), Renewal::Renewed(5));
    }

    #[test]
    fn a_key_follows_its_newest_lease_and_dies_with_it_alone() {
        let leases = granted(5);
        leases.grant(LeaseId(11), 5).unwrap();
        for key in ["b", "a"] {
            leases.reattach(&key.into(), 0, 10);
        }
        leases.reattach(&"b".into(), 10, 11);
        assert_eq!(leases.revoke(A).unwrap().0, ["a"]);
        assert_eq!(leases.revoke(LeaseId(11)).unwrap().0, ["b"]);
        assert_eq!(leases.revoke(A), Err(Refusal::LeaseNotFound));
    }

    #[test]
    fn rows_bring_leases_back_with_what_was_left_of_them() {
        let leases = granted(1);
        let row = leases.checkpoint(A, 30).unwrap();
        let again = Leases::new(2);
        assert!(again.recover_row(&row.name, row.value.as_deref().unwrap()));
        assert!(!again.recover_row(b"members", b"[]"));
        again.expire(0, 1);
        assert_eq!(again.time_to_live(A, 0, 1).unwrap().remaining_ttl_seconds, 30);
        assert_eq!(again.time_to_live(A, 0, 1).unwrap().granted_ttl_seconds, 2);
    }

    #[test]
    fn the_least_ttl_is_etcds() {
        assert_eq!(ttl_seconds_min(10, 100), 2);
    }
}
