//! Values of keys found in the index, in key order: from the value cache where it has them, else from the engine.
//!
//! What the cache lacks is read point by point first, and once several keys in a row were not cached, by walking the
//! engine's rows beside the list: reading a row in passing costs half a microsecond, looking one up five to eighteen. A
//! walk that meets many superseded versions of one key gives up and looks up, so that keys written often cost no more
//! than others.

use std::cmp::Ordering;
use std::ops::Bound;

use bytes::Bytes;

use crate::mvcc::key_index::KeyState;
use crate::mvcc::row;
use crate::mvcc::store::{Inner, NO_VALUE};
use crate::storage::{Row, Space, StorageError};

/// Keys in a row that the cache must lack before the engine's rows are walked. Opening a walk costs about two lookups.
const MISSES_BEFORE_WALK: u32 = 3;
/// Rows passed over for one key before the walk is given up.
const STEPS_MAX: u32 = 16;

pub(super) struct Loader<'a> {
    inner: &'a Inner,
    misses: u32,
    walk: Option<Walk>,
}

type Walk = Box<dyn Iterator<Item = Result<Row, StorageError>>>;

impl<'a> Loader<'a> {
    pub(super) fn new(inner: &'a Inner) -> Loader<'a> {
        Loader { inner, misses: 0, walk: None }
    }

    /// Calls `visit` with the value of this version. False when the engine no longer has its row, which only a
    /// compaction past a newer write does. To be called with ascending keys.
    pub(super) fn load(
        &mut self,
        key: &[u8],
        state: &KeyState,
        visit: impl FnOnce(&[u8]),
    ) -> Result<bool, StorageError> {
        if let Some(value) = self.inner.values.get(key, state.modified) {
            self.misses = 0;
            visit(&value);
            return Ok(true);
        }
        self.misses += 1;
        if self.misses <= MISSES_BEFORE_WALK {
            let loaded = self.inner.load_row(key, state.modified)?;
            return Ok(loaded.as_deref().map(visit).is_some());
        }
        let wanted = row::kv_key(key, state.modified);
        match self.walk_to(&wanted)? {
            Some(row) => {
                visit(row::value_row(&row).ok_or(NO_VALUE)?.value);
                Ok(true)
            }
            None => {
                let loaded = self.inner.load_row(key, state.modified)?;
                Ok(loaded.as_deref().map(visit).is_some())
            }
        }
    }

    /// The row, or nothing when the walk has gone too far for it or would have to go far.
    fn walk_to(&mut self, wanted: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let walk = self.walk.get_or_insert_with(|| {
            let bounds = (Bound::Included(wanted), Bound::Unbounded);
            Box::new(self.inner.storage.view().scan(Space::Kv, bounds))
        });
        for _ in 0..STEPS_MAX {
            let Some(row) = walk.next() else { break };
            let (row_key, value) = row?;
            match row_key.as_ref().cmp(wanted) {
                Ordering::Less => {}
                Ordering::Equal => return Ok(Some(value)),
                Ordering::Greater => break,
            }
        }
        self.walk = None;
        Ok(None)
    }
}
