//! The raft thread and the log thread: they carry out what the driver asks for, in the order that safety needs.
//!
//! One round: take everything that arrived, let the driver look at it, write to the log, hand on what is committed,
//! post the answers. Entries that arrive while a write is under way form the next round, so batches grow with load. A
//! single entry on an idle log is written by the raft thread itself: the hop to the log thread would cost more than it
//! saves (DESIGN 3: p50 0.14 ms against 0.23 ms at one client). Anything larger goes to the log thread, and ticks and
//! reads never wait for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use raft::eraftpb::{Message, MessageType};

use crate::admission::space::Room;
use crate::apply;
use crate::catch_up;
use crate::cluster::{Facts, MemberId};
use crate::command::TXN_STACK_BYTES;
use crate::consensus::answers::{Delivery, Waiter};
use crate::consensus::driver::Driver;
use crate::consensus::effects::{Append, Committed, Effects, Forward, Release};
use crate::consensus::event::Event;
use crate::consensus::handle::Shared;
use crate::consensus::inbox::Inbox;
use crate::consensus::proposals::{Declined, Verdict};
use crate::consensus::wire;
use crate::log::{HardState, Log, SnapshotMark};
use crate::metrics;
use crate::transport::{Kind, Peers, Stream};

/// Appends that may wait for the log thread. Each holds a round of events, so a few suffice to keep the disk busy.
const APPENDS_MAX: usize = 16;
/// Entries in one append up to which the raft thread writes it itself.
const INLINE_ENTRIES_MAX: usize = 1;
/// How long the log thread waits before it tries a write again that found the disk full.
const DISK_FULL_RETRY: Duration = Duration::from_millis(200);
/// A heartbeat not answered for so long is taken for lost.
const HEARTBEAT_LOST_AFTER: Duration = Duration::from_secs(3);
/// Ticks made up for at once after the thread was held up; more would only start needless elections.
const CATCH_UP_TICKS_MAX: u32 = 3;

/// Everything the raft thread works with.
pub(crate) struct Parts {
    pub(crate) driver: Driver,
    pub(crate) inbox: Arc<Inbox<Event>>,
    pub(crate) log: Log,
    pub(crate) apply: apply::thread::Queue,
    pub(crate) delivery: Delivery,
    pub(crate) shared: Arc<Shared>,
    pub(crate) facts: Arc<Facts>,
    pub(crate) peers: Peers,
    pub(crate) snapshots: catch_up::Sender,
    pub(crate) tick: Duration,
    /// Told while a log write waits for room on the disk.
    pub(crate) room: Room,
    /// Told when the store should be made durable so that the log can be released: index and term.
    pub(crate) durability: Sender<()>,
}

/// The two running threads.
pub(crate) struct Running {
    inbox: Arc<Inbox<Event>>,
    stopping: Arc<AtomicBool>,
    raft: JoinHandle<()>,
}

impl Running {
    /// Refuses what still waits, writes what is left to write, and ends both threads.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        self.inbox.push(Event::Stop);
        self.inbox.close_to_peers();
        self.raft.join().expect("the raft thread ends the process rather than panic");
    }
}

/// Starts the raft thread and the log thread.
pub(crate) fn start(parts: Parts) -> std::io::Result<Running> {
    let log = Arc::new(Mutex::new(parts.log));
    let (jobs, for_log) = crossbeam_channel::bounded(APPENDS_MAX);
    let inbox = Arc::clone(&parts.inbox);
    let stopping = Arc::new(AtomicBool::new(false));
    let writer = LogWriter { log: Arc::clone(&log), room: parts.room.clone(), stopping: Arc::clone(&stopping) };
    let wal = std::thread::Builder::new().name("wal".into()).spawn({
        let inbox = Arc::clone(&inbox);
        move || run_log(&writer, &for_log, &inbox)
    })?;
    let raft_thread = RaftThread {
        driver: parts.driver,
        inbox: Arc::clone(&inbox),
        writer: LogWriter { log, room: parts.room, stopping: Arc::clone(&stopping) },
        jobs,
        given: 0,
        reported: 0,
        apply: parts.apply,
        delivery: parts.delivery,
        shared: parts.shared,
        facts: parts.facts,
        peers: parts.peers,
        snapshots: parts.snapshots,
        durability: parts.durability,
        stopping: Arc::clone(&stopping),
        heartbeats: BTreeMap::new(),
    };
    let builder = std::thread::Builder::new().name("raft".into()).stack_size(TXN_STACK_BYTES);
    let raft = builder.spawn(move || raft_thread.run(parts.tick, wal))?;
    Ok(Running { inbox, stopping, raft })
}

