//! One applied request: reads that see its own writes, and writes that share one revision.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;

use crate::mvcc::key_index::{KeyIndex, KeyState};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::query::{Change, ChangeKind, Previous, RangeAnswer, RangeQuery, Refusal};
use crate::mvcc::range;
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::row::{self, RevRow, Version};
use crate::mvcc::store::{Extent, key_only, key_value, scan};
use crate::mvcc::writer::{Pending, Writer};
use crate::storage::{Space, StorageError};

/// A key and value that are less than one part in this many of the buffer they are slices of are copied out of it.
const SLICE_SHARE: usize = 2;
/// What a log entry of one put holds beside key and value, at most: tags, lengths, a lease and the request's header.
const SLICE_SLACK_BYTES: usize = 64;

/// A request under way. Its changes take the next revision, in the order in which they are made.
pub(crate) struct WriteTxn<'a> {
    writer: &'a mut Writer,
    base: Revision,
    changed: u32,
    /// Size of the buffer that keys and values put are slices of; 0 when they are none.
    buffer_bytes: usize,
}

impl<'a> WriteTxn<'a> {
    pub(super) fn new(writer: &'a mut Writer) -> WriteTxn<'a> {
        let base = writer.revision;
        WriteTxn { writer, base, changed: 0, buffer_bytes: 0 }
    }

    /// Says that what is put are slices of a buffer of this size, a log entry. Small parts of it are copied, so that
    /// what keeps them (the cache of values, the watchers' recent changes) does not keep all of it.
    pub(crate) fn within(self, buffer_bytes: usize) -> WriteTxn<'a> {
        WriteTxn { buffer_bytes, ..self }
    }

    /// The revision before this request.
    pub(crate) fn base_revision(&self) -> Revision {
        self.base
    }

    /// The revision with this request's changes, if it made any.
    pub(crate) fn revision(&self) -> Revision {
        if self.changed == 0 { self.base } else { self.base.next() }
    }

    pub(crate) fn compacted(&self) -> Revision {
        self.writer.compacted
    }

    /// What is known of a key now; `None` when it does not exist.
    pub(crate) fn state(&self, key: &[u8]) -> Option<KeyState> {
        match self.writer.overlay.get(key) {
            Some(pending) => pending.state,
            None => self.writer.store.0.published.read().index.get(key),
        }
    }

    /// A key with its value.
    pub(crate) fn get(&self, key: &Bytes) -> Result<Option<KeyValue>, StorageError> {
        let Some(state) = self.state(key) else { return Ok(None) };
        self.load(key.clone(), &state).map(Some)
    }

    fn load(&self, key: Bytes, state: &KeyState) -> Result<KeyValue, StorageError> {
        if let Some(pending) = self.writer.overlay.get(&key) {
            return Ok(key_value(key, state, self.writer.changes[pending.change].kv.value.clone()));
        }
        // Only this thread moves keys on, so a key of the index has its row.
        match self.writer.store.0.load_value(&key, state.modified)? {
            Some(value) => Ok(key_value(key, state, value)),
            None => Err(StorageError::Damaged { what: "a live key has no row" }),
        }
    }

    /// A read inside the request.
    pub(crate) fn range(&self, query: &RangeQuery) -> Result<Result<RangeAnswer, Refusal>, StorageError> {
        let current = self.revision();
        let at = if query.revision > 0 { Revision(query.revision) } else { current };
        if at > current {
            return Ok(Err(Refusal::Future { current }));
        }
        if at < self.writer.compacted {
            return Ok(Err(Refusal::Compacted { compacted: self.writer.compacted }));
        }
        let keys = KeyRange::from_wire(&query.key, &query.range_end);
        if at == current {
            return self.range_now(query, keys).map(Ok);
        }
        self.range_then(query, keys, at).map(Ok)
    }

    fn range_now(&self, query: &RangeQuery, keys: KeyRange<'_>) -> Result<RangeAnswer, StorageError> {
        let current = self.revision();
        let count = self.count(keys);
        if query.count_only || count == 0 {
            return Ok(range::finish(query, Vec::new(), count, current));
        }
        let wanted = query.fetch_limit().map_or(count, |limit| limit.min(count));
        let mut kvs = Vec::with_capacity(wanted);
        for (key, state) in self.states(keys, wanted) {
            kvs.push(if query.wants_values() { self.load(key, &state)? } else { key_only(key, &state) });
        }
        Ok(range::finish(query, kvs, count, current))
    }

