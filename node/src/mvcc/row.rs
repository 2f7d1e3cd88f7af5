//! Rows of the spaces `kv` and `rev`: the only place that encodes and decodes them.
//!
//! ```text
//! kv   key:   user key (00 written as 00 ff), 00 01, main revision and sub-revision, both inverted
//!      value: flags, [created, version, lease as varints, user value]     (a tombstone ends after the flags)
//! rev  key:   main revision, sub-revision
//!      value: flags, row bytes, superseded bytes as varints, user key
//! ```
//!
//! So a scan of `kv` gives keys in their order and, for each, its versions newest first; a scan of `rev` gives changes
//! in the order in which they happened.

use bytes::{Buf, Bytes};
use prost::encoding::{decode_varint, encode_varint};

use crate::mvcc::revision::{ChangeId, Revision};

const TERMINATOR: [u8; 2] = [0x00, 0x01];
const ESCAPED_ZERO: [u8; 2] = [0x00, 0xff];
/// Bytes of an encoded change id: main revision and sub-revision.
const ID_BYTES: usize = 12;

const TOMBSTONE: u8 = 1;

/// A stored version of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    Value { created: Revision, version: i64, lease: i64, value: Bytes },
    Tombstone,
}

/// A stored change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RevRow {
    pub(crate) tombstone: bool,
    /// Size of the version's row in `kv`.
    pub(crate) row_bytes: u32,
    /// Size of the row of the version that this one replaced; 0 when there was none.
    pub(crate) superseded_bytes: u32,
    pub(crate) key: Bytes,
}

fn push_escaped(out: &mut Vec<u8>, key: &[u8]) {
    let mut rest = key;
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        out.extend_from_slice(&rest[..zero]);
        out.extend_from_slice(&ESCAPED_ZERO);
        rest = &rest[zero + 1..];
    }
    out.extend_from_slice(rest);
}

/// What the rows of every version of this key begin with.
pub(crate) fn kv_prefix(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + TERMINATOR.len() + ID_BYTES);
    push_escaped(&mut out, key);
    out.extend_from_slice(&TERMINATOR);
    out
}

/// A bound at or before every row of this key and after every row of a smaller one.
pub(crate) fn kv_bound(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len());
    push_escaped(&mut out, key);
    out
}

/// The row key of one version.
pub(crate) fn kv_key(key: &[u8], id: ChangeId) -> Vec<u8> {
    let mut out = kv_prefix(key);
    out.extend_from_slice(&(!id.main.0).to_be_bytes());
    out.extend_from_slice(&(!id.sub).to_be_bytes());
    out
}

/// The first possible row key of the versions of this key at or below a revision.
pub(crate) fn kv_key_at(key: &[u8], revision: Revision) -> Vec<u8> {
    kv_key(key, ChangeId { main: revision, sub: u32::MAX })
}

/// The escaped user key with its terminator, and the change id, of a row key of `kv`.
pub(crate) fn split_kv_key(row_key: &[u8]) -> Option<(&[u8], ChangeId)> {
    let at = row_key.len().checked_sub(ID_BYTES)?;
    let (prefix, id) = row_key.split_at(at);
    if !prefix.ends_with(&TERMINATOR) {
        return None;
    }
    let (main, sub) = id.split_first_chunk::<8>()?;
    let main = Revision(!i64::from_be_bytes(*main));
    let sub = !u32::from_be_bytes(sub.try_into().ok()?);
    Some((prefix, ChangeId { main, sub }))
}

/// The user key of an escaped one with its terminator.
pub(crate) fn unescape(prefix: &[u8]) -> Vec<u8> {
    let mut key = Vec::new();
    unescape_into(prefix, &mut key);
    key
}

/// Writes the user key of an escaped one with its terminator over what is in `key`.
pub(crate) fn unescape_into(prefix: &[u8], key: &mut Vec<u8>) {
    let escaped = prefix.strip_suffix(&TERMINATOR).unwrap_or(prefix);
    key.clear();
    key.reserve(escaped.len());
    let mut rest = escaped;
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        key.extend_from_slice(&rest[..=zero]);
        // The byte after a zero is always the escape.
        rest = rest.get(zero + 2..).unwrap_or_default();
    }
    key.extend_from_slice(rest);
}

