//! An inner node: children in key order, the separators between them and how many keys each child holds.
//!
//! Every path from the root to a leaf is equally long. The leaves of the lowest inner nodes lie in the node itself, so
//! a look-up follows one pointer less. Two rules keep the tree dense without a fill factor of its own:
//! - a full leaf first gives the new key to a neighbour when the key belongs at the edge, and splits there when the
//!   neighbour is full as well; ascending keys thus leave full leaves behind;
//! - after a removal, neighbours that fit one leaf (or node) together become one, and empty ones go.
//!
//! Invariant: no leaf is empty but the only leaf of an empty tree, and no branch is.

use std::ops::ControlFlow;

use super::key_order::shortest_separator;
use super::leaf::Leaf;
use super::separators::Separators;
use super::state::KeyState;

/// The most children of a node: two levels of inner nodes then hold 16,000 leaves, about 2 million keys, and the counts
/// and leaf headers of one node stay within 4 KiB.
pub(super) const CHILDREN_MAX: usize = 128;

/// Neighbours with so few children together become one node.
pub(super) const CHILDREN_MERGE_MAX: usize = CHILDREN_MAX / 4 * 3;

pub(super) struct Inner {
    separators: Separators,
    children: Children,
}

enum Children {
    Leaves(Vec<Leaf>),
    Branches(Vec<Branch>),
}

struct Branch {
    /// How many keys there are below `node`.
    count: usize,
    node: Box<Inner>,
}

impl Branch {
    fn new(node: Inner) -> Branch {
        Branch { count: node.count(), node: Box::new(node) }
    }
}

impl Inner {
    pub(super) fn empty() -> Inner {
        Inner::of_leaves(Separators::default(), vec![Leaf::default()])
    }

    pub(super) fn of_leaves(separators: Separators, leaves: Vec<Leaf>) -> Inner {
        assert!(separators.len() + 1 == leaves.len(), "{} separators", separators.len());
        Inner { separators, children: Children::Leaves(leaves) }
    }

    pub(super) fn of_nodes(separators: Separators, nodes: impl IntoIterator<Item = Inner>) -> Inner {
        let branches: Vec<_> = nodes.into_iter().map(Branch::new).collect();
        assert!(separators.len() + 1 == branches.len(), "{} separators", separators.len());
        Inner { separators, children: Children::Branches(branches) }
    }