    /// A read at an earlier revision, which may be one that this batch has made and not yet committed.
    fn range_then(&self, query: &RangeQuery, keys: KeyRange<'_>, at: Revision) -> Result<RangeAnswer, StorageError> {
        let view = self.writer.store.0.storage.view();
        let committed = self.writer.store.revision();
        let mut found: Vec<KeyValue> = Vec::new();
        scan(&view, keys, at.min(committed), Extent::All, query.wants_values(), &mut found)?;
        let mut kvs: BTreeMap<Bytes, KeyValue> = found.into_iter().map(|kv| (kv.key.clone(), kv)).collect();
        for change in self.writer.changes.iter().filter(|change| change.id.main <= at) {
            let key = &change.kv.key;
            if !keys.contains(key) {
                continue;
            }
            match change.kind {
                ChangeKind::Delete => drop(kvs.remove(key)),
                ChangeKind::Put if query.wants_values() => drop(kvs.insert(key.clone(), change.kv.clone())),
                ChangeKind::Put => {
                    let bare = KeyValue { value: Bytes::new(), lease: 0, ..change.kv.clone() };
                    kvs.insert(key.clone(), bare);
                }
            }
        }
        let count = kvs.len();
        let wanted = if query.count_only { 0 } else { query.fetch_limit().unwrap_or(count) };
        let kvs = kvs.into_values().take(wanted).collect();
        Ok(range::finish(query, kvs, count, self.revision()))
    }

    fn pending(&self, keys: KeyRange<'_>) -> impl Iterator<Item = (&Bytes, &Pending)> {
        let end = match keys {
            KeyRange::Span(start, end) if end <= start => Bound::Excluded(start),
            _ => keys.end(),
        };
        // An empty span as a range of the map would panic when both its ends are excluded or it runs backwards.
        let bounds = if keys.is_empty() { None } else { Some((Bound::Included(keys.start()), end)) };
        bounds.into_iter().flat_map(|bounds| self.writer.overlay.range::<[u8], _>(bounds))
    }

    fn count(&self, keys: KeyRange<'_>) -> usize {
        let published = self.writer.store.0.published.read();
        let mut count = published.index.count(keys);
        for (key, pending) in self.pending(keys) {
            let before = published.index.get(key).is_some();
            match (before, pending.state.is_some()) {
                (false, true) => count += 1,
                (true, false) => count -= 1,
                (true, true) | (false, false) => {}
            }
        }
        count
    }

    /// The first keys of the range that exist now, with their states.
    fn states(&self, keys: KeyRange<'_>, limit: usize) -> Vec<(Bytes, KeyState)> {
        let pending = self.pending(keys).map(|(key, pending)| (key.as_ref(), pending.state));
        merge(&self.writer.store.0.published.read().index, keys, pending, limit)
    }

    /// Stores a key. Returns what was known of it before.
    pub(crate) fn put(&mut self, key: Bytes, value: Bytes, lease: i64) -> Option<KeyState> {
        let before = self.state(&key);
        let previous = if before.is_some() { Previous::Unread } else { Previous::Absent };
        self.store(key, value, lease, before, previous);
        before
    }

    /// As [`WriteTxn::put`], when the caller has read the key just before.
    pub(crate) fn put_over(&mut self, key: Bytes, value: Bytes, lease: i64, previous: KeyValue) {
        let before = self.state(&key);
        self.store(key, value, lease, before, Previous::Known(previous));
    }