impl Version {
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Version::Tombstone => vec![TOMBSTONE],
            Version::Value { created, version, lease, value } => {
                let mut out = Vec::with_capacity(value.len() + 16);
                out.push(0);
                encode_varint(created.0.cast_unsigned(), &mut out);
                encode_varint(version.cast_unsigned(), &mut out);
                encode_varint(lease.cast_unsigned(), &mut out);
                out.extend_from_slice(value);
                out
            }
        }
    }

    /// Reads a row's value; the user value is a slice of it.
    pub(crate) fn decode(row: &Bytes) -> Option<Version> {
        if is_tombstone(row) {
            return Some(Version::Tombstone);
        }
        let ValueRow { created, version, lease, value } = value_row(row)?;
        Some(Version::Value { created, version, lease, value: row.slice_ref(value) })
    }
}

/// A version's row read in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueRow<'a> {
    pub(crate) created: Revision,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    pub(crate) value: &'a [u8],
}

/// Reads a row's value in place; `None` when it is no value's row.
pub(crate) fn value_row(row: &[u8]) -> Option<ValueRow<'_>> {
    let (flags, mut rest) = row.split_first()?;
    if flags & TOMBSTONE != 0 {
        return None;
    }
    let mut number = || decode_varint(&mut rest).ok().map(u64::cast_signed);
    let (created, version, lease) = (Revision(number()?), number()?, number()?);
    Some(ValueRow { created, version, lease, value: rest })
}

/// Whether a row's value is a tombstone's, without reading the rest.
pub(crate) fn is_tombstone(row: &[u8]) -> bool {
    row.first().is_some_and(|flags| flags & TOMBSTONE != 0)
}

pub(crate) fn rev_key(id: ChangeId) -> [u8; ID_BYTES] {
    let mut out = [0; ID_BYTES];
    out[..8].copy_from_slice(&id.main.0.to_be_bytes());
    out[8..].copy_from_slice(&id.sub.to_be_bytes());
    out
}

pub(crate) fn parse_rev_key(row_key: &[u8]) -> Option<ChangeId> {
    let (main, sub) = row_key.split_first_chunk::<8>()?;
    let sub = u32::from_be_bytes(sub.try_into().ok()?);
    Some(ChangeId { main: Revision(i64::from_be_bytes(*main)), sub })
}

impl RevRow {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.key.len() + 9);
        out.push(if self.tombstone { TOMBSTONE } else { 0 });
        encode_varint(self.row_bytes.into(), &mut out);
        encode_varint(self.superseded_bytes.into(), &mut out);
        out.extend_from_slice(&self.key);
        out
    }

    pub(crate) fn decode(row: &Bytes) -> Option<RevRow> {
        let mut rest = row.clone();
        if !rest.has_remaining() {
            return None;
        }
        let tombstone = rest.get_u8() & TOMBSTONE != 0;
        let mut size = || u32::try_from(decode_varint(&mut rest).ok()?).ok();
        let (row_bytes, superseded_bytes) = (size()?, size()?);
        Some(RevRow { tombstone, row_bytes, superseded_bytes, key: rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(main: i64, sub: u32) -> ChangeId {
        ChangeId { main: Revision(main), sub }
    }

    fn keys() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff), any::<u8>()], 1..6)
    }

    proptest! {
        #[test]
        fn rows_sort_by_key_then_newest_first(a in keys(), b in keys(), x in 1i64..5, y in 1i64..5, s in 0u32..3, t in 0u32..3) {
            let by_rows = kv_key(&a, id(x, s)).cmp(&kv_key(&b, id(y, t)));
            prop_assert_eq!(by_rows, a.cmp(&b).then(id(y, t).cmp(&id(x, s))));
            prop_assert_eq!(rev_key(id(x, s)).cmp(&rev_key(id(y, t))), id(x, s).cmp(&id(y, t)));
        }

        #[test]
        fn a_bound_stands_before_its_key_and_after_smaller_ones(a in keys(), b in keys(), x in 1i64..5) {
            let row = kv_key(&a, id(x, 0));
            prop_assert_eq!(kv_bound(&b) <= row, b <= a);
        }

        #[test]
        fn row_keys_give_back_key_and_id(key in keys(), main in 1i64.., sub: u32) {
            let row = kv_key(&key, id(main, sub));
            let (prefix, found) = split_kv_key(&row).unwrap();
            prop_assert_eq!((unescape(prefix), found), (key.clone(), id(main, sub)));
            prop_assert_eq!(prefix, kv_prefix(&key));
        }

        #[test]
        fn values_come_back(created in 1i64.., version in 1i64.., lease: i64, value: Vec<u8>) {
            let stored = Version::Value { created: Revision(created), version, lease, value: value.into() };
            prop_assert_eq!(Version::decode(&stored.encode().into()), Some(stored));
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            drop((Version::decode(&bytes), RevRow::decode(&bytes)));
            if let Some((prefix, _)) = split_kv_key(&bytes) {
                unescape(prefix);
            }
        }
    }
}
