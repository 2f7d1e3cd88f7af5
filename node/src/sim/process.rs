//! The process of a member: the node's own parts without their threads.
//!
//! What a thread of the node does between two waits is one call here: a round of the raft thread, a write of the log
//! thread, a turn of the apply and of the watch thread, a look of the clock and of the disk thread. The world decides in
//! which order the calls come. [`Process::raft_round`] carries out the driver's effects in the order of
//! `consensus::runner`.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::admission::{Admitted, Gate, Limits, space};
use crate::alarm::Alarms;
use crate::apply::{self, Applier, Reply, Task};
use crate::catch_up;
use crate::cluster::{self, Facts, Identity, MemberId, Members};
use crate::consensus::Handle;
use crate::consensus::answers::{Answer, Delivery, PostOffice, Waiter};
use crate::consensus::driver::{Driver, Standing};
use crate::consensus::effects::{Append, Committed, Effects, Release, SendSnapshot};
use crate::consensus::event::Event;
use crate::consensus::handle::Shared;
use crate::consensus::inbox::Inbox;
use crate::consensus::inlet::{Inlet, Questions};
use crate::consensus::promise::Promise;
use crate::consensus::proposals::{Payload, Proposal};
use crate::consensus::wire;
use crate::lease::Leases;
use crate::log::{Log, LogEntry, MemDisk};
use crate::maintenance::{COMPACTIONS_MAX, clock};
use crate::mvcc::revision::Revision;
use crate::mvcc::{AppliedMark, CurrentStore, Store, Writer};
use crate::policy::plugins::Registry;
use crate::policy::timeline::Marker;
use crate::sim::member::{CLUSTER, identity};
use crate::sim::plan::{Plan, TICK_MS};
use crate::sim::random::Random;
use crate::sim::rows::{self, Arrivals, Directory, Shipment};
use crate::transport::{Inlet as _, Kind};
use crate::watch::{self, Hub, Turns};

/// As in the runner: entries that a lone idle member's raft thread writes itself.
const INLINE_ENTRIES_MAX: usize = 1;
/// As in the runner: ticks made up for after the process stood still.
const CATCH_UP_TICKS_MAX: u64 = 3;
/// Requests are small here; what matters is that the bounds are the node's own.
const REQUEST_BYTES_MAX: usize = 1 << 20;
const TXN_OPERATIONS_MAX: usize = 128;
const FEED_BYTES_MAX: usize = 2_000;
const PROGRESS_INTERVAL_MS: u64 = 1_500;
/// As in `catch_up`: how long rows are held ready for raft to ask for them.
const READY_PATIENCE_MS: u64 = 10_000;
/// As in the inlet: how often a member is told that it was removed before it believes that.
const REMOVALS_TOLD_MAX: u64 = 40;

/// What a start recovered.
pub(super) struct Core {
    pub(super) id: u64,
    pub(super) log: Log,
    pub(super) store: Store,
    pub(super) directory: Directory,
    pub(super) leases: Leases,
    pub(super) alarms: Alarms,
    pub(super) registry: Registry,
    pub(super) members: Members,
    pub(super) applied: AppliedMark,
}

/// A frame on its way out.
pub(super) struct Outgoing {
    pub(super) to: u64,
    pub(super) kind: Kind,
    pub(super) payload: Vec<u8>,
    pub(super) urgent: bool,
}

/// What a round did that others see.
#[derive(Default)]
pub(super) struct Done {
    pub(super) frames: Vec<Outgoing>,
    pub(super) committed: Vec<LogEntry>,
    pub(super) promises: Vec<Promise>,
    /// Rows on their way to a member.
    pub(super) rows: Option<(SendSnapshot, Shipment)>,
    pub(super) dead: Option<String>,
}

enum Job {
    Append(Append),
    Release(Release),
}

