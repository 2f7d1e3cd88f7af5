//! A leaf: some neighbouring keys and their states in one packed page.
//!
//! ```text
//! prefix | entry 0 | entry 1 | ... | entry n-1 | offset 0 .. offset n-1
//! entry  = suffix length (varint) | suffix | packed state
//! offset = u16, from the end of the prefix
//! ```
//!
//! The prefix is common to all keys of the leaf and stored once. Entries lie in key order without gaps, so a change is
//! a splice and a scan runs straight through the page; the offsets serve the binary search. They are last because an
//! append then moves only them.
//!
//! Invariant: a leaf of two keys or more is at most [`UPDATE_BYTES_MAX`] long. A key too large for that has a leaf to
//! itself, so an offset always fits 16 bits. A leaf that has no room says so and stays as it was; `inner` then splits
//! it.

use std::cmp::Ordering;
use std::ops::{ControlFlow, Range};

use super::key_order::{common_prefix_len, head, head_within};
use super::state::KeyState;
use super::varint;

/// A leaf takes no further key past this size. One page of the operating system: larger leaves make each splice dearer,
/// smaller ones repeat the prefix and the separators more often.
pub(super) const INSERT_BYTES_MAX: usize = 4096;

/// A leaf takes no longer state for a key it holds past this size. The room above [`INSERT_BYTES_MAX`] is what the 110
/// or so keys of a full leaf need when each is updated for the first time (4 to 6 bytes a key), which therefore splits
/// no leaf.
pub(super) const UPDATE_BYTES_MAX: usize = INSERT_BYTES_MAX + 1024;

/// Two neighbours are merged when they fit this size together. Below the size at which a leaf splits, so that a key
/// removed and inserted again does not merge and split each time.
pub(super) const MERGE_BYTES_MAX: usize = INSERT_BYTES_MAX / 4 * 3;

/// A page that needs more memory gets this much at once: 3 % of a full leaf lie idle on average.
const GROWTH_BYTES: usize = 256;

/// A page gives memory back when it has this much to spare.
const SPARE_BYTES_MAX: usize = 1024;

const OFFSET_BYTES: usize = size_of::<u16>();

#[derive(Default)]
pub(super) struct Leaf {
    page: Vec<u8>,
    prefix_len: u32,
    len: u16,
    /// The place right behind the key inserted last: where the next key of an ascending run goes.
    run_end: u16,
}

