//! Keys in configuration, and how ranges of keys lie to each other.

use serde::{Deserialize, Deserializer, de::Error};

/// What keys begin with. In configuration it is text, or `hex:00ff`; empty, it is the beginning of every key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prefix(pub Vec<u8>);

/// The keys of a delete, as etcd's API says it: one key, or those from `key` up to `range_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'a> {
    /// The first key.
    pub key: &'a [u8],
    /// The first key behind the range. None: the range is `key` alone; a zero byte: it has no end.
    pub range_end: Option<&'a [u8]>,
}

impl Prefix {
    /// Whether a key begins with this.
    pub fn contains(&self, key: &[u8]) -> bool {
        key.starts_with(&self.0)
    }

    /// Whether a range has a key that begins with this.
    pub fn overlaps(&self, range: KeyRange) -> bool {
        match range.end() {
            None => self.contains(range.key),
            Some(end) => {
                let starts_before_end = self.end().is_none_or(|prefix_end| range.key < prefix_end.as_slice());
                starts_before_end && (end == UNBOUNDED || self.0.as_slice() < end)
            }
        }
    }

    /// Whether every key of a range begins with this.
    pub fn covers(&self, range: KeyRange) -> bool {
        match range.end() {
            None => self.contains(range.key),
            Some(UNBOUNDED) => self.0.is_empty(),
            Some(end) => self.contains(range.key) && self.end().is_none_or(|prefix_end| end <= prefix_end.as_slice()),
        }
    }

    /// The first key behind all that begin with this; none where there is no such key.
    fn end(&self) -> Option<Vec<u8>> {
        let last = self.0.iter().rposition(|byte| *byte != u8::MAX)?;
        let mut end = self.0[..=last].to_vec();
        end[last] += 1;
        Some(end)
    }
}

/// How etcd's API writes a range without an end.
const UNBOUNDED: &[u8] = &[0];

impl<'a> KeyRange<'a> {
    /// The end of a real range. etcd reads an empty end as no end at all: a single key.
    fn end(&self) -> Option<&'a [u8]> {
        self.range_end.filter(|end| !end.is_empty())
    }

    /// Whether this is one key and no range.
    pub fn is_single(&self) -> bool {
        self.end().is_none()
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.strip_prefix("hex:") {
            None => Ok(Self(text.into_bytes())),
            Some(hex) => bytes(hex).map(Self).ok_or_else(|| D::Error::custom(format!("{hex:?} is no bytes in hex"))),
        }
    }
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = hex.chars().map(|digit| digit.to_digit(16)?.try_into().ok()).collect::<Option<_>>()?;
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `prefix` overlaps and covers the range.
    fn check(prefix: &str, key: &str, range_end: Option<&str>, expected: (bool, bool)) {
        let range = KeyRange { key: key.as_bytes(), range_end: range_end.map(str::as_bytes) };
        let prefix = Prefix(prefix.into());
        assert_eq!((prefix.overlaps(range), prefix.covers(range)), expected, "{prefix:?} and {range:?}");
    }

    #[test]
    fn ranges_and_prefixes() {
        check("/a/", "/a/1", None, (true, true));
        check("/a/", "/b/1", None, (false, false));
        check("/a/", "/a/1", Some(""), (true, true));
        check("/a/", "/a/", Some("/a0"), (true, true));
        check("/a/", "/a/", Some("/a1"), (true, false));
        check("/a/", "/", Some("/a/1"), (true, false));
        check("/a/", "/", Some("/a/"), (false, false));
        check("/a/", "/a0", Some("/b"), (false, false));
        check("/a/", "/b", Some("\0"), (false, false));
        check("/a/", "/a/1", Some("\0"), (true, false));
        check("", "/a/1", Some("\0"), (true, true));
    }

    #[test]
    fn prefixes_in_configuration() {
        let prefix = |json: &str| serde_json::from_str::<Prefix>(json).map_err(|error| error.to_string());
        assert_eq!(prefix(r#""/a/""#), Ok(Prefix(b"/a/".to_vec())));
        assert_eq!(prefix(r#""hex:00Ff""#), Ok(Prefix(vec![0, 255])));
        assert_eq!(prefix(r#""hex:0""#), Err(r#""0" is no bytes in hex"#.into()));
        assert!(prefix(r#""hex:zz""#).is_err());
    }
}
