//! Opening the store, and the dump of the key index that makes it quick.
//!
//! The dump is a shortcut: the index as of some revision, or a little newer in places, since it is copied in pieces
//! while writes go on. A start loads it and goes through the changes after that revision; each sets its key to what the
//! newest of them says, so the pieces that were newer come out the same. Without a dump, or with one that is damaged or
//! so old that the changes after it are many or partly dropped, the index is built from one scan of all versions.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::mvcc::compaction::{DONE_ROW, Done, KEPT_ROW};
use crate::mvcc::filter::Floor;
use crate::mvcc::key_index::{DumpHeader, KeyIndex, KeyIndexBuilder, KeyState};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::row::{self, RevRow, Version};
use crate::mvcc::store::{Inner, Published, Store};
use crate::mvcc::value_cache::ValueCache;
use crate::mvcc::writer::{COMPACTED_ROW, STATE_ROW, State, Writer};
use crate::mvcc::{AppliedMark, MvccOptions};
use crate::storage::{Space, Storage, StorageError, View};

/// Keys changed since the dump up to which going through the changes beats a scan of everything.
const REPLAY_KEYS_MAX: usize = 100_000;
/// Keys copied for a dump under one hold of the index lock: well below a millisecond.
const DUMP_CHUNK_KEYS: usize = 2_048;

/// The dump file and the revision it covers.
pub(super) struct Dump {
    path: PathBuf,
    revision: AtomicI64,
}

impl Dump {
    /// The changes after this revision must be kept: a start needs them.
    pub(super) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }
}

/// Opens the store over its rows. The floor is the one that the storage's filters were made with.
pub(crate) fn open(
    storage: Storage,
    floor: Floor,
    options: MvccOptions,
) -> Result<(Store, Writer, AppliedMark), StorageError> {
    let view = storage.view();
    let state = match view.get(Space::Sys, STATE_ROW)? {
        Some(row) => State::decode(&row).ok_or(StorageError::Damaged { what: "the state row" })?,
        None => State::EMPTY,
    };
    let revision_row = |name, what| match view.get(Space::Sys, name)? {
        Some(row) => {
            let bytes = row.as_ref().try_into().map_err(|_| StorageError::Damaged { what })?;
            Ok(Some(Revision(i64::from_be_bytes(bytes))))
        }
        None => Ok::<_, StorageError>(None),
    };
    let compacted = revision_row(COMPACTED_ROW, "the compacted revision's row")?.unwrap_or(Revision(-1));
    let kept = revision_row(KEPT_ROW, "the row of the changes kept")?.unwrap_or(Revision(0));
    let done = match view.get(Space::Sys, DONE_ROW)? {
        Some(row) => Done::decode(&row).ok_or(StorageError::Damaged { what: "the compaction's row" })?,
        None => Done::NONE,
    };
    let (index, dumped) = load_index(&view, &options.index_dump, state.revision, kept)?;
    drop(view);
    // What was carried out stays so; a compaction not carried out yet raises the floor when it is.
    floor.raise(done.revision.0);
    let dump = Dump { path: options.index_dump.clone(), revision: AtomicI64::new(dumped.0) };
    let store = Store(Arc::new(Inner {
        storage,
        published: RwLock::new(Published { index, revision: state.revision }),
        compacted: AtomicI64::new(compacted.0),
        compacted_at_start: compacted,
        values: ValueCache::new(options.value_cache_bytes),
        floor,
        written_bytes: AtomicU64::new(state.written_bytes),
        freed_bytes: AtomicU64::new(done.freed_bytes),
        options,
        dump,
        compaction_hashes: RwLock::new(Vec::new()),
    }));
    let writer = Writer::new(store.clone(), state, compacted);
    Ok((store, writer, state.applied))
}

/// The key index, and the revision its dump covers; revision 0 when there is no usable dump.
///
/// Changes after the newest dump are all there: compaction drops those that it covers and no others. An older dump that
/// came back from a crash or a copy is told by `kept`, the first revision from which on all changes are there.
///
/// Rows later than `revision` are passed over: the engine may flush rows of a commit whose state row a crash then takes
/// back, and the log writes the same rows again.
fn load_index(
    view: &View,
    path: &Path,
    revision: Revision,
    kept: Revision,
) -> Result<(KeyIndex, Revision), StorageError> {
    if let Some((dumped, mut index)) = read_dump(path)
        && dumped <= revision
        && dumped.next() >= kept
        && replay(view, dumped, revision, &mut index)?
    {
        return Ok((index, dumped));
    }
    // Useless now, it must not seem useful once the revision has caught up with it.
    fs::remove_file(path).ok();
    Ok((scan_index(view, revision)?, Revision(0)))
}

