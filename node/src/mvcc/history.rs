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
}

/// Changes in order, and the revision from which to read on.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) changes: Vec<Change>,
    pub(crate) next: Revision,
}

impl Store {
    /// The changes with `from <= revision <= through` of the keys that `keep` wants.
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
    let (mut revisions, mut bytes) = (0, 0);
    for found in view.scan(Space::Rev, (Bound::Included(&lowest), Bound::Included(&highest))) {
        let (row_key, value) = found?;
        let damaged = StorageError::Damaged { what: "a change's row can't be read" };
        let (Some(id), Some(rev_row)) = (row::parse_rev_key(&row_key), RevRow::decode(&value)) else {
            return Err(damaged);
        };
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
    Ok(History { changes, next: through.next() })
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