impl Leaf {
    pub(super) fn single(key: &[u8], value: &[u8]) -> Leaf {
        let mut builder = Builder::new(key, key.len() + value.len() + 1 + OFFSET_BYTES);
        builder.push(&[], &[], value);
        builder.finish()
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// The place of `key`, or else the place where it would be inserted.
    #[inline]
    pub(super) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (prefix, entries) = self.page.split_at(self.prefix_len());
        let Some(suffix) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { 0 } else { self.len() });
        };
        let (entries, offsets) = entries.split_at(entries.len() - OFFSET_BYTES * self.len());
        let (offsets, []) = offsets.as_chunks::<OFFSET_BYTES>() else {
            unreachable!("the offsets take a multiple of their size");
        };
        let head = head(suffix);
        let (mut low, mut high) = (0, offsets.len());
        while low < high {
            let middle = low.midpoint(high);
            let start = usize::from(u16::from_le_bytes(offsets[middle]));
            let (len, behind) = suffix_len_at(entries, start);
            let other = head_within(behind, len);
            let order = other.cmp(&head).then_with(|| behind[..len].cmp(suffix));
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// How many keys of the leaf are below `key`.
    pub(super) fn rank(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|at| at)
    }

    pub(super) fn state(&self, at: usize) -> KeyState {
        unpack(self.entry(at).1)
    }

    /// The whole key at `at`.
    pub(super) fn key(&self, at: usize) -> Vec<u8> {
        [self.prefix(), self.entry(at).0].concat()
    }

    pub(super) fn last_key(&self) -> Vec<u8> {
        self.key(self.len() - 1)
    }

    /// Shows the keys at `range` in order; `key` is the buffer they are put together in.
    pub(super) fn visit(
        &self,
        range: Range<usize>,
        key: &mut Vec<u8>,
        f: &mut impl FnMut(&[u8], &KeyState) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        key.clear();
        key.extend_from_slice(self.prefix());
        for at in range {
            let (suffix, value) = self.entry(at);
            key.truncate(self.prefix_len());
            key.extend_from_slice(suffix);
            f(key, &unpack(value))?;
        }
        ControlFlow::Continue(())
    }

    /// Inserts `key` at `at`, where [`Leaf::search`] said it belongs. False, and no change, when there is no room.
    #[must_use]
    pub(super) fn insert(&mut self, at: usize, key: &[u8], value: &[u8]) -> bool {
        if self.len == 0 {
            *self = Leaf::single(key, value);
            return true;
        }
        let prefix_len = match key.starts_with(self.prefix()) {
            true => self.prefix_len(),
            false => common_prefix_len(self.prefix(), key),
        };
        let suffix = &key[prefix_len..];
        let entry_len = varint::len(suffix.len()) + suffix.len() + value.len();
        if self.len_with_prefix(prefix_len) + entry_len + OFFSET_BYTES > INSERT_BYTES_MAX {
            return false;
        }
        if prefix_len < self.prefix_len() {
            *self = self.part(0..self.len(), prefix_len);
        }
        self.splice_in(at, suffix, value, entry_len);
        true
    }

    /// Replaces the state at `at`. False, and no change, when there is no room.
    #[must_use]
    pub(super) fn replace(&mut self, at: usize, value: &[u8]) -> bool {
        let end = self.position(at + 1);
        let old_len = self.entry(at).1.len();
        let start = end - old_len;
        if value.len() > old_len {
            let grown = value.len() - old_len;
            let page_len = self.page.len();
            if page_len + grown > UPDATE_BYTES_MAX && self.len > 1 {
                return false;
            }
            self.grow(grown);
            self.page.copy_within(end..page_len, end + grown);
        } else {
            self.page.drain(start + value.len()..end);
            self.give_back();
        }
        self.page[start..start + value.len()].copy_from_slice(value);
        self.shift_offsets(at + 1, value.len(), old_len);
        true
    }

    pub(super) fn remove(&mut self, at: usize) {
        let (start, end) = (self.position(at), self.position(at + 1));
        let offset = self.offsets_start() + OFFSET_BYTES * at;
        self.shift_offsets(at + 1, 0, end - start);
        self.page.drain(offset..offset + OFFSET_BYTES);
        self.page.drain(start..end);
        self.len -= 1;
        self.run_end = 0;
        self.give_back();
    }

    /// Where to split a full leaf so that a key can go to `slot`: there, when it goes on with an ascending run, which
    /// then leaves full leaves behind; else in the middle.
    pub(super) fn split_place(&self, slot: usize) -> usize {
        if slot > 0 && slot == usize::from(self.run_end) { slot } else { self.middle() }
    }

    /// The key that starts the upper half of the bytes. Neither half is empty when the leaf has two keys.
    pub(super) fn middle(&self) -> usize {
        let middle = self.prefix_len().midpoint(self.offsets_start());
        let mut places = 1..self.len() - 1;
        places.find(|&at| self.position(at) >= middle).unwrap_or(self.len() - 1)
    }

    /// Keeps the keys before `at` and returns the others. There are some of both.
    pub(super) fn split(&mut self, at: usize) -> Leaf {
        let right = self.part(at..self.len(), self.common_len(at, self.len() - 1));
        *self = self.part(0..at, self.common_len(0, at - 1));
        right
    }

    /// One leaf with the keys of both, if it is small enough; `left` comes right before `right`.
    pub(super) fn merge(left: &Leaf, right: &Leaf) -> Option<Leaf> {
        // The common case, without a look at either page.
        if left.body_len() + right.body_len() > MERGE_BYTES_MAX {
            return None;
        }
        let prefix_len = common_prefix_len(left.prefix(), right.prefix());
        let len = left.len_with_prefix(prefix_len) + right.len_with_prefix(prefix_len) - prefix_len;
        if len > MERGE_BYTES_MAX {
            return None;
        }
        let mut builder = Builder::new(&left.prefix()[..prefix_len], len);
        builder.copy(left, 0..left.len());
        builder.copy(right, 0..right.len());
        Some(builder.finish())
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.page.shrink_to_fit();
    }

    /// The heap memory of the leaf.
    #[cfg(test)]
    pub(super) fn resident_bytes(&self) -> usize {
        self.page.capacity()
    }

    fn prefix_len(&self) -> usize {
        self.prefix_len as usize
    }

    fn prefix(&self) -> &[u8] {
        &self.page[..self.prefix_len()]
    }

    fn body_len(&self) -> usize {
        self.page.len() - self.prefix_len()
    }

    /// At most how long the page would be with the first `prefix_len` bytes of its prefix as prefix.
    fn len_with_prefix(&self, prefix_len: usize) -> usize {
        let body = self.body_len() - OFFSET_BYTES * self.len();
        prefix_len + self.part_len(self.len(), body, prefix_len)
    }

    /// At most how long `count` entries of `body` bytes and their offsets would be under a prefix of another length.
    fn part_len(&self, count: usize, body: usize, prefix_len: usize) -> usize {
        let offsets = OFFSET_BYTES * count;
        match self.prefix_len().checked_sub(prefix_len) {
            Some(0) => body + offsets,
            // The length of a suffix may need more bytes once the suffix is longer.
            Some(longer) => body + count * (longer + varint::len(longer)) + offsets,
            None => body - count * (prefix_len - self.prefix_len()) + offsets,
        }
    }

    /// How many bytes the keys from `first` to `last` have in common at their start.
    fn common_len(&self, first: usize, last: usize) -> usize {
        self.prefix_len() + common_prefix_len(self.entry(first).0, self.entry(last).0)
    }

    /// The entries at `range` as a leaf with another prefix length.
    fn part(&self, range: Range<usize>, prefix_len: usize) -> Leaf {
        let body = self.position(range.end) - self.position(range.start);
        let capacity = prefix_len + self.part_len(range.len(), body, prefix_len);
        let mut builder = Builder::new(&self.key(range.start)[..prefix_len], capacity);
        builder.copy(self, range);
        builder.finish()
    }

    fn offsets_start(&self) -> usize {
        self.page.len() - OFFSET_BYTES * self.len()
    }

    /// Where entry `at` starts in the page, or where the last one ends.
    fn position(&self, at: usize) -> usize {
        let slot = self.offsets_start() + OFFSET_BYTES * at;
        match self.page[slot..].first_chunk() {
            Some(&offset) => self.prefix_len() + usize::from(u16::from_le_bytes(offset)),
            None => self.offsets_start(),
        }
    }

    /// The suffix and the packed state at `at`.
    fn entry(&self, at: usize) -> (&[u8], &[u8]) {
        let (len, behind) = suffix_len_at(&self.page[..self.position(at + 1)], self.position(at));
        behind.split_at(len)
    }

    fn splice_in(&mut self, at: usize, suffix: &[u8], value: &[u8], entry_len: usize) {
        let start = self.position(at);
        let offset =
            u16::try_from(start - self.prefix_len()).expect("a leaf with room for another key is a few KiB long");
        let page_len = self.page.len();
        let slot = self.offsets_start() + OFFSET_BYTES * at;
        self.grow(entry_len + OFFSET_BYTES);
        self.page.copy_within(slot..page_len, slot + entry_len + OFFSET_BYTES);
        self.page.copy_within(start..slot, start + entry_len);
        self.page[slot + entry_len..][..OFFSET_BYTES].copy_from_slice(&offset.to_le_bytes());
        let mut write = start;
        varint::write(&mut self.page, &mut write, suffix.len() as u64);
        self.page[write..][..suffix.len()].copy_from_slice(suffix);
        self.page[write + suffix.len()..][..value.len()].copy_from_slice(value);
        self.len += 1;
        self.run_end = u16::try_from(at + 1).expect("a place is at most the number of keys");
        self.shift_offsets(at + 1, entry_len, 0);
    }

    fn grow(&mut self, bytes: usize) {
        let len = self.page.len() + bytes;
        if len > self.page.capacity() {
            self.page.reserve_exact(len.next_multiple_of(GROWTH_BYTES) - self.page.len());
        }
        self.page.resize(len, 0);
    }

    fn give_back(&mut self) {
        if self.page.capacity() > self.page.len() + SPARE_BYTES_MAX {
            self.page.shrink_to(self.page.len() + GROWTH_BYTES);
        }
    }

    /// Corrects the offsets of the entries from `at` on after bytes before them came or went.
    fn shift_offsets(&mut self, at: usize, grown: usize, shrunk: usize) {
        if at == self.len() || grown == shrunk {
            return;
        }
        let expectation = "an entry of a leaf of two keys is a few KiB long";
        let grown = u16::try_from(grown).expect(expectation);
        let shift = grown.wrapping_sub(u16::try_from(shrunk).expect(expectation));
        let slot = self.offsets_start() + OFFSET_BYTES * at;
        for offset in self.page[slot..].as_chunks_mut().0 {
            *offset = u16::from_le_bytes(*offset).wrapping_add(shift).to_le_bytes();
        }
    }
}