    fn store(&mut self, key: Bytes, value: Bytes, lease: i64, before: Option<KeyState>, previous: Previous) {
        let (key, value) = if SLICE_SHARE * (key.len() + value.len() + SLICE_SLACK_BYTES) < self.buffer_bytes {
            (Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value))
        } else {
            (key, value)
        };
        let previous = match previous {
            Previous::Known(kv) => Previous::Known(KeyValue { key: key.clone(), ..kv }),
            Previous::Absent | Previous::Unread => previous,
        };
        let id = self.next_id();
        let (created, version) = before.map_or((id.main, 1), |state| (state.created, state.version + 1));
        let row = Version::Value { created, version, lease, value: value.clone() }.encode();
        let row_bytes = self.write(&key, id, row, false, before);
        let state = KeyState { modified: id, created, version, lease, row_bytes };
        let kv = key_value(key.clone(), &state, value);
        self.change(key, Some(state), Change { id, kind: ChangeKind::Put, kv, previous });
    }

    fn change(&mut self, key: Bytes, state: Option<KeyState>, change: Change) {
        self.writer.overlay.insert(key, Pending { state, change: self.writer.changes.len() });
        self.writer.changes.push(change);
    }

    /// Deletes every key of the range. Returns the keys, in order, with what was known of them.
    pub(crate) fn delete_range(&mut self, key: &[u8], range_end: &[u8]) -> Vec<(Bytes, KeyState)> {
        let deleted = self.states(KeyRange::from_wire(key, range_end), usize::MAX);
        for (key, before) in &deleted {
            let id = self.next_id();
            self.write(key, id, Version::Tombstone.encode(), true, Some(*before));
            let kv = KeyValue { key: key.clone(), mod_revision: id.main.0, ..KeyValue::default() };
            let change = Change { id, kind: ChangeKind::Delete, kv, previous: Previous::Unread };
            self.change(key.clone(), None, change);
        }
        deleted
    }

    fn next_id(&mut self) -> ChangeId {
        let id = ChangeId { main: self.base.next(), sub: self.changed };
        self.changed = self.changed.checked_add(1).expect("a request holds fewer changes than 2^32");
        id
    }

    /// Adds the two rows of a change to the batch; returns the size of the version's row.
    fn write(&mut self, key: &Bytes, id: ChangeId, row: Vec<u8>, tombstone: bool, before: Option<KeyState>) -> u32 {
        let row_key = row::kv_key(key, id);
        let row_bytes = u32::try_from(row_key.len() + row.len()).expect("a request is smaller than 4 GiB");
        let superseded_bytes = before.map_or(0, |state| state.row_bytes);
        let rev_row = RevRow { tombstone, row_bytes, superseded_bytes, key: key.clone() };
        self.writer.batch.put(Space::Kv, row_key, row);
        self.writer.batch.put(Space::Rev, row::rev_key(id).to_vec(), rev_row.encode());
        self.writer.written_bytes += u64::from(row_bytes);
        row_bytes
    }

    /// Ends the request; the writer's revision has moved on if anything changed.
    pub(crate) fn finish(self) -> Revision {
        self.writer.revision = self.revision();
        self.writer.revision
    }
}

