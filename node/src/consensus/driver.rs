//! The consensus driver: owns the Raft state machine; events in, effects out.
//!
//! Synchronous and free of I/O, clocks and randomness (the election jitter comes from the seed it is given), so that a
//! simulated run replays. Its callers are the runner, and later the simulation.
//!
//! What it holds to:
//! - a read-index context is used once (member, boot nonce, counter): a resent one could be answered by an older round
//!   (etcd#20418);
//! - a read waits while there is no leader or the leader has not committed in its term; `raft` would drop it silently;
//! - the backlog between commit and apply is bounded; past it proposals are refused, as etcd refuses them;
//! - whoever waits is always answered: applied, replaced by another leader's entry, or out of time.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use raft::eraftpb::{Entry, Message, MessageType};
use raft::{Config, RawNode, ReadOnlyOption, ReadState, Ready, StateRole, Storage};
use slog::{Discard, Logger, o};

use crate::consensus::answers::Waiter;
use crate::consensus::effects::{Append, Committed, Effects, Release};
use crate::consensus::event::Event;
use crate::consensus::tail::Tail;
use crate::log::{HardState, LogEntry, SnapshotMark};
use crate::refusal::Refusal;

/// Entries committed and not yet applied past which proposals are refused (etcd: maxGapBetweenApplyAndCommitIndex).
const BACKLOG_ENTRIES_MAX: u64 = 5_000;
/// Payload of one append message (DESIGN 5; raft's default of 0 would mean one entry a message).
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Append messages in flight to one peer.
const INFLIGHT_MESSAGES_MAX: usize = 256;
/// Payload proposed and not yet committed; past it proposals are refused.
const UNCOMMITTED_BYTES_MAX: u64 = 64 << 20;
/// Payload handed to apply in one round, so that one round can't hold everything.
const COMMITTED_BYTES_MAX: u64 = 8 << 20;
/// Log payload kept in memory; past it the store is made durable and the log's head released early.
const TAIL_BYTES_MAX: u64 = 128 << 20;
/// Ticks after which an unanswered read-index round is asked anew (etcd: 500 ms).
const READ_RETRY_MS: u64 = 500;

/// What the driver is told at start.
pub(crate) struct Options {
    pub(crate) member_id: u64,
    pub(crate) tick_ms: u64,
    pub(crate) election_ticks: u64,
    pub(crate) pre_vote: bool,
    /// Log entries applied since the last release after which the store is made durable and the head released.
    pub(crate) snapshot_entries: u64,
    /// Entries kept behind the release point for members that lag a little.
    pub(crate) catch_up_entries: u64,
    /// Index up to which the store holds the log's effects.
    pub(crate) applied: u64,
    /// Unlike in any earlier run of this member, so that read contexts never repeat.
    pub(crate) boot_nonce: u64,
}

pub(crate) struct Driver {
    node: RawNode<Tail>,
    options: Options,
    now_ticks: u64,
    proposals: VecDeque<Proposal>,
    reads: Reads,
    appends: Appends,
    /// Index of the last release asked for, so that it is asked once.
    release_asked: u64,
    effects: Effects,
}

/// A proposal of this member that is in the log and not yet committed.
struct Proposal {
    index: u64,
    term: u64,
    waiter: Waiter,
    expires_ticks: u64,
}

/// Reads that wait for a leader's word.
#[derive(Default)]
struct Reads {
    /// Not yet asked for; with the tick at which each gives up.
    new: Vec<(Waiter, u64)>,
    /// Asked for, by the counter in the context.
    asked: BTreeMap<u64, Round>,
    counter: u64,
}

struct Round {
    waiters: Vec<(Waiter, u64)>,
    retry_ticks: u64,
}

/// What is on its way to the log.
#[derive(Default)]
struct Appends {
    outstanding: VecDeque<u64>,
    /// A newer commit index that no append has carried yet. It alone is not worth a write: a restart finds it again.
    commit_unsaved: Option<HardState>,
}

/// The raft thread's view, for whoever asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    /// 0 when there is none.
    pub(crate) leader: u64,
    pub(crate) term: u64,
    pub(crate) committed: u64,
    pub(crate) is_leader: bool,
}

