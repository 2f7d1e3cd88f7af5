//! The consensus driver: owns the Raft state machine; events in, effects out.
//!
//! Synchronous and free of I/O, clocks and randomness (the election jitter comes from the seed it is given), so that a
//! simulated run replays. Its callers are the runner and the simulation. [`super::proposals`] and [`super::read_index`]
//! are parts of it.
//!
//! What it holds to:
//! - what vouches for the log (votes, acknowledged appends) leaves only once the log is durable; heartbeats, reads and a
//!   leader's own appends never wait for a disk;
//! - a leader whose disk stands still for an election timeout hands leadership over: it could answer nobody;
//! - the backlog between commit and apply is bounded; past it proposals are refused, as etcd refuses them;
//! - whoever waits is always answered: applied, replaced by another leader's entry, or out of time;
//! - a message that raft would die of is never given to it.

mod membership;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{Config, RawNode, ReadOnlyOption, Ready, StateRole, Storage};
use slog::{Discard, Logger, o};

use self::snapshots::Installing;
use crate::apply::Reply;
use crate::consensus::answers::Waiter;
use crate::consensus::effects::{Append, Committed, Effects, Release};
use crate::consensus::event::Event;
use crate::consensus::proposals::{Declined, Payload, Place, Proposal, Proposals};
use crate::consensus::read_index::Reads;
use crate::consensus::tail::Tail;
use crate::log::{EntryKind, HardState, LogEntry, SnapshotMark};
use crate::refusal::Refusal;
use crate::sabotage::{Sabotage, is_on};

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
/// Log payload kept in memory for members that are given rows meanwhile; past it they need rows again.
const HELD_TAIL_BYTES_MAX: u64 = 4 * TAIL_BYTES_MAX;
/// Entries applied between two releases while the log is larger than [`TAIL_BYTES_MAX`].
const LARGE_TAIL_ENTRIES: u64 = 1_000;
/// Ticks after which an unanswered read-index round is asked anew (etcd: 500 ms).
const READ_RETRY_MS: u64 = 500;

/// Ticks after which a leader that was removed hands over: the others need a round or two to apply the removal.
const LEAVE_AFTER_TICKS: u64 = 2;
/// Ticks a member that has just started waits less than others for a leader (etcd: --initial-election-tick-advance).
const FIRST_ELECTION_TICKS: u64 = 2;

/// What the driver is told at start.
pub(crate) struct Options {
    pub(crate) member_id: u64,
    pub(crate) tick_ms: u64,
    pub(crate) election_ticks: u64,
    pub(crate) pre_vote: bool,
    /// Whether the first election need not wait a whole election timeout.
    pub(crate) early_first_election: bool,
    /// Log entries applied since the last release after which the store is made durable and the head released.
    pub(crate) snapshot_entries: u64,
    /// Entries kept behind the release point for members that lag a little.
    pub(crate) catch_up_entries: u64,
    /// Index up to which the store holds the log's effects.
    pub(crate) applied: u64,
    /// Unlike in any earlier run of this member, so that read contexts never repeat.
    pub(crate) boot_nonce: u64,
    /// Of the election jitter.
    pub(crate) seed: u64,
}

pub(crate) struct Driver {
    node: RawNode<Tail>,
    options: Options,
    now_ticks: u64,
    proposals: Proposals,
    reads: Reads,
    appends: Appends,
    jitter: Jitter,
    transfer: Option<Transfer>,
    /// Term, leader and role at the last look.
    seen: (u64, u64, StateRole),
    /// Index of the last release asked for, so that it is asked once.
    release_asked: u64,
    /// Index of the last entry handed on as committed. Raft's own commit index runs ahead of it.
    handed_on: u64,
    /// Changes of the members that are handed on and of which the apply thread has not told yet, in index order. Bounded by
    /// the entries that may be committed and not applied.
    reconfigurations: VecDeque<u64>,
    /// What is committed from a change of the members on, until the log says that it is committed.
    withheld: Option<Withheld>,
    /// When this member was found to lead a cluster that it was removed from.
    removed_ticks: Option<u64>,
    /// Another member's rows that take the place of the store.
    installing: Option<Installing>,
    /// Up to where rows have come: what the store tells of earlier changes of the members is known already.
    installed: u64,
    /// Rows on their way to members: to whom, and as of which entry. The log is kept from there on.
    sending: BTreeMap<u64, u64>,
    effects: Effects,
}

