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

/// The first key behind all with this prefix; one zero byte stands for the end of all keys.
pub(crate) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte != u8::MAX);
    match kept {
        None => vec![0],
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::end_of;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_its_keys() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
        assert_eq!(end_of(b""), [0]);
    }
}
