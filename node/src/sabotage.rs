//! Faults put into the node on purpose, to see that the simulation finds each of them.
//!
//! A place that can go wrong asks [`is_on`]. One fault at a time is switched on, for the thread that simulates; in a build
//! that ships the answer is the constant `false`, and nothing of this is left.

/// What can be broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sabotage {
    /// A vote leaves before it is on the disk.
    VoteWithoutFsync,
    /// Rounds of reads share one context.
    ReusedReadContext,
    /// The applied index is committed before the changes, in a batch of its own.
    AppliedIndexOutsideBatch,
    /// A compaction takes a deleted key's tombstone and leaves the versions before it.
    LostTombstone,
    /// Watchers that are behind are told of progress.
    ProgressBeforeEvent,
    /// A lease runs out after half its time.
    EarlyLeaseExpiry,
    /// What was sent to one leader is sent to the next as well.
    DoubleApply,
    /// Apply carries out what was judged under policies that are in force no more.
    PolicyEpochUnchecked,
    /// Apply carries out what was judged by keys that have changed since.
    ReadSetUnchecked,
    /// The leader alone puts a change of the members in force.
    SplitConfChange,
    /// A leader answers a proposal once it is in its own log.
    AckBeforeCommit,
}

#[cfg(any(test, feature = "sim"))]
thread_local! {
    static ON: std::cell::Cell<Option<Sabotage>> = const { std::cell::Cell::new(None) };
}

#[cfg(any(test, feature = "sim"))]
pub(crate) fn is_on(fault: Sabotage) -> bool {
    ON.get() == Some(fault)
}

#[cfg(not(any(test, feature = "sim")))]
pub(crate) const fn is_on(_: Sabotage) -> bool {
    false
}

/// Breaks this thread's node, or mends it.
#[cfg(test)]
pub(crate) fn switch(fault: Option<Sabotage>) {
    ON.set(fault);
}