    /// How many keys are below this node.
    pub(super) fn count(&self) -> usize {
        match &self.children {
            Children::Leaves(leaves) => leaves.iter().map(Leaf::len).sum(),
            Children::Branches(branches) => branches.iter().map(|branch| branch.count).sum(),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<KeyState> {
        let mut node = self;
        loop {
            let at = node.separators.route(key);
            match &node.children {
                Children::Leaves(leaves) => {
                    let leaf = &leaves[at];
                    return leaf.search(key).ok().map(|slot| leaf.state(slot));
                }
                Children::Branches(branches) => node = &branches[at].node,
            }
        }
    }

    /// How many keys are below `key` in order.
    pub(super) fn rank(&self, key: &[u8]) -> usize {
        let (mut node, mut before) = (self, 0);
        loop {
            let at = node.separators.route(key);
            match &node.children {
                Children::Leaves(leaves) => {
                    before += leaves[..at].iter().map(Leaf::len).sum::<usize>();
                    return before + leaves[at].rank(key);
                }
                Children::Branches(branches) => {
                    before += branches[..at].iter().map(|branch| branch.count).sum::<usize>();
                    node = &branches[at].node;
                }
            }
        }
    }

    /// Shows the keys from `start` up to but not including `end` in order; `key` is the buffer they are put together
    /// in.
    pub(super) fn visit(
        &self,
        start: Option<&[u8]>,
        end: Option<&[u8]>,
        key: &mut Vec<u8>,
        f: &mut impl FnMut(&[u8], &KeyState) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let first = start.map_or(0, |start| self.separators.route(start));
        let last = end.map_or(self.len() - 1, |end| self.separators.route(end));
        for at in first..=last {
            // Only the children at the edges of the range hold keys outside it.
            let start = start.filter(|_| at == first);
            let end = end.filter(|_| at == last);
            match &self.children {
                Children::Leaves(leaves) => {
                    let leaf = &leaves[at];
                    let from = start.map_or(0, |start| leaf.rank(start));
                    let to = end.map_or(leaf.len(), |end| leaf.rank(end));
                    leaf.visit(from..to, key, f)?;
                }
                Children::Branches(branches) => branches[at].node.visit(start, end, key, f)?,
            }
        }
        ControlFlow::Continue(())
    }

    /// Sets the packed state of `key` and returns its state before. The caller splits the node when it is overfull
    /// then.
    pub(super) fn insert(&mut self, key: &[u8], value: &[u8]) -> Option<KeyState> {
        let at = self.separators.route(key);
        let branches = match &mut self.children {
            Children::Leaves(leaves) => {
                return LeafParent { separators: &mut self.separators, leaves }.insert(key, value);
            }
            Children::Branches(branches) => branches,
        };
        let branch = &mut branches[at];
        let previous = branch.node.insert(key, value);
        if previous.is_none() {
            branch.count += 1;
        }
        if branch.node.is_overfull() {
            let (separator, right) = branch.node.split(key);
            let right = Branch::new(right);
            branch.count -= right.count;
            branches.insert(at + 1, right);
            self.separators.insert(at, &separator);
        }
        previous
    }

    pub(super) fn is_overfull(&self) -> bool {
        self.len() > CHILDREN_MAX
    }

    /// Keeps the first children and returns the others, and the separator between them; `key` is what was inserted
    /// last.
    pub(super) fn split(&mut self, key: &[u8]) -> (Box<[u8]>, Inner) {
        let last = self.len() - 1;
        // Ascending keys leave full nodes behind, as they leave full leaves.
        let at = if self.separators.route(key) == last { last.min(CHILDREN_MAX) } else { self.len() / 2 };
        let (separator, separators) = self.separators.split(at - 1);
        let children = match &mut self.children {
            Children::Leaves(leaves) => Children::Leaves(leaves.split_off(at)),
            Children::Branches(branches) => Children::Branches(branches.split_off(at)),
        };
        (separator, Inner { separators, children })
    }

    /// Removes `key` and returns its state. The node may have no child left then.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<KeyState> {
        let at = self.separators.route(key);
        let branches = match &mut self.children {
            Children::Leaves(leaves) => {
                return LeafParent { separators: &mut self.separators, leaves }.remove(at, key);
            }
            Children::Branches(branches) => branches,
        };
        let branch = &mut branches[at];
        let previous = branch.node.remove(key)?;
        branch.count -= 1;
        if branch.count == 0 {
            branches.remove(at);
            self.separators.remove_beside(at);
        } else if branch.node.len() < CHILDREN_MERGE_MAX {
            self.merge_branch(at);
        }
        Some(previous)
    }

    /// The only child, when it is a node: it can take the place of this one.
    pub(super) fn take_only_node(&mut self) -> Option<Inner> {
        match &mut self.children {
            Children::Branches(branches) if branches.len() == 1 => branches.pop().map(|branch| *branch.node),
            Children::Branches(_) | Children::Leaves(_) => None,
        }
    }

    /// The heap memory below this node.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> usize {
        let children = match &self.children {
            Children::Leaves(leaves) => {
                let pages: usize = leaves.iter().map(Leaf::resident_bytes).sum();
                leaves.capacity() * size_of::<Leaf>() + pages
            }
            Children::Branches(branches) => {
                let nodes: usize = branches.iter().map(|branch| branch.node.resident_bytes()).sum();
                branches.capacity() * size_of::<Branch>() + branches.len() * size_of::<Inner>() + nodes
            }
        };
        self.separators.resident_bytes() + children
    }

    fn len(&self) -> usize {
        match &self.children {
            Children::Leaves(leaves) => leaves.len(),
            Children::Branches(branches) => branches.len(),
        }
    }

    /// Merges the branch at `at` with a neighbour if they fit one node.
    fn merge_branch(&mut self, at: usize) {
        let Children::Branches(branches) = &mut self.children else {
            unreachable!("a node with leaves has no branch to merge");
        };
        let fits = |left: &usize| {
            let pair = branches.get(*left..*left + 2);
            pair.is_some_and(|pair| pair[0].node.len() + pair[1].node.len() <= CHILDREN_MERGE_MAX)
        };
        let Some(left) = at.checked_sub(1).into_iter().chain([at]).find(fits) else {
            return;
        };
        let right = branches.remove(left + 1);
        branches[left].count += right.count;
        branches[left].node.append(self.separators.get(left), *right.node);
        self.separators.remove(left);
    }

    /// Appends `separator` and the children of `right`, a node of the same height.
    fn append(&mut self, separator: &[u8], right: Inner) {
        self.separators.append(separator, &right.separators);
        match (&mut self.children, right.children) {
            (Children::Leaves(left), Children::Leaves(right)) => left.extend(right),
            (Children::Branches(left), Children::Branches(right)) => left.extend(right),
            (Children::Leaves(_), Children::Branches(_)) | (Children::Branches(_), Children::Leaves(_)) => {
                unreachable!("neighbours have the same height")
            }
        }
    }
}

