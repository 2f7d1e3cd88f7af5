//! The world: members, network, clients and faults on one line of time.
//!
//! What happens is a queue of [`Happening`]s, each at a microsecond; the order is the seed's. After each one whoever has
//! work now gets a turn a moment later, and the checker looks at what has changed. Nothing waits, nothing runs beside
//! it.

use std::collections::BTreeMap;
use std::fmt;

use crate::cluster::{self, Change, founding_entries};
use crate::command::Command;
use crate::consensus::effects::SendSnapshot;
use crate::log::{EntryKind, LogEntry};
use crate::sim::checker::{Applied, Checker, Violation};
use crate::sim::client::{self, Client, Peer};
use crate::sim::faults::Fault;
use crate::sim::member::{End, Member, listed};
use crate::sim::network::Network;
use crate::sim::operator::Operator;
use crate::sim::plan::{CALM_MIN_MS, CALM_MS, ELECTION_TICKS, Plan, TICK_MS};
use crate::sim::process::{Done, Outgoing, Process};
use crate::sim::random::Random;
use crate::sim::rows::Shipment;
use crate::sim::watching::Watcher;
use crate::transport::Kind;

/// How soon a thread that has work is awake, in microseconds.
const WAKE_US: (u64, u64) = (10, 400);
/// A thread that gets no core for a while.
const LATE_US: (u64, u64) = (1_000, 300_000);
const LATE_PERMILLE: u64 = 10;
/// How long a write takes on a good day, and on a bad one.
const WRITE_US: (u64, u64) = (100, 4_000);
const SLOW_WRITE_US: (u64, u64) = (20_000, 400_000);
const SLOW_WRITE_PERMILLE: u64 = 15;
/// How often the clock thread and the disk thread look.
const LOOK_US: u64 = 100_000;
/// A member joins, and a removed one leaves, so long after that was decided.
const JOIN_US: (u64, u64) = (10_000, 1_500_000);
const DEPART_US: u64 = 2 * ELECTION_TICKS * TICK_MS * 1_000;
/// How often a removed member looks whether another leads.
pub(super) const DEPART_POLL_US: u64 = 10_000;
const WATCHER_LOOK_US: (u64, u64) = (5_000, 200_000);
/// How long rows take to another member, and how many transfers of a thousand break off.
const ROWS_US: (u64, u64) = (5_000, 1_200_000);
const ROWS_LOST_PERMILLE: u64 = 100;
/// Every so many entries the stores of all members are compared.
const HASH_ENTRIES: u64 = 8;

pub(super) enum Happening {
    /// A process's thread does what is due. With the number of the process, as all below.
    Turn(Thread, u64, u64),
    /// The disk has written what the log thread gave it.
    Written(u64, u64),
    /// A frame arrives at a process.
    Frame {
        from: u64,
        to: u64,
        boot: u64,
        kind: Kind,
        payload: Vec<u8>,
    },
    /// A member's rows are at another, each with its process.
    Rows {
        from: (u64, u64),
        to: (u64, u64),
        term: u64,
        rows: Shipment,
    },
    /// Their sender hears what became of them.
    RowsSent {
        from: u64,
        boot: u64,
        to: u64,
        arrived: bool,
    },
    Client(usize),
    Watcher(usize),
    Operator,
    Fault(Fault),
    NextFault,
}

/// The threads that wake when there is work, and those that look at the time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Thread {
    Tick,
    Raft,
    Log,
    Apply,
    Watch,
    Clock,
    Disk,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) now_us: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    happenings: u64,
    pub(super) members: BTreeMap<u64, Member>,
    /// Turns that are in the queue, so that each is there once.
    due: BTreeMap<(u64, Thread), ()>,
    /// Members that stand still until then, and disks.
    pub(super) paused_until_us: BTreeMap<u64, u64>,
    pub(super) disk_stalled_until_us: BTreeMap<u64, u64>,
    pub(super) network: Network,
    clients: Vec<Client>,
    watchers: Vec<Watcher>,
    operator: Operator,
    pub(super) checker: Checker,
    /// Faults are over, and clients too.
    is_calm: bool,
    /// What happened, if anyone wants to read it.
    trace: Option<String>,
}

