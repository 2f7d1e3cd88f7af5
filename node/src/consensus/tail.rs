//! The recent part of the Raft log in memory, as the state machine of `raft` reads it.
//!
//! Holds every entry since the last release. Its size is bounded by the driver, which has the store made durable and
//! the head released after so many entries or bytes; see [`Tail::payload_bytes`].

use std::cell::Cell;
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use crate::cluster::Members;
use crate::log::{self, EntryKind, LogEntry, Recovered, SnapshotMark};

pub(crate) struct Tail {
    entries: VecDeque<Entry>,
    /// Index and term of the entry before the first one held.
    before: (u64, u64),
    payload_bytes: u64,
    hard_state: HardState,
    conf_state: ConfState,
    /// Rows that can be sent to a member, and whether some member needs them. Raft takes and asks through `&self`.
    prepared: Cell<Option<SnapshotMark>>,
    wanted: Cell<bool>,
}

impl Tail {
    /// A tail that starts after the entry `before` (index, term).
    pub(crate) fn new(before: (u64, u64), hard_state: &log::HardState, voters: &[u64], learners: &[u64]) -> Tail {
        let (voters, learners) = (voters.to_vec(), learners.to_vec());
        let conf_state = (&SnapshotMark { index: 0, term: 0, voters, learners }).into();
        Tail {
            entries: VecDeque::new(),
            before,
            payload_bytes: 0,
            hard_state: hard_state.into(),
            conf_state,
            prepared: Cell::default(),
            wanted: Cell::default(),
        }
    }

    /// The tail of a log as recovered, with the members that the store holds as of the entry `applied`.
    pub(crate) fn recovered(recovered: Recovered, members: &Members, applied: u64) -> Tail {
        let mut hard_state = recovered.hard_state;
        // What is applied was committed; the log may not have heard of it when the process died.
        hard_state.commit = hard_state.commit.max(applied);
        let before = (recovered.snapshot.index, recovered.snapshot.term);
        let SnapshotMark { voters, learners, .. } = members.mark(applied, 0);
        let mut tail = Tail::new(before, &hard_state, &voters, &learners);
        tail.extend(recovered.entries);
        tail
    }

    /// Takes in the entries recovered from the log.
    pub(crate) fn extend(&mut self, entries: Vec<LogEntry>) {
        let entries: Vec<Entry> = entries.into_iter().map(Entry::from).collect();
        self.append(&entries);
    }

    pub(crate) fn first(&self) -> u64 {
        self.before.0 + 1
    }

    pub(crate) fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }

    /// The commit index as last saved.
    pub(crate) fn committed(&self) -> u64 {
        self.hard_state.commit
    }

    /// Bytes of payload held.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub(crate) fn conf_state(&self) -> &ConfState {
        &self.conf_state
    }

    pub(crate) fn set_conf_state(&mut self, conf_state: ConfState) {
        self.conf_state = conf_state;
    }

    /// Begins anew after what another member's rows hold.
    pub(crate) fn restore(&mut self, mark: &SnapshotMark) {
        self.entries.clear();
        self.payload_bytes = 0;
        self.before = (mark.index, mark.term);
        self.conf_state = mark.into();
        self.hard_state.commit = self.hard_state.commit.max(mark.index);
    }

    /// Rows as of this entry can be sent, once; `None` takes that back.
    pub(crate) fn prepare(&mut self, mark: Option<SnapshotMark>) {
        self.prepared.set(mark);
    }

    /// Whether a member needs rows. Says so once for each time that raft asked in vain.
    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.take()
    }

    pub(crate) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    /// Adds entries after dropping those at or past the first index given: a new leader's entries replace old ones.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(
            first.index >= self.first() && first.index <= self.last() + 1,
            "entry {} does not continue a log of {}..={}",
            first.index,
            self.first(),
            self.last()
        );
        while self.last() >= first.index {
            let dropped = self.entries.pop_back().expect("last() lies past the first entry");
            self.payload_bytes -= dropped.data.len() as u64;
        }
        self.payload_bytes += entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Forgets entries up to `through`. What is gone already stays gone.
    pub(crate) fn release(&mut self, through: u64) {
        while self.first() <= through {
            let Some(entry) = self.entries.pop_front() else { return };
            self.payload_bytes -= entry.data.len() as u64;
            self.before = (entry.index, entry.term);
        }
    }

    fn at(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.first())?;
        self.entries.get(usize::try_from(offset).ok()?)
    }
}

