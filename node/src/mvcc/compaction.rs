//! Carrying a compaction out on disk.
//!
//! [`Writer::compact`](crate::mvcc::Writer::compact) moves the compacted revision, and from then on nobody can read
//! below it. This pass makes the rows go: the hash of what goes is taken first; then keys that were deleted are removed
//! row by row, oldest row first, so that at no point an older version can show; then the engine is allowed to drop
//! superseded versions whenever it rewrites tables; and the changes below the compacted revision are dropped by whole
//! tables.
//!
//! A tombstone ends a generation of its key: it and the versions since the key was created go together, and every
//! tombstone has its turn, so no row is looked for under a later one. That needs each tombstone in its place until it is
//! removed, which is why the engine may drop nothing up to the revision before the pass is over and durable.
//!
//! A tombstone exactly at the compacted revision stays until the next compaction, since a watch may start there
//! (etcd#19179). A pass that a crash cut short is done again from its beginning, which changes nothing it had done.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::mvcc::hash;
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::row::{self, RevRow, Version};
use crate::mvcc::store::{KvHash, Store};
use crate::sabotage::{Sabotage, is_on};
use crate::storage::{Batch, Space, StorageError, View};

/// Name of the `sys` row that says what has been carried out: the revision, and the bytes ever freed.
pub(super) const DONE_ROW: &[u8] = b"compaction-done";
/// Name of the `sys` row that says from which revision on all changes are kept in `rev`.
pub(super) const KEPT_ROW: &[u8] = b"changes-kept";

/// What a pass did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompactionDone {
    /// Versions made superfluous, tombstones among them.
    pub(crate) rows_removed: u64,
    pub(crate) bytes_freed: u64,
    /// Rows of versions that were read on the way.
    pub(crate) rows_read: u64,
}

/// The `sys` row [`DONE_ROW`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Done {
    pub(super) revision: Revision,
    pub(super) freed_bytes: u64,
}

impl Done {
    pub(super) const NONE: Done = Done { revision: Revision(-1), freed_bytes: 0 };

    fn encode(self) -> Vec<u8> {
        [self.revision.0.to_be_bytes(), self.freed_bytes.to_be_bytes()].concat()
    }

    pub(super) fn decode(row: &[u8]) -> Option<Done> {
        let (revision, freed) = row.split_first_chunk::<8>()?;
        let freed_bytes = u64::from_be_bytes(freed.try_into().ok()?);
        Some(Done { revision: Revision(i64::from_be_bytes(*revision)), freed_bytes })
    }
}

impl Store {
    /// Carries out the compaction to `to`, which must not be above the compacted revision. Blocks; for the disk thread.
    /// `pause` is called between batches of rows.
    pub(crate) fn compact_physically(
        &self,
        to: Revision,
        pause: &mut dyn FnMut(),
    ) -> Result<CompactionDone, StorageError> {
        assert!(
            to <= self.compacted(),
            "history is readable down to {}, not to be removed up to {to}",
            self.compacted()
        );
        let before = match self.sys_get(DONE_ROW)? {
            Some(row) => Done::decode(&row).ok_or(StorageError::Damaged { what: "the compaction's row" })?,
            None => Done::NONE,
        };
        if to <= before.revision {
            return Ok(CompactionDone::default());
        }
        let hash = hash::hash(&self.0.storage.view(), before.revision, to, hash::Purpose::Compaction)?;
        // The compacted revision must outlive a crash that the rows below it do not.
        self.persist()?;
        let mut pass = Pass {
            store: self,
            view: self.0.storage.view(),
            batch: self.0.storage.batch(),
            rows: 0,
            done: CompactionDone::default(),
            pause,
        };
        pass.run(before.revision, to)?;
        let done = pass.finish(before, to)?;
        // A pass that goes on where a crash cut it short hashed rows that were partly gone; etcd keeps no hash then either.
        if before.revision >= self.0.compacted_at_start {
            let compact_revision = before.revision.0;
            self.keep_compaction_hash(KvHash { hash, compact_revision, hash_revision: to.0, revision: to });
        }
        let below = ChangeId { main: to.min(self.0.dump.revision().next()), sub: 0 };
        let mut kept = self.0.storage.batch();
        kept.put(Space::Sys, Bytes::from_static(KEPT_ROW), below.main.0.to_be_bytes().to_vec());
        kept.commit()?;
        // What the filter drops is gone at once, and so are tables: a crash must take back neither this row nor what was
        // carried out.
        self.persist()?;
        self.0.floor.raise(to.0);
        self.0.storage.drop_rev_tables(&row::rev_key(below))?;
        self.0.storage.nudge()?;
        Ok(done)
    }
}

struct Pass<'a> {
    store: &'a Store,
    /// As of the beginning, so that what the pass removes does not lie in its way.
    view: View,
    batch: Batch,
    /// Rows in the batch.
    rows: usize,
    done: CompactionDone,
    pause: &'a mut dyn FnMut(),
}

