//! The clock thread: what has to happen because time has passed.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use kuorum_proto::etcdserverpb::{CompactionRequest, LeaseRevokeRequest};

use crate::admission::Gate;
use crate::admission::space::{Room, Sizes};
use crate::consensus::Handle;
use crate::lease::Leases;
use crate::metrics;
use crate::mvcc::CurrentStore;
use crate::mvcc::revision::Revision;
use crate::policy::compaction::Schedule;
use crate::policy::plan::{Pace, StandIn};
use crate::policy::plugins::Registry;
use crate::policy::timeline::{Marker, Timeline};
use crate::roster::Roster;

/// How often the thread looks. A lease of the least TTL, two seconds, is late by a twentieth of it at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Room on the disk below which writes are refused, so that what is admitted already can still be written: the next log
/// segment, which is allocated ahead, and the store's rows in memory that are still to be flushed.
const DISK_RESERVE_BYTES: u64 = 192 << 20;
/// On a disk so small that the reserve would be most of it, this part of it.
const DISK_RESERVE_DIVISOR: u64 = 3;
/// A commit of the store that takes longer is named in the log (fjall#257 once hung for good).
const STUCK_COMMIT_MS: u64 = 10_000;
/// A commit that takes longer ends the process: a failed worker of the engine leaves writers waiting for ever, and only a
/// restart helps. Twice what a flush may take before it counts as hanging.
const STUCK_COMMIT_STOP_MS: u64 = 120_000;

/// How often the writes are counted that policies are told of.
const PACE_LOOK_MS: u64 = 1_000;
#[expect(clippy::cast_possible_truncation, reason = "ten seconds")]
const SLICE_MS: u64 = metrics::SLICE.as_millis() as u64;

/// Everything the clock thread works with.
pub(crate) struct Parts {
    pub(crate) store: CurrentStore,
    pub(crate) consensus: Handle,
    pub(crate) gate: Gate,
    pub(crate) leases: Leases,
    pub(crate) sizes: Sizes,
    pub(crate) schedule: Schedule,
    /// While a plugin of compaction is enforced, the schedule applies only where it stands in for it.
    pub(crate) roster: Roster,
    pub(crate) stand_in: StandIn,
    pub(crate) registry: Registry,
    /// The directories of the store and of the log, which may lie on different disks.
    pub(crate) dirs: [PathBuf; 2],
    /// Told when the disk is nearly full.
    pub(crate) room: Room,
    /// Where monotonic time starts for this process.
    pub(crate) started: Instant,
    /// Closed when the node stops.
    pub(crate) stop: Receiver<()>,
}

/// Starts the thread. It ends when the stop channel closes.
pub(crate) fn start(parts: Parts) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("clock".into()).spawn(move || {
        let (commit, marker, notes) = (Commit::default(), Marker::default(), Notes::default());
        ClockThread { parts, commit, marker, notes }.run();
    })
}

struct ClockThread {
    parts: Parts,
    commit: Commit,
    marker: Marker,
    notes: Notes,
}

/// What policies are told of the last minute, and when to look again.
#[derive(Default)]
struct Notes {
    pace: Pace,
    pace_due_ms: u64,
    slice_due_ms: u64,
}

/// The store's commit under way, as last seen.
#[derive(Default)]
struct Commit {
    sequence: u64,
    since_ms: u64,
    reported: bool,
}

/// How a commit comes along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Good,
    /// It takes long; said once.
    Stuck,
    /// It will not end.
    Hopeless,
}

