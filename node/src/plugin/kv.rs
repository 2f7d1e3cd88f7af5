//! Where `kv-read` reads: the seam to the store, which the node gives the host.

use bytes::Bytes;

/// A key as of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KvRow {
    pub(crate) key: Bytes,
    /// Empty where only keys were asked for.
    pub(crate) value: Bytes,
    pub(crate) create_revision: i64,
    pub(crate) mod_revision: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KvError {
    /// The revision is compacted.
    Compacted,
    /// The store can't be read; the text says why.
    Failed(String),
}

/// Reads of the store as of a revision. Grants are checked before.
pub(crate) trait KvReader: Send + Sync {
    fn get(&self, key: &[u8], revision: i64) -> Result<Option<KvRow>, KvError>;

    /// Keys that begin with `prefix`, in order, from behind `after` on, `limit` at most.
    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        keys_only: bool,
        revision: i64,
    ) -> Result<Vec<KvRow>, KvError>;
}