impl Pass<'_> {
    fn run(&mut self, from: Revision, to: Revision) -> Result<(), StorageError> {
        // From the revision compacted before on: its tombstones were left then.
        let lowest = row::rev_key(ChangeId { main: from.max(Revision(0)), sub: 0 });
        let highest = row::rev_key(ChangeId { main: to, sub: u32::MAX });
        for found in self.view.scan(Space::Rev, (Bound::Included(&lowest), Bound::Included(&highest))) {
            let (row_key, value) = found?;
            let (Some(id), Some(rev_row)) = (row::parse_rev_key(&row_key), RevRow::decode(&value)) else {
                return Err(StorageError::Damaged { what: "a change's row can't be read" });
            };
            if rev_row.superseded_bytes > 0 && id.main > from {
                self.done.rows_removed += 1;
                self.done.bytes_freed += u64::from(rev_row.superseded_bytes);
            }
            if rev_row.tombstone && id.main < to {
                self.done.rows_removed += 1;
                self.done.bytes_freed += u64::from(rev_row.row_bytes);
                self.remove_dead(&rev_row.key, id)?;
            }
        }
        Ok(())
    }

    /// Removes a tombstone and the versions of its generation, oldest first.
    fn remove_dead(&mut self, key: &[u8], tombstone: ChangeId) -> Result<(), StorageError> {
        let newest = row::kv_key(key, tombstone);
        self.done.rows_read += 1;
        if self.view.get(Space::Kv, &newest)?.is_none() {
            // It goes last: a pass that was cut short came past here.
            return Ok(());
        }
        let keeps = is_on(Sabotage::LostTombstone);
        if let Some(created) = self.generation_start(key, &newest)?.filter(|_| !keeps) {
            let oldest = row::kv_key(key, created);
            for found in self.view.scan(Space::Kv, (Bound::Excluded(&newest), Bound::Included(&oldest))).rev() {
                let (row_key, _) = found?;
                self.done.rows_read += 1;
                self.remove(row_key)?;
            }
        }
        self.remove(newest.into())
    }

    /// Where the generation that ends with this tombstone begins; `None` when all of its versions are gone.
    ///
    /// The engine drops none of them that is newer than the last compaction, nor the newest that is not; only of a
    /// tombstone left by that compaction may all be gone, and then whatever is older is gone too.
    fn generation_start(&mut self, key: &[u8], tombstone: &[u8]) -> Result<Option<ChangeId>, StorageError> {
        let oldest = row::kv_key(key, ChangeId::default());
        let Some(found) = self.view.scan(Space::Kv, (Bound::Excluded(tombstone), Bound::Included(&oldest))).next()
        else {
            return Ok(None);
        };
        self.done.rows_read += 1;
        match Version::decode(&found?.1) {
            Some(Version::Value { created, .. }) => Ok(Some(ChangeId { main: created, sub: 0 })),
            Some(Version::Tombstone) => Ok(None),
            None => Err(StorageError::Damaged { what: "a version's row can't be read" }),
        }
    }

    fn remove(&mut self, row_key: Bytes) -> Result<(), StorageError> {
        self.batch.remove(Space::Kv, row_key);
        self.rows += 1;
        if self.rows >= self.store.0.options.compaction_rows_max {
            self.flush()?;
            (self.pause)();
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.rows = 0;
        std::mem::replace(&mut self.batch, self.store.0.storage.batch()).commit()
    }

    fn finish(mut self, before: Done, to: Revision) -> Result<CompactionDone, StorageError> {
        let freed_bytes = before.freed_bytes + self.done.bytes_freed;
        self.batch.put(Space::Sys, Bytes::from_static(DONE_ROW), Done { revision: to, freed_bytes }.encode());
        self.flush()?;
        self.store.0.freed_bytes.store(freed_bytes, Ordering::Release);
        Ok(self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::filter::Floor;
    use crate::mvcc::query::RangeQuery;
    use crate::mvcc::{AppliedMark, HistoryLimit, MvccOptions, Writer};
    use crate::storage::Storage;

    const CYCLES: i64 = 10_000;

    /// Creates one key, overwrites it now and then, and deletes it, again and again.
    fn cycle(writer: &mut Writer) {
        for number in 0..CYCLES {
            for version in 0..=(number % 2) {
                let mut txn = writer.txn();
                txn.put(Bytes::from_static(b"k"), version.to_string().into(), 0);
                txn.finish();
            }
            let mut txn = writer.txn();
            txn.delete_range(b"k", b"");
            txn.finish();
        }
        writer.commit(AppliedMark::default()).unwrap();
    }

    #[test]
    fn each_row_is_read_about_once_however_often_a_key_was_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&dir.path().join("store"), floor.filters()).unwrap();
        // One batch, so that rows removed by it are all still there for whoever looks at them again.
        let options = MvccOptions::new(dir.path().join("index"), usize::MAX);
        let (store, mut writer, _) = crate::mvcc::open(storage, floor, options).unwrap();
        cycle(&mut writer);
        let end = writer.revision();
        let to = Revision(end.0 - 12);
        writer.compact(to).unwrap();
        writer.commit(AppliedMark::default()).unwrap();

        let answers = || {
            let limit = HistoryLimit { revisions_max: 100, bytes_max: 1 << 20, rows_max: 100 };
            let history = store.history(to.next(), end, limit, &mut |_| true).unwrap();
            let changes: Vec<_> =
                history.changes.into_iter().map(|change| (change.id, change.kind, change.kv)).collect();
            let reads = (to.0..=end.0).map(|revision| {
                store.range(&RangeQuery { key: "k".into(), revision, ..RangeQuery::default() }).unwrap().kvs
            });
            (store.hash(end.0).unwrap().hash, changes, reads.collect::<Vec<_>>())
        };
        let before = answers();
        let rows = u64::try_from(5 * CYCLES / 2).unwrap();
        let done = store.compact_physically(to, &mut || {}).unwrap();
        assert!((rows - 20..=rows).contains(&done.rows_removed), "{done:?}");
        assert!(done.rows_read <= 2 * rows, "{done:?}");
        assert_eq!(answers(), before);
        store.defragment().unwrap();
        assert_eq!(answers(), before);
    }
}
