//! What a read shows its caller, key by key, without a copy.

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;

use crate::mvcc::key_index::KeyState;
use crate::mvcc::revision::Revision;

/// One key as a read found it, borrowed from where it was found. What was not asked for is empty or zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) created: Revision,
    pub(crate) modified: Revision,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    pub(crate) value: &'a [u8],
}

impl<'a> Found<'a> {
    /// A key alone: without its lease, as in etcd 3.7.
    pub(super) fn key_only(key: &'a [u8], state: &KeyState) -> Found<'a> {
        let (created, modified, version) = (state.created, state.modified.main, state.version);
        Found { key, created, modified, version, lease: 0, value: &[] }
    }

    pub(super) fn new(key: &'a [u8], state: &KeyState, value: &'a [u8]) -> Found<'a> {
        Found { lease: state.lease, value, ..Found::key_only(key, state) }
    }
}

/// Takes in what a read finds, in key order.
pub(crate) trait Sink {
    /// Forgets everything: a compaction has overtaken the read, which starts over.
    fn restart(&mut self);
    fn push(&mut self, found: Found<'_>);
}

impl Sink for Vec<KeyValue> {
    fn restart(&mut self) {
        self.clear();
    }

    /// Copies: a slice would keep a block of the engine in memory for as long as the answer lives.
    fn push(&mut self, found: Found<'_>) {
        self.push(KeyValue {
            key: Bytes::copy_from_slice(found.key),
            create_revision: found.created.0,
            mod_revision: found.modified.0,
            version: found.version,
            value: Bytes::copy_from_slice(found.value),
            lease: found.lease,
        });
    }
}

/// How a read ended that was shown to a [`Sink`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RangeEnd {
    /// Keys of the range were left out because of the limit.
    pub(crate) more: bool,
    /// How many keys the range holds at the revision read, whatever the limit.
    pub(crate) count: i64,
    /// The store's revision when the read was served; not the revision read at.
    pub(crate) revision: Revision,
}
