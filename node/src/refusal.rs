//! Why a request is not done: one list for the front door, the log and the apply path.
//!
//! `rpc/status` alone turns these into gRPC codes and etcd's texts. Refusals of `apply` are deterministic: every member
//! refuses the same entry alike, and the entry counts as applied.

use std::fmt;

use crate::mvcc::query;
use crate::plugin::Code;
use crate::policy::plugins;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    // The request itself.
    EmptyKey,
    KeyTooLarge,
    ValueProvided,
    LeaseProvided,
    KeyNotFound,
    TooManyOperations,
    DuplicateKey,
    InvalidSortOption,
    RequestTooLarge,
    BadMemberUrls,
    /// A learner serves neither writes nor linearizable reads.
    NotForLearner,
    /// Kuorum's own check of a field; the sentence names the field and what is allowed.
    Invalid(String),
    /// A file that is no plugin, or is to get what it does not ask for; the sentence says what is wrong.
    UnfitPlugin(String),
    /// A plugin that nobody has signed whom this member trusts; the sentence says what is wrong.
    NotTrusted(String),

    // The state it meets.
    Compacted,
    FutureRevision,
    NoSpace,
    Corrupt,
    LeaseNotFound,
    LeaseExists,
    LeaseTtlTooLarge,
    MemberNotFound,
    MemberExists,
    MemberNotLearner,
    PeerUrlExists,
    TooManyLearners,
    LearnerNotReady,
    /// A learner that is to vote has not prepared a plugin that is in force.
    LearnerNotPrepared,
    /// Too few voters have started for the change to leave a quorum.
    NotEnoughStarted,

    // The cluster's condition.
    TooManyRequests,
    NoLeader,
    /// Too few voters have been connected for a while.
    Unhealthy,
    /// One change of the members at a time.
    ReconfigurationPending,
    LeaderChanged,
    NotLeader,
    BadLeaderTransferee,
    TransferTimeout,
    Timeout,
    Stopped,
    /// Judged under policies that were not in force any more when it came to that: whoever proposed it judges it again.
    StalePolicy,
    /// Judged by keys that had changed when it came to that: whoever proposed it judges it again.
    StaleReads,
    /// Policies that have to be asked may take long: they are asked elsewhere. Never told.
    SlowPolicy,
    /// A policy said no.
    Denied(Box<Denial>),
    /// A policy that must be asked could not answer.
    Unjudged(Box<Unjudged>),

    /// A change of the plugins. Boxed, as its values make it larger than all others.
    Plugin(Box<plugins::Refused>),

    /// Not in this release; the sentence says what is missing.
    Unimplemented(&'static str),
    /// The process can't go on with this request; the sentence says why.
    Internal(String),
}

/// What a policy says no with, as the client is to see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Denial {
    pub(crate) plugin: String,
    pub(crate) code: Code,
    pub(crate) message: String,
    /// Whether it rests on keys that the policy read.
    pub(crate) has_read: bool,
}

/// Why a policy could not be asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unjudged {
    pub(crate) plugin: String,
    /// `None` while this member is still at preparing it.
    pub(crate) failure: Option<String>,
}

impl From<query::Refusal> for Refusal {
    fn from(refusal: query::Refusal) -> Refusal {
        match refusal {
            query::Refusal::Compacted { .. } => Refusal::Compacted,
            query::Refusal::Future { .. } => Refusal::FutureRevision,
        }
    }
}

impl From<plugins::Refused> for Refusal {
    fn from(refused: plugins::Refused) -> Refusal {
        Refusal::Plugin(Box::new(refused))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