fn read_dump(path: &Path) -> Option<(Revision, KeyIndex)> {
    let file = File::open(path).ok()?;
    // A damaged dump is as good as none.
    let (header, index) = KeyIndex::load(&mut BufReader::new(file)).ok()?;
    Some((header.revision, index))
}

/// Sets every key changed after the dump to what it is now. False when there are too many for it to pay.
fn replay(view: &View, dumped: Revision, revision: Revision, index: &mut KeyIndex) -> Result<bool, StorageError> {
    let after = row::rev_key(ChangeId { main: dumped, sub: u32::MAX });
    let mut newest: HashMap<Bytes, (ChangeId, bool)> = HashMap::new();
    let last = row::rev_key(ChangeId { main: revision, sub: u32::MAX });
    for found in view.scan(Space::Rev, (Bound::Excluded(&after), Bound::Included(&last))) {
        let (row_key, value) = found?;
        let (Some(id), Some(rev_row)) = (row::parse_rev_key(&row_key), RevRow::decode(&value)) else {
            return Err(StorageError::Damaged { what: "a change's row can't be read" });
        };
        newest.insert(Bytes::copy_from_slice(&rev_row.key), (id, rev_row.tombstone));
        if newest.len() > REPLAY_KEYS_MAX {
            return Ok(false);
        }
    }
    for (key, (id, tombstone)) in newest {
        if tombstone {
            index.remove(&key);
            continue;
        }
        let row_key = row::kv_key(&key, id);
        let row = view.get(Space::Kv, &row_key)?.ok_or(StorageError::Damaged { what: "a change has no version" })?;
        index.insert(&key, state_of(id, row_key.len(), &row)?);
    }
    Ok(true)
}

fn scan_index(view: &View, revision: Revision) -> Result<KeyIndex, StorageError> {
    let mut builder = KeyIndexBuilder::new();
    let mut decided: Vec<u8> = Vec::new();
    for found in view.scan(Space::Kv, (Bound::Unbounded, Bound::Unbounded)) {
        let (row_key, value) = found?;
        let (prefix, id) =
            row::split_kv_key(&row_key).ok_or(StorageError::Damaged { what: "a version's row key can't be read" })?;
        if id.main > revision || decided == prefix {
            continue;
        }
        decided.clear();
        decided.extend_from_slice(prefix);
        if !row::is_tombstone(&value) {
            let state = state_of(id, row_key.len(), &value)?;
            builder
                .push(&row::unescape(prefix), state)
                .map_err(|_| StorageError::Damaged { what: "versions are out of key order" })?;
        }
    }
    Ok(builder.finish())
}

fn state_of(id: ChangeId, key_bytes: usize, row: &Bytes) -> Result<KeyState, StorageError> {
    match Version::decode(row) {
        Some(Version::Value { created, version, lease, .. }) => {
            let row_bytes = u32::try_from(key_bytes + row.len()).unwrap_or(u32::MAX);
            Ok(KeyState { modified: id, created, version, lease, row_bytes })
        }
        Some(Version::Tombstone) | None => Err(StorageError::Damaged { what: "a version's row can't be read" }),
    }
}

impl Store {
    /// Dumps the key index beside the store, while writes go on.
    ///
    /// The store is made durable between the copy and the file: a dump must never know of a change that a crash takes
    /// back from the store.
    pub(crate) fn dump_index(&self) -> Result<(), StorageError> {
        let revision = self.revision();
        let index = self.copy_index();
        self.persist()?;
        self.write_dump(revision, &index).map_err(|source| StorageError::Io { path: self.0.dump.path.clone(), source })
    }

    fn write_dump(&self, revision: Revision, index: &KeyIndex) -> io::Result<()> {
        let path = &self.0.dump.path;
        let temporary = path.with_extension("tmp");
        let mut file = BufWriter::new(File::create(&temporary)?);
        index.dump(&mut file, &DumpHeader { revision, compacted: self.compacted() })?;
        file.flush()?;
        file.get_ref().sync_data()?;
        fs::rename(&temporary, path)?;
        // Changes that this dump covers may be dropped from now on, so an older one must not come back.
        path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
        self.0.dump.revision.store(revision.0, Ordering::Release);
        Ok(())
    }

