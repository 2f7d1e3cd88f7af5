//! The changes of a span of revisions, for watchers that catch up.

use std::ops::Bound;

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;

use crate::mvcc::ReadError;
use crate::mvcc::query::{Change, ChangeKind, Previous, Refusal};
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::row::{self, RevRow, Version};
use crate::mvcc::store::Store;
use crate::storage::{Space, StorageError, View};

/// Bounds of one read of the history. Whole revisions are read, and one at least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryLimit {
    /// Revisions with a change that is kept.
    pub(crate) revisions_max: usize,
    /// Bytes of keys and values kept.
    pub(crate) bytes_max: usize,
    /// Changes looked at, kept or not.
    pub(crate) rows_max: usize,
}

/// Changes in order, and the revision from which to read on.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) changes: Vec<Change>,
    pub(crate) next: Revision,
}

impl Store {
    /// The changes with `from <= revision <= through` of the keys that `keep` wants, and none above the current
    /// revision.
    ///
    /// # Errors
    /// `Compacted` when `from` is below the compacted revision, before the read or by its end.
    pub(crate) fn history(
        &self,
        from: Revision,
        through: Revision,
        limit: HistoryLimit,
        keep: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<History, ReadError> {
        // The view may hold rows of a batch that is not published yet.
        let through = through.min(self.revision());
        let history = read(&self.0.storage.view(), from, through, limit, keep)?;
        let compacted = self.compacted();
        if from < compacted {
            return Err(ReadError::Refused(Refusal::Compacted { compacted }));
        }
        Ok(history)
    }
}

fn read(
    view: &View,
    from: Revision,
    through: Revision,
    limit: HistoryLimit,
    keep: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<History, StorageError> {
    let lowest = row::rev_key(ChangeId { main: from, sub: 0 });
    let highest = row::rev_key(ChangeId { main: through, sub: u32::MAX });
    let mut changes: Vec<Change> = Vec::new();
    let (mut revisions, mut bytes, mut rows) = (0, 0, 0);
    let mut last = from;
    for found in view.scan(Space::Rev, (Bound::Included(&lowest), Bound::Included(&highest))) {
        let (row_key, value) = found?;
        let damaged = StorageError::Damaged { what: "a change's row can't be read" };
        let (Some(id), Some(rev_row)) = (row::parse_rev_key(&row_key), RevRow::decode(&value)) else {
            return Err(damaged);
        };
        if id.main != last && rows >= limit.rows_max {
            return Ok(History { changes, next: id.main });
        }
        last = id.main;
        rows += 1;
        if !keep(&rev_row.key) {
            continue;
        }
        if changes.last().is_none_or(|last| last.id.main != id.main) {
            if revisions == limit.revisions_max || (revisions > 0 && bytes >= limit.bytes_max) {
                return Ok(History { changes, next: id.main });
            }
            revisions += 1;
        }
        // A row that is gone was compacted away under the read, which is then refused as a whole.
        let Some(change) = load(view, id, rev_row)? else { continue };
        bytes += change.kv.key.len() + change.kv.value.len();
        changes.push(change);
    }
    Ok(History { changes, next: from.max(through.next()) })
}

fn load(view: &View, id: ChangeId, rev_row: RevRow) -> Result<Option<Change>, StorageError> {
    let previous = if rev_row.superseded_bytes == 0 { Previous::Absent } else { Previous::Unread };
    let key = rev_row.key;
    if rev_row.tombstone {
        let kv = KeyValue { key, mod_revision: id.main.0, ..KeyValue::default() };
        return Ok(Some(Change { id, kind: ChangeKind::Delete, kv, previous }));
    }
    let Some(row) = view.get(Space::Kv, &row::kv_key(&key, id))? else { return Ok(None) };
    let Some(Version::Value { created, version, lease, value }) = Version::decode(&row) else {
        return Err(StorageError::Damaged { what: "a version's row can't be read" });
    };
    let value = Bytes::copy_from_slice(&value);
    let kv = KeyValue { key, create_revision: created.0, mod_revision: id.main.0, version, value, lease };
    Ok(Some(Change { id, kind: ChangeKind::Put, kv, previous }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::filter::Floor;
    use crate::mvcc::{AppliedMark, MvccOptions};
    use crate::storage::Storage;

    #[test]
    fn a_portion_is_bounded_by_the_changes_passed_over_and_ends_at_the_current_revision() {
        let dir = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&dir.path().join("store"), floor.filters()).unwrap();
        let (store, mut writer, _) =
            crate::mvcc::open(storage, floor, MvccOptions::new(dir.path().join("index"), 100)).unwrap();
        for _ in 0..50 {
            let mut txn = writer.txn();
            txn.put("a".into(), Bytes::new(), 0);
            txn.put("b".into(), Bytes::new(), 0);
            txn.finish();
        }
        writer.commit(AppliedMark::default()).unwrap();
        let limit = HistoryLimit { revisions_max: 1_000, bytes_max: 1 << 20, rows_max: 15 };
        let next = |from| store.history(Revision(from), Revision(99), limit, &mut |_| false).unwrap().next.0;
        assert_eq!([2, 10, 50, 60].map(next), [10, 18, 52, 60]);
    }
}
