//! Reading the store, from any thread.
//!
//! A read of the current revision takes its keys from the key index under a short lock, and their values from the value
//! cache or the engine; a large one, and a read of an older revision, is one scan of the engine. Either way the answer
//! is that of one revision: rows of newer ones are passed over, and if a compaction overtook the read meanwhile, it
//! starts over or is refused.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;
use parking_lot::RwLock;

use crate::mvcc::filter::Floor;
use crate::mvcc::hash;
use crate::mvcc::key_index::{KeyIndex, KeyState};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::query::{RangeAnswer, RangeQuery, Refusal};
use crate::mvcc::range;
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::row::{self, Version};
use crate::mvcc::startup::Dump;
use crate::mvcc::value_cache::ValueCache;
use crate::mvcc::{MvccOptions, ReadError};
use crate::storage::{Space, Storage, StorageError, View};

/// What the rows of the `sys` space take, whatever the history: a few hundred bytes, in one block.
const FIXED_ROWS_BYTES: u64 = 4_096;
/// Keys taken from the index in one go, under its lock. Larger reads scan the engine instead, without a lock.
const INDEX_KEYS_MAX: usize = 1_024;
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
    /// Allocated on disk.
    pub(crate) allocated_bytes: u64,
    /// Of rows still needed.
    pub(crate) in_use_bytes: u64,
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

    pub(crate) fn key_count(&self) -> u64 {
        self.0.published.read().index.len() as u64
    }

    /// Walks the store's files: not for a hot path.
    pub(crate) fn sizes(&self) -> Sizes {
        let freed = self.0.freed_bytes.load(Ordering::Acquire);
        let in_use_bytes = self.0.written_bytes.load(Ordering::Acquire).saturating_sub(freed);
        Sizes { allocated_bytes: self.0.storage.allocated_bytes(), in_use_bytes: in_use_bytes + FIXED_ROWS_BYTES }
    }

    pub(crate) fn commit_under_way(&self) -> Option<u64> {
        self.0.storage.commit_under_way()
    }

    pub(crate) fn range(&self, query: &RangeQuery) -> Result<RangeAnswer, ReadError> {
        for _ in 0..READ_ATTEMPTS_MAX {
            match self.try_range(query)? {
                Some(answer) => return Ok(answer),
                None => continue,
            }
        }
        let compacted = self.compacted();
        Err(ReadError::Refused(Refusal::Compacted { compacted }))
    }

    /// `None` when a compaction overtook a read of the current revision: there is a newer one to read.
    fn try_range(&self, query: &RangeQuery) -> Result<Option<RangeAnswer>, ReadError> {
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
        let (kvs, count) = if at == current {
            let count = published.index.count(keys);
            if query.count_only || count == 0 {
                return Ok(Some(range::finish(query, Vec::new(), count, current)));
            }
            let wanted = query.fetch_limit().map_or(count, |limit| limit.min(count));
            if wanted <= INDEX_KEYS_MAX {
                let states = collect(&published.index, keys, wanted);
                drop(published);
                match self.load(states, query.wants_values())? {
                    Some(kvs) => (kvs, count),
                    None => return Ok(None),
                }
            } else {
                drop(published);
                (self.scan(keys, at, Some(wanted), query.wants_values())?.kvs, count)
            }
        } else {
            drop(published);
            let limit = if query.count_only { Some(0) } else { query.fetch_limit() };
            let scanned = self.scan(keys, at, limit, query.wants_values())?;
            (scanned.kvs, scanned.count)
        };
        // Looked at after the rows were read: below the compacted revision rows may have been missing already.
        if at < self.compacted() {
            if query.revision > 0 {
                return Err(ReadError::Refused(Refusal::Compacted { compacted: self.compacted() }));
            }
            return Ok(None);
        }
        Ok(Some(range::finish(query, kvs, count, current)))
    }

    /// Values for keys found in the index; `None` when a row is gone, which only a compaction past a newer write does.
    fn load(&self, states: Vec<(Bytes, KeyState)>, values: bool) -> Result<Option<Vec<KeyValue>>, StorageError> {
        let mut kvs = Vec::with_capacity(states.len());
        for (key, state) in states {
            if !values {
                kvs.push(key_only(key, &state));
                continue;
            }
            match self.0.load_value(&key, state.modified)? {
                Some(value) => kvs.push(key_value(key, &state, value)),
                None => return Ok(None),
            }
        }
        Ok(Some(kvs))
    }

    /// One scan of the engine: the keys alive at a revision, in order, up to a limit, and how many there are.
    fn scan(
        &self,
        keys: KeyRange<'_>,
        at: Revision,
        limit: Option<usize>,
        values: bool,
    ) -> Result<Scanned, StorageError> {
        scan(&self.0.storage.view(), keys, at, limit, values)
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

    pub(crate) fn hash_all(&self) -> Result<u32, StorageError> {
        hash::hash_all(&self.0.storage.view())
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
        if let Some(value) = self.values.get(key, id) {
            return Ok(Some(value));
        }
        let Some(row) = self.storage.get(Space::Kv, &row::kv_key(key, id))? else { return Ok(None) };
        match Version::decode(&row) {
            Some(Version::Value { value, .. }) => {
                // A copy: the row is a slice of a block that would stay in memory with it.
                self.values.insert(key.clone(), id, Bytes::copy_from_slice(&value));
                Ok(Some(value))
            }
            Some(Version::Tombstone) | None => Err(StorageError::Damaged { what: "a live key's row holds no value" }),
        }
    }
}

