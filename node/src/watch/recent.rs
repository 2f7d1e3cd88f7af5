//! The recent changes, encoded once, in revision order: what synced watchers are sent and where those that fell a
//! little behind catch up without a read of the store.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;

use crate::mvcc::Store;
use crate::mvcc::query::{Change, ChangeKind, Previous};
use crate::mvcc::revision::Revision;
use crate::watch::encode;

/// What a change costs beyond its keys and values.
const RECORD_BYTES: usize = size_of::<Recorded>() + 128;

/// A change and its encodings, each made when first wanted.
pub(super) struct Recorded {
    change: Change,
    plain: OnceCell<Bytes>,
    with_previous: OnceCell<Bytes>,
}

impl Recorded {
    pub(super) fn new(change: Change) -> Recorded {
        Recorded { change, plain: OnceCell::new(), with_previous: OnceCell::new() }
    }

    pub(super) fn revision(&self) -> Revision {
        self.change.id.main
    }

    pub(super) fn key(&self) -> &Bytes {
        &self.change.kv.key
    }

    pub(super) fn kind(&self) -> ChangeKind {
        self.change.kind
    }

    pub(super) fn plain(&self) -> &Bytes {
        self.plain.get_or_init(|| encode::event(self.change.kind, &self.change.kv, None))
    }

    /// With the version before the change, unless there was none or it is compacted away.
    pub(super) fn with_previous(&self, store: &Store, compacted: Revision) -> &Bytes {
        if self.revision().0 - 1 < compacted.0 {
            return self.plain();
        }
        self.with_previous.get_or_init(|| match self.previous(store) {
            None => self.plain().clone(),
            previous => encode::event(self.change.kind, &self.change.kv, previous.as_ref()),
        })
    }

    fn previous(&self, store: &Store) -> Option<KeyValue> {
        match &self.change.previous {
            Previous::Absent => None,
            Previous::Known(kv) => Some(kv.clone()),
            // A compacted revision, or a store that fails a read, leaves the field out as etcd does.
            Previous::Unread => store.get_at(self.key(), Revision(self.revision().0 - 1)).ok().flatten(),
        }
    }

    /// Memory held, near enough.
    fn bytes(&self) -> usize {
        let bytes = |kv: &KeyValue| kv.key.len() + kv.value.len();
        let previous = match &self.change.previous {
            Previous::Known(kv) => bytes(kv),
            Previous::Absent | Previous::Unread => 0,
        };
        // The change, and an encoding of it.
        2 * (bytes(&self.change.kv) + previous) + RECORD_BYTES
    }
}

/// The ring. Holds every change after `complete_after`, up to a bound in bytes.
pub(super) struct Recent {
    changes: VecDeque<Rc<Recorded>>,
    bytes: usize,
    bytes_max: usize,
    complete_after: Revision,
}

impl Recent {
    pub(super) fn new(complete_after: Revision, bytes_max: usize) -> Recent {
        Recent { changes: VecDeque::new(), bytes: 0, bytes_max, complete_after }
    }

    pub(super) fn push(&mut self, change: Rc<Recorded>) {
        self.bytes += change.bytes();
        self.changes.push_back(change);
        while self.bytes > self.bytes_max {
            let Some(oldest) = self.changes.pop_front() else { return };
            self.bytes -= oldest.bytes();
            self.complete_after = oldest.revision();
        }
        // The rest of a revision of which a part was dropped.
        while self.changes.front().is_some_and(|first| first.revision() <= self.complete_after) {
            if let Some(rest) = self.changes.pop_front() {
                self.bytes -= rest.bytes();
            }
        }
    }

    /// Forgets everything: changes up to and including `revision` have passed that are not here.
    pub(super) fn reset(&mut self, revision: Revision) {
        *self = Recent::new(revision, self.bytes_max);
    }

    /// Whether all changes from `from` on are here.
    pub(super) fn reaches(&self, from: Revision) -> bool {
        from > self.complete_after
    }

    /// The changes from `from` on that are here.
    pub(super) fn since(&self, from: Revision) -> impl Iterator<Item = &Rc<Recorded>> {
        let start = self.changes.partition_point(|change| change.revision() < from);
        self.changes.range(start..)
    }
}