impl Driver {
    /// A driver over the log as recovered.
    ///
    /// # Errors
    /// A sentence when log, commit and applied index contradict each other.
    pub(crate) fn new(tail: Tail, options: Options) -> Result<Driver, String> {
        if options.applied > tail.last() || options.applied + 1 < tail.first() {
            return Err(format!(
                "the store has applied entry {} but the log holds entries {} to {}: log and store do not belong together",
                options.applied,
                tail.first(),
                tail.last()
            ));
        }
        let committed = tail.committed();
        if committed < options.applied || committed > tail.last() {
            return Err(format!(
                "the log's commit index {committed} lies outside {} to {}, the applied index and the log's last entry",
                options.applied,
                tail.last()
            ));
        }
        let ticks = |count: u64| usize::try_from(count).expect("a tick count fits in memory");
        let config = Config {
            id: options.member_id,
            election_tick: ticks(options.election_ticks),
            heartbeat_tick: 1,
            applied: options.applied,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            max_inflight_msgs: INFLIGHT_MESSAGES_MAX,
            max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
            max_committed_size_per_ready: COMMITTED_BYTES_MAX,
            check_quorum: true,
            pre_vote: options.pre_vote,
            batch_append: true,
            read_only_option: ReadOnlyOption::Safe,
            ..Config::default()
        };
        let release_asked = options.applied;
        let alone = tail.conf_state().get_voters() == [options.member_id];
        let mut node = RawNode::new(&config, tail, &Logger::root(Discard, o!())).map_err(|error| error.to_string())?;
        if alone {
            // Nobody else can vote: there is nothing to wait an election timeout for.
            node.campaign().map_err(|error| error.to_string())?;
        }
        Ok(Driver {
            node,
            options,
            now_ticks: 0,
            proposals: VecDeque::new(),
            reads: Reads::default(),
            appends: Appends::default(),
            release_asked,
            effects: Effects::default(),
        })
    }

    /// Time passes by one tick: elections, heartbeats, and requests that run out of time.
    pub(crate) fn tick(&mut self) {
        self.now_ticks += 1;
        self.node.tick();
        while self.proposals.front().is_some_and(|first| first.expires_ticks <= self.now_ticks) {
            let late = self.proposals.pop_front().expect("looked at above");
            self.effects.fail_proposal(late.waiter, Refusal::Timeout);
        }
        self.retry_reads();
    }

    /// Takes in one round of events. `applied` is how far the apply thread has come.
    pub(crate) fn handle(&mut self, events: &mut Vec<Event>, applied: u64) {
        if applied > self.node.raft.raft_log.applied {
            self.node.advance_apply_to(applied);
        }
        let mut proposed = Vec::new();
        for event in events.drain(..) {
            match event {
                Event::Propose { data, waiter } => proposed.push((data, waiter)),
                Event::Read { waiter } => {
                    let expires = self.now_ticks + self.request_ticks();
                    self.reads.new.push((waiter, expires));
                }
                Event::Persisted { number } => self.persisted(number),
                Event::StoreDurable { index } => self.release(index),
                Event::Stop => self.refuse_all(&Refusal::Stopped),
            }
        }
        self.propose(proposed);
        self.ask_reads();
    }

    /// What has to happen now. To be called until it returns nothing that changes the driver again.
    pub(crate) fn effects(&mut self) -> Effects {
        while self.node.has_ready() {
            let ready = self.node.ready();
            self.take_ready(ready);
        }
        std::mem::take(&mut self.effects)
    }

    /// Proposals of this member in the log that are not committed yet.
    pub(crate) fn pending(&self) -> u64 {
        self.proposals.len() as u64
    }

    pub(crate) fn standing(&self) -> Standing {
        let raft = &self.node.raft;
        Standing {
            leader: raft.leader_id,
            term: raft.term,
            committed: raft.raft_log.committed,
            is_leader: raft.state == StateRole::Leader,
        }
    }

    /// Whether this member is the only voter.
    pub(crate) fn is_alone(&self) -> bool {
        self.node.store().conf_state().get_voters() == [self.options.member_id]
    }