/// The parts of a node whose children are leaves.
struct LeafParent<'a> {
    separators: &'a mut Separators,
    leaves: &'a mut Vec<Leaf>,
}

impl LeafParent<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Option<KeyState> {
        // Each round either ends here or splits a leaf of two keys or more, so the key comes to fit.
        loop {
            let at = self.separators.route(key);
            let leaf = &mut self.leaves[at];
            match leaf.search(key) {
                Ok(slot) => {
                    let previous = leaf.state(slot);
                    if leaf.replace(slot, value) {
                        return Some(previous);
                    }
                    let middle = leaf.middle();
                    self.split(at, middle);
                }
                Err(slot) => {
                    if leaf.insert(slot, key, value) || self.insert_at_edge(at, slot, key, value) {
                        return None;
                    }
                    let place = self.leaves[at].split_place(slot);
                    self.split(at, place);
                }
            }
        }
    }

    /// Inserts a key that belongs before or behind all keys of the full leaf `at` beside that leaf.
    fn insert_at_edge(&mut self, at: usize, slot: usize, key: &[u8], value: &[u8]) -> bool {
        if slot == self.leaves[at].len() {
            let last = self.leaves[at].last_key();
            let separator = shortest_separator(&last, key);
            if self.leaves.get_mut(at + 1).is_some_and(|right| right.insert(0, key, value)) {
                self.separators.replace(at, separator);
            } else {
                self.leaves.insert(at + 1, Leaf::single(key, value));
                self.separators.insert(at, separator);
            }
            return true;
        }
        if slot > 0 {
            return false;
        }
        let first = self.leaves[at].key(0);
        let separator = shortest_separator(key, &first);
        let left = at.checked_sub(1).map(|left| &mut self.leaves[left]);
        if left.is_some_and(|left| left.insert(left.len(), key, value)) {
            self.separators.replace(at - 1, separator);
        } else {
            self.leaves.insert(at, Leaf::single(key, value));
            self.separators.insert(at, separator);
        }
        true
    }

    /// Splits the leaf `at` before its key at `slot`.
    fn split(&mut self, at: usize, slot: usize) {
        let right = self.leaves[at].split(slot);
        let left_last = self.leaves[at].last_key();
        self.separators.insert(at, shortest_separator(&left_last, &right.key(0)));
        self.leaves.insert(at + 1, right);
    }

    fn remove(&mut self, at: usize, key: &[u8]) -> Option<KeyState> {
        let leaf = &mut self.leaves[at];
        let slot = leaf.search(key).ok()?;
        let previous = leaf.state(slot);
        leaf.remove(slot);
        if leaf.len() > 0 {
            self.merge(at);
        } else if self.leaves.len() > 1 {
            self.leaves.remove(at);
            self.separators.remove_beside(at);
        }
        Some(previous)
    }

    /// Merges the leaf at `at` with a neighbour if they fit one leaf.
    fn merge(&mut self, at: usize) {
        for left in at.checked_sub(1).into_iter().chain([at]) {
            let Some([a, b]) = self.leaves.get(left..left + 2) else {
                continue;
            };
            if let Some(merged) = Leaf::merge(a, b) {
                self.leaves[left] = merged;
                self.leaves.remove(left + 1);
                self.separators.remove(left);
                return;
            }
        }
    }
}

#[cfg(test)]
impl Inner {
    /// Checks the node and all below it and returns its height, its first and its last key.
    pub(super) fn check(&self) -> (usize, Vec<u8>, Vec<u8>) {
        assert!(self.len() <= CHILDREN_MAX);
        assert_eq!(self.separators.len() + 1, self.len());
        self.separators.check();
        let children: Vec<_> = match &self.children {
            Children::Leaves(leaves) => leaves
                .iter()
                .map(|leaf| {
                    let (first, last) = leaf.check();
                    (0, first, last)
                })
                .collect(),
            Children::Branches(branches) => {
                assert!(branches.iter().all(|branch| branch.count == branch.node.count()));
                branches.iter().map(|branch| branch.node.check()).collect()
            }
        };
        for (at, pair) in children.windows(2).enumerate() {
            let separator = self.separators.get(at);
            assert!(pair[0].2.as_slice() < separator, "separator {at} is at or below its left");
            assert!(separator <= pair[1].1.as_slice(), "separator {at} is above its right");
            assert_eq!(pair[0].0, pair[1].0, "the children differ in height");
        }
        let (height, first, _) = children[0].clone();
        let last = children.last().expect("a node has a child").2.clone();
        (height + 1, first, last)
    }
}