    fn copy_index(&self) -> KeyIndex {
        let mut builder = KeyIndexBuilder::new();
        let mut from: Vec<u8> = Vec::new();
        loop {
            let mut copied = 0;
            self.0.published.read().index.visit(KeyRange::From(&from.clone()), |key, state| {
                if copied == DUMP_CHUNK_KEYS {
                    return ControlFlow::Break(());
                }
                copied += 1;
                builder.push(key, *state).expect("the index is visited in order, and each chunk starts after the last");
                from.clear();
                from.extend_from_slice(key);
                ControlFlow::Continue(())
            });
            if copied < DUMP_CHUNK_KEYS {
                return builder.finish();
            }
            // The smallest key after the last one copied.
            from.push(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::row::RevRow;

    /// Writes a new version of the key "k" as the engine would keep it without the state row beside it.
    fn put_change(storage: &Storage, main: i64, version: i64) {
        let id = ChangeId { main: Revision(main), sub: 0 };
        let key = Bytes::from_static(b"k");
        let value = Version::Value { created: Revision(8), version, lease: 0, value: Bytes::new() };
        let change = RevRow { tombstone: false, row_bytes: 0, superseded_bytes: 0, key: key.clone() };
        let mut batch = storage.batch();
        batch.put(Space::Kv, row::kv_key(&key, id).to_vec(), value.encode());
        batch.put(Space::Rev, row::rev_key(id).to_vec(), change.encode());
        batch.commit().unwrap();
    }

    #[test]
    fn rows_later_than_the_state_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("store"), Floor::new().filters()).unwrap();
        put_change(&storage, 8, 1);
        put_change(&storage, 9, 2);
        let view = storage.view();
        let mut replayed = KeyIndexBuilder::new().finish();
        assert!(replay(&view, Revision(1), Revision(8), &mut replayed).unwrap());
        for index in [scan_index(&view, Revision(8)).unwrap(), replayed] {
            assert_eq!(index.get(b"k").unwrap().modified.main, Revision(8));
        }
        assert_eq!(scan_index(&view, Revision(9)).unwrap().get(b"k").unwrap().modified.main, Revision(9));
    }

    #[test]
    fn a_compaction_left_over_by_a_crash_keeps_no_hash() {
        let dir = tempfile::tempdir().unwrap();
        let reopened = || {
            let floor = Floor::new();
            let storage = Storage::open(&dir.path().join("store"), floor.filters()).unwrap();
            open(storage, floor, MvccOptions::new(dir.path().join("index"), 100)).unwrap()
        };
        let compact = |store: &Store, writer: &mut Writer, to| {
            writer.compact(Revision(to)).unwrap();
            writer.commit(AppliedMark::default()).unwrap();
            store.persist().unwrap();
        };
        let (store, mut writer, _) = reopened();
        for _ in 0..5 {
            let mut txn = writer.txn();
            txn.put(Bytes::from_static(b"k"), Bytes::new(), 0);
            txn.finish();
        }
        compact(&store, &mut writer, 3);
        drop((store, writer));

        let (store, mut writer, _) = reopened();
        store.compact_physically(Revision(3), &mut || {}).unwrap();
        assert!(store.0.compaction_hashes.read().is_empty());
        compact(&store, &mut writer, 5);
        store.compact_physically(Revision(5), &mut || {}).unwrap();
        assert_eq!(store.0.compaction_hashes.read().len(), 1);
    }

    #[test]
    fn a_dump_older_than_the_changes_kept_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("store"), Floor::new().filters()).unwrap();
        let path = dir.path().join("index");
        let dump = |revision| {
            let header = DumpHeader { revision: Revision(revision), compacted: Revision(0) };
            KeyIndexBuilder::new().finish().dump(&mut File::create(&path).unwrap(), &header).unwrap();
        };
        for (dumped, used) in [(4, Revision(4)), (3, Revision(0))] {
            dump(dumped);
            let (_, found) = load_index(&storage.view(), &path, Revision(9), Revision(5)).unwrap();
            assert_eq!((found, path.exists()), (used, used.0 != 0));
        }
    }
}