/// A write to the log that must succeed or end the process.
// The log sits behind a lock because the raft thread writes single entries itself while the log thread is idle; the
// numbers of the appends given and reported keep the two from ever wanting it at once.
struct LogWriter {
    log: Arc<Mutex<Log>>,
    room: Room,
    stopping: Arc<AtomicBool>,
}

/// What the log thread is given.
enum Job {
    Append(Append),
    Release(Release),
}

impl LogWriter {
    /// Writes when there is room, however long that takes. Gives up only when the node stops: what is not written then
    /// was acknowledged to nobody.
    fn write(&self, append: &Append) {
        while !self.write_once(append) && !self.stopping.load(Ordering::Acquire) {
            std::thread::sleep(DISK_FULL_RETRY);
        }
    }

    /// Writes, or finds that there is no room and returns false.
    #[expect(clippy::cast_precision_loss, reason = "a write is far smaller than 2^53 bytes")]
    fn write_once(&self, append: &Append) -> bool {
        if let Some(mark) = &append.mark
            && !self.restart_at(mark, append.hard_state.as_ref())
        {
            return false;
        }
        let result = self.log.lock().append(&append.entries, append.hard_state.as_ref(), append.sync);
        match result {
            Ok(appended) => {
                self.room.set_log_waits(false);
                let metrics = metrics::get();
                metrics.disk.wal_fsync_seconds.record(appended.sync_seconds);
                metrics.recent.fsyncs.record(Duration::from_secs_f64(appended.sync_seconds));
                metrics.disk.wal_written_bytes.increment(appended.bytes as f64);
                true
            }
            Err(error) if error.is_no_space() => {
                if !self.room.set_log_waits(true) {
                    crate::error!("the disk is full: writes wait until there is room", error = error.to_string());
                }
                false
            }
            Err(error) => fatal("the log can't be written; the member stops so that nothing is lost", &error),
        }
    }

    fn restart_at(&self, mark: &SnapshotMark, hard_state: Option<&HardState>) -> bool {
        let restarted = self.log.lock().restart_at(mark, hard_state);
        match restarted {
            Ok(()) => true,
            Err(error) if error.is_no_space() => {
                self.room.set_log_waits(true);
                false
            }
            Err(error) => fatal("the log can't be begun anew; the member stops so that nothing is lost", &error),
        }
    }

    fn release(&self, release: &Release) {
        let mut log = self.log.lock();
        let released = log.mark_snapshot(&release.mark).and_then(|()| log.release_to(release.through).map(|_| ()));
        if let Err(error) = released {
            if error.is_no_space() {
                // Nothing is lost: the head stays until the next release.
                crate::warn!("no room to note that the log's head is no longer needed", error = error.to_string());
                return;
            }
            fatal("the log's head can't be released", &error);
        }
    }
}

/// Ends the process: what the disk holds is not what the member believes, and only a restart finds out the truth.
fn fatal(what: &str, error: &dyn std::error::Error) -> ! {
    crate::fatal!(what, error = error.to_string())
}

/// Carries out jobs in their order. Appends that arrived while one was written are written as one, with one sync.
fn run_log(writer: &LogWriter, jobs: &Receiver<Job>, inbox: &Inbox<Event>) {
    let mut next = None;
    while let Some(job) = next.take().or_else(|| jobs.recv().ok()) {
        match job {
            Job::Append(mut append) => {
                next = loop {
                    match jobs.try_recv() {
                        Ok(Job::Append(later)) if append.can_join(&later) => append.join(later),
                        Ok(job) => break Some(job),
                        Err(_) => break None,
                    }
                };
                writer.write(&append);
                inbox.push(Event::Persisted { number: append.number });
            }
            Job::Release(release) => writer.release(&release),
        }
    }
}