    /// The newest commit index no append has carried, for a last write before a clean stop.
    pub(crate) fn unsaved_commit(&mut self) -> Option<HardState> {
        self.appends.commit_unsaved.take()
    }

    /// Whether so much has been applied since the last release that the store should be made durable now.
    /// Says so once; the answer to it is [`Event::StoreDurable`].
    pub(crate) fn wants_durable_store(&mut self, applied: u64) -> bool {
        let due = applied >= self.release_asked + self.options.snapshot_entries
            || (self.node.store().payload_bytes() > TAIL_BYTES_MAX && applied > self.release_asked);
        if due {
            self.release_asked = applied;
        }
        due
    }

    /// Five seconds and two election timeouts, as etcd's request timeout.
    fn request_ticks(&self) -> u64 {
        5_000 / self.options.tick_ms + 2 * self.options.election_ticks
    }

    fn propose(&mut self, proposed: Vec<(bytes::Bytes, Waiter)>) {
        if proposed.is_empty() {
            return;
        }
        if self.node.raft.state != StateRole::Leader {
            for (_, waiter) in proposed {
                self.effects.fail_proposal(waiter, Refusal::NoLeader);
            }
            return;
        }
        let log = &self.node.raft.raft_log;
        if log.committed - log.applied > BACKLOG_ENTRIES_MAX {
            // Never proposed, so no failed proposal either, as in etcd.
            let refused = proposed.into_iter().map(|(_, waiter)| (waiter, Err(Refusal::TooManyRequests)));
            self.effects.answers.extend(refused);
            return;
        }

        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.options.member_id;
        let mut waiters = Vec::with_capacity(proposed.len());
        for (data, waiter) in proposed {
            let mut entry = Entry::default();
            entry.set_data(data);
            message.entries.push(entry);
            waiters.push(waiter);
        }
        let before = self.node.raft.raft_log.last_index();
        match self.node.step(message) {
            Ok(()) => {
                // Of an earlier term of this member's, and cut off the log since.
                while let Some(cut) = self.proposals.pop_back_if(|last| last.index > before) {
                    self.effects.fail_proposal(cut.waiter, Refusal::LeaderChanged);
                }
                let term = self.node.raft.term;
                let expires_ticks = self.now_ticks + self.request_ticks();
                let placed = (before + 1..).zip(waiters);
                self.proposals.extend(placed.map(|(index, waiter)| Proposal { index, term, waiter, expires_ticks }));
            }
            // Too much is uncommitted, or leadership is being handed over: nothing of the batch is in the log.
            Err(_) => {
                for waiter in waiters {
                    self.effects.fail_proposal(waiter, Refusal::TooManyRequests);
                }
            }
        }
    }

    fn ask_reads(&mut self) {
        if self.reads.new.is_empty() {
            return;
        }
        let raft = &self.node.raft;
        let can_ask = raft.state == StateRole::Leader && raft.commit_to_current_term();
        if !can_ask {
            return;
        }
        self.reads.counter += 1;
        let counter = self.reads.counter;
        let waiters = std::mem::take(&mut self.reads.new);
        let retry_ticks = self.now_ticks + (READ_RETRY_MS / self.options.tick_ms).max(1);
        self.reads.asked.insert(counter, Round { waiters, retry_ticks });
        let context = [self.options.member_id, self.options.boot_nonce, counter];
        self.node.read_index(context.iter().flat_map(|part| part.to_be_bytes()).collect());
    }

    fn retry_reads(&mut self) {
        let now = self.now_ticks;
        let late: Vec<u64> = self
            .reads
            .asked
            .iter()
            .filter(|(_, round)| round.retry_ticks <= now)
            .map(|(counter, _)| *counter)
            .collect();
        self.effects.reads_slow += late.len() as u64;
        for counter in late {
            let round = self.reads.asked.remove(&counter).expect("listed above");
            self.reads.new.extend(round.waiters);
        }
        let no_leader = self.node.raft.leader_id == 0;
        let (expired, waiting) =
            std::mem::take(&mut self.reads.new).into_iter().partition(|(_, expires)| *expires <= now);
        self.reads.new = waiting;
        let expired: Vec<(Waiter, u64)> = expired;
        self.effects.reads_failed += expired.len() as u64;
        let refusal = if no_leader { Refusal::NoLeader } else { Refusal::Timeout };
        self.effects.answers.extend(expired.into_iter().map(|(waiter, _)| (waiter, Err(refusal.clone()))));
        self.ask_reads();
    }