impl ClockThread {
    fn run(mut self) {
        while self.parts.stop.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let now_ms = now_ms(self.parts.started);
            expire_leases(&self.parts.consensus, &self.parts.leases, &self.parts.gate, now_ms);
            checkpoint_leases(&self.parts.consensus, &self.parts.leases, now_ms);
            self.compact(now_ms);
            let current = self.parts.store.get().revision();
            mark_time(
                &self.parts.consensus,
                self.parts.registry.timeline(),
                &mut self.marker,
                current,
                (now_ms, unix_ms),
            );
            self.notes.take(now_ms, current);
            self.watch_disk();
            self.watch_commit(now_ms);
            self.parts.store.get().free_memtables();
        }
    }

    fn compact(&mut self, now_ms: u64) {
        let Some(revision) = self.parts.schedule.due(now_ms, self.parts.store.get().revision()) else { return };
        let status = self.parts.consensus.status();
        if !status.is_leader || revision <= self.parts.store.get().compacted() {
            return;
        }
        if self.parts.roster.table().decides_compaction() && !self.parts.stand_in.stands_in(status.term) {
            self.parts.schedule.put_off();
            return;
        }
        crate::info!("starting auto compaction", revision = revision.0);
        let compact = self.parts.gate.compact(CompactionRequest { revision: revision.0, physical: false });
        if let Err(refusal) = compact.and_then(|command| self.parts.consensus.propose_in_term(command, status.term)) {
            crate::warn!("auto compaction is put off", revision = revision.0, error = refusal.to_string());
        }
    }

    fn watch_disk(&self) {
        self.parts.sizes.set_allocated_bytes(self.parts.store.get().sizes().allocated_bytes);
        let looks = self.parts.dirs.iter().enumerate().filter_map(|(place, dir)| {
            let disk = rustix::fs::statvfs(dir).ok()?;
            let (free, whole) = (disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
            // The store's comes first.
            if place == 0 {
                self.parts.sizes.set_disk_free_bytes(free);
            }
            Some((free, DISK_RESERVE_BYTES.min(whole / DISK_RESERVE_DIVISOR)))
        });
        // The fuller disk decides.
        if let Some((free, reserve)) = looks.min_by_key(|(free, reserve)| free.saturating_sub(*reserve)) {
            self.parts.room.look(free, reserve);
        }
    }

    fn watch_commit(&mut self, now_ms: u64) {
        let progress = self.commit.look(self.parts.store.get().commit_under_way(), now_ms);
        let (sequence, waited_ms) = (self.commit.sequence, now_ms - self.commit.since_ms);
        match progress {
            Progress::Good => {}
            Progress::Stuck => {
                crate::error!("a commit of the store is stuck", sequence = sequence, "waited-ms" = waited_ms);
            }
            Progress::Hopeless => crate::fatal!(
                "a commit of the store hangs and the member stops: look for errors of the disk, then start it again; \
                 what was acknowledged is in the log",
                sequence = sequence,
                "waited-ms" = waited_ms
            ),
        }
    }
}

impl Notes {
    fn take(&mut self, now_ms: u64, current: Revision) {
        let recent = &metrics::get().recent;
        if now_ms >= self.pace_due_ms {
            self.pace_due_ms = now_ms + PACE_LOOK_MS;
            recent.set_writes_per_s(self.pace.look(now_ms, current));
        }
        if now_ms >= self.slice_due_ms {
            self.slice_due_ms = now_ms + SLICE_MS;
            recent.turn();
        }
    }
}

impl Commit {
    /// Takes in which commit is under way now, if one is.
    fn look(&mut self, under_way: Option<u64>, now_ms: u64) -> Progress {
        if under_way != Some(self.sequence) {
            *self = Commit { sequence: under_way.unwrap_or(0), since_ms: now_ms, reported: false };
            return Progress::Good;
        }
        let waited_ms = now_ms - self.since_ms;
        if waited_ms > STUCK_COMMIT_STOP_MS {
            return Progress::Hopeless;
        }
        if waited_ms > STUCK_COMMIT_MS && !self.reported {
            self.reported = true;
            return Progress::Stuck;
        }
        Progress::Good
    }
}

/// Has the leader propose the revocation of leases that have run out. It starts them once it has applied all that leaders
/// before it committed: one of them may have taken back what was noted of a lease.
pub(crate) fn expire_leases(consensus: &Handle, leases: &Leases, gate: &Gate, now_ms: u64) {
    let status = consensus.status();
    if !status.is_settled {
        return;
    }
    for id in leases.expire(now_ms, status.term) {
        metrics::get().lease.expired.increment(1);
        let revoke = gate.lease_revoke(LeaseRevokeRequest { id: id.0 });
        // Refused under overload: the lease is given out again for revocation.
        if let Err(refusal) = revoke.and_then(|command| consensus.propose_in_term(command, status.term)) {
            crate::warn!("an expired lease is not revoked yet", id = id.0, error = refusal.to_string());
        }
    }
}