/// The first keys of the index's range with what is pending over them: states of keys in order, `None` for a deletion.
/// Looks no further than the last key wanted.
fn merge<'a>(
    index: &KeyIndex,
    keys: KeyRange<'_>,
    pending: impl Iterator<Item = (&'a [u8], Option<KeyState>)>,
    limit: usize,
) -> Vec<(Bytes, KeyState)> {
    let mut pending = pending.peekable();
    let mut found = Vec::new();
    let mut push = |key: &[u8], state: Option<KeyState>| {
        found.extend(state.map(|state| (Bytes::copy_from_slice(key), state)));
        if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let mut merged = if limit == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    index.visit(keys, |key, state| {
        while merged.is_continue()
            && let Some((before, state)) = pending.next_if(|(before, _)| *before < key)
        {
            merged = push(before, state);
        }
        if merged.is_continue() {
            let over = pending.next_if(|(same, _)| *same == key);
            merged = push(key, over.map_or(Some(*state), |(_, state)| state));
        }
        merged
    });
    while merged.is_continue()
        && let Some((key, state)) = pending.next()
    {
        merged = push(key, state);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::mvcc::filter::Floor;
    use crate::mvcc::{AppliedMark, MvccOptions, Store};
    use crate::storage::Storage;

    /// A buffer that tells when nothing is a slice of it any more.
    struct Buffer(Vec<u8>, Arc<AtomicBool>);

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Buffer {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Release);
        }
    }

    fn buffer(bytes: usize) -> (Bytes, Arc<AtomicBool>) {
        let freed = Arc::new(AtomicBool::new(false));
        (Bytes::from_owner(Buffer(vec![b'x'; bytes], Arc::clone(&freed))), freed)
    }

    fn opened() -> (tempfile::TempDir, Store, Writer) {
        let dir = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&dir.path().join("store"), floor.filters()).unwrap();
        let options = MvccOptions::new(dir.path().join("index"), 100);
        let (store, writer, _) = crate::mvcc::open(storage, floor, options).unwrap();
        (dir, store, writer)
    }

    fn put(writer: &mut Writer, entry: &Bytes, value_bytes: usize) {
        let mut txn = writer.txn().within(entry.len());
        let (key, value) = (entry.slice(0..3), entry.slice(3..3 + value_bytes));
        match txn.get(&key).unwrap() {
            Some(previous) => txn.put_over(key, value, 0, previous),
            None => drop(txn.put(key, value, 0)),
        }
        txn.finish();
    }

    #[test]
    fn a_small_value_keeps_no_large_entry_and_a_large_one_is_not_copied() {
        let (_dir, store, mut writer) = opened();
        let ((large, large_freed), (small, small_freed)) = (buffer(100_000), buffer(40));
        put(&mut writer, &large, 20);
        let first = writer.commit(AppliedMark::default()).unwrap();
        put(&mut writer, &small, 20);
        put(&mut writer, &large, 10);
        let second = writer.commit(AppliedMark::default()).unwrap();
        drop((large, small));
        assert!(large_freed.load(Ordering::Acquire));
        assert!(!small_freed.load(Ordering::Acquire), "the change keeps it");
        drop((first, second));
        assert!(small_freed.load(Ordering::Acquire), "the value was written over");

        let (whole, whole_freed) = buffer(1_000);
        put(&mut writer, &whole, 990);
        let (at, change) = (whole.as_ptr(), writer.commit(AppliedMark::default()).unwrap());
        assert_eq!(change.changes[0].kv.key.as_ptr(), at);
        drop((whole, change));
        assert!(!whole_freed.load(Ordering::Acquire), "the cached value is a slice of it");
        let query = RangeQuery { key: "xxx".into(), ..RangeQuery::default() };
        assert_eq!(store.range(&query).unwrap().kvs[0].value.len(), 990);
    }

    #[test]
    fn pending_keys_are_merged_in_order_and_no_further_than_wanted() {
        let state = |number: i64| KeyState {
            modified: ChangeId { main: Revision(number), sub: 0 },
            created: Revision(1),
            version: 1,
            lease: 0,
            row_bytes: 10,
        };
        // Each key is absent, in the index, pending over it, deleted over it, pending alone, or deleted and not there.
        for combination in 0..6_usize.pow(4) {
            let (mut index, mut overlay) = (KeyIndex::new(), BTreeMap::new());
            for (place, key) in ["a", "b", "c", "d"].into_iter().enumerate() {
                let kind = combination / 6_usize.pow(u32::try_from(place).unwrap()) % 6;
                if (1..=3).contains(&kind) {
                    index.insert(key.as_bytes(), state(1));
                }
                if kind >= 2 {
                    overlay.insert(key.as_bytes(), (kind % 2 == 0).then(|| state(2)));
                }
            }
            let mut expected: BTreeMap<&[u8], KeyState> = BTreeMap::new();
            index.visit(KeyRange::ALL, |key, state| {
                let key = ["a", "b", "c", "d"].into_iter().find(|name| name.as_bytes() == key).unwrap();
                expected.insert(key.as_bytes(), *state);
                ControlFlow::Continue(())
            });
            for (key, state) in &overlay {
                match state {
                    Some(state) => expected.insert(key, *state),
                    None => expected.remove(key),
                };
            }
            let expected: Vec<_> = expected.into_iter().map(|(key, state)| (Bytes::from_static(key), state)).collect();
            for limit in 0..6 {
                let mut seen = 0;
                let pending = overlay.iter().map(|(key, state)| (*key, *state)).inspect(|_| seen += 1);
                let found = merge(&index, KeyRange::ALL, pending, limit);
                assert_eq!(found, expected[..limit.min(expected.len())], "combination {combination}, limit {limit}");
                let last = found.last().filter(|_| found.len() == limit).map(|(key, _)| key.clone());
                let past_last = overlay.keys().filter(|key| last.as_ref().is_some_and(|last| **key > last.as_ref()));
                assert!(limit > 0 && seen + past_last.count() <= overlay.len() + 1 || seen == 0);
            }
        }
    }
}