/// What is on its way to the log.
#[derive(Default)]
struct Appends {
    /// Number of each, and the tick at which it was given out.
    outstanding: VecDeque<(u64, u64)>,
    /// Messages that vouch for an append, and its number.
    vouching: VecDeque<(u64, Message)>,
    /// A newer commit index that no append has carried yet. It alone is not worth a write: a restart finds it again.
    commit_unsaved: Option<HardState>,
}

/// Entries that nobody hears of before their commit is on disk. Once a removal is in force the removed member may be gone for
/// good: a start that had forgotten the commit would wait for its vote.
struct Withheld {
    /// Of the change of the members.
    index: u64,
    /// Of the append that writes the commit.
    number: u64,
    /// That change and what follows it.
    committed: Vec<Committed>,
}

/// Where the election jitter comes from, in place of raft's own random numbers.
struct Jitter {
    state: u64,
    /// Term, leader and role that the timeout in force was drawn for.
    drawn_for: Option<(u64, u64, StateRole)>,
}

/// Leadership on its way to another member.
struct Transfer {
    waiter: Waiter,
    expires_ticks: u64,
}

/// A command and who gets to know what becomes of it.
enum Offer {
    Here(Proposal, u64),
    There { from: u64, payload: Payload },
    Nobody(Bytes),
}

impl Offer {
    /// The entry that would hold it.
    fn entry(&self) -> Entry {
        let (kind, data) = match self {
            Offer::Here(Proposal { payload, .. }, _) | Offer::There { payload, .. } => (payload.kind, &payload.data),
            Offer::Nobody(data) => (EntryKind::Normal, data),
        };
        LogEntry { term: 0, index: 0, kind, data: data.clone() }.into()
    }

    fn is_change(&self) -> bool {
        match self {
            Offer::Here(Proposal { payload, .. }, _) | Offer::There { payload, .. } => {
                payload.kind != EntryKind::Normal
            }
            Offer::Nobody(_) => false,
        }
    }
}

