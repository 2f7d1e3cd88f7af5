//! The engine of the simulation: ordered maps in memory whose power can fail.
//!
//! What can be seen of the real engine is the same here: a batch is atomic, a view is of one commit, and a crash keeps the
//! batches up to the last persist and some of those after it, in their order (fjall syncs its journal before it flushes a
//! memtable, so no space ever gets ahead of another). A rewrite shows rows to the filter in key order, at times only
//! those of some tables. Nothing here is in a release build.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{MakeRowFilter, Row, Space, StorageError};

/// Rows in one table of `rev`: only whole tables are dropped.
const TABLE_ROWS: usize = 16;
/// Every so many flushes the engine rewrites all tables, otherwise every other one.
const FULL_COMPACTION_EVERY: u64 = 3;

type Map = BTreeMap<Bytes, Bytes>;

/// The rows of one member's store, which outlive the process that is simulated. A cheap handle.
// A lock and not an owner: the store and the simulation that takes its power away hold it at the same time.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Shared with views, and copied when one is alive at a commit.
    live: [Arc<Map>; 3],
    durable: [Map; 3],
    /// Batches since the last persist.
    journal: Vec<Batch>,
    make_filter: Option<MakeRowFilter>,
    flushes: u64,
}

/// Rows to be written together: `None` removes one.
#[derive(Clone, Default)]
pub(super) struct Batch(Vec<(Space, Bytes, Option<Bytes>)>);

/// All spaces as of one commit.
pub(super) struct View([Arc<Map>; 3]);

/// Rows of a view, looked up one by one.
pub(super) struct Scan {
    rows: Arc<Map>,
    low: Bound<Bytes>,
    high: Bound<Bytes>,
}

impl Memory {
    /// Loses power: of the batches since the last persist only the first so many stay.
    pub(crate) fn crash(&self, batches_kept: usize) {
        let state = &mut *self.0.lock();
        for batch in state.journal.drain(..).take(batches_kept) {
            batch.write(&mut |space, key, value| set(&mut state.durable[space as usize], key, value));
        }
        state.live = state.durable.clone().map(Arc::new);
        state.make_filter = None;
    }

    /// Batches that a crash could lose now.
    pub(crate) fn unsynced_batches(&self) -> usize {
        self.0.lock().journal.len()
    }

    /// The next process starts with its own filter.
    pub(super) fn open(&self, make_filter: MakeRowFilter) {
        self.0.lock().make_filter = Some(make_filter);
    }

    pub(super) fn get(&self, space: Space, key: &[u8]) -> Option<Bytes> {
        self.0.lock().live[space as usize].get(key).cloned()
    }

    pub(super) fn view(&self) -> View {
        View(self.0.lock().live.clone())
    }

    // A store in memory never fails; those below answer as the engine does.

    pub(super) fn commit(&self, batch: Batch) -> Result<(), StorageError> {
        let state = &mut *self.0.lock();
        batch.clone().write(&mut |space, key, value| set(Arc::make_mut(&mut state.live[space as usize]), key, value));
        state.journal.push(batch);
        Ok(())
    }

    pub(super) fn persist(&self) -> Result<(), StorageError> {
        self.0.lock().persist();
        Ok(())
    }

    /// Flushes what is in memory and compacts some of the tables.
    pub(super) fn nudge(&self) -> Result<(), StorageError> {
        let state = &mut *self.0.lock();
        state.flushes += 1;
        let turn = state.flushes;
        let full = turn.is_multiple_of(FULL_COMPACTION_EVERY);
        state.compact(&|key| full || (turn + key.iter().map(|byte| u64::from(*byte)).sum::<u64>()).is_multiple_of(2));
        Ok(())
    }

    pub(super) fn rewrite(&self) -> Result<(), StorageError> {
        self.0.lock().compact(&|_| true);
        Ok(())
    }

    pub(super) fn drop_rev_tables(&self, below: &[u8]) -> Result<(), StorageError> {
        let state = &mut *self.0.lock();
        let rev = Space::Rev as usize;
        let old: Vec<Bytes> = state.live[rev]
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(below)))
            .map(|row| row.0.clone())
            .collect();
        for key in &old[..old.len() / TABLE_ROWS * TABLE_ROWS] {
            state.remove(Space::Rev, key);
        }
        Ok(())
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        let state = self.0.lock();
        let rows = state.live.iter().flat_map(|space| space.iter());
        rows.map(|(key, value)| (key.len() + value.len()) as u64).sum()
    }
}

impl State {
    fn persist(&mut self) {
        for batch in std::mem::take(&mut self.journal) {
            batch.write(&mut |space, key, value| set(&mut self.durable[space as usize], key, value));
        }
    }

    /// Makes everything durable and drops what the filter drops of the versions whose rows `is_shown` says are in the
    /// tables at hand.
    fn compact(&mut self, is_shown: &dyn Fn(&[u8]) -> bool) {
        self.persist();
        let Some(make_filter) = &self.make_filter else { return };
        let mut filter = make_filter();
        let shown = self.live[Space::Kv as usize].iter().filter(|(key, _)| is_shown(key));
        let dropped: Vec<Bytes> =
            shown.filter(|(key, value)| filter.drops(key, value)).map(|(key, _)| key.clone()).collect();
        for key in dropped {
            self.remove(Space::Kv, &key);
        }
    }