struct RaftThread {
    driver: Driver,
    inbox: Arc<Inbox<Event>>,
    writer: LogWriter,
    jobs: Sender<Job>,
    /// The numbers of the last append given to the log thread, and of the last that it reported back.
    given: u64,
    reported: u64,
    apply: apply::thread::Queue,
    delivery: Delivery,
    shared: Arc<Shared>,
    facts: Arc<Facts>,
    peers: Peers,
    snapshots: catch_up::Sender,
    durability: Sender<()>,
    stopping: Arc<AtomicBool>,
    /// When the first heartbeat left that each member has not answered yet.
    heartbeats: BTreeMap<u64, Instant>,
}

impl RaftThread {
    #[expect(clippy::disallowed_methods, reason = "the clock seam of consensus: ticks are made here")]
    fn run(mut self, tick: Duration, wal: JoinHandle<()>) {
        let mut events = Vec::new();
        let mut next_tick = Instant::now() + tick;
        // The campaign of a lone member produced effects before any event.
        self.carry_out();
        while !self.stopping.load(Ordering::Acquire) {
            // With appends waiting the log thread wakes us; a full queue there must not be added to.
            self.inbox.take(&mut events, next_tick.saturating_duration_since(Instant::now()));
            let now = Instant::now();
            for event in &events {
                match event {
                    Event::Persisted { number } => self.reported = *number,
                    Event::Message(message) if message.get_msg_type() == MessageType::MsgHeartbeatResponse => {
                        self.heard(message.from, now);
                    }
                    _ => {}
                }
            }
            let mut made_up = 0;
            while next_tick <= now && made_up < CATCH_UP_TICKS_MAX {
                self.driver.tick();
                next_tick += tick;
                made_up += 1;
            }
            next_tick = next_tick.max(now);
            self.driver.handle(&mut events, self.shared.applied());
            self.carry_out();
        }
        self.finish(wal);
    }

    /// Carries out the driver's effects until it has none; an append written on the spot may commit more.
    fn carry_out(&mut self) {
        loop {
            let effects = self.driver.effects();
            let wrote = self.carry_out_once(effects);
            if !wrote {
                break;
            }
        }
        self.shared.set_pending(self.driver.pending());
        if self.shared.publish(self.driver.standing()) {
            self.announce();
        }
        if self.driver.wants_durable_store(self.shared.applied()) {
            // Full: one request to make the store durable is waiting already, and serves for both.
            self.durability.try_send(()).ok();
        }
        self.delivery.send();
    }

    fn carry_out_once(&mut self, effects: Effects) -> bool {
        let metrics = &metrics::get().server;
        metrics.slow_read_indexes.increment(effects.reads_slow);
        metrics.read_indexes_failed.increment(effects.reads_failed);
        metrics.proposals_failed.increment(effects.proposals_failed);
        if let Some(why) = effects.dead {
            crate::fatal!("this member must not go on", reason = why);
        }
        if effects.disk_stands_still {
            crate::warn!("the disk of the leader stands still; another member is asked to lead");
        }
        for (waiter, answer) in effects.answers {
            self.delivery.add(waiter, answer);
        }
        self.send(&effects.messages, effects.forwards, effects.verdicts);
        let mut wrote = false;
        for append in effects.appends {
            // Only alone: a leader must be heard by others however long its disk takes.
            let idle = self.given == self.reported && append.entries.len() <= INLINE_ENTRIES_MAX;
            if idle && self.driver.is_alone() && self.writer.write_once(&append) {
                let persisted = Event::Persisted { number: append.number };
                self.driver.handle(&mut vec![persisted], self.shared.applied());
                wrote = true;
            } else {
                self.given = append.number;
                self.give(Job::Append(append));
            }
        }
        self.hand_on(effects.committed, effects.reads);
        if effects.snapshot_wanted {
            self.snapshots.prepare();
        }
        if let Some(snapshot) = effects.snapshot {
            self.snapshots.send(snapshot);
        }
        if let Some(index) = effects.install {
            self.apply.push(apply::Task::Install(index));
        }
        if let Some(release) = effects.release {
            self.give(Job::Release(release));
        }
        wrote
    }