pub(super) struct Process {
    id: u64,
    driver: Driver,
    inbox: Arc<Inbox<Event>>,
    inlet: Inlet,
    handle: Handle,
    shared: Arc<Shared>,
    log: Log,
    jobs: VecDeque<Job>,
    /// What the log thread is writing.
    writing: Option<Append>,
    given: u64,
    reported: u64,
    queue: apply::thread::Queue,
    delivery: Delivery,
    store: CurrentStore,
    /// Rows for another member, until they are there or nobody wants them.
    outgoing: Option<Outward>,
    arrivals: Arrivals,
    pub(super) leases: Leases,
    pub(super) gate: Gate,
    pub(super) registry: Registry,
    pub(super) hub: Hub,
    watch: Turns,
    members: Members,
    /// Told when this member has applied its own removal.
    departed: Arc<AtomicBool>,
    /// Who called without being known as a member.
    guests: BTreeSet<u64>,
    /// How often others have refused this member as removed.
    removals_told: AtomicU64,
    marker: Marker,
    durability: (Sender<()>, Receiver<()>),
    compactions: Receiver<Revision>,
    /// When this process was started, in the world's time.
    started_ms: u64,
    next_tick_ms: u64,
    next_persist_ms: u64,
}

/// Rows for another member.
enum Outward {
    /// Until raft asks for them, or this time has come.
    Ready(Shipment, u64),
    OnTheirWay,
}

/// Nobody asks the leader anything over this network: the clients of the simulation go to it themselves.
struct NoQuestions;

impl Questions for NoQuestions {
    fn take(&self, from: MemberId, kind: Kind, _: &[u8]) -> Result<(), String> {
        Err(format!("a {kind:?} of member {from}, where nobody asks"))
    }

    fn lost(&self, _: MemberId) {}
}

/// What follows from a change of the members, as in `server`.
fn members_changed(id: u64, members: Members, departed: Arc<AtomicBool>) -> Box<dyn Fn() + Send> {
    Box::new(move || {
        if members.was_removed(MemberId(id)) {
            departed.store(true, Ordering::Release);
        }
    })
}

impl Process {
    pub(super) fn new(core: Core, writer: Writer, driver: Driver, plan: &Plan, now_ms: u64) -> Process {
        let Core { id, log, store, directory, leases, alarms, registry, members, applied } = core;
        let current = CurrentStore::new(store.clone());
        let arrivals = Arrivals::default();
        let shared = Arc::new(Shared::new(applied.index, 0));
        let inbox = Arc::new(Inbox::new());
        let limits =
            Limits { request_bytes_max: REQUEST_BYTES_MAX, txn_operations_max: TXN_OPERATIONS_MAX, quota_bytes: None };
        let sizes = space::Sizes::default();
        let facts = Arc::new(Facts::new(CLUSTER, MemberId(id)));
        let options = watch::Options {
            fragment_bytes: REQUEST_BYTES_MAX,
            progress_interval_ms: PROGRESS_INTERVAL_MS,
            feed_bytes_max: FEED_BYTES_MAX,
            recent_bytes_max: plan.recent_bytes,
            stream_bytes_max: plan.stream_bytes,
        };
        let (hub, feed, watch) = watch::in_turns(store.clone(), facts, options);
        let (due, compactions) = bounded(COMPACTIONS_MAX);
        due.send(store.compacted()).expect("a new queue has room, and its receiver is here");
        let departed = Arc::new(AtomicBool::new(false));
        let queue = apply::thread::Queue::new(apply::thread::Parts {
            applier: Applier::new(writer, leases.clone(), alarms, members.clone(), registry.clone()),
            delivery: Delivery::new(PostOffice::new(0)),
            shared: Arc::clone(&shared),
            feed,
            compactions: due,
            applied,
            raft: Arc::clone(&inbox),
            members_changed: members_changed(id, members.clone(), Arc::clone(&departed)),
            // Nobody prepares plugins here by himself; the operator says so for all.
            plugins_changed: Box::new(|| ()),
            install: rows::install(directory, current.clone(), Arc::clone(&arrivals)),
            sizes: sizes.clone(),
            slow: Duration::MAX,
        });
        // Rows come another way here.
        let identity = Identity { cluster_id: CLUSTER, member_id: MemberId(id) };
        let receiver = catch_up::Receiver::new(PathBuf::new(), identity, 0, Arc::clone(&shared), Arc::clone(&inbox));
        Process {
            id,
            driver,
            inlet: Inlet::new(Arc::clone(&inbox), Arc::new(NoQuestions), receiver),
            handle: Handle::new(Arc::clone(&inbox), Arc::clone(&shared)),
            inbox,
            shared,
            log,
            jobs: VecDeque::new(),
            writing: None,
            given: 0,
            reported: 0,
            queue,
            delivery: Delivery::new(PostOffice::new(0)),
            store: current,
            outgoing: None,
            arrivals,
            leases,
            gate: Gate::new(limits, sizes, space::Room::default(), registry.epoch()),
            registry,
            hub,
            watch,
            members,
            departed,
            guests: BTreeSet::new(),
            removals_told: AtomicU64::new(0),
            marker: Marker::default(),
            durability: bounded(1),
            compactions,
            started_ms: now_ms,
            next_tick_ms: now_ms + TICK_MS,
            next_persist_ms: now_ms + plan.persist_ms,
        }
    }