/// The length of the suffix of the entry at `at` and all bytes from the suffix on.
#[inline]
fn suffix_len_at(entries: &[u8], mut at: usize) -> (usize, &[u8]) {
    let len = varint::read(entries, &mut at).expect("every entry starts with a length");
    (usize::try_from(len).expect("a suffix fits the memory it lies in"), &entries[at..])
}

fn unpack(value: &[u8]) -> KeyState {
    KeyState::unpack(value, &mut 0).expect("every entry ends with a packed state")
}

/// Writes a page from scratch.
struct Builder {
    page: Vec<u8>,
    prefix_len: usize,
    offsets: Vec<u16>,
}

impl Builder {
    fn new(prefix: &[u8], capacity: usize) -> Builder {
        let mut page = Vec::with_capacity(capacity);
        page.extend_from_slice(prefix);
        Builder { page, prefix_len: prefix.len(), offsets: Vec::new() }
    }

    /// Appends an entry whose suffix is given in two pieces.
    fn push(&mut self, head: &[u8], tail: &[u8], value: &[u8]) {
        let offset =
            u16::try_from(self.page.len() - self.prefix_len).expect("a leaf of several keys is a few KiB long");
        self.offsets.push(offset);
        varint::push(&mut self.page, head.len() + tail.len());
        for piece in [head, tail, value] {
            self.page.extend_from_slice(piece);
        }
    }

