//! What must happen after the driver has looked at a round of events. The runner carries the parts out in field order.

use raft::eraftpb::Message;

use crate::consensus::answers::{Answer, Waiter};
use crate::consensus::proposals::{Declined, Payload, Place, Verdict};
use crate::log::{HardState, LogEntry, SnapshotMark};
use crate::refusal::Refusal;

#[derive(Default)]
pub(crate) struct Effects {
    /// Refusals, known at once.
    pub(crate) answers: Vec<(Waiter, Answer)>,
    /// Messages to other members. Those that vouch for what the log holds are here only once it does.
    pub(crate) messages: Vec<Message>,
    /// Commands for the leader to propose.
    pub(crate) forwards: Vec<Forward>,
    /// What becomes of commands that other members sent: to whom, and what.
    pub(crate) verdicts: Vec<(u64, Verdict)>,
    /// Appends to make durable, in this order; each is reported back by its number.
    pub(crate) appends: Vec<Append>,
    /// Entries to apply, in index order.
    pub(crate) committed: Vec<Committed>,
    /// A member needs more than the log holds: rows are to be made ready for it.
    pub(crate) snapshot_wanted: bool,
    /// Rows that were made ready are to be sent.
    pub(crate) snapshot: Option<SendSnapshot>,
    /// Rows that arrived, as of this entry, are to take the place of the store, after all that is committed above.
    pub(crate) install: Option<u64>,
    /// Reads to answer once the index beside them is applied.
    pub(crate) reads: Vec<(u64, Waiter)>,
    /// The log may forget entries up to the mark's index, after the mark itself is written.
    pub(crate) release: Option<Release>,
    /// This member must not go on; the sentence says why and what to do.
    pub(crate) dead: Option<String>,
    /// This member leads and its disk writes nothing; another is asked to lead.
    pub(crate) disk_stands_still: bool,
    /// Proposals that raft did not take, lost, or did not commit in time.
    pub(crate) proposals_failed: u64,
    /// Reads that gave up, and rounds of reads that had to be asked again.
    pub(crate) reads_failed: u64,
    pub(crate) reads_slow: u64,
}

impl Effects {
    pub(super) fn fail_proposal(&mut self, waiter: Waiter, refusal: Refusal) {
        self.answers.push((waiter, Err(refusal)));
        self.proposals_failed += 1;
    }

    /// Adds what became of one command of another member's to what it is told.
    pub(super) fn judge(&mut self, to: u64, number: u64, outcome: Result<Place, Declined>) {
        if let Some((last_to, last)) = self.verdicts.last_mut()
            && *last_to == to
            && last.is_followed_by(&outcome)
        {
            last.numbers.push(number);
            return;
        }
        self.verdicts.push((to, Verdict { numbers: vec![number], outcome }));
    }
}

/// Commands for the leader.
#[derive(Debug)]
pub(crate) struct Forward {
    pub(crate) to: u64,
    pub(crate) entries: Vec<Payload>,
}

/// The rows as of `mark`, for a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SendSnapshot {
    pub(crate) to: u64,
    /// In which the sender leads.
    pub(crate) term: u64,
    pub(crate) mark: SnapshotMark,
}

/// One write to the log.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) number: u64,
    /// The store came from another member, up to here: what the log held is of no more use, and the entries follow this.
    pub(crate) mark: Option<SnapshotMark>,
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) hard_state: Option<HardState>,
    /// A vote, a term or an entry is in it; without one the write may stay in the page cache.
    pub(crate) sync: bool,
}

impl Append {
    /// Whether this append and one that follows it can be one write.
    pub(crate) fn can_join(&self, later: &Append) -> bool {
        self.mark.is_none() && later.mark.is_none()
    }

    /// Makes one write of this append and the one that follows it.
    pub(crate) fn join(&mut self, later: Append) {
        self.number = later.number;
        self.entries.extend(later.entries);
        self.hard_state = later.hard_state.or(self.hard_state);
        self.sync |= later.sync;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn append(number: u64, indices: &[u64], commit: Option<u64>, sync: bool) -> Append {
        let entry = |index: &u64| LogEntry {
            term: 1,
            index: *index,
            kind: crate::log::EntryKind::Normal,
            data: bytes::Bytes::new(),
        };
        let hard_state = commit.map(|commit| HardState { term: 1, vote: 1, commit });
        Append { number, mark: None, entries: indices.iter().map(entry).collect(), hard_state, sync }
    }

    #[test]
    fn joined_appends_are_written_as_if_one_after_the_other() {
        let mut joined = append(1, &[1, 2], Some(0), true);
        joined.join(append(2, &[], Some(2), false));
        joined.join(append(3, &[3], None, false));
        let indices: Vec<u64> = joined.entries.iter().map(|entry| entry.index).collect();
        assert_eq!((joined.number, indices, joined.sync), (3, vec![1, 2, 3], true));
        assert_eq!(joined.hard_state.map(|state| state.commit), Some(2));
    }
}