/// Notes what is left of long leases, for the next leader.
pub(crate) fn checkpoint_leases(consensus: &Handle, leases: &Leases, now_ms: u64) {
    let status = consensus.status();
    if !status.is_settled {
        return;
    }
    let due = leases.checkpoints_due(now_ms, status.term);
    // Refused under overload or lost: the next one notes it.
    if !due.is_empty() {
        consensus.propose_in_term(Gate::lease_checkpoints(due), status.term).ok();
    }
}

/// Has the leader note revision and time, when that is due. The times are those of the process and of the machine.
pub(crate) fn mark_time(
    consensus: &Handle,
    timeline: &Timeline,
    marker: &mut Marker,
    current: Revision,
    (now_ms, unix_ms): (u64, impl FnOnce() -> u64),
) {
    let status = consensus.status();
    if !status.is_settled {
        return;
    }
    // Refused under overload or lost: the next one says as much.
    if let Some(mark) = marker.due(timeline, current, now_ms, unix_ms) {
        consensus.propose_in_term(Gate::mark(mark), status.term).ok();
    }
}

/// Milliseconds of monotonic time since the process started: the `now` that the core is handed.
#[expect(clippy::disallowed_methods, reason = "the clock seam of leases and upkeep")]
pub(crate) fn now_ms(started: Instant) -> u64 {
    u64::try_from(Instant::now().duration_since(started).as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 by the machine's clock, for plugins, and for the timeline that they are shown.
#[expect(clippy::disallowed_methods, reason = "the clock seam of plugins")]
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::Limits;
    use crate::consensus::driver::Standing;
    use crate::consensus::handle::Shared;
    use crate::consensus::inbox::Inbox;
    use crate::lease::LeaseId;
    use crate::policy::epoch::Epoch;

    #[test]
    fn a_new_leader_starts_no_lease_before_it_has_applied_what_others_committed() {
        let shared = Arc::new(Shared::new(0, 0));
        let consensus = Handle::new(Arc::new(Inbox::new()), Arc::clone(&shared));
        let limits = Limits { request_bytes_max: 1, txn_operations_max: 1, quota_bytes: None };
        let gate = Gate::new(limits, Sizes::default(), Room::default(), Epoch::default());
        let leads = |is_settled| Standing { leader: 1, term: 2, committed: 9, is_leader: true, is_settled };
        let (id, leases) = (LeaseId(7), Leases::with_checkpoints(2, 60_000));
        leases.grant(id, 25).unwrap();
        leases.checkpoint(id, 3);

        shared.publish(leads(false));
        expire_leases(&consensus, &leases, &gate, 0);
        checkpoint_leases(&consensus, &leases, 0);
        // The end of the log: a renewal took back what was noted.
        leases.checkpoint(id, 0);
        shared.publish(leads(true));
        expire_leases(&consensus, &leases, &gate, 100);
        expire_leases(&consensus, &leases, &gate, 3_100);
        assert_eq!(leases.time_to_live(id, 3_100, 2).unwrap().remaining_ttl_seconds, 22);
    }

    #[test]
    fn a_commit_that_hangs_is_named_once_and_ends_the_process_later() {
        let mut commit = Commit::default();
        let mut look = |under_way, now_ms| commit.look(under_way, now_ms);
        assert_eq!(look(Some(1), 0), Progress::Good);
        assert_eq!(look(Some(2), 60_000), Progress::Good, "another one");
        assert_eq!(look(None, 65_000), Progress::Good);
        assert_eq!(look(Some(3), 70_000), Progress::Good);
        assert_eq!(look(Some(3), 70_000 + STUCK_COMMIT_MS), Progress::Good);
        assert_eq!(look(Some(3), 70_001 + STUCK_COMMIT_MS), Progress::Stuck);
        assert_eq!(look(Some(3), 70_000 + STUCK_COMMIT_STOP_MS), Progress::Good);
        assert_eq!(look(Some(3), 70_001 + STUCK_COMMIT_STOP_MS), Progress::Hopeless);
    }
}