impl Storage for Tail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.first() {
            return Err(StorageError::Compacted.into());
        }
        assert!(high <= self.last() + 1, "entries up to {high} asked of a log that ends at {}", self.last());
        let room = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        let mut found = Vec::new();
        for entry in (low..high).filter_map(|index| self.at(index)) {
            size += entry.data.len() as u64;
            // The first entry is given whatever its size, or replication would stop at it.
            if size > room && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        Ok(found)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.before.0 {
            return Ok(self.before.1);
        }
        match self.at(index) {
            Some(entry) => Ok(entry.term),
            None if index < self.before.0 => Err(StorageError::Compacted.into()),
            None => Err(StorageError::Unavailable.into()),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _: u64) -> raft::Result<Snapshot> {
        match self.prepared.take().filter(|mark| mark.index >= request_index && mark.index >= self.before.0) {
            Some(mark) => Ok((&mark).into()),
            None => {
                self.wanted.set(true);
                Err(StorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}

impl From<&SnapshotMark> for ConfState {
    fn from(mark: &SnapshotMark) -> ConfState {
        let mut conf_state = ConfState::default();
        conf_state.set_voters(mark.voters.clone());
        conf_state.set_learners(mark.learners.clone());
        conf_state
    }
}

/// Of the rows themselves raft knows nothing.
impl From<&SnapshotMark> for Snapshot {
    fn from(mark: &SnapshotMark) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (mark.index, mark.term);
        metadata.set_conf_state(mark.into());
        snapshot
    }
}

impl From<&Snapshot> for SnapshotMark {
    fn from(snapshot: &Snapshot) -> SnapshotMark {
        let metadata = snapshot.get_metadata();
        let conf_state = metadata.get_conf_state();
        SnapshotMark {
            index: metadata.index,
            term: metadata.term,
            voters: conf_state.get_voters().to_vec(),
            learners: conf_state.get_learners().to_vec(),
        }
    }
}

impl From<&log::HardState> for HardState {
    fn from(state: &log::HardState) -> HardState {
        let mut raft_state = HardState::default();
        raft_state.set_term(state.term);
        raft_state.set_vote(state.vote);
        raft_state.set_commit(state.commit);
        raft_state
    }
}

impl From<&HardState> for log::HardState {
    fn from(state: &HardState) -> log::HardState {
        log::HardState { term: state.term, vote: state.vote, commit: state.commit }
    }
}

impl From<LogEntry> for Entry {
    fn from(entry: LogEntry) -> Entry {
        let mut raft_entry = Entry::default();
        raft_entry.set_term(entry.term);
        raft_entry.set_index(entry.index);
        raft_entry.set_data(entry.data);
        raft_entry.set_entry_type(match entry.kind {
            EntryKind::Normal => EntryType::EntryNormal,
            EntryKind::ConfChange => EntryType::EntryConfChange,
            EntryKind::ConfChangeV2 => EntryType::EntryConfChangeV2,
        });
        raft_entry
    }
}

impl From<&Entry> for LogEntry {
    fn from(entry: &Entry) -> LogEntry {
        LogEntry {
            term: entry.term,
            index: entry.index,
            kind: match entry.get_entry_type() {
                EntryType::EntryNormal => EntryKind::Normal,
                EntryType::EntryConfChange => EntryKind::ConfChange,
                EntryType::EntryConfChangeV2 => EntryKind::ConfChangeV2,
            },
            data: entry.data.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(indexes: std::ops::RangeInclusive<u64>, term: u64, bytes: usize) -> Vec<LogEntry> {
        let data = || bytes::Bytes::from(vec![b'd'; bytes]);
        indexes.map(|index| LogEntry { term, index, kind: EntryKind::Normal, data: data() }).collect()
    }

    /// After entry 5 of term 1, entries 6 to 10 of term 2, ten bytes each.
    fn tail() -> Tail {
        let mut tail = Tail::new((5, 1), &log::HardState::default(), &[1], &[]);
        tail.extend(entries(6..=10, 2, 10));
        tail
    }

    fn indexes(tail: &Tail, low: u64, high: u64, max_size: Option<u64>) -> Vec<u64> {
        let found = tail.entries(low, high, max_size, GetEntriesContext::empty(false)).unwrap();
        found.iter().map(|entry| entry.index).collect()
    }

    #[test]
    fn entries_are_given_up_to_a_size_and_one_at_least() {
        let tail = tail();
        assert_eq!(indexes(&tail, 6, 11, None), [6, 7, 8, 9, 10]);
        assert_eq!(indexes(&tail, 7, 7, None), [0; 0]);
        assert_eq!(indexes(&tail, 7, 11, Some(25)), [7, 8]);
        assert_eq!(indexes(&tail, 7, 11, Some(0)), [7]);
        let released = tail.entries(5, 7, None, GetEntriesContext::empty(false));
        assert_eq!(released.unwrap_err(), raft::Error::Store(StorageError::Compacted));
    }

    #[test]
    fn terms_are_known_from_the_entry_before_the_first_on() {
        let mut tail = tail();
        assert_eq!((tail.term(5), tail.term(6)), (Ok(1), Ok(2)));
        assert_eq!(tail.term(4), Err(StorageError::Compacted.into()));
        assert_eq!(tail.term(11), Err(StorageError::Unavailable.into()));
        tail.release(8);
        assert_eq!((tail.first(), tail.last(), tail.term(8)), (9, 10, Ok(2)));
        assert_eq!(tail.term(7), Err(StorageError::Compacted.into()));
        tail.release(3);
        tail.release(99);
        assert_eq!((tail.first(), tail.last(), tail.payload_bytes()), (11, 10, 0));
        assert_eq!(tail.term(10), Ok(2));
        tail.extend(entries(11..=11, 3, 1));
        assert_eq!((tail.last(), tail.payload_bytes()), (11, 1));
    }

    #[test]
    fn a_new_leaders_entries_replace_those_at_and_past_their_first() {
        let mut tail = tail();
        tail.extend(entries(8..=8, 3, 7));
        assert_eq!((tail.last(), tail.term(7), tail.term(8)), (8, Ok(2), Ok(3)));
        assert_eq!(tail.payload_bytes(), 27);
    }

    #[test]
    #[should_panic(expected = "entry 12 does not continue a log of 6..=10")]
    fn a_gap_is_refused() {
        tail().extend(entries(12..=12, 2, 1));
    }
}
