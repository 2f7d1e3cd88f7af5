//! What the index knows of a key's current version, and its packed form in leaves and dumps.
//!
//! Packed: a byte of flags, the main revision, then only what differs from a key that was just created alone in its
//! request and without a lease, then the row size. Typically 7 bytes for such a key and 11 for one that was updated.

use super::varint::{self, VARINT_BYTES_MAX};
use crate::mvcc::revision::{ChangeId, Revision};

/// The current version of a live key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyState {
    pub(crate) modified: ChangeId,
    pub(crate) created: Revision,
    pub(crate) version: i64,
    /// 0 when no lease is attached.
    pub(crate) lease: i64,
    /// The size of the key's stored row, for space accounting.
    pub(crate) row_bytes: u32,
}

const HAS_SUB: u8 = 1;
/// Set when the key was created before its current revision: the distance follows.
const HAS_AGE: u8 = 2;
const HAS_VERSION: u8 = 4;
const HAS_LEASE: u8 = 8;
const FLAGS: u8 = HAS_SUB | HAS_AGE | HAS_VERSION | HAS_LEASE;

/// The flags and six numbers.
const PACKED_BYTES_MAX: usize = 1 + 6 * VARINT_BYTES_MAX;

/// A packed [`KeyState`].
pub(super) struct Packed {
    bytes: [u8; PACKED_BYTES_MAX],
    len: usize,
}

impl Packed {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl KeyState {
    pub(super) fn pack(&self) -> Packed {
        let KeyState { modified, created, version, lease, row_bytes } = *self;
        let mut bytes = [0; PACKED_BYTES_MAX];
        let mut len = 1;
        varint::write(&mut bytes, &mut len, modified.main.0.cast_unsigned());
        // Wrapping, so that any pair of revisions survives, though only an age of 0 or more occurs.
        let age = modified.main.0.wrapping_sub(created.0).cast_unsigned();
        let optional = [
            (HAS_SUB, modified.sub != 0, u64::from(modified.sub)),
            (HAS_AGE, age != 0, age),
            (HAS_VERSION, version != 1, version.cast_unsigned()),
            (HAS_LEASE, lease != 0, lease.cast_unsigned()),
        ];
        for (flag, present, value) in optional {
            if present {
                bytes[0] |= flag;
                varint::write(&mut bytes, &mut len, value);
            }
        }
        varint::write(&mut bytes, &mut len, u64::from(row_bytes));
        Packed { bytes, len }
    }

    /// Reads the packed state at `*at` and moves `*at` behind it. None when the bytes are not a packed state.
    #[inline]
    pub(super) fn unpack(bytes: &[u8], at: &mut usize) -> Option<KeyState> {
        let flags = *bytes.get(*at)?;
        if flags & !FLAGS != 0 {
            return None;
        }
        *at += 1;
        let main = varint::read(bytes, at)?.cast_signed();
        let mut optional = |flag: u8, absent: u64| {
            if flags & flag == 0 { Some(absent) } else { varint::read(bytes, at) }
        };
        let sub = u32::try_from(optional(HAS_SUB, 0)?).ok()?;
        let age = optional(HAS_AGE, 0)?.cast_signed();
        let version = optional(HAS_VERSION, 1)?.cast_signed();
        let lease = optional(HAS_LEASE, 0)?.cast_signed();
        let row_bytes = u32::try_from(varint::read(bytes, at)?).ok()?;
        Some(KeyState {
            modified: ChangeId { main: Revision(main), sub },
            created: Revision(main.wrapping_sub(age)),
            version,
            lease,
            row_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(state: KeyState, packed_bytes: usize) {
        let packed = state.pack();
        assert_eq!(packed.as_slice().len(), packed_bytes, "{state:?}");
        let mut at = 0;
        assert_eq!(KeyState::unpack(packed.as_slice(), &mut at), Some(state));
        assert_eq!(at, packed_bytes);
        for end in 0..packed_bytes {
            assert_eq!(KeyState::unpack(&packed.as_slice()[..end], &mut 0), None);
        }
    }

    fn state(main: i64, sub: u32, created: i64, version: i64, lease: i64) -> KeyState {
        let modified = ChangeId { main: Revision(main), sub };
        KeyState { modified, created: Revision(created), version, lease, row_bytes: 300 }
    }

    #[test]
    fn usual_states_are_small() {
        check(state(10_000_000, 0, 10_000_000, 1, 0), 7);
        check(state(10_000_000, 0, 9_900_000, 12, 0), 11);
        check(state(10_000_000, 3, 9_900_000, 12, 0x7587_8d2f_9a6b_0c11), 21);
    }

    proptest! {
        #[test]
        fn any_state_round_trips(main: i64, sub: u32, created: i64, version: i64, lease: i64) {
            let state = state(main, sub, created, version, lease);
            prop_assert_eq!(KeyState::unpack(state.pack().as_slice(), &mut 0), Some(state));
        }
    }
}
