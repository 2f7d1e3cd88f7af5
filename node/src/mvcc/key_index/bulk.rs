//! Builds an index from keys in ascending order, which is several times faster than one insert after the other and
//! leaves every leaf and node full.

use std::fmt;

use super::inner::{CHILDREN_MAX, Inner};
use super::key_order::shortest_separator;
use super::leaf::Leaf;
use super::separators::Separators;
use super::{KeyIndex, KeyState};

#[cfg(test)]
impl KeyIndex {
    /// Builds an index of `keys`.
    ///
    /// # Panics
    ///
    /// When a key is not above the one before it.
    pub(crate) fn bulk_build<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = (K, KeyState)>) -> KeyIndex {
        let mut builder = KeyIndexBuilder::new();
        for (key, state) in keys {
            builder.push(key.as_ref(), state).expect("the caller gives the keys in ascending order");
        }
        builder.finish()
    }
}

/// Takes keys in ascending order and makes an index of them.
pub(crate) struct KeyIndexBuilder {
    leaves: Vec<Leaf>,
    /// One between each two leaves.
    separators: Vec<Box<[u8]>>,
    last_key: Vec<u8>,
    len: usize,
}

impl KeyIndexBuilder {
    pub(crate) fn new() -> Self {
        KeyIndexBuilder { leaves: vec![Leaf::default()], separators: Vec::new(), last_key: Vec::new(), len: 0 }
    }

    /// Adds a key, which must be above all keys so far.
    pub(crate) fn push(&mut self, key: &[u8], state: KeyState) -> Result<(), OutOfOrder> {
        if self.len > 0 && key <= self.last_key.as_slice() {
            return Err(OutOfOrder { key_number: self.len });
        }
        let value = state.pack();
        let leaf = self.leaves.last_mut().expect("there is a leaf from the start");
        if !leaf.insert(leaf.len(), key, value.as_slice()) {
            leaf.shrink_to_fit();
            self.separators.push(Box::from(shortest_separator(&self.last_key, key)));
            self.leaves.push(Leaf::single(key, value.as_slice()));
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.len += 1;
        Ok(())
    }

    pub(crate) fn finish(self) -> KeyIndex {
        let (mut nodes, mut separators) = group(self.leaves, self.separators, Inner::of_leaves);
        while nodes.len() > 1 {
            (nodes, separators) = group(nodes, separators, Inner::of_nodes);
        }
        let root = nodes.pop().expect("a level has at least one node");
        KeyIndex { root, len: self.len }
    }
}

/// Makes nodes of `children`. Returns them and the separators between them.
fn group<C>(
    children: Vec<C>,
    separators: Vec<Box<[u8]>>,
    node: impl Fn(Separators, Vec<C>) -> Inner,
) -> (Vec<Inner>, Vec<Box<[u8]>>) {
    let (mut nodes, mut between) = (Vec::new(), Vec::new());
    let (mut children, mut separators) = (children.into_iter(), separators.into_iter());
    loop {
        let own_children: Vec<_> = children.by_ref().take(CHILDREN_MAX).collect();
        let own = separators.by_ref().take(own_children.len() - 1).collect();
        nodes.push(node(own, own_children));
        match separators.next() {
            Some(separator) => between.push(separator),
            None => return (nodes, between),
        }
    }
}

/// A key was not above the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OutOfOrder {
    /// The place of the key in the order it was given, from 0.
    pub(crate) key_number: usize,
}

impl fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key number {} is not above the key before it", self.key_number)
    }
}

impl std::error::Error for OutOfOrder {}
