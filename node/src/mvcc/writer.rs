//! Writing the store: batches of applied requests, by the apply thread alone.
//!
//! What a batch changes is kept in an overlay beside the key index, where the batch's own requests see it and readers
//! do not. A commit writes rows, applied index and counters as one batch of the engine, and then folds the overlay into
//! the index and moves the revision on, under one short lock.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::mvcc::AppliedMark;
use crate::mvcc::key_index::KeyState;
use crate::mvcc::query::{Change, Refusal};
use crate::mvcc::revision::Revision;
use crate::mvcc::store::Store;
use crate::mvcc::write_txn::WriteTxn;
use crate::sabotage::{Sabotage, is_on};
use crate::storage::{Batch, Space, StorageError};

/// Names of rows in the `sys` space.
pub(super) const STATE_ROW: &[u8] = b"state";
pub(super) const COMPACTED_ROW: &[u8] = b"compacted";

/// The owner of the store's changes.
pub(crate) struct Writer {
    pub(super) store: Store,
    /// The revision with what this batch has done so far.
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
    /// Bytes of rows ever written.
    pub(super) written_bytes: u64,
    pub(super) batch: Batch,
    pub(super) overlay: BTreeMap<Bytes, Pending>,
    pub(super) changes: Vec<Change>,
    /// `sys` rows written in this batch, the last write of each name.
    sys: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

/// What this batch made of a key.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// `None`: deleted.
    pub(super) state: Option<KeyState>,
    /// The change among those of the batch that did it.
    pub(super) change: usize,
}

/// What a commit made visible.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) revision: Revision,
    pub(crate) compacted: Revision,
    /// In the order in which they happened.
    pub(crate) changes: Vec<Change>,
}

/// The row that moves with every batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) applied: AppliedMark,
    pub(super) revision: Revision,
    /// Bytes of rows ever written; what compactions freed is counted by them, in their own batches.
    pub(super) written_bytes: u64,
}

impl State {
    pub(super) const EMPTY: State =
        State { applied: AppliedMark { index: 0, term: 0 }, revision: Revision::INITIAL, written_bytes: 0 };

    fn encode(self) -> Vec<u8> {
        let numbers = [self.applied.index, self.applied.term, self.revision.0.cast_unsigned(), self.written_bytes];
        numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
    }

    pub(super) fn decode(row: &[u8]) -> Option<State> {
        let (numbers, rest) = row.as_chunks::<8>();
        let [index, term, revision, written] = numbers else { return None };
        rest.is_empty().then(|| State {
            applied: AppliedMark { index: u64::from_be_bytes(*index), term: u64::from_be_bytes(*term) },
            revision: Revision(i64::from_be_bytes(*revision)),
            written_bytes: u64::from_be_bytes(*written),
        })
    }
}

impl Writer {
    pub(super) fn new(store: Store, state: State, compacted: Revision) -> Writer {
        let batch = store.0.storage.batch();
        Writer {
            store,
            revision: state.revision,
            compacted,
            written_bytes: state.written_bytes,
            batch,
            overlay: BTreeMap::new(),
            changes: Vec::new(),
            sys: HashMap::new(),
        }
    }

    /// The revision with what this batch has done so far.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// -1 before the first compaction.
    pub(crate) fn compacted(&self) -> Revision {
        self.compacted
    }

    /// Begins one request.
    pub(crate) fn txn(&mut self) -> WriteTxn<'_> {
        WriteTxn::new(self)
    }

    /// Forgets history below a revision. The rows go later, see [`Store::compact_physically`].
    ///
    /// # Errors
    /// `Compacted` when it is not above the compacted revision, `Future` when it is above the current one.
    pub(crate) fn compact(&mut self, to: Revision) -> Result<(), Refusal> {
        if to <= self.compacted {
            return Err(Refusal::Compacted { compacted: self.compacted });
        }
        if to > self.revision {
            return Err(Refusal::Future { current: self.revision });
        }
        self.compacted = to;
        self.sys_put(COMPACTED_ROW, to.0.to_be_bytes().to_vec());
        Ok(())
    }

    /// Writes a row of the `sys` space as part of this batch.
    pub(crate) fn sys_put(&mut self, name: &[u8], value: Vec<u8>) {
        self.sys.insert(name.to_vec(), Some(value));
    }

    /// Removes a row of the `sys` space as part of this batch.
    pub(crate) fn sys_remove(&mut self, name: &[u8]) {
        self.sys.insert(name.to_vec(), None);
    }

    /// Commits the batch and makes it visible.
    ///
    /// # Errors
    /// Fatal: memory and store may disagree from here on.
    pub(crate) fn commit(&mut self, applied: AppliedMark) -> Result<Committed, StorageError> {
        let inner = &self.store.0;
        let mut batch = std::mem::replace(&mut self.batch, inner.storage.batch());
        for (name, value) in self.sys.drain() {
            match value {
                Some(value) => batch.put(Space::Sys, name, value),
                None => batch.remove(Space::Sys, name),
            }
        }
        let state = State { applied, revision: self.revision, written_bytes: self.written_bytes };
        if is_on(Sabotage::AppliedIndexOutsideBatch) {
            let mut apart = inner.storage.batch();
            apart.put(Space::Sys, Bytes::from_static(STATE_ROW), state.encode());
            apart.commit()?;
        }
        batch.put(Space::Sys, Bytes::from_static(STATE_ROW), state.encode());
        batch.commit()?;
        inner.written_bytes.store(self.written_bytes, Ordering::Release);

        let overlay = std::mem::take(&mut self.overlay);
        for (key, pending) in &overlay {
            match &pending.state {
                Some(state) => {
                    // The key beside the value: the overlay's own may be a slice of an earlier request.
                    let kv = &self.changes[pending.change].kv;
                    inner.values.insert(kv.key.clone(), state.modified, kv.value.clone());
                }
                None => inner.values.remove(key),
            }
        }
        let mut published = inner.published.write();
        for (key, pending) in &overlay {
            match pending.state {
                Some(state) => {
                    published.index.insert(key, state);
                }
                None => {
                    published.index.remove(key);
                }
            }
        }
        published.revision = self.revision;
        // With the revision, under its lock: a reader that sees one sees the other.
        inner.compacted.store(self.compacted.0, Ordering::Release);
        drop(published);
        Ok(Committed { revision: self.revision, compacted: self.compacted, changes: std::mem::take(&mut self.changes) })
    }
}
