//! Keeps the engine's memtables until nobody else does, and frees them where nobody waits.
//!
//! The engine (lsm-tree 3.1) lets go of a flushed memtable under the lock that every write passes through, and freeing
//! a hundred thousand rows takes some 20 ms. With a reference held here, what the engine lets go of lives on until
//! [`Memtables::free`] is called from a thread of upkeep.

use std::sync::Arc;

use lsm_tree::{AbstractTree as _, AnyTree, Memtable};
use parking_lot::Mutex;

/// The memtables of one or more trees.
// A lock, since the committing threads note memtables and the clock thread frees them; held for pointers only.
#[derive(Default)]
pub(super) struct Memtables(Mutex<Held>);

#[derive(Default)]
struct Held {
    /// The one in use of each tree, by the tree's number.
    active: Vec<Arc<Memtable>>,
    /// Those before, until the engine has let go of them. It holds four a tree and then makes writers wait.
    retired: Vec<Arc<Memtable>>,
}

impl Memtables {
    /// Notes which memtables are in use after a commit. Always called with the same trees.
    pub(super) fn note<'a>(&self, trees: impl Iterator<Item = &'a AnyTree>) {
        let held = &mut *self.0.lock();
        for (number, tree) in trees.enumerate() {
            let active = tree.active_memtable();
            match held.active.get_mut(number) {
                Some(known) if Arc::ptr_eq(known, &active) => {}
                Some(known) => held.retired.push(std::mem::replace(known, active)),
                None => held.active.push(active),
            }
        }
    }

    /// Frees what only this holds. Takes as long as freeing takes.
    pub(super) fn free(&self) -> usize {
        let free: Vec<Arc<Memtable>> =
            self.0.lock().retired.extract_if(.., |memtable| Arc::strong_count(memtable) == 1).collect();
        free.len()
    }
}