    /// Takes the time from a heartbeat to its answer.
    fn heard(&mut self, from: u64, now: Instant) {
        if let Some(sent) = self.heartbeats.remove(&from) {
            let local = self.facts.member_id.to_string();
            let counts = metrics::get().peer(&local, &MemberId(from).to_string());
            counts.round_trip_seconds.record((now - sent).as_secs_f64());
        }
    }

    /// To other members. What can't be sent is told to the driver, as if it came back.
    #[expect(clippy::disallowed_methods, reason = "the clock seam of consensus: when a heartbeat left")]
    fn send(&mut self, messages: &[Message], forwards: Vec<Forward>, verdicts: Vec<(u64, Verdict)>) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgHeartbeat {
                let now = Instant::now();
                let sent = self.heartbeats.entry(message.to).or_insert(now);
                // One that is lost must not make a later answer seem slow.
                if now - *sent > HEARTBEAT_LOST_AFTER {
                    *sent = now;
                }
            }
            let urgent = wire::is_urgent(message.get_msg_type());
            let to = MemberId(message.to);
            let sent = self.peers.send(to, Stream::Messages, urgent, Kind::Message, |out| wire::encode(message, out));
            if !sent && !urgent {
                self.inbox.push(Event::Lost { member: message.to });
            }
        }
        for Forward { to, entries } in forwards {
            let write = |out: &mut Vec<u8>| wire::encode_forward(&entries, out);
            if !self.peers.send(MemberId(to), Stream::Requests, false, Kind::Forward, write) {
                let numbers = entries.iter().map(|payload| payload.number).collect();
                self.inbox.push(Event::Judged(Verdict { numbers, outcome: Err(Declined::NotLeader) }));
            }
        }
        for (to, verdict) in verdicts {
            let write = |out: &mut Vec<u8>| wire::encode_verdict(&verdict, out);
            // Lost: whoever waits finds the entry by its number, or runs out of time.
            self.peers.send(MemberId(to), Stream::Requests, true, Kind::Placed, write);
        }
    }

    /// To the apply thread, but for what need not wait for it: a single entry on an idle lone member, which has no peer
    /// that it must keep hearing, and reads of what is applied already.
    fn hand_on(&mut self, committed: Vec<Committed>, mut reads: Vec<(u64, Waiter)>) {
        let here = committed.len() == 1 && self.driver.is_alone();
        let committed = if here { self.apply.try_apply(committed).err().unwrap_or_default() } else { committed };
        if !committed.is_empty() {
            self.apply.push(apply::Task::Apply(committed));
        }
        let applied = self.shared.applied();
        for (_, waiter) in reads.extract_if(.., |(index, _)| *index <= applied) {
            self.delivery.add(waiter, Ok(apply::Reply::Empty));
        }
        if !reads.is_empty() {
            self.apply.push(apply::Task::Read(reads));
        }
    }

    fn give(&self, job: Job) {
        // Not `expect`: a job holds entries, and they need not be shown.
        assert!(self.jobs.send(job).is_ok(), "the log thread lives until this sender is dropped");
    }

    fn announce(&self) {
        let standing = self.driver.standing();
        self.facts.set_raft_term(standing.term);
        crate::info!(
            "raft leader changed",
            leader = format!("{:x}", standing.leader),
            term = standing.term,
            "local-member-is-leader" = standing.is_leader
        );
    }

    /// A clean stop: everything given to the log is on disk, and so is the newest commit index.
    fn finish(mut self, wal: JoinHandle<()>) {
        self.carry_out();
        drop(self.jobs);
        wal.join().expect("the log thread ends the process rather than panic");
        if let Some(hard_state) = self.driver.unsaved_commit() {
            let number = 0;
            let (mark, entries, hard_state) = (None, Vec::new(), Some(hard_state));
            self.writer.write(&Append { number, mark, entries, hard_state, sync: true });
        }
    }
}