/// Up to `limit` keys of the range, in order, with their states.
pub(super) fn collect(index: &KeyIndex, keys: KeyRange<'_>, limit: usize) -> Vec<(Bytes, KeyState)> {
    let mut found = Vec::with_capacity(limit.min(INDEX_KEYS_MAX));
    if let KeyRange::One(key) = keys {
        found.extend(index.get(key).map(|state| (Bytes::copy_from_slice(key), state)));
        return found;
    }
    index.visit(keys, |key, state| {
        if found.len() == limit {
            return ControlFlow::Break(());
        }
        found.push((Bytes::copy_from_slice(key), *state));
        ControlFlow::Continue(())
    });
    found
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

/// What a scan found.
pub(super) struct Scanned {
    pub(super) kvs: Vec<KeyValue>,
    /// Keys alive in the range, past the limit too.
    pub(super) count: usize,
}

pub(super) fn scan(
    view: &View,
    keys: KeyRange<'_>,
    at: Revision,
    limit: Option<usize>,
    values: bool,
) -> Result<Scanned, StorageError> {
    let mut scanned = Scanned { kvs: Vec::new(), count: 0 };
    if let KeyRange::One(key) = keys {
        if let Some(mut kv) = version_at(view, key, at)? {
            scanned.count = 1;
            if !values {
                kv = KeyValue { value: Bytes::new(), lease: 0, ..kv };
            }
            scanned.kvs.extend((limit != Some(0)).then_some(kv));
        }
        return Ok(scanned);
    }
    let limit = limit.unwrap_or(usize::MAX);
    let from = row::kv_bound(keys.start());
    let to = match keys.end() {
        Bound::Excluded(end) => Bound::Excluded(row::kv_bound(end)),
        Bound::Included(_) | Bound::Unbounded => Bound::Unbounded,
    };
    let to = to.as_ref().map(Vec::as_slice);
    // Escaped key of the last key decided, so that its older versions are passed over.
    let mut decided: Vec<u8> = Vec::new();
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
        scanned.count += 1;
        if scanned.kvs.len() < limit {
            let key = row::unescape(prefix).into();
            scanned.kvs.push(decode(key, id, &value, values)?);
        }
    }
    Ok(scanned)
}

/// The version of one key in force at a revision.
pub(super) fn version_at(view: &View, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StorageError> {
    let from = row::kv_key_at(key, at);
    let prefix = row::kv_prefix(key);
    let Some(found) = view.scan(Space::Kv, (Bound::Included(&from), Bound::Unbounded)).next() else { return Ok(None) };
    let (row_key, value) = found?;
    match row::split_kv_key(&row_key) {
        Some((found, id)) if found == prefix && !row::is_tombstone(&value) => {
            decode(Bytes::copy_from_slice(key), id, &value, true).map(Some)
        }
        _ => Ok(None),
    }
}

fn decode(key: Bytes, id: ChangeId, row: &Bytes, values: bool) -> Result<KeyValue, StorageError> {
    match Version::decode(row) {
        Some(Version::Value { created, version, lease, value }) => {
            let (value, lease) = if values { (value, lease) } else { (Bytes::new(), 0) };
            Ok(KeyValue { key, create_revision: created.0, mod_revision: id.main.0, version, value, lease })
        }
        Some(Version::Tombstone) | None => Err(StorageError::Damaged { what: "a version's row can't be read" }),
    }
}
