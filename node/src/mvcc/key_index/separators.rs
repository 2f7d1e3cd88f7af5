//! The keys that separate the children of an inner node, packed end to end.
//!
//! Separator `i` is above every key of child `i` and at or below every key of child `i + 1`, so there is one fewer than
//! there are children. The search runs over the heads of the separators behind their common prefix.

use super::key_order::{common_prefix_len, head};

#[derive(Default)]
pub(super) struct Separators {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// What the first and the last separator, and so all of them, have in common.
    prefix_len: usize,
    /// The heads of the separators without the prefix.
    heads: Vec<u128>,
}

impl Separators {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.ends[at] as usize]
    }

    /// The child that `key` belongs to.
    #[inline]
    pub(super) fn route(&self, key: &[u8]) -> usize {
        let prefix = &self.bytes[..self.prefix_len];
        let Some(suffix) = key.strip_prefix(prefix) else {
            return if key < prefix { 0 } else { self.len() };
        };
        let head = head(suffix);
        let mut at = self.heads.partition_point(|&other| other < head);
        let equal = self.heads[at..].iter().take_while(|&&other| other == head).count();
        let (mut low, mut high) = (at, at + equal);
        while low < high {
            at = low.midpoint(high);
            if self.get(at) <= key {
                low = at + 1;
            } else {
                high = at;
            }
        }
        low
    }

    pub(super) fn insert(&mut self, at: usize, separator: &[u8]) {
        self.insert_bytes(at, separator);
        if self.common_len() == self.prefix_len {
            self.heads.insert(at, head(&separator[self.prefix_len..]));
        } else {
            self.rebuild_heads();
        }
    }

    pub(super) fn remove(&mut self, at: usize) {
        let removed = self.get(at).len();
        let start = self.start(at);
        self.bytes.drain(start..start + removed);
        self.ends.remove(at);
        self.shift_ends(at, 0, removed);
        self.heads.remove(at);
        if self.common_len() != self.prefix_len {
            self.rebuild_heads();
        }
    }

    /// Removes a separator of child `at`, which goes as well.
    pub(super) fn remove_beside(&mut self, at: usize) {
        if self.len() > 0 {
            self.remove(at.saturating_sub(1));
        }
    }

    pub(super) fn replace(&mut self, at: usize, separator: &[u8]) {
        self.remove(at);
        self.insert(at, separator);
    }

    /// Keeps the separators before `at` and returns the one at `at` and those behind it.
    pub(super) fn split(&mut self, at: usize) -> (Box<[u8]>, Separators) {
        let separator = Box::from(self.get(at));
        let right = (at + 1..self.len()).map(|behind| self.get(behind)).collect();
        self.bytes.truncate(self.start(at));
        self.ends.truncate(at);
        self.rebuild_heads();
        (separator, right)
    }

    /// Appends `separator` and all of `right`.
    pub(super) fn append(&mut self, separator: &[u8], right: &Separators) {
        self.insert_bytes(self.len(), separator);
        for at in 0..right.len() {
            self.insert_bytes(self.len(), right.get(at));
        }
        self.rebuild_heads();
    }

    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> usize {
        let heads = self.heads.capacity() * size_of::<u128>();
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>() + heads
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.ends[at - 1] as usize }
    }

    fn insert_bytes(&mut self, at: usize, separator: &[u8]) {
        let start = self.start(at);
        self.bytes.splice(start..start, separator.iter().copied());
        self.ends.insert(at, position(start));
        self.shift_ends(at, separator.len(), 0);
    }

    fn shift_ends(&mut self, from: usize, grown: usize, shrunk: usize) {
        for end in &mut self.ends[from..] {
            *end = position(*end as usize + grown - shrunk);
        }
    }

    fn common_len(&self) -> usize {
        match self.len() {
            0 => 0,
            len => common_prefix_len(self.get(0), self.get(len - 1)),
        }
    }

    fn rebuild_heads(&mut self) {
        self.prefix_len = self.common_len();
        self.heads = (0..self.len()).map(|at| head(&self.get(at)[self.prefix_len..])).collect();
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for Separators {
    /// Of keys in ascending order.
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut separators = Separators::default();
        for key in keys {
            separators.insert_bytes(separators.len(), key.as_ref());
        }
        separators.rebuild_heads();
        separators
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).expect("the separators of one node stay far below 4 GiB")
}

#[cfg(test)]
impl Separators {
    pub(super) fn check(&self) {
        assert_eq!(self.prefix_len, self.common_len());
        assert_eq!(self.heads.len(), self.len());
        for at in 0..self.len() {
            assert_eq!(self.heads[at], head(&self.get(at)[self.prefix_len..]));
            assert_eq!(self.route(self.get(at)), at + 1);
        }
    }
}
