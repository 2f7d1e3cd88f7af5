//! One watcher: what it asked for and how far it has come.

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{WatchCreateRequest, watch_create_request};

use crate::mvcc::query::ChangeKind;
use crate::mvcc::revision::Revision;
use crate::watch::intervals::End;
use crate::watch::recent::Recorded;

/// The id of a watcher, unique within its stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct WatchId(pub(super) i64);

impl WatchId {
    /// In responses that concern no watcher, or all of a stream.
    pub(super) const NONE: WatchId = WatchId(-1);
    /// In a request that leaves the choice to the server.
    pub(super) const AUTO: WatchId = WatchId(0);
}

/// The keys watched.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Watched {
    One(Bytes),
    Range(Bytes, End),
}

impl Watched {
    /// `None` when the range is empty. An empty key means the smallest one, as in etcd.
    pub(super) fn from_wire(key: &[u8], range_end: &[u8]) -> Option<Watched> {
        // Copies, since a watcher outlives by far the buffer that its request came in.
        let key = if key.is_empty() { Bytes::from_static(&[0]) } else { Bytes::copy_from_slice(key) };
        let range_end = Bytes::copy_from_slice(range_end);
        if range_end.is_empty() {
            return Some(Watched::One(key));
        }
        if range_end.as_ref() == [0] {
            return Some(Watched::Range(key, End::Unbounded));
        }
        (key < range_end).then_some(Watched::Range(key, End::Before(range_end)))
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Watched::One(watched) => watched == key,
            Watched::Range(start, End::Unbounded) => key >= start.as_ref(),
            Watched::Range(start, End::Before(end)) => key >= start.as_ref() && key < end.as_ref(),
        }
    }
}

/// What a watcher wants to see of the changes of its keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Wants {
    pub(super) no_puts: bool,
    pub(super) no_deletes: bool,
    pub(super) previous: bool,
    pub(super) fragments: bool,
}

impl Wants {
    pub(super) fn from_wire(request: &WatchCreateRequest) -> Wants {
        let has = |filter: watch_create_request::FilterType| request.filters.contains(&i32::from(filter));
        Wants {
            no_puts: has(watch_create_request::FilterType::Noput),
            no_deletes: has(watch_create_request::FilterType::Nodelete),
            previous: request.prev_kv,
            fragments: request.fragment,
        }
    }

    pub(super) fn accepts(self, change: &Recorded) -> bool {
        match change.kind() {
            ChangeKind::Put => !self.no_puts,
            ChangeKind::Delete => !self.no_deletes,
        }
    }
}

/// Where a watcher stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Has seen everything that is published and is told of changes as they come.
    Synced,
    /// Has to be told of changes from `next` on that are published already.
    Behind { next: Revision },
}

pub(super) struct Watcher {
    pub(super) stream: u64,
    pub(super) id: WatchId,
    pub(super) watched: Watched,
    pub(super) wants: Wants,
    /// The first revision it wants to see.
    pub(super) start: Revision,
    /// The start that the client named; 0 for none.
    pub(super) asked: Revision,
    pub(super) standing: Standing,
}
