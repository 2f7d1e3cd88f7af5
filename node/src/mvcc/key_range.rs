//! The range of keys that a request, a watcher or a permission names.
//!
//! etcd writes a range as a key and a range end, and gives three meanings to the pair. [`KeyRange::from_wire`] is the
//! only place that reads them; everything behind it matches on the three forms. It refuses nothing: a request whose key
//! may not be empty is refused before a range is made of it.

use std::ops::Bound;

/// etcd's three forms of a range: one key, `[key, end)`, or every key from `key` on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum KeyRange<'a> {
    One(&'a [u8]),
    /// Empty when the end is not above the start.
    Span(&'a [u8], &'a [u8]),
    From(&'a [u8]),
}

impl<'a> KeyRange<'a> {
    /// Every key there is.
    pub(crate) const ALL: KeyRange<'static> = KeyRange::From(&[]);

    /// The range that `key` and `range_end` mean on the wire.
    ///
    /// A range end of one zero byte means no end. With a key of one zero byte, the smallest key a client can write,
    /// that is every key. A range end at or below the key is an empty span, as etcd answers such a range with no keys.
    pub(crate) fn from_wire(key: &'a [u8], range_end: &'a [u8]) -> Self {
        match range_end {
            [] => KeyRange::One(key),
            [0] if key == [0] => KeyRange::ALL,
            [0] => KeyRange::From(key),
            end if end <= key => KeyRange::Span(key, key),
            end => KeyRange::Span(key, end),
        }
    }

    /// The first key that may be in the range.
    pub(crate) fn start(&self) -> &'a [u8] {
        match *self {
            KeyRange::One(key) | KeyRange::Span(key, _) | KeyRange::From(key) => key,
        }
    }

    pub(crate) fn end(&self) -> Bound<&'a [u8]> {
        match *self {
            KeyRange::One(key) => Bound::Included(key),
            KeyRange::Span(_, end) => Bound::Excluded(end),
            KeyRange::From(_) => Bound::Unbounded,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, KeyRange::Span(start, end) if end <= start)
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.start() <= key && self.ends_at_or_after(key)
    }

    fn ends_at_or_after(&self, key: &[u8]) -> bool {
        match self.end() {
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
            Bound::Unbounded => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::KeyRange::{From, One, Span};
    use super::*;

    const KEYS: [&[u8]; 8] = [b"", b"\0", b"a", b"a\0", b"ab", b"b", b"b\0", b"\xff"];

    fn ranges() -> Vec<KeyRange<'static>> {
        let mut ranges: Vec<_> = KEYS.into_iter().flat_map(|key| [One(key), From(key)]).collect();
        ranges.extend(KEYS.into_iter().flat_map(|key| KEYS.map(|end| Span(key, end))));
        ranges
    }

    #[test]
    fn range_end_chooses_the_form() {
        assert_eq!(KeyRange::from_wire(b"a", b""), One(b"a"));
        assert_eq!(KeyRange::from_wire(b"a", b"\0"), From(b"a"));
        assert_eq!(KeyRange::from_wire(b"\0", b"\0"), KeyRange::ALL);
        assert_eq!(KeyRange::from_wire(b"a", b"b"), Span(b"a", b"b"));
        assert_eq!(KeyRange::from_wire(b"a", b"\0\0"), Span(b"a", b"a"));
        assert_eq!(KeyRange::from_wire(b"", b"\0"), KeyRange::ALL);
    }

    #[test]
    fn range_end_at_or_below_the_key_is_empty() {
        assert!(KeyRange::from_wire(b"b", b"a").is_empty());
        assert!(KeyRange::from_wire(b"b", b"b").is_empty());
        assert!(!KeyRange::from_wire(b"b", b"b\0").is_empty());
        assert!(!KeyRange::from_wire(b"b", b"").is_empty());
    }

    #[test]
    fn empty_range_contains_nothing() {
        for empty in ranges().into_iter().filter(KeyRange::is_empty) {
            assert!(!KEYS.into_iter().any(|key| empty.contains(key)), "{empty:?}");
        }
    }
}