    fn answer_reads(&mut self, states: Vec<ReadState>) {
        for state in states {
            let Some(counter) = state.request_ctx.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes)) else {
                continue;
            };
            // A round that was given up and asked anew: its waiters are with the newer context.
            let Some(round) = self.reads.asked.remove(&counter) else { continue };
            self.effects.reads.extend(round.waiters.into_iter().map(|(waiter, _)| (state.index, waiter)));
        }
    }

    fn take_ready(&mut self, mut ready: Ready) {
        // Read states come after the commits of their own round: a read at index i must find i handed to apply before it.
        let read_states = ready.take_read_states();
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        let hard_state = ready.hs().map(HardState::from);
        if let Some(state) = ready.hs() {
            let state = state.clone();
            self.node.mut_store().set_hard_state(state);
        }
        self.commit(ready.take_committed_entries());
        let (number, must_sync) = (ready.number(), ready.must_sync());
        self.node.advance_append_async(ready);
        self.append(number, must_sync, &entries, hard_state);
        self.answer_reads(read_states);
    }

    fn append(&mut self, number: u64, must_sync: bool, entries: &[Entry], hard_state: Option<HardState>) {
        if !must_sync {
            self.appends.commit_unsaved = hard_state.or(self.appends.commit_unsaved.take());
            // Nothing to write. Raft wants to hear of it all the same, in order; a later report covers it.
            if self.appends.outstanding.is_empty() {
                self.node.on_persist_ready(number);
            }
            return;
        }
        self.appends.outstanding.push_back(number);
        let hard_state = hard_state.or(self.appends.commit_unsaved.take());
        self.appends.commit_unsaved = None;
        self.effects.appends.push(Append {
            number,
            entries: entries.iter().map(LogEntry::from).collect(),
            hard_state,
            sync: true,
        });
    }

    fn persisted(&mut self, number: u64) {
        while self.appends.outstanding.front().is_some_and(|first| *first <= number) {
            self.appends.outstanding.pop_front();
        }
        self.node.on_persist_ready(number);
    }

    fn commit(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let waiter = self.waiter_of(&entry);
            self.effects.committed.push(Committed { entry: LogEntry::from(&entry), waiter });
        }
    }

    /// Who proposed this entry. A proposal at the same place under another term was replaced: its waiter is told.
    fn waiter_of(&mut self, entry: &Entry) -> Waiter {
        while let Some(first) = self.proposals.front() {
            if first.index > entry.index {
                break;
            }
            let proposal = self.proposals.pop_front().expect("looked at above");
            if proposal.index == entry.index && proposal.term == entry.term {
                return proposal.waiter;
            }
            self.effects.fail_proposal(proposal.waiter, Refusal::LeaderChanged);
        }
        Waiter::None
    }

    fn release(&mut self, index: u64) {
        let tail = self.node.mut_store();
        // Asked for again after a later release: there is nothing left to let go of.
        let Ok(term) = tail.term(index) else { return };
        let conf_state = tail.conf_state();
        let mark = SnapshotMark {
            index,
            term,
            voters: conf_state.get_voters().to_vec(),
            learners: conf_state.get_learners().to_vec(),
        };
        let mut through = index.saturating_sub(self.options.catch_up_entries);
        if tail.payload_bytes() > TAIL_BYTES_MAX {
            through = index;
        }
        tail.release(through);
        self.effects.release = Some(Release { mark, through });
    }

    fn refuse_all(&mut self, refusal: &Refusal) {
        let proposals = self.proposals.drain(..).map(|proposal| proposal.waiter);
        let asked = std::mem::take(&mut self.reads.asked).into_values().flat_map(|round| round.waiters);
        let reads = self.reads.new.drain(..).chain(asked).map(|(waiter, _)| waiter);
        self.effects.answers.extend(proposals.chain(reads).map(|waiter| (waiter, Err(refusal.clone()))));
    }
}