/// The raft thread's view, for whoever asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    /// 0 when there is none.
    pub(crate) leader: u64,
    pub(crate) term: u64,
    pub(crate) committed: u64,
    pub(crate) is_leader: bool,
    /// Leads, and everything that earlier leaders committed is applied here.
    pub(crate) is_settled: bool,
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
        } else if options.early_first_election && options.pre_vote {
            // Harmless where there is a leader: who hears from one grants no vote that is asked for in advance.
            node.raft.election_elapsed = ticks(options.election_ticks.saturating_sub(FIRST_ELECTION_TICKS));
        }
        let jitter = Jitter { state: options.seed, drawn_for: None };
        let mut driver = Driver {
            node,
            options,
            now_ticks: 0,
            proposals: Proposals::default(),
            reads: Reads::default(),
            appends: Appends::default(),
            jitter,
            transfer: None,
            seen: (0, 0, StateRole::Follower),
            release_asked,
            handed_on: release_asked,
            reconfigurations: VecDeque::new(),
            withheld: None,
            removed_ticks: None,
            installing: None,
            installed: 0,
            sending: BTreeMap::new(),
            effects: Effects::default(),
        };
        driver.draw_election_timeout();
        Ok(driver)
    }

    /// Time passes by one tick: elections, heartbeats, and requests that run out of time.
    pub(crate) fn tick(&mut self) {
        self.now_ticks += 1;
        if self.is_installing() {
            self.node.raft.election_elapsed = 0;
        }
        self.node.tick();
        self.draw_election_timeout();
        self.proposals.expire(self.now_ticks, &mut self.effects);
        self.reads.expire(self.now_ticks, self.node.raft.leader_id != 0, &mut self.effects);
        self.ask_reads();
        self.hand_over_if_disk_stands_still();
        self.leave_if_removed();
        self.let_go_of_held();
        if let Some(late) = self.transfer.take_if(|transfer| transfer.expires_ticks <= self.now_ticks) {
            self.effects.answers.push((late.waiter, Err(Refusal::TransferTimeout)));
        }
    }

    /// Takes in one round of events. `applied` is how far the apply thread has come.
    pub(crate) fn handle(&mut self, events: &mut Vec<Event>, applied: u64) {
        let mut offers = Vec::new();
        for event in events.drain(..) {
            match event {
                Event::Propose(proposal) => offers.push(Offer::Here(proposal, self.now_ticks + self.request_ticks())),
                Event::ProposeInTerm { data, term } => {
                    if self.leads() && self.node.raft.term == term {
                        offers.push(Offer::Nobody(data));
                    }
                }
                Event::Forwarded { from, entries } => {
                    offers.extend(entries.into_iter().map(|payload| Offer::There { from, payload }));
                }
                Event::Judged(verdict) => {
                    self.proposals.judged(&verdict, self.handed_on, &mut self.effects);
                }
                Event::Read { waiter } => self.reads.add(waiter, self.now_ticks + self.request_ticks()),
                Event::Persisted { number } => self.persisted(number),
                Event::StoreDurable { index } => self.release(index),
                Event::Message(message) => self.step(*message),
                Event::SnapshotReady(mark) => self.node.mut_store().prepare(Some(mark)),
                Event::SnapshotSent { to, arrived } => self.snapshot_sent(to, arrived),
                Event::SnapshotArrived { from, term, mark } => self.snapshot_arrived(from, term, &mark),
                Event::Installed { index } => self.installed(index),
                Event::Lost { member } => self.node.report_unreachable(member),
                Event::Transfer { to, waiter } => self.transfer_leader(to, waiter),
                Event::Reconfigured { index, reconfiguration, waiter, answer } => {
                    self.reconfigure(index, reconfiguration);
                    self.effects.answers.push((waiter, answer));
                }
                Event::CaughtUp { learner, waiter } => {
                    let answer = self.check_caught_up(learner);
                    self.effects.answers.push((waiter, answer));
                }
                Event::Stop => self.refuse_all(&Refusal::Stopped),
            }
        }
        self.advance_applied(applied);
        self.propose(offers);
        self.ask_reads();
    }

    /// What has to happen now. To be called until it returns nothing that changes the driver again.
    pub(crate) fn effects(&mut self) -> Effects {
        loop {
            while self.node.has_ready() {
                let ready = self.node.ready();
                self.take_ready(ready);
            }
            self.notice_leader();
            self.ask_reads();
            if !self.node.has_ready() {
                break;
            }
        }
        self.effects.snapshot_wanted |= self.node.store().take_wanted();
        std::mem::take(&mut self.effects)
    }

    /// Proposals of this member in the log that are not committed yet.
    pub(crate) fn pending(&self) -> u64 {
        self.proposals.pending()
    }

    pub(crate) fn standing(&self) -> Standing {
        let raft = &self.node.raft;
        let is_leader = raft.state == StateRole::Leader;
        Standing {
            leader: raft.leader_id,
            term: raft.term,
            committed: raft.raft_log.committed,
            is_leader,
            // An entry of its own term follows all of theirs.
            is_settled: is_leader && raft.raft_log.term(raft.raft_log.applied).is_ok_and(|term| term == raft.term),
        }
    }

    /// Whether this member is the only voter.
    pub(crate) fn is_alone(&self) -> bool {
        self.node.store().conf_state().get_voters() == [self.options.member_id]
    }

    /// Who votes and who learns by raft, sorted; `None` while raft has not heard of every change that is handed on.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn in_force(&self) -> Option<(Vec<u64>, Vec<u64>)> {
        let conf_state = self.node.store().conf_state();
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        let heard = self.reconfigurations.is_empty() && self.installing.is_none();
        heard.then(|| (sorted(conf_state.get_voters()), sorted(conf_state.get_learners())))
    }

    /// The newest commit index no append has carried, for a last write before a clean stop.
    pub(crate) fn unsaved_commit(&mut self) -> Option<HardState> {
        self.appends.commit_unsaved.take()
    }

    /// Whether so much has been applied since the last release that the store should be made durable now.
    /// Says so once; the answer to it is [`Event::StoreDurable`].
    pub(crate) fn wants_durable_store(&mut self, applied: u64) -> bool {
        // Past the bound what others still need is kept a while: not every entry is a reason to ask again.
        let is_large = self.node.store().payload_bytes() > TAIL_BYTES_MAX;
        let step = if is_large {
            self.options.snapshot_entries.min(LARGE_TAIL_ENTRIES)
        } else {
            self.options.snapshot_entries
        };
        let due = applied >= self.release_asked + step;
        if due {
            self.release_asked = applied;
        }
        due
    }

    /// Five seconds and two election timeouts, as etcd's request timeout.
    fn request_ticks(&self) -> u64 {
        5_000 / self.options.tick_ms + 2 * self.options.election_ticks
    }

    fn leads(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// The member to ask, when it is another.
    fn other_leader(&self) -> Option<u64> {
        let leader = self.node.raft.leader_id;
        (leader != 0 && leader != self.options.member_id).then_some(leader)
    }

    /// Proposes commands as one batch, and each change of the members by itself, if none is under way.
    fn propose(&mut self, offers: Vec<Offer>) {
        let (changes, commands): (Vec<_>, Vec<_>) = offers.into_iter().partition(Offer::is_change);
        self.propose_batch(commands);
        for change in changes {
            // Raft would quietly make an empty entry of a second one.
            if self.leads() && self.node.raft.has_pending_conf() {
                self.decline(vec![change], Declined::ReconfigurationPending);
            } else {
                self.propose_batch(vec![change]);
            }
        }
    }

    fn propose_batch(&mut self, offers: Vec<Offer>) {
        if offers.is_empty() {
            return;
        }
        let raft = &self.node.raft;
        if !self.leads() || raft.lead_transferee.is_some() {
            return self.decline(offers, Declined::NotLeader);
        }
        if raft.raft_log.committed - raft.raft_log.applied > BACKLOG_ENTRIES_MAX {
            return self.decline(offers, Declined::TooManyRequests);
        }

        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.options.member_id;
        message.entries = offers.iter().map(Offer::entry).collect::<Vec<_>>().into();
        let before = raft.raft_log.last_index();
        let term = raft.term;
        if self.node.step(message).is_err() {
            // Too much is uncommitted: nothing of the batch is in the log.
            self.effects.proposals_failed +=
                offers.iter().filter(|offer| matches!(offer, Offer::Here(..))).count() as u64;
            return self.decline(offers, Declined::TooManyRequests);
        }
        for (index, offer) in (before + 1..).zip(offers) {
            let place = Place { index, term };
            match offer {
                Offer::Here(proposal, expires_ticks) => {
                    if is_on(Sabotage::AckBeforeCommit) {
                        self.effects.answers.push((proposal.waiter.clone(), Ok(Reply::Empty)));
                    }
                    self.proposals.place(place, proposal.waiter, expires_ticks, &mut self.effects);
                }
                Offer::There { from, payload } => self.effects.judge(from, payload.number, Ok(place)),
                Offer::Nobody(_) => {}
            }
        }
    }

    /// None of these went into this member's log.
    fn decline(&mut self, offers: Vec<Offer>, declined: Declined) {
        let leader = self.other_leader();
        let mut elsewhere = Vec::new();
        for offer in offers {
            match offer {
                Offer::Here(proposal, expires_ticks) => match declined.refusal() {
                    // Never proposed, so no failed proposal either, as in etcd.
                    Some(refusal) => self.effects.answers.push((proposal.waiter, Err(refusal))),
                    None => elsewhere.push((proposal, expires_ticks)),
                },
                Offer::There { from, payload } => self.effects.judge(from, payload.number, Err(declined)),
                Offer::Nobody(_) => {}
            }
        }
        self.proposals.send(leader, elsewhere, &mut self.effects);
    }

    /// Proposals that waited for a leader, once there is one.
    fn let_go_of_held(&mut self) {
        if let Some(leader) = self.other_leader() {
            self.proposals.send_held(leader, &mut self.effects);
        } else if self.leads() && self.node.raft.lead_transferee.is_none() {
            let held = self.proposals.take_held();
            self.propose(held.into_iter().map(|(proposal, expires)| Offer::Here(proposal, expires)).collect());
        }
    }

    /// Tells raft how far the store has come: not past a change of the members that raft has not heard of yet, or it might
    /// let another begin, or stand for election without knowing who votes.
    fn advance_applied(&mut self, applied: u64) {
        // Rows are in place a moment before the log has heard of it.
        let applied = applied.min(self.node.raft.raft_log.persisted);
        let applied = self.reconfigurations.front().map_or(applied, |index| applied.min(index - 1));
        if applied > self.node.raft.raft_log.applied {
            self.node.advance_apply_to(applied);
        }
    }

    fn ask_reads(&mut self) {
        let raft = &self.node.raft;
        let can_ask = if self.leads() { raft.commit_to_current_term() } else { raft.leader_id != 0 };
        if !can_ask {
            return;
        }
        let retry_ticks = self.now_ticks + (READ_RETRY_MS / self.options.tick_ms).max(1);
        let Some(counter) = self.reads.begin(self.is_alone(), retry_ticks) else { return };
        let context = [self.options.member_id, self.options.boot_nonce, counter];
        self.node.read_index(context.iter().flat_map(|part| part.to_be_bytes()).collect());
    }

    /// Starts over what hung on the leader, when that has changed.
    fn notice_leader(&mut self) {
        let raft = &self.node.raft;
        let now = (raft.term, raft.leader_id, raft.state);
        if now == self.seen {
            return;
        }
        self.seen = now;
        self.reads.restart();
        if self.other_leader().is_some()
            && let Some(done) = self.transfer.take()
        {
            self.effects.answers.push((done.waiter, Ok(Reply::Empty)));
        }
        self.let_go_of_held();
    }

    /// Gives raft a message, unless raft would die of it.
    fn step(&mut self, message: Message) {
        let raft = &self.node.raft;
        let last = raft.raft_log.last_index();
        if message.to != self.options.member_id {
            return;
        }
        match message.get_msg_type() {
            MessageType::MsgHeartbeat if message.term >= raft.term && message.commit > last => {
                self.effects.dead = Some(format!(
                    "the leader {:x} knows of entry {} that this member acknowledged, but the log here ends at entry {last}: \
                     the data directory was lost or put back from a copy. Remove this member from the cluster and add it anew",
                    message.from, message.commit
                ));
                return;
            }
            MessageType::MsgAppend if message.term >= raft.term => {
                let committed = raft.raft_log.committed;
                let held = message.entries.iter().take_while(|entry| entry.index <= committed);
                let differs = held
                    .into_iter()
                    .find(|entry| raft.raft_log.term(entry.index).is_ok_and(|term| term != 0 && term != entry.term));
                if let Some(entry) = differs
                    && raft.raft_log.match_term(message.index, message.log_term)
                {
                    self.effects.dead = Some(format!(
                        "entry {} that the leader {:x} sent differs from the one committed here: the logs of the members do \
                         not belong together. Remove this member from the cluster and add it anew",
                        entry.index, message.from
                    ));
                    return;
                }
            }
            MessageType::MsgTimeoutNow if self.is_installing() => return,
            MessageType::MsgAppendResponse if !message.reject && message.index > last => return,
            // Raft would pass it on in the asker's name, which is refused. The asker asks the next leader by itself.
            MessageType::MsgReadIndex if !self.leads() => return,
            _ => {}
        }
        // What raft refuses (a stranger's answer, say) is meant to be dropped.
        self.node.step(message).ok();
        self.draw_election_timeout();
    }

    /// Replaces the timeout that raft has drawn, whenever it draws one, by one of the seed's.
    fn draw_election_timeout(&mut self) {
        let raft = &mut self.node.raft;
        let now = Some((raft.term, raft.leader_id, raft.state));
        if self.jitter.drawn_for != now {
            self.jitter.drawn_for = now;
            let ticks = self.options.election_ticks + self.jitter.next() % self.options.election_ticks;
            raft.set_randomized_election_timeout(usize::try_from(ticks).expect("a tick count fits in memory"));
        }
    }

    /// What waits for the disk can be answered only once it is written; another leader needs this disk for nothing.
    fn hand_over_if_disk_stands_still(&mut self) {
        let Some((_, since_ticks)) = self.appends.outstanding.front() else { return };
        let stalled = self.now_ticks - since_ticks >= self.options.election_ticks;
        if stalled && self.leads() && self.node.raft.lead_transferee.is_none() && !self.is_alone() {
            self.effects.disk_stands_still = true;
            self.transfer_leader(None, Waiter::None);
        }
    }

    fn transfer_leader(&mut self, to: Option<u64>, waiter: Waiter) {
        let refusal = if !self.leads() {
            Some(Refusal::NotLeader)
        } else if let Some(target) = to.or_else(|| self.successor()) {
            if target == self.options.member_id {
                self.effects.answers.push((waiter, Ok(Reply::Empty)));
                return;
            }
            self.node.transfer_leader(target);
            (self.node.raft.lead_transferee != Some(target)).then_some(Refusal::BadLeaderTransferee)
        } else {
            Some(Refusal::BadLeaderTransferee)
        };
        if let Some(refusal) = refusal {
            self.effects.answers.push((waiter, Err(refusal)));
            return;
        }
        let expires_ticks = self.now_ticks + self.options.election_ticks;
        if let Some(earlier) = self.transfer.replace(Transfer { waiter, expires_ticks }) {
            self.effects.answers.push((earlier.waiter, Err(Refusal::TransferTimeout)));
        }
    }

    /// The voter that has come furthest, one that was heard of lately before any other.
    fn successor(&self) -> Option<u64> {
        let voters = self.node.store().conf_state().get_voters();
        let others = voters.iter().filter(|id| **id != self.options.member_id);
        let known = others.filter_map(|id| self.node.raft.prs().get(*id).map(|progress| (progress, *id)));
        known.max_by_key(|(progress, id)| (progress.recent_active, progress.matched, *id)).map(|(_, id)| id)
    }

    fn take_ready(&mut self, mut ready: Ready) {
        // Read states come after the commits of their own round: a read at index i must find i handed to apply before it.
        let read_states = ready.take_read_states();
        let mark = (!ready.snapshot().is_empty()).then(|| SnapshotMark::from(ready.snapshot()));
        if let Some(mark) = &mark {
            self.node.mut_store().restore(mark);
        }
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        let hard_state = ready.hs().map(HardState::from);
        if let Some(state) = ready.hs() {
            let state = state.clone();
            self.node.mut_store().set_hard_state(state);
        }
        let committed = ready.take_committed_entries();
        let change = committed.iter().find(|entry| entry.get_entry_type() != EntryType::EntryNormal);
        let change = change.map(|entry| entry.index);
        let (number, must_sync) = (ready.number(), ready.must_sync() || change.is_some());
        if let Some(index) = change {
            self.withheld.get_or_insert(Withheld { index, number, committed: Vec::new() }).number = number;
        }
        self.commit(committed);
        let messages = ready.take_messages().into_iter().map(|message| self.in_place(message)).collect();
        self.send(messages);
        // Those of a leader that was deposed in this round are among them.
        let vouching = ready.take_persisted_messages().into_iter().map(|message| self.in_place(message)).collect();
        if let Some(mark) = mark {
            self.install(number, mark, &entries, hard_state);
            self.node.advance_append_async(ready);
        } else {
            self.node.advance_append_async(ready);
            self.append(number, must_sync, &entries, hard_state);
        }
        self.vouch(vouching);
        self.reads.answer(read_states, &mut self.effects);
    }

    /// Gives an append the place of its entries. Raft 0.7 glues entries to an append that waits to be sent and looks at
    /// their place only if that append has some (`try_batching`): an empty one, which told of a commit, gets those from
    /// another place when the member has just said what it lacks. No member takes such an append.
    fn in_place(&self, mut message: Message) -> Message {
        let Some(first) = message.entries.first().map(|entry| entry.index) else { return message };
        if message.get_msg_type() != MessageType::MsgAppend || message.index + 1 == first {
            return message;
        }
        match self.node.raft.raft_log.term(first - 1) {
            Ok(term) if term > 0 || first == 1 => (message.index, message.log_term) = (first - 1, term),
            // Let go of meanwhile: raft's word for it is no term. The empty append is right as it was.
            Ok(_) | Err(_) => message.entries.clear(),
        }
        message
    }

    /// Messages of a member that does not lead. What vouches for its log waits until all that it was given is written.
    fn vouch(&mut self, messages: Vec<Message>) {
        let after = self.appends.outstanding.back().map(|(number, _)| *number);
        for message in messages {
            // Of a member that stopped leading in this very round: nobody sends its rows any more.
            if message.get_msg_type() == MessageType::MsgSnapshot {
                continue;
            }
            match after {
                Some(number) if vouches(message.get_msg_type()) => self.appends.vouching.push_back((number, message)),
                _ => self.effects.messages.push(message),
            }
        }
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
        self.appends.outstanding.push_back((number, self.now_ticks));
        let hard_state = hard_state.or(self.appends.commit_unsaved.take());
        self.appends.commit_unsaved = None;
        let entries = entries.iter().map(LogEntry::from).collect();
        let append = Append { number, mark: None, entries, hard_state, sync: true };
        match &mut self.installing {
            Some(installing) => installing.appends.push(append),
            None => self.effects.appends.push(append),
        }
    }

    fn persisted(&mut self, number: u64) {
        while self.appends.outstanding.pop_front_if(|(first, _)| *first <= number).is_some() {}
        self.node.on_persist_ready(number);
        if let Some(written) = self.withheld.take_if(|withheld| withheld.number <= number) {
            self.effects.committed.extend(written.committed);
        }
        while let Some((_, message)) = self.appends.vouching.pop_front_if(|(first, _)| *first <= number) {
            self.effects.messages.push(message);
        }
    }

    fn commit(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let entry = LogEntry::from(&entry);
            self.handed_on = entry.index;
            if entry.kind != EntryKind::Normal {
                self.reconfigurations.push_back(entry.index);
            }
            let waiter = self.proposals.waiter_of(&entry, &mut self.effects);
            let committed = Committed { entry, waiter };
            match &mut self.installing {
                Some(installing) => installing.committed.push(committed),
                None => self.hand_on(committed),
            }
        }
    }

    fn hand_on(&mut self, committed: Committed) {
        match &mut self.withheld {
            Some(withheld) if committed.entry.index >= withheld.index => withheld.committed.push(committed),
            Some(_) | None => self.effects.committed.push(committed),
        }
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
        let payload_bytes = tail.payload_bytes();
        let through = self.releasable(index, payload_bytes);
        self.node.mut_store().release(through);
        self.effects.release = Some(Release { mark, through });
    }

    fn refuse_all(&mut self, refusal: &Refusal) {
        let waiters = self.proposals.drain().into_iter().chain(self.reads.drain());
        let waiters = waiters.chain(self.transfer.take().map(|transfer| transfer.waiter));
        self.effects.answers.extend(waiters.map(|waiter| (waiter, Err(refusal.clone()))));
    }
}

/// Whether a message says something of the sender's log or vote, which a crash must not make a lie of.
fn vouches(kind: MessageType) -> bool {
    if kind == MessageType::MsgRequestVoteResponse && is_on(Sabotage::VoteWithoutFsync) {
        return false;
    }
    !matches!(kind, MessageType::MsgHeartbeatResponse | MessageType::MsgReadIndex)
}

impl Jitter {
    /// The next number of the sequence (splitmix64, Steele et al., 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