    // ---- what clients and other members ask

    pub(super) fn propose(&self, command: Admitted, number: u64) -> Receiver<Answer> {
        let (sender, answer) = bounded(1);
        let (kind, data) = command.into_entry(number);
        let payload = Payload { number, kind, data };
        self.offer(Event::Propose(Proposal { payload, waiter: Waiter::Thread(sender) }));
        answer
    }

    /// Whether a learner may become a voter.
    pub(super) fn ask_caught_up(&self, learner: u64) -> Receiver<Answer> {
        let (sender, answer) = bounded(1);
        self.offer(Event::CaughtUp { learner, waiter: Waiter::Thread(sender) });
        answer
    }

    pub(super) fn read(&self) -> Receiver<Answer> {
        let (sender, answer) = bounded(1);
        self.offer(Event::Read { waiter: Waiter::Thread(sender) });
        answer
    }

    pub(super) fn hand_over(&self) {
        self.offer(Event::Transfer { to: None, waiter: Waiter::None });
    }

    fn offer(&self, event: Event) {
        assert!(self.inbox.offer(event).is_ok(), "a few clients fill no inbox");
    }

    /// Whether this member keeps a connection to the other: one that it knows, or that has called.
    pub(super) fn reaches(&self, to: u64) -> bool {
        let known = self.members.get(MemberId(to)).is_some() || self.guests.contains(&to);
        known && !self.members.was_removed(MemberId(to))
    }

    /// Whether this member takes frames of the other, as `transport` decides.
    pub(super) fn admits(&mut self, from: u64) -> bool {
        let removed = self.members.was_removed(MemberId(from));
        if !removed && self.members.get(MemberId(from)).is_none() {
            self.guests.insert(from);
        }
        !removed
    }

    /// Another member refuses this one as removed. Returns whether it is to believe that, as `consensus::inlet` decides.
    pub(super) fn is_told_of_removal(&self) -> bool {
        self.removals_told.fetch_add(1, Ordering::Relaxed) >= REMOVALS_TOLD_MAX
    }

    pub(super) fn has_departed(&self) -> bool {
        self.departed.load(Ordering::Acquire)
    }

    pub(super) fn members(&self) -> &Members {
        &self.members
    }

    /// Whether raft and the store agree on who votes.
    ///
    /// # Errors
    /// What they differ in.
    pub(super) fn check_in_force(&self) -> Result<(), String> {
        let Some(mut in_force) = self.driver.in_force() else { return Ok(()) };
        // A leader that was removed leads on as if it learned, to itself alone.
        in_force.1.retain(|id| !self.members.was_removed(MemberId(*id)));
        let (learners, voters): (Vec<_>, Vec<_>) =
            self.members.list().into_iter().partition(|member| member.is_learner);
        let ids = |members: Vec<cluster::Member>| members.into_iter().map(|member| member.id.0).collect::<Vec<_>>();
        let stored = (ids(voters), ids(learners));
        if in_force == stored {
            return Ok(());
        }
        Err(format!("raft counts voters and learners {in_force:?}, the store says {stored:?}"))
    }

