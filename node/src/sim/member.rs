//! One simulated member: a disk and a store that outlive its processes, and the process that runs, if one does.
//!
//! A start goes the way of `server` and `server/data_dir`: the log is opened and recovers itself, the store is opened,
//! leases and alarms are read back, and the driver begins over the tail. A crash keeps what was synced and some of what
//! was not.

use std::sync::Arc;

use crate::alarm::Alarms;
use crate::apply;
use crate::cluster::{self, ClusterId, FOUNDING_TERM, Identity, Member as Listed, MemberId, Members, founding_entries};
use crate::consensus::driver::{Driver, Options};
use crate::consensus::promise::Promise;
use crate::consensus::tail::Tail;
use crate::lease::{self, Leases};
use crate::log::{HardState, Log, LogError, LogOptions, MemDisk, Metadata, Recovered};
use crate::mvcc::{AppliedMark, Store};
use crate::policy::plugins::Registry;
use crate::sim::plan::{ELECTION_TICKS, Plan, TICK_MS};
use crate::sim::process::{Core, Process};
use crate::sim::random::Random;
use crate::sim::rows::{self, Directory};
use crate::storage::StorageError;

pub(super) const CLUSTER: ClusterId = ClusterId(0x5151);

pub(super) struct Member {
    pub(super) id: u64,
    disk: MemDisk,
    directory: Directory,
    /// Processes so far.
    pub(super) boots: u64,
    pub(super) process: Option<Process>,
    /// The furthest that this member has applied in any process.
    pub(super) applied: u64,
    promised: Promised,
    /// Removed from the cluster, and gone for good.
    pub(super) is_gone: bool,
}

/// What this member's disk was vouched for.
#[derive(Default)]
struct Promised {
    /// Term and candidate of the last vote.
    vote: Option<(u64, u64)>,
    /// Term and index of the last acknowledged append.
    holds: Option<(u64, u64)>,
}

/// How a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// Killed: what it wrote stays.
    Killed,
    /// The power failed: only what was synced is sure to stay.
    PowerLost,
    /// Stopped in order.
    Stopped,
}

impl Member {
    /// A member of a new cluster of these, or, without them, one that joins: its log begins with the founding entries, and
    /// its store says whose it is.
    pub(super) fn new(id: u64, founders: &[u64], plan: &Plan) -> Member {
        let (disk, directory) = (MemDisk::new(), Directory::default());
        let metadata = Metadata { node_id: id, cluster_id: CLUSTER.0, data_dir: id };
        let log = Log::create(Arc::new(disk.clone()), metadata, log_options(plan));
        let mut log = log.expect("a new disk takes a log");
        let listed: Vec<Listed> = founders.iter().map(|id| listed(*id)).collect();
        let entries = founding_entries(&listed);
        let applied = AppliedMark { index: entries.len() as u64, term: u64::from(!entries.is_empty()) };
        if !entries.is_empty() {
            let hard_state = HardState { term: FOUNDING_TERM, vote: 0, commit: applied.index };
            log.append(&entries, Some(&hard_state), true).expect("a new disk takes a write");
        }
        let (store, mut writer, _) = rows::open(&directory).expect("a new store is whole");
        for (name, row) in Members::new(listed).to_rows() {
            writer.sys_put(name, row);
        }
        writer.sys_put(cluster::IDENTITY_ROW, identity(id));
        writer.commit(applied).expect("a store in memory takes everything");
        store.persist().expect("a store in memory is always synced");
        let (applied, promised) = (applied.index, Promised::default());
        Member { id, disk, directory, boots: 0, process: None, applied, promised, is_gone: false }
    }

    /// Starts a process over what the disk holds.
    ///
    /// # Errors
    /// What is wrong with what was recovered.
    pub(super) fn start(&mut self, plan: &Plan, now_ms: u64, random: &mut Random) -> Result<(), String> {
        self.boots += 1;
        let unopened = |error: LogError| format!("m{}: the log does not open: {error}", self.id);
        let open = || Log::open(Arc::new(self.disk.clone()), log_options(plan)).map_err(unopened);
        let (mut log, mut recovered) = open()?;
        if let Some(mark) = self.directory.mark().filter(|mark| mark.index > recovered.snapshot.index) {
            // The store was put in its place, and the log did not hear of it any more.
            log.restart_at(&mark, None).map_err(unopened)?;
            drop(log);
            (log, recovered) = open()?;
        }
        self.check_promises(&recovered)?;
        let damaged = |error: StorageError| format!("m{}: the store does not open: {error}", self.id);
        let (store, writer, applied) = rows::open(&self.directory).map_err(damaged)?;
        let (members, leases, alarms, registry) = read_back(&store, plan)?;
        if members.was_removed(MemberId(self.id)) {
            self.is_gone = true;
            return Ok(());
        }
        let tail = Tail::recovered(recovered, &members, applied.index);
        let driver = Driver::new(tail, driver_options(self.id, plan, applied.index, random))?;
        let directory = self.directory.clone();
        let core = Core { id: self.id, log, store, directory, leases, alarms, registry, members, applied };
        self.process = Some(Process::new(core, writer, driver, plan, now_ms));
        Ok(())
    }

