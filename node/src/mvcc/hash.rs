//! HashKV: one number for the history up to a revision, equal to etcd's for the same history.
//!
//! etcd feeds every stored record, in revision order, into one CRC-32C. Rows stand here in key order, so a scan notes
//! the CRC and the length of each record's piece, and the pieces are then joined in revision order: the CRC of a
//! concatenation follows from the CRCs and lengths of its parts.
//!
//! What counts is what etcd keeps (storage/mvcc/hash.go): at or below the compacted revision only the version of each
//! key that is visible at the revision asked for; and never a tombstone exactly at the compacted revision, which older
//! versions of etcd removed. When no key at all is visible there, etcd leaves nothing out and so counts what its
//! compaction left.

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;
use prost::Message as _;
use std::ops::Bound;

use crate::mvcc::compaction;
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::row::{self, Version};
use crate::storage::{Space, StorageError, View};

/// The hash starts with the name of the bucket.
const SEED: &[u8] = b"key";

/// One record's part of the hash.
struct Piece {
    id: ChangeId,
    crc: u32,
    length: usize,
    kept: Kept,
}

/// How a record at or below the compacted revision counts; others always do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Always,
    /// It is the version visible at the revision asked for.
    Visible,
    /// It is what a compaction leaves of its key, but superseded since.
    Left,
}

/// What a hash is taken for. A compaction keeps a tombstone exactly at its revision, a read at that revision does not
/// see one; so the two differ in whether anything at all is kept (etcd: keyIndex.compact and keyIndex.keep).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    Read,
    Compaction,
}

/// The hash of what is stored up to `at`, given the compacted revision.
pub(crate) fn hash(view: &View, compacted: Revision, at: Revision, purpose: Purpose) -> Result<u32, StorageError> {
    let mut pieces = Vec::new();
    let mut any_visible = false;
    let mut scan = KeyScan { key: Vec::new(), visible_found: false, left_found: false };
    let mut record = Vec::new();
    for row in view.scan(Space::Kv, (Bound::Unbounded, Bound::Unbounded)) {
        let (row_key, value) = row?;
        let damaged = StorageError::Damaged { what: "a version's row can't be read" };
        let Some((prefix, id)) = row::split_kv_key(&row_key) else { return Err(damaged) };
        if id.main > at {
            continue;
        }
        let tombstone = row::is_tombstone(&value);
        let (visible, left) = scan.look(prefix, id, tombstone, compacted);
        let tombstone_kept = purpose == Purpose::Compaction && tombstone && id.main == at;
        any_visible |= visible || tombstone_kept;
        let kept = match (id.main > compacted, visible, left) {
            (true, ..) => Kept::Always,
            (false, true, _) => Kept::Visible,
            (false, false, true) => Kept::Left,
            (false, false, false) => continue,
        };
        if tombstone && id.main == compacted {
            continue;
        }
        let Some(version) = Version::decode(&value) else { return Err(damaged) };
        encode(&mut record, row::unescape(prefix).into(), id, version);
        pieces.push(Piece { id, crc: crc32c::crc32c(&record), length: record.len(), kept });
    }
    pieces.sort_unstable_by_key(|piece| piece.id);
    let counted = pieces.iter().filter(|piece| match piece.kept {
        Kept::Always | Kept::Visible => true,
        Kept::Left => !any_visible,
    });
    Ok(counted.fold(crc32c::crc32c(SEED), |crc, piece| combine(crc, piece.crc, piece.length)))
}

/// The CRC of a concatenation from those of its parts. For short parts the first CRC is carried over as many zeros, which
/// takes some 30 ns; the general way takes microseconds.
fn combine(first: u32, second: u32, second_length: usize) -> u32 {
    static ZEROS: [u8; 4_096] = [0; 4_096];
    match ZEROS.get(..second_length) {
        // Linear over the first CRC, once what the zeros alone contribute is taken out again.
        Some(zeros) => crc32c::crc32c_append(first, zeros) ^ crc32c::crc32c(zeros) ^ second,
        None => crc32c::crc32c_combine(first, second, second_length),
    }
}