    /// For good, at once.
    fn remove(&mut self, space: Space, key: &Bytes) {
        Arc::make_mut(&mut self.live[space as usize]).remove(key);
        self.durable[space as usize].remove(key);
        for batch in &mut self.journal {
            batch.0.retain(|(in_space, written, _)| *in_space != space || written != key);
        }
    }
}

impl Batch {
    pub(super) fn put(&mut self, space: Space, key: Bytes, value: Option<Bytes>) {
        self.0.push((space, key, value));
    }

    fn write(self, set: &mut dyn FnMut(Space, Bytes, Option<Bytes>)) {
        for (space, key, value) in self.0 {
            set(space, key, value);
        }
    }
}

fn set(space: &mut Map, key: Bytes, value: Option<Bytes>) {
    match value {
        Some(value) => drop(space.insert(key, value)),
        None => drop(space.remove(&key)),
    }
}

impl View {
    pub(super) fn get(&self, space: Space, key: &[u8]) -> Option<Bytes> {
        self.0[space as usize].get(key).cloned()
    }

    pub(super) fn scan(&self, space: Space, (low, high): (Bound<&[u8]>, Bound<&[u8]>)) -> Scan {
        let rows = Arc::clone(&self.0[space as usize]);
        Scan { rows, low: low.map(Bytes::copy_from_slice), high: high.map(Bytes::copy_from_slice) }
    }
}

impl Scan {
    /// What is left; `None` when the bounds have met, which a range of the map would panic at.
    fn rest(&self) -> Option<std::collections::btree_map::Range<'_, Bytes, Bytes>> {
        let key = |bound: &Bound<Bytes>| match bound {
            Bound::Included(key) => Some((key.clone(), true)),
            Bound::Excluded(key) => Some((key.clone(), false)),
            Bound::Unbounded => None,
        };
        if let (Some((low, low_in)), Some((high, high_in))) = (key(&self.low), key(&self.high))
            && (low > high || (low == high && !(low_in && high_in)))
        {
            return None;
        }
        Some(self.rows.range::<[u8], _>((self.low.as_ref().map(AsRef::as_ref), self.high.as_ref().map(AsRef::as_ref))))
    }
}

impl Iterator for Scan {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let (key, value) = self.rest()?.next().map(|(key, value)| (key.clone(), value.clone()))?;
        self.low = Bound::Excluded(key.clone());
        Some((key, value))
    }
}

impl DoubleEndedIterator for Scan {
    fn next_back(&mut self) -> Option<Row> {
        let (key, value) = self.rest()?.next_back().map(|(key, value)| (key.clone(), value.clone()))?;
        self.high = Bound::Excluded(key.clone());
        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::filter::Floor;
    use crate::storage::Storage;

    fn put(storage: &Storage, key: &'static str) {
        let mut batch = storage.batch();
        batch.put(Space::Sys, key, "1");
        batch.commit().unwrap();
    }

    fn keys(storage: &Storage) -> Vec<Bytes> {
        storage.view().scan(Space::Sys, (Bound::Unbounded, Bound::Unbounded)).map(|row| row.unwrap().0).collect()
    }

    #[test]
    fn a_crash_keeps_what_was_persisted_and_a_prefix_of_what_was_not() {
        let memory = Memory::default();
        let storage = Storage::in_memory(&memory, Floor::new().filters());
        put(&storage, "a");
        storage.persist().unwrap();
        for key in ["b", "c", "d"] {
            put(&storage, key);
        }
        assert_eq!(memory.unsynced_batches(), 3);
        memory.crash(1);
        let storage = Storage::in_memory(&memory, Floor::new().filters());
        assert_eq!(keys(&storage), ["a", "b"]);
        put(&storage, "e");
        memory.crash(0);
        assert_eq!(keys(&storage), ["a", "b"]);
    }

    #[test]
    fn a_view_stays_as_it_was_and_is_scanned_from_both_ends() {
        let storage = Storage::in_memory(&Memory::default(), Floor::new().filters());
        for key in ["a", "b", "c", "d"] {
            put(&storage, key);
        }
        let view = storage.view();
        let mut batch = storage.batch();
        batch.remove(Space::Sys, "b");
        batch.commit().unwrap();
        assert_eq!(keys(&storage), ["a", "c", "d"]);
        assert!(view.get(Space::Sys, b"b").unwrap().is_some());
        let bounds = (Bound::Excluded(&b"a"[..]), Bound::Included(&b"d"[..]));
        let mut scan = view.scan(Space::Sys, bounds).map(|row| row.unwrap().0);
        assert_eq!(scan.next().unwrap(), "b");
        assert_eq!(scan.next_back().unwrap(), "d");
        assert_eq!((scan.next().unwrap(), scan.next(), scan.next_back()), ("c".into(), None, None));
        assert_eq!(view.scan(Space::Sys, (Bound::Excluded(b"b"), Bound::Included(b"a"))).count(), 0);
    }
}
