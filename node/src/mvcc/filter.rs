//! Which versions a compaction of the engine may drop: those superseded at or below the floor.
//!
//! The engine shows rows of some of its tables, in row order: a key's versions newest first. A version may go when a
//! newer one of the same key, itself at or below the floor, was shown in the same run. The newest version at or below
//! the floor always stays, and so do tombstones in that place: with an older version hidden in another table, dropping
//! the tombstone would bring it back. Keys that are dead for good are removed row by row instead, see `compaction`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::mvcc::row;
use crate::storage::{MakeRowFilter, RowFilter};

/// The main revision at or below which superseded versions may go; raised by compaction once nobody needs them.
#[derive(Clone)]
pub(crate) struct Floor(Arc<AtomicI64>);

impl Floor {
    pub(crate) fn new() -> Floor {
        Floor(Arc::new(AtomicI64::new(0)))
    }

    pub(crate) fn raise(&self, to: i64) {
        self.0.fetch_max(to, Ordering::AcqRel);
    }

    /// Makes filters that use the floor as it is when a compaction of the engine begins.
    pub(crate) fn filters(&self) -> MakeRowFilter {
        let floor = Arc::clone(&self.0);
        Arc::new(move || Box::new(Superseded { floor: floor.load(Ordering::Acquire), key: Vec::new(), covered: false }))
    }
}

/// State over the rows of one run.
struct Superseded {
    floor: i64,
    /// Escaped key of the row before.
    key: Vec<u8>,
    /// A version of `key` at or below the floor was shown.
    covered: bool,
}

impl RowFilter for Superseded {
    fn drops(&mut self, row_key: &[u8], _: &[u8]) -> bool {
        let Some((prefix, id)) = row::split_kv_key(row_key) else { return false };
        if self.key != prefix {
            self.key.clear();
            self.key.extend_from_slice(prefix);
            self.covered = false;
        }
        let drops = self.covered;
        self.covered |= id.main.0 <= self.floor;
        drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::revision::{ChangeId, Revision};

    #[test]
    fn only_versions_below_the_newest_at_the_floor_go() {
        let floor = Floor::new();
        floor.raise(7);
        let mut filter = (floor.filters())();
        let mut shown = |key: &str, main: i64| {
            filter.drops(&row::kv_key(key.as_bytes(), ChangeId { main: Revision(main), sub: 0 }), &[])
        };
        assert_eq!([9, 7, 5, 2].map(|main| shown("a", main)), [false, false, true, true]);
        assert_eq!([8, 3].map(|main| shown("b", main)), [false, false]);
    }
}