    /// Appends entries of `source`, whose keys all start with the prefix of the new page.
    fn copy(&mut self, source: &Leaf, range: Range<usize>) {
        for at in range {
            let (suffix, value) = source.entry(at);
            match self.prefix_len.checked_sub(source.prefix_len()) {
                Some(longer) => self.push(&[], &suffix[longer..], value),
                None => self.push(&source.prefix()[self.prefix_len..], suffix, value),
            }
        }
    }

    fn finish(mut self) -> Leaf {
        self.page.extend(self.offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        Leaf {
            page: self.page,
            prefix_len: u32::try_from(self.prefix_len).expect("a key is far below 4 GiB"),
            len: u16::try_from(self.offsets.len()).expect("an entry takes at least 4 bytes"),
            run_end: 0,
        }
    }
}

#[cfg(test)]
impl Leaf {
    /// Checks the order and the size of the leaf and returns its first and last key.
    pub(super) fn check(&self) -> (Vec<u8>, Vec<u8>) {
        assert!(self.len == 1 || self.page.len() <= UPDATE_BYTES_MAX, "{} bytes", self.page.len());
        assert!(self.page.capacity() <= self.page.len() + SPARE_BYTES_MAX);
        assert_eq!(self.position(0), self.prefix_len());
        for at in 1..self.len() {
            assert!(self.key(at - 1) < self.key(at), "key {at} of {}", self.len);
        }
        for at in 0..self.len() {
            assert_eq!(self.search(&self.key(at)), Ok(at));
            assert_eq!(self.state(at).pack().as_slice(), self.entry(at).1);
        }
        (self.key(0), self.last_key())
    }
}
