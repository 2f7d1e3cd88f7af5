//! What a read asks of the store, and what it gets.

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;

use crate::mvcc::revision::{ChangeId, Revision};

/// A range read, already validated: `etcdserverpb.RangeRequest` without what concerns only the front door.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeQuery {
    pub(crate) key: Bytes,
    /// Empty for one key, a single zero byte for every key from `key` on, else the exclusive end.
    pub(crate) range_end: Bytes,
    /// At most this many keys; zero or less means all.
    pub(crate) limit: i64,
    /// The revision to read at; zero or less means the current one.
    pub(crate) revision: i64,
    pub(crate) order: SortOrder,
    pub(crate) target: SortTarget,
    pub(crate) keys_only: bool,
    pub(crate) count_only: bool,
    /// Bounds on mod and create revision; zero means no bound.
    pub(crate) min_mod_revision: i64,
    pub(crate) max_mod_revision: i64,
    pub(crate) min_create_revision: i64,
    pub(crate) max_create_revision: i64,
}

impl RangeQuery {
    /// Whether the answer is what lies in the range, in key order, up to the limit: nothing is sorted or filtered.
    pub(crate) fn is_plain(&self) -> bool {
        let bounds = [self.min_mod_revision, self.max_mod_revision, self.min_create_revision, self.max_create_revision];
        let in_key_order = self.target == SortTarget::Key && self.order != SortOrder::Descend;
        in_key_order && bounds == [0; 4]
    }
}

/// The order asked for. `None` with a target other than the key sorts ascending, as etcd does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum SortOrder {
    #[default]
    None,
    Ascend,
    Descend,
}

/// The field to sort by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum SortTarget {
    #[default]
    Key,
    Version,
    Create,
    Mod,
    Value,
}

/// The answer to a [`RangeQuery`].
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeAnswer {
    pub(crate) kvs: Vec<KeyValue>,
    /// Keys of the range were left out because of the limit.
    pub(crate) more: bool,
    /// How many keys the range holds at the revision read, whatever the limit and the bounds.
    pub(crate) count: i64,
    /// The store's revision when the read was served; not the revision read at.
    pub(crate) revision: Revision,
}

/// Why the store refuses a read or a compaction. Deterministic: every member refuses alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The revision lies below the compacted one, or a compaction asks for one already compacted.
    Compacted { compacted: Revision },
    /// The revision lies above the current one.
    Future { current: Revision },
}

/// One change of one key, as watchers see it.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) id: ChangeId,
    pub(crate) kind: ChangeKind,
    /// For a put the stored key-value; for a delete only key and mod revision are set, as on etcd's wire.
    pub(crate) kv: KeyValue,
    /// What the change replaced.
    pub(crate) previous: Previous,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChangeKind {
    Put,
    Delete,
}

/// The version that a change replaced, as far as it is known without a read.
#[derive(Clone, Debug)]
pub(crate) enum Previous {
    /// The key did not exist.
    Absent,
    /// It was loaded or cached when the change was made.
    Known(KeyValue),
    /// It has to be read at the revision before the change (and may be compacted by then).
    Unread,
}
