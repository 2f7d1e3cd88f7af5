//! The ordered index of the live keys: for each, what is known of its current version, all in memory.
//!
//! It answers existence, versions and counts without a read from storage, and tells a range which keys it holds. The
//! store owns it and changes it with each applied request; nothing else writes it. It holds no values, no deleted keys
//! and no older versions, and it has no limit of its own: the quota bounds the keys.
//!
//! ```text
//!              KeyIndex
//!                 |
//!         inner: separators, children with the number of keys below each
//!        /        |        \
//!     leaf      leaf      leaf: a packed page of about 4 KiB, keys without their common prefix
//! ```
//!
//! A B+tree of packed leaves (`leaf`) under inner nodes that know how many keys each child holds (`inner`), so that a
//! count is two walks from the root. Keys of any length work; one that does not fit a page gets a page of its own.
//! `bulk` builds an index from keys in order, `dump` writes it to a file and reads it back.

mod bulk;
mod dump;
mod inner;
mod key_order;
mod leaf;
mod separators;
mod state;
#[cfg(test)]
mod tests;
mod varint;

use std::ops::ControlFlow;

pub(crate) use self::bulk::KeyIndexBuilder;
pub(crate) use self::dump::DumpHeader;
use self::inner::Inner;
use self::separators::Separators;
pub(crate) use self::state::KeyState;
use super::key_range::KeyRange;

pub(crate) struct KeyIndex {
    root: Inner,
    len: usize,
}

impl KeyIndex {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        KeyIndex { root: Inner::empty(), len: 0 }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<KeyState> {
        self.root.get(key)
    }

    /// Sets the state of `key` and returns its state before.
    pub(crate) fn insert(&mut self, key: &[u8], state: KeyState) -> Option<KeyState> {
        let previous = self.root.insert(key, state.pack().as_slice());
        if previous.is_none() {
            self.len += 1;
        }
        if self.root.is_overfull() {
            let mut left = std::mem::replace(&mut self.root, Inner::empty());
            let (separator, right) = left.split(key);
            self.root = Inner::of_nodes(Separators::from_iter([separator]), [left, right]);
        }
        previous
    }

    /// Removes `key` and returns its state.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<KeyState> {
        let previous = self.root.remove(key)?;
        self.len -= 1;
        if self.len == 0 {
            self.root = Inner::empty();
        }
        while let Some(node) = self.root.take_only_node() {
            self.root = node;
        }
        Some(previous)
    }

    /// How many keys there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many keys are in `range`, in time logarithmic in the number of keys.
    pub(crate) fn count(&self, range: KeyRange<'_>) -> usize {
        match range {
            KeyRange::One(key) => usize::from(self.get(key).is_some()),
            KeyRange::Span(start, end) => self.root.rank(end).saturating_sub(self.root.rank(start)),
            KeyRange::From(start) => self.len - self.root.rank(start),
        }
    }

    /// Shows the keys in `range` to `f` in ascending order until `f` breaks.
    pub(crate) fn visit(&self, range: KeyRange<'_>, f: impl FnMut(&[u8], &KeyState) -> ControlFlow<()>) {
        // A break has done its work once the scan has ended.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) = self.scan(range, f);
    }

    /// The memory the index takes, without the allocator's own share. Looks at every leaf: for metrics, not for
    /// requests.
    #[cfg(test)]
    pub(crate) fn resident_bytes(&self) -> usize {
        size_of::<Self>() + self.root.resident_bytes()
    }

    fn scan(&self, range: KeyRange<'_>, mut f: impl FnMut(&[u8], &KeyState) -> ControlFlow<()>) -> ControlFlow<()> {
        if range.is_empty() {
            return ControlFlow::Continue(());
        }
        let (start, end) = match range {
            KeyRange::One(key) => {
                let state = self.get(key);
                return state.map_or(ControlFlow::Continue(()), |state| f(key, &state));
            }
            KeyRange::Span(start, end) => (start, Some(end)),
            KeyRange::From(start) => (start, None),
        };
        self.root.visit(Some(start), end, &mut Vec::new(), &mut f)
    }
}
