//! How the rest of the node reaches consensus: propose, ask for a linearizable read, look at the standing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::admission::Admitted;
use crate::cluster::MemberId;
use crate::consensus::answers::{Answer, Pending, Waiter};
use crate::consensus::driver::Standing;
use crate::consensus::event::Event;
use crate::consensus::inbox::Inbox;
use crate::consensus::proposals::{Payload, Proposal};
use crate::refusal::Refusal;

/// Written by the raft and apply threads, read by everyone.
#[derive(Default)]
pub(crate) struct Shared {
    leader: AtomicU64,
    term: AtomicU64,
    committed: AtomicU64,
    applied: AtomicU64,
    is_leader: AtomicBool,
    is_settled: AtomicBool,
    leader_changes: AtomicU64,
    pending: AtomicU64,
    /// The number of the last proposal. Starts anywhere, so that two members hardly ever have the same in flight.
    numbers: AtomicU64,
}

impl Shared {
    /// `first_number` is to be random.
    pub(crate) fn new(applied: u64, first_number: u64) -> Shared {
        let (applied, numbers) = (AtomicU64::new(applied), AtomicU64::new(first_number));
        Shared { applied, numbers, ..Shared::default() }
    }

    /// Returns whether leader or term changed.
    pub(crate) fn publish(&self, standing: Standing) -> bool {
        // Nobody may see it beside a later term.
        self.is_settled.fetch_and(standing.is_settled, Ordering::AcqRel);
        let old_leader = self.leader.swap(standing.leader, Ordering::AcqRel);
        let old_term = self.term.swap(standing.term, Ordering::AcqRel);
        self.committed.store(standing.committed, Ordering::Release);
        self.is_leader.store(standing.is_leader, Ordering::Release);
        self.is_settled.store(standing.is_settled, Ordering::Release);
        if old_leader != standing.leader && standing.leader != 0 {
            self.leader_changes.fetch_add(1, Ordering::Relaxed);
        }
        old_leader != standing.leader || old_term != standing.term
    }

    pub(crate) fn set_applied(&self, index: u64) {
        self.applied.store(index, Ordering::Release);
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    pub(crate) fn set_pending(&self, proposals: u64) {
        self.pending.store(proposals, Ordering::Relaxed);
    }
}

/// This member's standing, for Status, health checks and metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RaftStatus {
    pub(crate) leader: Option<MemberId>,
    pub(crate) term: u64,
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    pub(crate) is_leader: bool,
    /// Leads, and everything that earlier leaders committed is applied here.
    pub(crate) is_settled: bool,
    /// Leaders seen since this process started.
    pub(crate) leader_changes: u64,
    /// Proposals in the log that are not committed yet.
    pub(crate) pending: u64,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    inbox: Arc<Inbox<Event>>,
    shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(inbox: Arc<Inbox<Event>>, shared: Arc<Shared>) -> Handle {
        Handle { inbox, shared }
    }

    /// Proposes the command; resolves when it is applied on this member. To be polled on a shard.
    ///
    /// A caller that gives up early has not undone anything: the command may still be applied.
    pub(crate) async fn propose(&self, command: Admitted) -> Answer {
        let pending = Pending::open()?;
        self.offer(self.proposal(command, pending.waiter()))?;
        pending.await
    }

    /// As [`Handle::propose`], for a thread outside the shards. Waits at most `patience`.
    pub(crate) fn propose_and_wait(&self, command: Admitted, patience: Duration) -> Answer {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.offer(self.proposal(command, Waiter::Thread(sender)))?;
        receiver.recv_timeout(patience).map_err(|_| Refusal::Timeout)?
    }

    /// Proposes the command if this member still leads in `term` when it comes to that, and does not wait for what becomes
    /// of it. For what a leader decides by its own clock: a later leader has another.
    pub(crate) fn propose_in_term(&self, command: Admitted, term: u64) -> Result<(), Refusal> {
        let (_, data) = command.into_entry(0);
        self.offer(Event::ProposeInTerm { data, term })
    }

    /// Hands leadership to this member, or to the one that has come furthest. Waits until another leads.
    pub(crate) fn transfer_and_wait(&self, to: Option<MemberId>, patience: Duration) -> Answer {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.inbox.push(Event::Transfer { to: to.map(|to| to.0), waiter: Waiter::Thread(sender) });
        receiver.recv_timeout(patience).map_err(|_| Refusal::TransferTimeout)?
    }

    /// As [`Handle::transfer_and_wait`], on a shard.
    pub(crate) async fn transfer(&self, to: MemberId) -> Result<(), Refusal> {
        let pending = Pending::open()?;
        self.offer(Event::Transfer { to: Some(to.0), waiter: pending.waiter() })?;
        pending.await.map(|_| ())
    }

    /// Resolves when this member has applied everything that was committed, anywhere, before the call.
    /// To be polled on a shard.
    pub(crate) async fn read_barrier(&self) -> Result<(), Refusal> {
        let pending = Pending::open()?;
        self.offer(Event::Read { waiter: pending.waiter() })?;
        pending.await.map(|_| ())
    }

    /// Whether this learner has come far enough to vote; only the leader can tell. To be polled on a shard.
    ///
    /// # Errors
    /// `LearnerNotReady` when it has not, `NotLeader`, or `MemberNotFound`.
    pub(crate) async fn check_caught_up(&self, learner: MemberId) -> Result<(), Refusal> {
        let pending = Pending::open()?;
        self.offer(Event::CaughtUp { learner: learner.0, waiter: pending.waiter() })?;
        pending.await.map(|_| ())
    }

    pub(crate) fn status(&self) -> RaftStatus {
        let leader = self.shared.leader.load(Ordering::Acquire);
        let applied = self.shared.applied();
        RaftStatus {
            leader: (leader != 0).then_some(MemberId(leader)),
            term: self.shared.term.load(Ordering::Acquire),
            // The raft thread tells of a commit at the end of its round; the apply thread may be done with it by then.
            committed: self.shared.committed.load(Ordering::Acquire).max(applied),
            applied,
            is_leader: self.shared.is_leader.load(Ordering::Acquire),
            is_settled: self.shared.is_settled.load(Ordering::Acquire),
            leader_changes: self.shared.leader_changes.load(Ordering::Relaxed),
            pending: self.shared.pending.load(Ordering::Relaxed),
        }
    }

    /// The store is durable up to this entry; the log may let go of its head.
    pub(crate) fn store_is_durable(&self, index: u64) {
        self.inbox.push(Event::StoreDurable { index });
    }

    fn proposal(&self, command: Admitted, waiter: Waiter) -> Event {
        let number = self.shared.numbers.fetch_add(1, Ordering::Relaxed);
        let (kind, data) = command.into_entry(number);
        Event::Propose(Proposal { payload: Payload { number, kind, data }, waiter })
    }

    fn offer(&self, event: Event) -> Result<(), Refusal> {
        self.inbox.offer(event).map_err(|_| Refusal::TooManyRequests)
    }
}
