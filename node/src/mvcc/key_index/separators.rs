//! The keys that separate the children of an inner node, packed end to end.
//!
//! Separator `i` is above every key of child `i` and at or below every key of child `i + 1`, so there is one fewer than
//! there are children.

#[derive(Default)]
pub(super) struct Separators {
    bytes: Vec<u8>,
    ends: Vec<u32>,
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
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(super) fn insert(&mut self, at: usize, separator: &[u8]) {
        let start = self.start(at);
        self.bytes.splice(start..start, separator.iter().copied());
        self.ends.insert(at, position(start));
        self.shift_ends(at, separator.len(), 0);
    }

    pub(super) fn push(&mut self, separator: &[u8]) {
        self.insert(self.len(), separator);
    }

    pub(super) fn remove(&mut self, at: usize) {
        let removed = self.get(at).len();
        let start = self.start(at);
        self.bytes.drain(start..start + removed);
        self.ends.remove(at);
        self.shift_ends(at, 0, removed);
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
        let mut right = Separators::default();
        for behind in at + 1..self.len() {
            right.push(self.get(behind));
        }
        self.bytes.truncate(self.start(at));
        self.ends.truncate(at);
        (separator, right)
    }

    /// Appends `separator` and all of `right`.
    pub(super) fn append(&mut self, separator: &[u8], right: &Separators) {
        self.push(separator);
        for at in 0..right.len() {
            self.push(right.get(at));
        }
    }

    pub(super) fn resident_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    fn start(&self, at: usize) -> usize {
        if at == 0 { 0 } else { self.ends[at - 1] as usize }
    }

    fn shift_ends(&mut self, from: usize, grown: usize, shrunk: usize) {
        for end in &mut self.ends[from..] {
            *end = position(*end as usize + grown - shrunk);
        }
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).expect("the separators of one node stay far below 4 GiB")
}

/// The shortest key above `left` and at or below `right`, where `left` is below `right`.
pub(super) fn shortest_separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..=common_prefix_len(left, right)]
}

/// How many bytes `a` and `b` have in common at their start.
pub(super) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
