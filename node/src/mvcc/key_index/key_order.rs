//! Comparing keys quickly: what they have in common, and their first bytes as a number.
//!
//! A binary search over keys spends its time on calls to compare memory and on mispredicted branches. Comparing heads
//! avoids both; only keys with equal heads are compared in full.

const HEAD_BYTES: usize = size_of::<u128>();

/// The first bytes of `key` as a number: a smaller head is a smaller key, equal heads say nothing.
pub(super) fn head(key: &[u8]) -> u128 {
    let mut bytes = [0; HEAD_BYTES];
    let len = key.len().min(HEAD_BYTES);
    bytes[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(bytes)
}

/// The head of the key of `len` bytes that `bytes` starts with.
#[inline]
pub(super) fn head_within(bytes: &[u8], len: usize) -> u128 {
    match bytes.first_chunk() {
        Some(chunk) if len < HEAD_BYTES => u128::from_be_bytes(*chunk) & !(u128::MAX >> (8 * len)),
        Some(chunk) => u128::from_be_bytes(*chunk),
        None => head(&bytes[..len]),
    }
}

/// The shortest key above `left` and at or below `right`, where `left` is below `right`.
pub(super) fn shortest_separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    &right[..=common_prefix_len(left, right)]
}

/// How many bytes `a` and `b` have in common at their start.
pub(super) fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0), Just(1), Just(0xff)], 0..20)
    }

    proptest! {
        #[test]
        fn heads_are_in_the_order_of_the_keys(a in key(), b in key()) {
            let order = head(&a).cmp(&head(&b));
            prop_assert!(order.is_eq() || order == a.cmp(&b));
            prop_assert_eq!(head_within(&[a.clone(), b].concat(), a.len()), head(&a));
        }

        #[test]
        fn separator_lies_between(a in key(), b in key()) {
            prop_assume!(a < b);
            let separator = shortest_separator(&a, &b);
            prop_assert!(a.as_slice() < separator && separator <= b.as_slice());
        }
    }
}
