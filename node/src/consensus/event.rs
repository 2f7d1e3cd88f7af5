//! Everything that can wake the driver.

use bytes::Bytes;
use raft::eraftpb::Message;

use crate::cluster::Reconfiguration;
use crate::consensus::answers::{Answer, Waiter};
use crate::consensus::proposals::{Payload, Proposal, Verdict};
use crate::log::SnapshotMark;

#[derive(Debug)]
pub(crate) enum Event {
    /// A command that passed admission, encoded. The waiter is answered once the entry is applied here, or refused.
    Propose(Proposal),
    /// A command that only the leader of this term may propose; anyone else drops it.
    ProposeInTerm { data: Bytes, term: u64 },
    /// A request to be told when everything committed before now is applied here.
    Read { waiter: Waiter },
    /// The log holds this append, and everything before it, durably.
    Persisted { number: u64 },
    /// The change of the members in this entry is applied, and means this for who votes. The waiter is answered once that
    /// is in force.
    Reconfigured { index: u64, reconfiguration: Reconfiguration, waiter: Waiter, answer: Answer },
    /// A question of whether this learner has come far enough to vote.
    CaughtUp { learner: u64, waiter: Waiter },
    /// The state machine is durable up to this index: the log may let go of what came before.
    StoreDurable { index: u64 },
    /// A message from another member, of a form that raft takes.
    Message(Box<Message>),
    /// Commands that another member's clients want proposed.
    Forwarded { from: u64, entries: Vec<Payload> },
    /// What a leader says of commands sent to it.
    Judged(Verdict),
    /// The store's rows as of this entry can be sent to a member that needs them.
    SnapshotReady(SnapshotMark),
    /// They were sent to this member and are safe there, or were not; none are held ready any more.
    SnapshotSent { to: u64, arrived: bool },
    /// Another member's rows are here, from the leader of this term, and can take the place of the store.
    SnapshotArrived { from: u64, term: u64, mark: SnapshotMark },
    /// They have taken its place, durably.
    Installed { index: u64 },
    /// What was last sent to this member may be lost.
    Lost { member: u64 },
    /// A request to hand leadership to a member, or to the one that has come furthest. The waiter is answered once another
    /// member leads.
    Transfer { to: Option<u64>, waiter: Waiter },
    /// The process stops: refuse what waits.
    Stop,
}
