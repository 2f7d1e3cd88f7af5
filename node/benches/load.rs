//! The keys and values that the benches of the store use.

use bytes::Bytes;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

/// As in the benchmark beside etcd (`tests/bench`).
pub(crate) const VALUE_BYTES: usize = 256;

/// What all keys begin with.
const PREFIX: &[u8] = b"/registry/pods/default/";

/// A key of 32 bytes.
pub(crate) fn key(number: usize) -> Bytes {
    [PREFIX, format!("{number:09}").as_bytes()].concat().into()
}

/// The keys below `count` in an order that has nothing to do with theirs, the same in each run.
pub(crate) fn shuffled_keys(count: usize) -> Vec<Bytes> {
    let mut numbers: Vec<usize> = (0..count).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(1));
    numbers.into_iter().map(key).collect()
}