impl World {
    /// Before it runs: see [`Plan::turn_to_policies`].
    #[cfg(test)]
    pub(super) fn turn_to_policies(&mut self) {
        self.plan.turn_to_policies();
    }

    /// The policy epoch that all that was agreed on has led to.
    #[cfg(test)]
    pub(super) fn policy_epoch(&self) -> u64 {
        self.checker.history.policy_epoch()
    }

    pub(super) fn new(seed: u64, traces: bool) -> World {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        let ids: Vec<u64> = (1..=plan.members).collect();
        World {
            members: ids.iter().map(|id| (*id, Member::new(*id, &ids, &plan))).collect(),
            operator: Operator::new(plan.members),
            clients: (1..=plan.clients as u64).map(Client::new).collect(),
            watchers: (0..plan.watchers).map(|_| Watcher::new(&plan, &mut random)).collect(),
            plan,
            random,
            now_us: 0,
            queue: BTreeMap::new(),
            happenings: 0,
            due: BTreeMap::new(),
            paused_until_us: BTreeMap::new(),
            disk_stalled_until_us: BTreeMap::new(),
            network: Network::default(),
            checker: Checker::new(),
            is_calm: false,
            trace: traces.then(String::new),
        }
    }

    /// Lives through the storm and the calm after it.
    ///
    /// # Errors
    /// The first rule that was broken.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        let plan = self.plan.clone();
        self.note(format_args!("{plan:?}"));
        let founders: Vec<_> = self.ids().into_iter().map(listed).collect();
        for entry in founding_entries(&founders) {
            self.checker.committed(0, &entry, 0)?;
        }
        for id in self.ids() {
            self.start(id)?;
        }
        for client in 0..self.clients.len() {
            self.later(1_000_000, Happening::Client(client));
        }
        for watcher in 0..self.watchers.len() {
            self.later(1_000_000, Happening::Watcher(watcher));
        }
        self.later(2_000_000, Happening::NextFault);
        self.later(3_000_000, Happening::Operator);
        self.run_until(self.plan.storm_ms)?;
        self.calm()?;
        // Until all is as it should be, and a while at least.
        let end_ms = self.plan.storm_ms + CALM_MS;
        let mut until_ms = self.plan.storm_ms + CALM_MIN_MS;
        loop {
            self.run_until(until_ms)?;
            match self.check_calm() {
                Err(_) if until_ms < end_ms => until_ms += CALM_MIN_MS,
                checked => return checked,
            }
        }
    }

    fn run_until(&mut self, end_ms: u64) -> Result<(), Violation> {
        while let Some(first) = self.queue.first_entry() {
            if first.key().0 > end_ms * 1_000 {
                break;
            }
            let ((at_us, _), happening) = first.remove_entry();
            self.now_us = at_us;
            self.happen(happening)?;
        }
        self.now_us = end_ms * 1_000;
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Turn(thread, id, boot) => self.turn(thread, id, boot),
            Happening::Written(id, boot) => {
                if let Some(process) = self.process(id, boot) {
                    process.end_write();
                    self.look_after(id)?;
                }
                Ok(())
            }
            Happening::Frame { from, to, boot, kind, payload } => self.arrive((from, to), boot, kind, &payload),
            Happening::Rows { from, to, term, rows } => self.rows_arrive(from, to, term, rows),
            Happening::RowsSent { from, boot, to, arrived } => {
                if let Some(process) = self.process(from, boot) {
                    process.rows_sent(to, arrived);
                    self.look_after(from)?;
                }
                Ok(())
            }
            Happening::Client(number) => self.client_turn(number),
            Happening::Watcher(number) => self.watcher_turn(number),
            Happening::Operator => self.operator_turn(),
            Happening::Fault(fault) => self.end_fault(fault),
            Happening::NextFault => self.begin_fault(),
        }
    }

    // ---- time

    pub(super) fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    pub(super) fn later(&mut self, in_us: u64, happening: Happening) {
        self.happenings += 1;
        self.queue.insert((self.now_us + in_us, self.happenings), happening);
    }

    fn soon(&mut self, thread: Thread, id: u64, (low, high): (u64, u64)) {
        let boot = self.member(id).boots;
        if self.due.insert((id, thread), ()).is_none() {
            let in_us = self.random.between(low, high);
            self.later(in_us, Happening::Turn(thread, id, boot));
        }
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        if let Some(trace) = &mut self.trace {
            let line = format!("{:>9}.{:03} {what}\n", self.now_us / 1_000, self.now_us % 1_000);
            trace.push_str(&line);
        }
    }

    pub(super) fn take_trace(&mut self) -> String {
        self.trace.take().unwrap_or_default()
    }

    // ---- members

    pub(super) fn member(&mut self, id: u64) -> &mut Member {
        self.members.get_mut(&id).expect("whoever names a member has seen it")
    }

    /// Every member that there ever was and that is not gone.
    pub(super) fn ids(&self) -> Vec<u64> {
        self.members.values().filter(|member| !member.is_gone).map(|member| member.id).collect()
    }

    /// Any of them.
    pub(super) fn any(&mut self) -> u64 {
        let ids = self.ids();
        self.random.pick(&ids)
    }

    /// A process that is still the one meant.
    fn process(&mut self, id: u64, boot: u64) -> Option<&mut Process> {
        let member = self.member(id);
        if member.boots == boot { member.process.as_mut() } else { None }
    }

    pub(super) fn start(&mut self, id: u64) -> Result<(), Violation> {
        let now_ms = self.now_ms();
        let member = self.members.get_mut(&id).expect("whoever starts a member has seen it");
        member.start(&self.plan, now_ms, &mut self.random)?;
        if member.process.is_none() {
            self.note(format_args!("m{id} was removed"));
            return Ok(());
        }
        self.note(format_args!("m{id} starts"));
        self.due.retain(|(member, _), ()| *member != id);
        self.paused_until_us.remove(&id);
        self.soon(Thread::Tick, id, (1, TICK_MS * 1_000));
        self.soon(Thread::Clock, id, (1, LOOK_US));
        self.soon(Thread::Disk, id, (1, LOOK_US));
        self.soon(Thread::Raft, id, WAKE_US);
        self.check_applied(id)
    }

    pub(super) fn end(&mut self, id: u64, how: End) {
        let member = self.members.get_mut(&id).expect("whoever ends a member has seen it");
        if member.process.is_some() {
            member.end(how, &mut self.random);
            self.note(format_args!("m{id} {how:?}"));
        }
    }

    fn turn(&mut self, thread: Thread, id: u64, boot: u64) -> Result<(), Violation> {
        let now_us = self.now_us;
        if self.member(id).boots != boot {
            return Ok(());
        }
        if let Some(until) = self.paused_until_us.get(&id).filter(|until| **until > now_us) {
            let wait = until - now_us;
            self.later(wait, Happening::Turn(thread, id, boot));
            return Ok(());
        }
        self.due.remove(&(id, thread));
        let now_ms = self.now_ms();
        let Some(process) = self.process(id, boot) else { return Ok(()) };
        match thread {
            Thread::Tick | Thread::Raft => {
                let done = process.raft_round(now_ms);
                self.take_in(id, done)?;
            }
            Thread::Log => {
                if let Some(bytes) = process.begin_write() {
                    let took = self.write_us(id, bytes);
                    self.later(took, Happening::Written(id, boot));
                }
            }
            Thread::Apply => {
                process.apply_turn();
                if process.has_departed() {
                    let until_us = now_us + DEPART_US;
                    self.later(DEPART_POLL_US, Happening::Fault(Fault::Depart { id, boot, until_us }));
                }
                self.check_applied(id)?;
            }
            Thread::Watch => process.watch_turn(now_ms),
            Thread::Clock => {
                process.clock_look(now_ms);
                process.watch_turn(now_ms);
            }
            Thread::Disk => self.disk_look(id),
        }
        match thread {
            Thread::Tick => self.soon(Thread::Tick, id, (TICK_MS * 1_000, TICK_MS * 1_000)),
            Thread::Clock | Thread::Disk => self.soon(thread, id, (LOOK_US, LOOK_US)),
            Thread::Raft | Thread::Log | Thread::Apply | Thread::Watch => {}
        }
        self.look_after(id)
    }

    /// How long a write takes.
    fn write_us(&mut self, id: u64, bytes: usize) -> u64 {
        let slow = self.random.permille(SLOW_WRITE_PERMILLE);
        let (low, high) = if slow { SLOW_WRITE_US } else { WRITE_US };
        let stalled = self.disk_stalled_until_us.get(&id).map_or(0, |until| until.saturating_sub(self.now_us));
        stalled + self.random.between(low, high) + bytes as u64 / 100
    }

    fn disk_look(&mut self, id: u64) {
        if self.disk_stalled_until_us.get(&id).is_some_and(|until| *until > self.now_us) {
            return;
        }
        let now_ms = self.now_ms();
        let member = self.members.get_mut(&id).expect("the member whose turn it is");
        if let Some(process) = &mut member.process {
            process.disk_look(now_ms, &self.plan);
        }
    }

    /// What a round of the raft thread gave to the outside.
    fn take_in(&mut self, id: u64, done: Done) -> Result<(), Violation> {
        if let Some(why) = done.dead {
            return Err(format!("m{id} must not go on: {why}"));
        }
        for promise in done.promises {
            self.member(id).promise(promise);
        }
        for entry in &done.committed {
            let is_news = entry.index > self.checker.history.last_index();
            self.checker.committed(id, entry, self.now_us)?;
            if is_news {
                self.meet_joining(entry);
            }
            if self.trace.is_some() {
                let what = Command::decode(entry.kind, entry.data.clone()).map(|(_, command)| format!("{command:?}"));
                let what = what.unwrap_or_default();
                self.note(format_args!("m{id} commits {} of term {} {what:.160}", entry.index, entry.term));
            }
        }
        let standing = self.member(id).process.as_ref().map(Process::standing).unwrap_or_default();
        if standing.is_leader {
            self.checker.leads(id, standing.term)?;
        }
        if let Some(process) = &self.member(id).process {
            process.check_in_force().map_err(|what| format!("m{id}: {what}"))?;
        }
        for frame in done.frames {
            self.send(id, frame);
        }
        if let Some((order, rows)) = done.rows {
            self.send_rows(id, order, rows);
        }
        Ok(())
    }

    fn send(&mut self, from: u64, frame: Outgoing) {
        let Outgoing { to, kind, payload, urgent } = frame;
        let reaches = self.member(from).process.as_ref().is_some_and(|process| process.reaches(to));
        if !reaches || !self.members.contains_key(&to) {
            return;
        }
        let arrivals = self.network.send((from, to), kind, self.now_us, &self.plan, &mut self.random);
        self.note(format_args!("m{from} -> m{to} {kind:?} of {} bytes, arrives {arrivals:?}", payload.len()));
        let boot = self.member(to).boots;
        let is_lost = arrivals.is_empty();
        for at_us in arrivals {
            let payload = payload.clone();
            self.later(at_us - self.now_us, Happening::Frame { from, to, boot, kind, payload });
        }
        // Whoever sends learns of some losses.
        if is_lost && self.random.permille(500) {
            let process = self.member(from).process.as_ref();
            match process {
                Some(process) if kind == Kind::Forward => process.unsent(to, kind, &payload),
                Some(process) if kind == Kind::Message && !urgent => process.lost(to),
                _ => {}
            }
        }
    }

    /// Rows go their way on a connection of their own, which breaks now and then.
    fn send_rows(&mut self, from: u64, order: SendSnapshot, rows: Shipment) {
        let (to, term) = (order.to, order.term);
        self.note(format_args!("m{from} sends m{to} its rows as of {}", rows.mark.index));
        let boot = self.member(from).boots;
        let breaks = self.network.is_cut(from, to) || self.random.permille(ROWS_LOST_PERMILLE);
        let in_us = self.random.between(ROWS_US.0, ROWS_US.1);
        match self.members.get(&to).map(|member| member.boots).filter(|_| !breaks) {
            Some(to_boot) => {
                self.later(in_us, Happening::Rows { from: (from, boot), to: (to, to_boot), term, rows });
            }
            None => self.later(in_us, Happening::RowsSent { from, boot, to, arrived: false }),
        }
    }

    fn rows_arrive(
        &mut self,
        (from, boot): (u64, u64),
        (to, to_boot): (u64, u64),
        term: u64,
        rows: Shipment,
    ) -> Result<(), Violation> {
        let is_taken = self.process(to, to_boot).is_some_and(|process| process.rows_arrived(from, term, rows));
        self.note(format_args!("rows of m{from} are at m{to}, taken: {is_taken}"));
        let arrived = is_taken && !self.random.permille(ROWS_LOST_PERMILLE);
        let in_us = self.random.between(WAKE_US.0, ROWS_US.0);
        self.later(in_us, Happening::RowsSent { from, boot, to, arrived });
        self.look_after(to)
    }

    fn arrive(&mut self, (from, to): (u64, u64), boot: u64, kind: Kind, payload: &[u8]) -> Result<(), Violation> {
        let Some(process) = self.process(to, boot) else { return Ok(()) };
        if !process.admits(from) {
            let refused = self.member(from).process.as_ref();
            if refused.is_some_and(Process::is_told_of_removal) {
                self.depart(from);
            }
            return Ok(());
        }
        let Some(process) = self.process(to, boot) else { return Ok(()) };
        process.frame(from, kind, payload).map_err(|what| format!("m{to} can't read a frame of m{from}: {what}"))?;
        self.look_after(to)
    }

    /// Wakes whoever has work now, in the member and at its clients.
    fn look_after(&mut self, id: u64) -> Result<(), Violation> {
        let Some(process) = &self.member(id).process else { return Ok(()) };
        let due = [
            (Thread::Raft, process.raft_is_due()),
            (Thread::Log, process.write_is_due()),
            (Thread::Apply, process.apply_is_due()),
            (Thread::Watch, process.watch_is_due()),
        ];
        for (thread, is_due) in due {
            if is_due {
                let is_late = self.random.permille(LATE_PERMILLE);
                self.soon(thread, id, if is_late { LATE_US } else { WAKE_US });
            }
        }
        for number in 0..self.clients.len() {
            if self.clients[number].waits_for(id) {
                self.client_look(number, id)?;
            }
        }
        if self.operator.waits_for() == Some(id) {
            self.operator_look(id)?;
        }
        Ok(())
    }

    /// A member that is added starts when the operator has heard of it.
    fn meet_joining(&mut self, entry: &LogEntry) {
        if entry.kind == EntryKind::ConfChange
            && let Ok(Change::Add { id, .. }) = Change::decode(&entry.data)
            && !self.members.contains_key(&id.0)
        {
            self.members.insert(id.0, Member::new(id.0, &[], &self.plan));
            let in_us = self.random.between(JOIN_US.0, JOIN_US.1);
            self.later(in_us, Happening::Fault(Fault::Start(id.0)));
        }
    }

    /// A member that has learned of its removal stops for good.
    pub(super) fn depart(&mut self, id: u64) {
        self.end(id, End::Stopped);
        self.member(id).is_gone = true;
    }

    fn check_applied(&mut self, id: u64) -> Result<(), Violation> {
        let member = self.member(id);
        let boot = member.boots;
        let Some(process) = &member.process else { return Ok(()) };
        let (index, store) = (process.applied(), process.store());
        member.applied = member.applied.max(index);
        let (revision, compacted) = (store.revision().0, store.compacted().0);
        self.note(format_args!("m{id} has applied {index}, revision {revision}"));
        self.checker.applied(Applied { member: id, boot, index, revision, compacted })?;
        if index.is_multiple_of(HASH_ENTRIES) {
            self.check_hash(id, index)?;
        }
        Ok(())
    }

    fn check_hash(&mut self, id: u64, index: u64) -> Result<(), Violation> {
        let Some(process) = &self.member(id).process else { return Ok(()) };
        let hash = process.store().hash_all(&[cluster::IDENTITY_ROW]);
        let hash = hash.map_err(|error| format!("m{id} can't be hashed: {error}"))?;
        self.checker.hash(id, index, hash)
    }

    // ---- clients

    /// Calls `act` with the member as a client sees it, if it runs.
    fn with_peer<T>(&mut self, id: u64, act: impl FnOnce(Option<&Peer<'_>>, Side<'_>) -> T) -> T {
        let (now_us, now_ms) = (self.now_us, self.now_ms());
        let member = &self.members[&id];
        let peer = member.process.as_ref().map(|process| Peer { member: id, boot: member.boots, process, now_ms });
        let side = Side {
            clients: &mut self.clients,
            watchers: &mut self.watchers,
            operator: &mut self.operator,
            checker: &mut self.checker,
            plan: &self.plan,
            random: &mut self.random,
            now_us,
        };
        act(peer.as_ref(), side)
    }

    fn client_turn(&mut self, number: usize) -> Result<(), Violation> {
        if self.clients[number].is_waiting() {
            let asked = self.members.keys().copied().find(|id| self.clients[number].waits_for(*id));
            return asked.map_or(Ok(()), |id| self.client_look(number, id));
        }
        if self.is_calm {
            return Ok(());
        }
        let id = self.any();
        let asked = self.with_peer(id, |peer, side| match peer {
            Some(peer) => side.clients[number].ask(peer, side.checker, side.plan, side.random).map(Some),
            None => Ok(None),
        })?;
        if let Some(asked) = asked {
            self.note(format_args!("client {} asks m{id}: {asked}", number + 1));
        }
        if self.clients[number].is_waiting() {
            let patience = self.clients[number].gives_up_us() - self.now_us;
            self.later(patience, Happening::Client(number));
            return self.look_after(id);
        }
        self.think(number);
        Ok(())
    }

    fn think(&mut self, number: usize) {
        let pause_us = self.random.between(1_000, self.plan.think_ms * 1_000);
        self.later(pause_us, Happening::Client(number));
    }

    fn client_look(&mut self, number: usize, id: u64) -> Result<(), Violation> {
        let came = self.with_peer(id, |peer, side| side.clients[number].look(peer, side.checker, side.now_us))?;
        if let Some(came) = came {
            self.note(format_args!("client {} of m{id}: {came}", number + 1));
            self.think(number);
        }
        Ok(())
    }

    fn watcher_turn(&mut self, number: usize) -> Result<(), Violation> {
        let on = self.watchers[number].on();
        let is_there = on.is_some_and(|(id, boot)| self.process(id, boot).is_some());
        if !is_there || self.random.permille(10) {
            self.watchers[number].leave();
            let id = self.any();
            self.with_peer(id, |peer, side| {
                if let Some(peer) = peer {
                    side.watchers[number].open(peer, &side.checker.history, side.random);
                }
            });
            self.look_after(id)?;
        } else {
            let most = if self.random.permille(200) { 0 } else { self.random.place(6) + 1 };
            self.watchers[number].look(most, &self.checker.history)?;
            if self.random.permille(150) {
                self.watchers[number].ask_progress();
            }
            if let Some((id, _)) = on {
                self.look_after(id)?;
            }
        }
        let pause_us = self.random.between(WATCHER_LOOK_US.0, WATCHER_LOOK_US.1);
        self.later(pause_us, Happening::Watcher(number));
        Ok(())
    }

    fn operator_turn(&mut self) -> Result<(), Violation> {
        if self.is_calm {
            return Ok(());
        }
        let id = self.any();
        if let Some(waits) = self.operator.waits_for() {
            self.operator_look(waits)?;
        } else {
            let members = if self.plan.changes_members { self.current_members() } else { Vec::new() };
            let epoch = self.checker.history.policy_epoch();
            let plugins_permille = self.plan.plugins_permille;
            let asked = self.with_peer(id, |peer, side| {
                peer.and_then(|peer| side.operator.ask(peer, &members, epoch, plugins_permille, side.random))
            });
            if let Some(asked) = asked {
                self.note(format_args!("the operator asks m{id}: {asked}"));
                self.look_after(id)?;
            }
        }
        let pause_us = self.random.between(self.plan.operator_us.0, self.plan.operator_us.1);
        self.later(pause_us, Happening::Operator);
        Ok(())
    }

    fn operator_look(&mut self, id: u64) -> Result<(), Violation> {
        let came = self.with_peer(id, |peer, side| side.operator.look(peer, side.checker, side.now_us / 1_000))?;
        if let Some(came) = came {
            self.note(format_args!("the operator of m{id}: {came}"));
        }
        Ok(())
    }

    // ---- the end

    /// Everything works again, and nobody asks for more.
    fn calm(&mut self) -> Result<(), Violation> {
        self.note(format_args!("calm"));
        self.is_calm = true;
        self.network.heal();
        self.plan.loss_permille = 0;
        self.plan.slow_permille = 0;
        self.disk_stalled_until_us.clear();
        self.paused_until_us.clear();
        for id in self.ids() {
            if self.member(id).process.is_none() {
                self.start(id)?;
            }
        }
        Ok(())
    }

    /// After the calm all members are alike, and watchers have seen everything.
    fn check_calm(&mut self) -> Result<(), Violation> {
        let last = self.checker.history.last_index();
        let members: Vec<u64> = self.current_members().into_iter().map(|member| member.id.0).collect();
        for id in members.iter().copied() {
            let applied = self.member(id).process.as_ref().map_or(0, Process::applied);
            if applied != last {
                return Err(format!("m{id} has applied entry {applied} of {last} after {CALM_MS} ms of calm"));
            }
            self.check_hash(id, last)?;
            self.with_peer(id, |peer, side| peer.map_or(Ok(()), |peer| client::read_all(peer, side.checker)))?;
        }
        for number in 0..self.watchers.len() {
            self.watchers[number].look(usize::MAX, &self.checker.history)?;
            if self.watchers[number].on().is_some_and(|(id, _)| members.contains(&id)) {
                self.watchers[number].check_complete(&self.checker.history)?;
            }
        }
        Ok(())
    }

    /// The members by the store of the one that has come furthest.
    fn current_members(&self) -> Vec<cluster::Member> {
        let processes = self.members.values().filter_map(|member| member.process.as_ref());
        let furthest = processes.max_by_key(|process| process.applied());
        furthest.map(|process| process.members().list()).unwrap_or_default()
    }
}

/// What a client's step may touch, beside the member.
struct Side<'a> {
    clients: &'a mut Vec<Client>,
    watchers: &'a mut Vec<Watcher>,
    operator: &'a mut Operator,
    checker: &'a mut Checker,
    plan: &'a Plan,
    random: &'a mut Random,
    now_us: u64,
}
