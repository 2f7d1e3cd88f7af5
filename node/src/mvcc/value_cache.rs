//! Current values of hot keys, so that reads of them leave the engine alone. Bounded in bytes.

use bytes::Bytes;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, Weighter};

use crate::mvcc::revision::ChangeId;

/// Memory the cache may use.
pub(super) const CACHE_BYTES: u64 = 64 << 20;
/// What an entry costs beyond its key and value: its slot, its place in the map, and the allocation that key and value
/// share with the rest of a log entry, of which they are all but a few bytes. Measured: 172 bytes of resident memory,
/// with half a million values of eight bytes.
const ENTRY_BYTES: usize = 176;
/// Items the cache prepares for; it holds more or fewer by their weight.
const ITEMS_ESTIMATED: usize = 100_000;

#[derive(Clone)]
struct Weight;

impl Weighter<Bytes, (ChangeId, Bytes)> for Weight {
    fn weight(&self, key: &Bytes, (_, value): &(ChangeId, Bytes)) -> u64 {
        (key.len() + value.len() + ENTRY_BYTES) as u64
    }
}

pub(super) struct ValueCache(Cache<Bytes, (ChangeId, Bytes), Weight>);

impl ValueCache {
    pub(super) fn new(bytes: u64) -> ValueCache {
        let cache = Cache::with(
            ITEMS_ESTIMATED,
            bytes,
            Weight,
            DefaultHashBuilder::default(),
            quick_cache::sync::DefaultLifecycle::default(),
        );
        ValueCache(cache)
    }

    /// The value of this very version.
    pub(super) fn get(&self, key: &[u8], id: ChangeId) -> Option<Bytes> {
        let (cached, value) = self.0.get(key)?;
        (cached == id).then_some(value)
    }

    /// Notes a value. Key and value must not be slices of a much larger buffer, or they keep that alive.
    pub(super) fn insert(&self, key: Bytes, id: ChangeId, value: Bytes) {
        self.0.insert(key, (id, value));
    }

    pub(super) fn remove(&self, key: &Bytes) {
        self.0.remove(key);
    }
}
