//! What must happen after the driver has looked at a round of events. The runner carries the parts out in field order.

use crate::consensus::answers::{Answer, Waiter};
use crate::log::{HardState, LogEntry, SnapshotMark};

#[derive(Default)]
pub(crate) struct Effects {
    /// Refusals, known at once.
    pub(crate) answers: Vec<(Waiter, Answer)>,
    /// Appends to make durable, in this order; each is reported back by its number.
    pub(crate) appends: Vec<Append>,
    /// Entries to apply, in index order.
    pub(crate) committed: Vec<Committed>,
    /// Reads to answer once the index beside them is applied.
    pub(crate) reads: Vec<(u64, Waiter)>,
    /// The log may forget entries up to the mark's index, after the mark itself is written.
    pub(crate) release: Option<Release>,
    /// Reads that gave up, and rounds of reads that had to be asked again.
    pub(crate) reads_failed: u64,
    pub(crate) reads_slow: u64,
}

/// One write to the log.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) number: u64,
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) hard_state: Option<HardState>,
    /// A vote, a term or an entry is in it; without one the write may stay in the page cache.
    pub(crate) sync: bool,
}

/// A committed entry and who waits for it.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) entry: LogEntry,
    pub(crate) waiter: Waiter,
}

/// A truncation of the log's head.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) mark: SnapshotMark,
    /// Entries up to here are no longer needed, not even for a member that lags a little.
    pub(crate) through: u64,
}
