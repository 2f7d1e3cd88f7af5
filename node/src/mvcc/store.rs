//! Reading the store, from any thread.
//!
//! A read of the current revision takes its keys from the key index under a short lock, and their values from the value
//! cache or the engine; a very large one, and a read of an older revision, is one scan of the engine. Either way the answer
//! is that of one revision: rows of newer ones are passed over, and if a compaction overtook the read meanwhile, it
//! starts over or is refused.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;
use parking_lot::RwLock;

use crate::mvcc::filter::Floor;
use crate::mvcc::found::{Found, RangeEnd, Sink};
use crate::mvcc::hash;
use crate::mvcc::key_index::{KeyIndex, KeyState};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::loader::Loader;
use crate::mvcc::query::{RangeAnswer, RangeQuery, Refusal};
use crate::mvcc::range;
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::row::{self, RevRow};
use crate::mvcc::startup::Dump;
use crate::mvcc::value_cache::ValueCache;
use crate::mvcc::{MvccOptions, ReadError};
use crate::storage::{Space, Storage, StorageError, View};

/// What the rows of the `sys` space take, whatever the history: a few hundred bytes, in one block. Components of plugins are
/// counted by whoever knows them.
const FIXED_ROWS_BYTES: u64 = 4_096;
/// Keys taken from the index in one go, under its lock: about half a millisecond. Larger reads scan the engine instead,
/// without a lock.
const INDEX_KEYS_MAX: usize = 16_384;
/// What a live key's row without a value is called.
pub(super) const NO_VALUE: StorageError = StorageError::Damaged { what: "a live key's row holds no value" };
/// How often a read starts over because a compaction overtook it.
const READ_ATTEMPTS_MAX: usize = 16;
/// Hashes of compactions kept (etcd: hashStorageMaxSize).
const COMPACTION_HASHES_MAX: usize = 10;

/// The store, for readers. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Store(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) storage: Storage,
    /// What readers see. Written by the apply thread alone, once a batch, after the batch is in the engine.
    // A lock, since every shard reads and the apply thread writes; held for index operations only.
    pub(super) published: RwLock<Published>,
    pub(super) compacted: AtomicI64,
    pub(super) values: ValueCache,
    pub(super) floor: Floor,
    /// A compaction up to here may have been begun by an earlier process.
    pub(super) compacted_at_start: Revision,
    /// Bytes of rows ever written, and of those that compactions made superfluous: the difference is in use.
    pub(super) written_bytes: AtomicU64,
    pub(super) freed_bytes: AtomicU64,
    pub(super) options: MvccOptions,
    pub(super) dump: Dump,
    /// Hashes taken when compactions were carried out, by revision.
    pub(super) compaction_hashes: RwLock<Vec<KvHash>>,
}

pub(super) struct Published {
    pub(super) index: KeyIndex,
    pub(super) revision: Revision,
}

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Allocated for rows, needed or not.
    pub(crate) allocated_bytes: u64,
    /// Of rows still needed, before they are compressed: those of keys, and of what else [`Sizes::and`] adds.
    pub(crate) in_use_bytes: u64,
}

impl Sizes {
    /// With rows that are no keys and that their owner counts.
    pub(crate) fn and(self, in_use_bytes: u64) -> Sizes {
        Sizes { in_use_bytes: self.in_use_bytes + in_use_bytes, ..self }
    }

    /// What of the allocated bytes is needed, for clients: they take it for a part of them.
    pub(crate) fn allocated_in_use_bytes(&self) -> u64 {
        self.in_use_bytes.min(self.allocated_bytes)
    }
}

/// The answer of HashKV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KvHash {
    pub(crate) hash: u32,
    /// The compacted revision when it was taken; -1 before the first compaction.
    pub(crate) compact_revision: i64,
    /// The revision it covers.
    pub(crate) hash_revision: i64,
    /// The store's revision when it was answered.
    pub(crate) revision: Revision,
}

impl Store {
    pub(crate) fn revision(&self) -> Revision {
        self.0.published.read().revision
    }

