//! The policy epoch: the number of the set of policies in force, the same on every member at the same entry.
//!
//! What policies are asked about is judged before it is proposed, and its entry says under which epoch. Apply carries it out
//! only if that is still the one in force (DESIGN 9, "The fence"); otherwise whoever proposed it judges it again. So once a
//! change of the epoch is acknowledged, no write that only the policies before it would have let through can follow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Name of the row in the store's `sys` space; missing while the epoch is 0.
pub(crate) const ROW: &[u8] = b"policy-epoch";

/// The epoch as of the last applied entry. Cheap to clone; apply alone changes it.
#[derive(Clone, Default)]
pub(crate) struct Epoch(Arc<AtomicU64>);

impl Epoch {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Puts another one in force, and returns the row that keeps it.
    pub(crate) fn set(&self, epoch: u64) -> Vec<u8> {
        self.0.store(epoch, Ordering::Release);
        epoch.to_be_bytes().to_vec()
    }

    /// Takes the epoch back from its row. Returns false, changing nothing, when the row is damaged.
    pub(crate) fn recover(&self, row: Option<&[u8]>) -> bool {
        let epoch = row.map_or(Some(0), |row| row.try_into().ok().map(u64::from_be_bytes));
        epoch.inspect(|epoch| self.0.store(*epoch, Ordering::Release)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_comes_back_from_its_row() {
        let row = Epoch::default().set(7);
        let again = Epoch::default();
        assert!(again.recover(Some(&row)));
        assert_eq!(again.get(), 7);
        assert!(!again.recover(Some(b"x")));
        assert_eq!(again.get(), 7);
        assert!(again.recover(None));
        assert_eq!(again.get(), 0);
    }
}
