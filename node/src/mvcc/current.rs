//! The store in use: another takes its place when this member is given another member's whole state.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::mvcc::Store;

/// Where whoever reads finds the store. A read takes it once and stays with it. Cheap to clone.
// A lock, since every shard reads and the apply thread replaces; held for the copy of a pointer.
#[derive(Clone)]
pub(crate) struct CurrentStore(Arc<RwLock<Store>>);

impl CurrentStore {
    pub(crate) fn new(store: Store) -> CurrentStore {
        CurrentStore(Arc::new(RwLock::new(store)))
    }

    pub(crate) fn get(&self) -> Store {
        self.0.read().clone()
    }

    /// Puts another store in its place and returns the one before.
    pub(crate) fn replace(&self, store: Store) -> Store {
        std::mem::replace(&mut self.0.write(), store)
    }
}