    /// -1 before the first compaction.
    pub(crate) fn compacted(&self) -> Revision {
        Revision(self.0.compacted.load(Ordering::Acquire))
    }

    /// Whether nobody else holds this store.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    pub(crate) fn key_count(&self) -> u64 {
        self.0.published.read().index.len() as u64
    }

    pub(crate) fn sizes(&self) -> Sizes {
        Sizes { allocated_bytes: self.0.storage.allocated_bytes(), in_use_bytes: self.in_use_bytes() }
    }

    /// As in [`Sizes`], without a look at the engine.
    pub(crate) fn in_use_bytes(&self) -> u64 {
        let freed = self.0.freed_bytes.load(Ordering::Acquire);
        self.0.written_bytes.load(Ordering::Acquire).saturating_sub(freed) + FIXED_ROWS_BYTES
    }

    /// Bytes of rows that compactions made superfluous so far.
    pub(crate) fn freed_bytes(&self) -> u64 {
        self.0.freed_bytes.load(Ordering::Acquire)
    }

    /// Frees memory that the engine is done with. Takes up to tens of milliseconds.
    pub(crate) fn free_memtables(&self) {
        self.0.storage.free_memtables();
    }

    pub(crate) fn commit_under_way(&self) -> Option<u64> {
        self.0.storage.commit_under_way()
    }

    pub(crate) fn range(&self, query: &RangeQuery) -> Result<RangeAnswer, ReadError> {
        self.range_within(query, None)
    }

    /// As [`Store::range`], but only when it is known to look at so many keys at most, if there is a bound.
    ///
    /// # Errors
    /// `Large` when it may look at more: a range at an older revision always may, since nothing says how many versions
    /// lie above that revision, nor how many keys were deleted since.
    pub(crate) fn range_within(&self, query: &RangeQuery, keys_max: Option<usize>) -> Result<RangeAnswer, ReadError> {
        let mut kvs = Vec::new();
        let read = self.read(query, Reach { limit: query.fetch_limit(), keys_max }, &mut kvs)?;
        Ok(range::finish(query, kvs, read.count, read.current))
    }

    /// Shows the keys of a range to `sink`: those that [`Store::range_within`] would answer with, without a copy of them.
    /// The query must be plain ([`RangeQuery::is_plain`]).
    pub(crate) fn visit_within(
        &self,
        query: &RangeQuery,
        keys_max: Option<usize>,
        sink: &mut dyn Sink,
    ) -> Result<RangeEnd, ReadError> {
        debug_assert!(query.is_plain(), "{query:?} needs what comes after the read");
        let limit = usize::try_from(query.limit).ok().filter(|limit| *limit > 0);
        let read = self.read(query, Reach { limit, keys_max }, sink)?;
        let more = !query.count_only && limit.is_some_and(|limit| read.count > limit);
        let count = i64::try_from(read.count).expect("fewer keys than bytes of memory");
        Ok(RangeEnd { more, count, revision: read.current })
    }

    fn read(&self, query: &RangeQuery, reach: Reach, sink: &mut dyn Sink) -> Result<Read, ReadError> {
        for _ in 0..READ_ATTEMPTS_MAX {
            match self.try_read(query, reach, sink)? {
                Some(read) => return Ok(read),
                None => sink.restart(),
            }
        }
        let compacted = self.compacted();
        Err(ReadError::Refused(Refusal::Compacted { compacted }))
    }

    /// `None` when a compaction overtook a read of the current revision: there is a newer one to read.
    fn try_read(&self, query: &RangeQuery, reach: Reach, sink: &mut dyn Sink) -> Result<Option<Read>, ReadError> {
        let keys = KeyRange::from_wire(&query.key, &query.range_end);
        let published = self.0.published.read();
        let current = published.revision;
        let at = if query.revision > 0 { Revision(query.revision) } else { current };
        if at > current {
            return Err(ReadError::Refused(Refusal::Future { current }));
        }
        if at < self.compacted() {
            return Err(ReadError::Refused(Refusal::Compacted { compacted: self.compacted() }));
        }
        let values = query.wants_values();
        let count = if at == current {
            let count = published.index.count(keys);
            let wanted = if query.count_only { 0 } else { reach.limit.unwrap_or(count).min(count) };
            if reach.keys_max.is_some_and(|keys_max| wanted > keys_max) {
                return Err(ReadError::Large);
            }
            if wanted <= INDEX_KEYS_MAX {
                let states = States::collect(&published.index, keys, wanted);
                drop(published);
                if !self.load(&states, values, sink)? {
                    return Ok(None);
                }
            } else {
                drop(published);
                scan(&self.0.storage.view(), keys, at, Extent::First(wanted), values, sink)?;
            }
            count
        } else {
            let count_now = published.index.count(keys);
            drop(published);
            if reach.keys_max.is_some() && !matches!(keys, KeyRange::One(_)) {
                return Err(ReadError::Large);
            }
            let limit = if query.count_only { Some(0) } else { reach.limit };
            self.read_at(keys, at, Now { revision: current, count: count_now }, Wanted { limit, values }, sink)?
        };
        // Looked at after the rows were read: below the compacted revision rows may have been missing already.
        if at < self.compacted() {
            if query.revision > 0 {
                return Err(ReadError::Refused(Refusal::Compacted { compacted: self.compacted() }));
            }
            return Ok(None);
        }
        Ok(Some(Read { count, current }))
    }

    /// Shows keys found in the index; false when a row is gone, which only a compaction past a newer write does.
    fn load(&self, states: &States, values: bool, sink: &mut dyn Sink) -> Result<bool, StorageError> {
        let mut loader = Loader::new(&self.0);
        for (key, state) in states.iter() {
            if !values {
                sink.push(Found::key_only(key, state));
            } else if !loader.load(key, state, |value| sink.push(Found::new(key, state, value)))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Shows the keys alive at an older revision, up to the limit, and says how many there are.
    fn read_at(
        &self,
        keys: KeyRange<'_>,
        at: Revision,
        now: Now,
        wanted: Wanted,
        sink: &mut dyn Sink,
    ) -> Result<usize, StorageError> {
        let view = self.0.storage.view();
        let (extent, count) = match (wanted.limit, keys) {
            (None, _) => (Extent::All, None),
            (Some(limit), KeyRange::One(_)) => (Extent::FirstAndCount(limit), None),
            (Some(limit), _) => match count_back(&view, keys, at, now)? {
                Some(count) => (Extent::First(limit.min(count)), Some(count)),
                None => (Extent::FirstAndCount(limit), None),
            },
        };
        let scanned = scan(&view, keys, at, extent, wanted.values, sink)?;
        Ok(count.unwrap_or(scanned))
    }

    /// The version of a key in force at a revision; `None` when it did not exist then.
    pub(crate) fn get_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, ReadError> {
        let compacted = self.compacted();
        if at < compacted {
            return Err(ReadError::Refused(Refusal::Compacted { compacted }));
        }
        let found = version_at(&self.0.storage.view(), key, at)?;
        if at < self.compacted() {
            return Err(ReadError::Refused(Refusal::Compacted { compacted: self.compacted() }));
        }
        Ok(found)
    }

    /// HashKV at a revision; 0 means the current one.
    pub(crate) fn hash(&self, at: i64) -> Result<KvHash, ReadError> {
        if at > 0 {
            // etcd looks among the stored hashes for revision 0 too, and so once answers a stale hash for "current".
            let stored = self.0.compaction_hashes.read().iter().find(|stored| stored.hash_revision == at).copied();
            if let Some(stored) = stored {
                return Ok(KvHash { revision: self.revision(), ..stored });
            }
        }
        let current = self.revision();
        let compacted = self.compacted();
        if at > 0 && at < compacted.0 {
            return Err(ReadError::Refused(Refusal::Compacted { compacted }));
        }
        if at > current.0 {
            return Err(ReadError::Refused(Refusal::Future { current }));
        }
        // Nothing was written at a negative revision, and etcd hashes that nothing.
        let asked = at;
        let at = if at == 0 { current } else { Revision(at) };
        let hash = hash::hash(&self.0.storage.view(), compacted, at, hash::Purpose::Read)?;
        if self.compacted() != compacted {
            return self.hash(asked);
        }
        Ok(KvHash { hash, compact_revision: compacted.0, hash_revision: at.0, revision: current })
    }

    /// A hash over everything but the `sys` rows named, which differ between members.
    pub(crate) fn hash_all(&self, own_rows: &[&[u8]]) -> Result<u32, StorageError> {
        hash::hash_all(&self.0.storage.view(), self.compacted(), own_rows)
    }

    /// Notes the hash taken when a compaction was carried out.
    pub(super) fn keep_compaction_hash(&self, hash: KvHash) {
        let mut hashes = self.0.compaction_hashes.write();
        hashes.push(hash);
        hashes.sort_by_key(|hash| hash.hash_revision);
        if hashes.len() > COMPACTION_HASHES_MAX {
            hashes.remove(0);
        }
    }

    /// Calls `visit` with every leased key and its lease.
    pub(crate) fn leased_keys(&self, visit: &mut dyn FnMut(i64, &[u8])) {
        self.0.published.read().index.visit(KeyRange::ALL, |key, state| {
            if state.lease != 0 {
                visit(state.lease, key);
            }
            ControlFlow::Continue(())
        });
    }

    pub(crate) fn sys_get(&self, name: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.0.storage.get(Space::Sys, name)
    }

    /// The rows of the `sys` space whose names begin so.
    pub(crate) fn sys_scan(&self, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        let rows = self.0.storage.view().scan(Space::Sys, (Bound::Included(prefix), Bound::Unbounded));
        rows.take_while(|row| row.as_ref().map_or(true, |(name, _)| name.starts_with(prefix))).collect()
    }

    pub(crate) fn persist(&self) -> Result<(), StorageError> {
        self.0.storage.persist()
    }

    /// Rewrites the store without what is dead in it, while it serves.
    pub(crate) fn defragment(&self) -> Result<(), StorageError> {
        self.0.storage.rewrite()
    }
}

impl Inner {
    /// The value of one version, from the cache or the engine; `None` when the engine no longer has the row.
    pub(super) fn load_value(&self, key: &Bytes, id: ChangeId) -> Result<Option<Bytes>, StorageError> {
        match self.values.get(key, id) {
            Some(value) => Ok(Some(value)),
            None => self.load_row(key, id),
        }
    }

    /// The value of one version from the engine, kept in the cache from now on.
    pub(super) fn load_row(&self, key: &[u8], id: ChangeId) -> Result<Option<Bytes>, StorageError> {
        let Some(row) = self.storage.get(Space::Kv, &row::kv_key(key, id))? else { return Ok(None) };
        // A copy: the row is a slice of a block that would stay in memory with it.
        let value = Bytes::copy_from_slice(row::value_row(&row).ok_or(NO_VALUE)?.value);
        self.values.insert(Bytes::copy_from_slice(key), id, value.clone());
        Ok(Some(value))
    }
}

/// How far a read goes.
#[derive(Clone, Copy)]
struct Reach {
    /// Keys wanted; `None` for all.
    limit: Option<usize>,
    /// Keys that may be looked at; `None` for any number.
    keys_max: Option<usize>,
}

/// What a read of the index and the rows came to.
struct Read {
    /// Keys alive in the range, past the limit too.
    count: usize,
    /// The store's revision when it was read.
    current: Revision,
}

/// Keys of a range with their states, as the index had them. One buffer holds all the keys.
struct States {
    keys: Vec<u8>,
    /// Where each key ends in the buffer.
    states: Vec<(usize, KeyState)>,
}

impl States {
    fn collect(index: &KeyIndex, keys: KeyRange<'_>, limit: usize) -> States {
        let mut found = States { keys: Vec::new(), states: Vec::with_capacity(limit) };
        if limit > 0 {
            index.visit(keys, |key, state| {
                found.keys.extend_from_slice(key);
                found.states.push((found.keys.len(), *state));
                if found.states.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        found
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &KeyState)> {
        let mut start = 0;
        self.states.iter().map(move |(end, state)| {
            let key = &self.keys[start..*end];
            start = *end;
            (key, state)
        })
    }
}

pub(super) fn key_only(key: Bytes, state: &KeyState) -> KeyValue {
    KeyValue {
        key,
        create_revision: state.created.0,
        mod_revision: state.modified.main.0,
        version: state.version,
        ..KeyValue::default()
    }
}

pub(super) fn key_value(key: Bytes, state: &KeyState, value: Bytes) -> KeyValue {
    KeyValue { value, lease: state.lease, ..key_only(key, state) }
}

/// What a read at an older revision is to show.
#[derive(Clone, Copy)]
struct Wanted {
    /// Keys; `None` for all.
    limit: Option<usize>,
    values: bool,
}

/// The current revision, and how many keys a range holds at it.
#[derive(Clone, Copy)]
struct Now {
    revision: Revision,
    count: usize,
}

/// How many keys the range held at an older revision, by what was created and deleted since; `None` when more changed
/// since than the range holds, so that a scan of it costs less.
fn count_back(view: &View, keys: KeyRange<'_>, at: Revision, now: Now) -> Result<Option<usize>, StorageError> {
    let first = row::rev_key(ChangeId { main: at, sub: u32::MAX });
    let last = row::rev_key(ChangeId { main: now.revision, sub: u32::MAX });
    // Each revision has a change at least.
    let revisions = usize::try_from(now.revision.0 - at.0).expect("read at a revision before the current one");
    if revisions > now.count {
        return Ok(None);
    }
    let (mut count, mut rows) = (now.count, 0);
    for found in view.scan(Space::Rev, (Bound::Excluded(&first), Bound::Included(&last))).rev() {
        let (_, value) = found?;
        let rev_row = RevRow::decode(&value).ok_or(StorageError::Damaged { what: "a change's row can't be read" })?;
        rows += 1;
        if rows > now.count {
            return Ok(None);
        }
        if !keys.contains(&rev_row.key) {
            continue;
        }
        // Backwards, so that no count on the way is below zero.
        match (rev_row.superseded_bytes > 0, rev_row.tombstone) {
            (false, false) => count -= 1,
            (true, true) => count += 1,
            (true, false) | (false, true) => {}
        }
    }
    Ok(Some(count))
}

/// How far a scan goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    All,
    /// Up to so many keys.
    First(usize),
    /// To the end, to count the keys, though only so many are wanted.
    FirstAndCount(usize),
}

/// One scan of the engine: shows the keys alive at a revision, in order, and says how many are alive in the part of the
/// range that was scanned.
pub(super) fn scan(
    view: &View,
    keys: KeyRange<'_>,
    at: Revision,
    extent: Extent,
    values: bool,
    sink: &mut dyn Sink,
) -> Result<usize, StorageError> {
    if extent == Extent::First(0) {
        return Ok(0);
    }
    if let KeyRange::One(key) = keys {
        let Some((id, row)) = row_at(view, key, at)? else { return Ok(0) };
        if extent != Extent::FirstAndCount(0) {
            sink.push(found(key, id, &row, values)?);
        }
        return Ok(1);
    }
    let limit = match extent {
        Extent::All => usize::MAX,
        Extent::First(limit) | Extent::FirstAndCount(limit) => limit,
    };
    let from = row::kv_bound(keys.start());
    let to = match keys.end() {
        Bound::Excluded(end) => Bound::Excluded(row::kv_bound(end)),
        Bound::Included(_) | Bound::Unbounded => Bound::Unbounded,
    };
    let to = to.as_ref().map(Vec::as_slice);
    let mut count = 0;
    // Escaped key of the last key decided, so that its older versions are passed over.
    let mut decided: Vec<u8> = Vec::new();
    let mut key = Vec::new();
    for row in view.scan(Space::Kv, (Bound::Included(&from), to)) {
        let (row_key, value) = row?;
        let (prefix, id) =
            row::split_kv_key(&row_key).ok_or(StorageError::Damaged { what: "a version's row key can't be read" })?;
        if id.main > at || decided == prefix {
            continue;
        }
        decided.clear();
        decided.extend_from_slice(prefix);
        if row::is_tombstone(&value) {
            continue;
        }
        count += 1;
        if count <= limit {
            row::unescape_into(prefix, &mut key);
            sink.push(found(&key, id, &value, values)?);
        }
        if extent == Extent::First(count) {
            break;
        }
    }
    Ok(count)
}

/// The version of one key in force at a revision.
pub(super) fn version_at(view: &View, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StorageError> {
    let mut kvs: Vec<KeyValue> = Vec::new();
    scan(view, KeyRange::One(key), at, Extent::First(1), true, &mut kvs)?;
    Ok(kvs.pop())
}

/// The row of one key in force at a revision, unless the key did not exist then.
fn row_at(view: &View, key: &[u8], at: Revision) -> Result<Option<(ChangeId, Bytes)>, StorageError> {
    let from = row::kv_key_at(key, at);
    let prefix = row::kv_prefix(key);
    let Some(found) = view.scan(Space::Kv, (Bound::Included(&from), Bound::Unbounded)).next() else { return Ok(None) };
    let (row_key, value) = found?;
    Ok(match row::split_kv_key(&row_key) {
        Some((found, id)) if found == prefix && !row::is_tombstone(&value) => Some((id, value)),
        _ => None,
    })
}

fn found<'a>(key: &'a [u8], id: ChangeId, row: &'a [u8], values: bool) -> Result<Found<'a>, StorageError> {
    let row = row::value_row(row).ok_or(StorageError::Damaged { what: "a version's row can't be read" })?;
    let (value, lease) = if values { (row.value, row.lease) } else { (&[][..], 0) };
    Ok(Found { key, created: row.created, modified: id.main, version: row.version, lease, value })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::mvcc::query::{SortOrder, SortTarget};
    use crate::mvcc::{AppliedMark, Writer};

    const KEYS: usize = 30;

    /// A store with so many keys, each written twice.
    pub(in crate::mvcc) fn filled(keys: usize) -> (tempfile::TempDir, Store, Writer) {
        let dir = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&dir.path().join("store"), floor.filters()).unwrap();
        let (store, mut writer, _) =
            crate::mvcc::open(storage, floor, MvccOptions::new(dir.path().join("index"), 100)).unwrap();
        for round in 0..2 {
            for key in 0..keys {
                let mut txn = writer.txn();
                txn.put(format!("{key:05}").into(), round.to_string().into(), 0);
                txn.finish();
            }
        }
        writer.commit(AppliedMark::default()).unwrap();
        (dir, store, writer)
    }

    fn all() -> RangeQuery {
        RangeQuery { key: Bytes::from_static(b"\0"), range_end: Bytes::from_static(b"\0"), ..RangeQuery::default() }
    }

    #[test]
    fn a_read_that_may_look_at_more_than_allowed_is_told_from_a_small_one() {
        let (_dir, store, writer) = filled(KEYS);
        let now = writer.revision().0;
        let large = |query: &RangeQuery| match store.range_within(query, Some(KEYS / 2)) {
            Err(ReadError::Large) => true,
            answer => {
                assert_eq!(answer.unwrap().kvs, store.range(query).unwrap().kvs);
                false
            }
        };
        let one = RangeQuery { key: Bytes::from_static(b"00001"), ..RangeQuery::default() };
        let sorted = RangeQuery { order: SortOrder::Descend, target: SortTarget::Mod, limit: 1, ..all() };
        let old = RangeQuery { revision: now - 1, ..all() };
        assert!(!large(&one));
        assert!(!large(&RangeQuery { revision: now - 1, ..one.clone() }));
        assert!(!large(&RangeQuery { limit: 5, ..all() }));
        assert!(!large(&RangeQuery { limit: 5, revision: now, ..all() }));
        assert!(!large(&RangeQuery { count_only: true, ..all() }));
        assert!(!large(&RangeQuery { range_end: Bytes::from_static(b"00005"), ..sorted.clone() }));
        assert!(large(&all()));
        assert!(large(&sorted));
        assert!(large(&RangeQuery { limit: 1, min_mod_revision: 3, ..all() }));
        assert!(large(&RangeQuery { limit: 1, ..old.clone() }));
        assert!(large(&RangeQuery { count_only: true, ..old }));
    }

    #[test]
    fn a_limited_range_is_not_scanned_to_its_end() {
        let keys = 2 * INDEX_KEYS_MAX;
        let (_dir, store, mut writer) = filled(keys);
        let filled_at = writer.revision();
        // Four keys are created, four deleted and one of those created again.
        for round in 0..9_usize {
            let mut txn = writer.txn();
            match round {
                0..4 => drop(txn.put(format!("{:05}", keys + round).into(), Bytes::new(), 0)),
                4..8 => drop(txn.delete_range(format!("{round:05}").as_bytes(), b"")),
                _ => drop(txn.put("00004".into(), Bytes::new(), 0)),
            }
            txn.finish();
        }
        writer.commit(AppliedMark::default()).unwrap();
        // Whoever comes to the last row stumbles over it.
        let mut batch = store.0.storage.batch();
        batch.put(Space::Kv, "~", "");
        batch.commit().unwrap();

        let limit = i64::try_from(INDEX_KEYS_MAX).unwrap() + 2;
        let page = store.range(&RangeQuery { limit, ..all() }).unwrap();
        assert_eq!((page.kvs.len(), page.more), (INDEX_KEYS_MAX + 2, true));
        assert_eq!(page.count, i64::try_from(keys + 1).unwrap());
        let old = |revision: Revision, limit| store.range(&RangeQuery { revision: revision.0, limit, ..all() });
        for (back, count) in [(9, keys), (5, keys + 4), (1, keys)] {
            let page = old(Revision(filled_at.0 + 9 - back), 3).unwrap();
            assert_eq!((page.kvs.len(), page.count), (3, i64::try_from(count).unwrap()), "{back} back");
        }
        // More was changed since than there are keys.
        assert!(old(Revision(filled_at.0 - i64::try_from(keys).unwrap()), 3).is_err());
    }

    #[test]
    fn compaction_and_defragmentation_free_what_was_written_over() {
        const VALUE_BYTES: usize = 1 << 20;
        const VALUES: usize = 16;
        let (dir, store, mut writer) = filled(1);
        let empty = store.sizes().allocated_bytes;
        // Values that can't be compressed.
        let mut state = 1_u32;
        let mut value = || -> Bytes {
            (0..VALUE_BYTES)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state.to_be_bytes()[0]
                })
                .collect()
        };
        for _ in 0..VALUES {
            let mut txn = writer.txn();
            txn.put("k".into(), value(), 0);
            txn.finish();
            writer.commit(AppliedMark::default()).unwrap();
        }
        // At once, or a quota would hold nothing until the rows are flushed.
        assert!(store.sizes().allocated_bytes >= empty + (VALUES * VALUE_BYTES) as u64);
        let current = writer.revision();
        writer.compact(current).unwrap();
        writer.commit(AppliedMark::default()).unwrap();
        store.compact_physically(current, &mut || {}).unwrap();
        store.defragment().unwrap();
        let allocated = store.sizes().allocated_bytes;
        assert!(allocated < empty + 3 * VALUE_BYTES as u64, "{allocated} bytes for one value of {VALUE_BYTES}");
        let tables = std::fs::read_dir(dir.path().join("store/keyspaces/1/tables")).unwrap();
        let on_disk: u64 = tables.map(|table| table.unwrap().metadata().unwrap().len()).sum();
        assert!(on_disk < 3 * VALUE_BYTES as u64, "{on_disk} bytes on disk for one value of {VALUE_BYTES}");
    }
}