    /// A frame of another member.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn frame(&self, from: u64, kind: Kind, payload: &[u8]) -> Result<(), String> {
        self.inlet.frame(MemberId(from), kind, payload)
    }

    /// A frame never left.
    pub(super) fn unsent(&self, to: u64, kind: Kind, payload: &[u8]) {
        self.inlet.unsent(MemberId(to), kind, payload);
    }

    /// There is no connection to this member.
    pub(super) fn lost(&self, member: u64) {
        self.inlet.lost(MemberId(member));
    }

    // ---- rows between members

    /// Rows of another member are here whole. Returns whether this one has a use for them.
    pub(super) fn rows_arrived(&self, from: u64, term: u64, rows: Shipment) -> bool {
        if rows.mark.index <= self.applied() {
            return false;
        }
        let mark = rows.mark.clone();
        let arrival = rows.unpack(identity(self.id)).expect("a member's rows make a store");
        rows::keep(&self.arrivals, arrival);
        self.inbox.push(Event::SnapshotArrived { from, term, mark });
        true
    }

    /// What became of rows sent to a member.
    pub(super) fn rows_sent(&mut self, to: u64, arrived: bool) {
        self.outgoing = None;
        self.inbox.push(Event::SnapshotSent { to, arrived });
    }

    /// Rows are made ready, unless a transfer is under way.
    fn prepare_rows(&mut self, now_ms: u64) {
        if self.outgoing.is_none() {
            let rows = Shipment::of(&self.store()).expect("a store in memory can be read");
            self.inbox.push(Event::SnapshotReady(rows.mark.clone()));
            self.outgoing = Some(Outward::Ready(rows, now_ms + READY_PATIENCE_MS));
        }
    }

    fn send_rows(&mut self, order: SendSnapshot, done: &mut Done) {
        match self.outgoing.take() {
            Some(Outward::Ready(rows, _)) if rows.mark == order.mark => {
                self.outgoing = Some(Outward::OnTheirWay);
                done.rows = Some((order, rows));
            }
            Some(Outward::OnTheirWay) => {
                self.outgoing = Some(Outward::OnTheirWay);
                self.inbox.push(Event::SnapshotSent { to: order.to, arrived: false });
            }
            Some(Outward::Ready(..)) | None => self.rows_sent(order.to, false),
        }
    }

    // ---- how it stands

    pub(super) fn store(&self) -> Store {
        self.store.get()
    }

    pub(super) fn applied(&self) -> u64 {
        self.shared.applied()
    }

    pub(super) fn standing(&self) -> Standing {
        self.driver.standing()
    }

    /// The term in which this member believes to lead.
    pub(super) fn leads_in(&self) -> Option<u64> {
        let status = self.handle.status();
        status.is_leader.then_some(status.term)
    }

    /// Monotonic time of this process.
    pub(super) fn clock_ms(&self, now_ms: u64) -> u64 {
        now_ms - self.started_ms
    }

    pub(super) fn raft_is_due(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(super) fn apply_is_due(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn watch_is_due(&self) -> bool {
        self.watch.is_due()
    }

    /// Bytes that the log thread has to write next, if it does not write already.
    pub(super) fn write_is_due(&self) -> bool {
        self.writing.is_none() && !self.jobs.is_empty()
    }

    // ---- the raft thread

    /// One round: what has arrived, the ticks that are due, and what comes of them.
    pub(super) fn raft_round(&mut self, now_ms: u64) -> Done {
        let mut events = Vec::new();
        self.inbox.take(&mut events, Duration::ZERO);
        for event in &events {
            if let Event::Persisted { number } = event {
                self.reported = *number;
            }
        }
        if matches!(&self.outgoing, Some(Outward::Ready(_, until_ms)) if *until_ms <= now_ms) {
            self.rows_sent(0, false);
        }
        let mut made_up = 0;
        while self.next_tick_ms <= now_ms && made_up < CATCH_UP_TICKS_MAX {
            self.driver.tick();
            self.next_tick_ms += TICK_MS;
            made_up += 1;
        }
        self.next_tick_ms = self.next_tick_ms.max(now_ms);
        self.driver.handle(&mut events, self.shared.applied());
        let mut done = Done::default();
        self.carry_out(now_ms, &mut done);
        done
    }

    fn carry_out(&mut self, now_ms: u64, done: &mut Done) {
        loop {
            let effects = self.driver.effects();
            if !self.carry_out_once(effects, now_ms, done) {
                break;
            }
        }
        self.shared.set_pending(self.driver.pending());
        self.shared.publish(self.driver.standing());
        if self.driver.wants_durable_store(self.shared.applied()) {
            // Full: one request waits already and serves for both.
            self.durability.0.try_send(()).ok();
        }
        self.delivery.send();
    }

    fn carry_out_once(&mut self, effects: Effects, now_ms: u64, done: &mut Done) -> bool {
        done.dead = effects.dead.or(done.dead.take());
        for (waiter, answer) in effects.answers {
            self.delivery.add(waiter, answer);
        }
        for message in &effects.messages {
            let mut payload = Vec::new();
            wire::encode(message, &mut payload);
            let urgent = wire::is_urgent(message.get_msg_type());
            done.frames.push(Outgoing { to: message.to, kind: Kind::Message, payload, urgent });
            done.promises.extend(Promise::of(message));
        }
        for forward in effects.forwards {
            let mut payload = Vec::new();
            wire::encode_forward(&forward.entries, &mut payload);
            done.frames.push(Outgoing { to: forward.to, kind: Kind::Forward, payload, urgent: false });
        }
        for (to, verdict) in effects.verdicts {
            let mut payload = Vec::new();
            wire::encode_verdict(&verdict, &mut payload);
            done.frames.push(Outgoing { to, kind: Kind::Placed, payload, urgent: true });
        }
        let mut wrote = false;
        for append in effects.appends {
            let idle = self.given == self.reported && append.entries.len() <= INLINE_ENTRIES_MAX;
            if idle && self.driver.is_alone() {
                self.write(&append);
                let persisted = Event::Persisted { number: append.number };
                self.driver.handle(&mut vec![persisted], self.shared.applied());
                wrote = true;
            } else {
                self.given = append.number;
                self.jobs.push_back(Job::Append(append));
            }
        }
        done.committed.extend(effects.committed.iter().map(|committed| committed.entry.clone()));
        self.hand_on(effects.committed, effects.reads);
        if effects.snapshot_wanted {
            self.prepare_rows(now_ms);
        }
        if let Some(order) = effects.snapshot {
            self.send_rows(order, done);
        }
        if let Some(index) = effects.install {
            self.queue.push(Task::Install(index));
        }
        if let Some(release) = effects.release {
            self.jobs.push_back(Job::Release(release));
        }
        wrote
    }

    fn hand_on(&mut self, committed: Vec<Committed>, mut reads: Vec<(u64, Waiter)>) {
        let here = committed.len() == 1 && self.driver.is_alone();
        let committed = if here { self.queue.try_apply(committed).err().unwrap_or_default() } else { committed };
        if !committed.is_empty() {
            self.queue.push(Task::Apply(committed));
        }
        let applied = self.shared.applied();
        for (_, waiter) in reads.extract_if(.., |(index, _)| *index <= applied) {
            self.delivery.add(waiter, Ok(Reply::Empty));
        }
        if !reads.is_empty() {
            self.queue.push(Task::Read(reads));
        }
    }

    // ---- the log thread

    /// Takes up the next job. What waits behind an append is written with it. Returns the bytes to write; none for a
    /// release, which is carried out at once.
    pub(super) fn begin_write(&mut self) -> Option<usize> {
        match self.jobs.pop_front()? {
            Job::Append(mut append) => {
                while let Some(Job::Append(later)) =
                    self.jobs.pop_front_if(|job| matches!(job, Job::Append(later) if append.can_join(later)))
                {
                    append.join(later);
                }
                let bytes = append.entries.iter().map(|entry| entry.data.len()).sum();
                self.writing = Some(append);
                Some(bytes)
            }
            Job::Release(release) => {
                self.log.mark_snapshot(&release.mark).expect("the disk takes a mark");
                self.log.release_to(release.through).expect("the disk gives up segments");
                None
            }
        }
    }

    /// The write under way is done and synced.
    pub(super) fn end_write(&mut self) {
        let Some(append) = self.writing.take() else { return };
        self.write(&append);
        self.inbox.push(Event::Persisted { number: append.number });
    }

    fn write(&mut self, append: &Append) {
        if let Some(mark) = &append.mark {
            self.log.restart_at(mark, append.hard_state.as_ref()).expect("the disk takes a new beginning");
        }
        self.log.append(&append.entries, append.hard_state.as_ref(), append.sync).expect("the disk takes a write");
    }

    /// The process ends in the middle of a write: its bytes are given to the disk, and not synced.
    pub(super) fn break_off_write(&mut self, disk: &MemDisk, random: &mut Random) {
        let Some(append) = self.writing.take() else { return };
        let begins_anew = append.mark.as_ref().filter(|_| random.permille(500));
        if let Some(mark) = begins_anew {
            self.log.restart_at(mark, append.hard_state.as_ref()).expect("the disk takes a new beginning");
        }
        disk.fail_syncs(1);
        // Fails at the sync, as meant.
        if let Some(mark) = append.mark.as_ref().filter(|_| begins_anew.is_none()) {
            self.log.restart_at(mark, append.hard_state.as_ref()).err();
        }
        self.log.append(&append.entries, append.hard_state.as_ref(), append.sync).err();
        disk.fail_syncs(0);
    }

    // ---- the other threads

    pub(super) fn apply_turn(&mut self) {
        let stop = self.queue.take_turn(&mut Vec::new());
        assert!(!stop, "nobody stops the queue of a simulated member");
    }

    pub(super) fn watch_turn(&mut self, now_ms: u64) {
        let clock_ms = self.clock_ms(now_ms);
        self.watch.take(Duration::ZERO, || clock_ms);
    }

    pub(super) fn clock_look(&mut self, now_ms: u64) {
        clock::expire_leases(&self.handle, &self.leases, &self.gate, self.clock_ms(now_ms));
        clock::checkpoint_leases(&self.handle, &self.leases, self.clock_ms(now_ms));
        let (current, times) = (self.store().revision(), (self.clock_ms(now_ms), || now_ms));
        clock::mark_time(&self.handle, self.registry.timeline(), &mut self.marker, current, times);
    }

    /// The disk thread: compactions, and the store made durable.
    pub(super) fn disk_look(&mut self, now_ms: u64, plan: &Plan) {
        if let Ok(to) = self.compactions.try_recv() {
            self.store().compact_physically(to, &mut || {}).expect("a store in memory takes everything");
        }
        if self.durability.1.try_recv().is_ok() {
            let applied = self.shared.applied();
            self.store().persist().expect("a store in memory is always synced");
            self.handle.store_is_durable(applied);
        } else if self.next_persist_ms <= now_ms {
            self.next_persist_ms = now_ms + plan.persist_ms;
            self.store().persist().expect("a store in memory is always synced");
        }
    }

    /// Rewrites the store, as a defragmentation does.
    pub(super) fn defragment(&self) {
        self.store().defragment().expect("a store in memory takes everything");
    }

    /// A stop in order: everything given to the log is written, with the newest commit index, and the store is durable.
    pub(super) fn stop(&mut self) {
        self.end_write();
        while self.begin_write().is_some() || !self.jobs.is_empty() {
            self.end_write();
        }
        if let Some(hard_state) = self.driver.unsaved_commit() {
            let (mark, entries, hard_state) = (None, Vec::new(), Some(hard_state));
            self.write(&Append { number: 0, mark, entries, hard_state, sync: true });
        }
        self.store().persist().expect("a store in memory is always synced");
    }
}