    /// Ends the process.
    pub(super) fn end(&mut self, how: End, random: &mut Random) {
        let Some(mut process) = self.process.take() else { return };
        self.applied = self.applied.max(process.applied());
        if how == End::Stopped {
            process.stop();
        } else {
            process.break_off_write(&self.disk, random);
        }
        drop(process);
        let (bytes, batches) = (self.disk.unsynced_bytes(), self.directory.rows().unsynced_batches());
        let (bytes_kept, batches_kept) = match how {
            End::Killed | End::Stopped => (bytes, batches),
            End::PowerLost => (some(random, bytes), some(random, batches)),
        };
        self.disk.crash(bytes_kept);
        self.directory.rows().crash(batches_kept);
    }

    /// Notes what messages of this member vouch for.
    pub(super) fn promise(&mut self, promise: Promise) {
        match promise {
            Promise::Vote { term, to } => self.promised.vote = Some((term, to)),
            Promise::Holds { term, index } => {
                let before = self.promised.holds.filter(|(before, _)| *before == term).map_or(0, |(_, index)| index);
                self.promised.holds = Some((term, before.max(index)));
            }
        }
    }

    fn check_promises(&self, recovered: &Recovered) -> Result<(), String> {
        let HardState { term, vote, .. } = recovered.hard_state;
        let id = self.id;
        if let Some((promised, to)) = self.promised.vote
            && (term < promised || (term == promised && vote != to))
        {
            return Err(format!(
                "m{id} voted for m{to} in term {promised}, and after a crash its log says term {term}, vote {vote}"
            ));
        }
        let last = recovered.entries.last().map_or(recovered.snapshot.index, |entry| entry.index);
        match self.promised.holds {
            Some((promised, index)) if term < promised || last < index => Err(format!(
                "m{id} acknowledged entry {index} in term {promised}, and after a crash its log ends at {last} in term {term}"
            )),
            _ => Ok(()),
        }
    }
}

/// A member as the others know it at the founding.
pub(super) fn listed(id: u64) -> Listed {
    Listed::unstarted(MemberId(id), peer_urls(id), false)
}

pub(super) fn peer_urls(id: u64) -> Vec<String> {
    vec![format!("http://m{id}:2380")]
}

/// None of it, all of it, or a part.
fn some(random: &mut Random, count: usize) -> usize {
    match random.below(3) {
        0 => 0,
        1 => count,
        _ => random.place(count + 1),
    }
}

fn log_options(plan: &Plan) -> LogOptions {
    LogOptions { segment_bytes: plan.segment_bytes, unsafe_no_fsync: false }
}

/// The row that says whose store it is.
pub(super) fn identity(id: u64) -> Vec<u8> {
    let identity = Identity { cluster_id: CLUSTER, member_id: MemberId(id) };
    serde_json::to_vec(&identity).expect("ids are always JSON")
}

/// Members, leases, alarms and plugins as the store keeps them.
fn read_back(store: &Store, plan: &Plan) -> Result<(Members, Leases, Alarms, Registry), String> {
    let row = |name: &[u8]| store.sys_get(name).map_err(|error| error.to_string());
    let members = row(cluster::MEMBERS_ROW)?.ok_or("the store names no members")?;
    let removed = row(cluster::REMOVED_ROW)?;
    let members = Members::from_rows(&members, removed.as_deref()).map_err(|error| error.to_string())?;
    let ttl_seconds_min = lease::ttl_seconds_min(ELECTION_TICKS, TICK_MS);
    let leases = match plan.checkpoint_ms {
        0 => Leases::new(ttl_seconds_min),
        interval_ms => Leases::with_checkpoints(ttl_seconds_min, interval_ms),
    };
    let (alarms, registry) = (Alarms::default(), Registry::default());
    apply::recover(store, &leases, &alarms, &registry).map_err(|error| error.to_string())?;
    Ok((members, leases, alarms, registry))
}

fn driver_options(member_id: u64, plan: &Plan, applied: u64, random: &mut Random) -> Options {
    Options {
        member_id,
        tick_ms: TICK_MS,
        election_ticks: ELECTION_TICKS,
        pre_vote: plan.pre_vote,
        early_first_election: true,
        snapshot_entries: plan.snapshot_entries,
        catch_up_entries: plan.catch_up_entries,
        applied,
        boot_nonce: random.next(),
        seed: random.next(),
    }
}