/// What has been seen of the key under the scan.
struct KeyScan {
    key: Vec<u8>,
    visible_found: bool,
    left_found: bool,
}

impl KeyScan {
    /// Whether this version is visible at the revision asked for, and whether a compaction leaves it.
    fn look(&mut self, prefix: &[u8], id: ChangeId, tombstone: bool, compacted: Revision) -> (bool, bool) {
        if self.key != prefix {
            self.key.clear();
            self.key.extend_from_slice(prefix);
            self.visible_found = false;
            self.left_found = false;
        }
        // Newest first: the first version shown is the one in force at the revision asked for.
        let newest = !std::mem::replace(&mut self.visible_found, true);
        let left = id.main <= compacted && !std::mem::replace(&mut self.left_found, id.main <= compacted);
        (newest && !tombstone, left && !tombstone)
    }
}

/// etcd's record of a version: its revision as a key, then the key-value.
fn encode(out: &mut Vec<u8>, key: Bytes, id: ChangeId, version: Version) {
    out.clear();
    out.extend_from_slice(&id.main.0.to_be_bytes());
    out.push(b'_');
    out.extend_from_slice(&u64::from(id.sub).to_be_bytes());
    let kv = match version {
        Version::Tombstone => {
            out.push(b't');
            KeyValue { key, ..KeyValue::default() }
        }
        Version::Value { created, version, lease, value } => {
            KeyValue { key, create_revision: created.0, mod_revision: id.main.0, version, value, lease }
        }
    };
    kv.encode_raw(out);
}

/// Rows of `sys` that say how far this member has come with upkeep that each does in its own time.
const UPKEEP_ROWS: [&[u8]; 2] = [compaction::DONE_ROW, compaction::KEPT_ROW];

/// A hash over what members of equal history have in common, for tests that compare them at rest (etcd: Hash). What a
/// compaction has made superfluous and not removed yet is not part of it, nor are the rows of `sys` in `own_rows`.
pub(crate) fn hash_all(view: &View, compacted: Revision, own_rows: &[&[u8]]) -> Result<u32, StorageError> {
    let mut crc = hash(view, compacted, Revision(i64::MAX), Purpose::Read)?;
    for row in view.scan(Space::Sys, (Bound::Unbounded, Bound::Unbounded)) {
        let (name, value) = row?;
        if !UPKEEP_ROWS.contains(&name.as_ref()) && !own_rows.contains(&name.as_ref()) {
            crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &name), &value);
        }
    }
    Ok(crc)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mvcc::AppliedMark;
    use crate::mvcc::store::tests::filled;

    proptest! {
        #[test]
        fn parts_make_the_whole(first: Vec<u8>, second in prop::collection::vec(any::<u8>(), 0..5_000)) {
            let whole = [first.as_slice(), &second].concat();
            let combined = combine(crc32c::crc32c(&first), crc32c::crc32c(&second), second.len());
            prop_assert_eq!(combined, crc32c::crc32c(&whole));
        }
    }

    #[test]
    fn members_of_equal_history_have_equal_hashes_whatever_their_upkeep() {
        const OWN: &[u8] = b"own";
        let member = |own: &str, lease: &str, tidy: bool| {
            let (_dir, store, mut writer) = filled(20);
            let current = writer.revision();
            writer.sys_put(OWN, own.into());
            writer.sys_put(b"lease", lease.into());
            writer.compact(current).unwrap();
            writer.commit(AppliedMark::default()).unwrap();
            if tidy {
                store.compact_physically(current, &mut || {}).unwrap();
                store.dump_index().unwrap();
                store.defragment().unwrap();
            }
            store.hash_all(&[OWN]).unwrap()
        };
        assert_eq!(member("first", "ttl", false), member("second", "ttl", true));
        assert_ne!(member("first", "ttl", false), member("first", "another ttl", false));
    }
}
