//! What the benches in `benches/` reach of the core, under the feature `bench` alone; no interface of the crate.
//!
//! Each item wraps the piece that the node itself runs and adds nothing to it, so that what is measured is what serves.
//! A failure ends the bench.

use std::path::Path;

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{PutRequest, RangeRequest, ResponseHeader, TxnRequest};

use crate::admission::shape;
use crate::alarm::Alarms;
use crate::apply::Applier;
use crate::cluster::Members;
use crate::command::Command;
use crate::lease::Leases;
use crate::log::{EntryKind, LogEntry};
use crate::mvcc::filter::Floor;
use crate::mvcc::key_index::{self, KeyIndexBuilder, KeyState};
use crate::mvcc::key_range::KeyRange;
use crate::mvcc::revision::{ChangeId, Revision};
use crate::mvcc::{self, AppliedMark, Committed, MvccOptions, Store};
use crate::policy::plugins::Registry;
use crate::rpc::range_answer::{EncodedKvs, RangeAnswer};
use crate::storage::Storage;
pub use crate::watch::bench::{Responses, Watchers, encode_event, encode_response};

/// Nothing is compacted here, so any bound does.
const COMPACTION_ROWS_MAX: usize = 1_000;

/// The payload of the log entry that carries this request.
pub fn put_payload(request: PutRequest) -> Bytes {
    Command::Put(request).encode(0, crate::command::Judgement::default())
}

/// The payload of the log entry that carries this request.
pub fn txn_payload(request: TxnRequest) -> Bytes {
    Command::Txn(request).encode(0, crate::command::Judgement::default())
}

/// A member from the committed entry on: apply, mvcc and storage, without their threads.
pub struct Member {
    pub(crate) store: Store,
    applier: Applier,
    applied: AppliedMark,
}

/// What one batch changed, as watchers are told.
pub struct Changes(pub(crate) Committed);

impl Member {
    /// Makes a store below the directory. `value_cache_bytes` replaces the node's own bound.
    pub fn new(dir: &Path, value_cache_bytes: Option<u64>) -> Member {
        let floor = Floor::new();
        let storage = Storage::open(&dir.join("store"), floor.filters()).expect("the directory takes a store");
        let mut options = MvccOptions::new(dir.join("index"), COMPACTION_ROWS_MAX);
        options.value_cache_bytes = value_cache_bytes.unwrap_or(options.value_cache_bytes);
        let (store, writer, applied) = mvcc::open(storage, floor, options).expect("a new store is whole");
        let applier =
            Applier::new(writer, Leases::new(1), Alarms::default(), Members::new(Vec::new()), Registry::default());
        Member { store, applier, applied }
    }

    /// Applies committed entries as one batch.
    pub fn apply(&mut self, payloads: impl IntoIterator<Item = Bytes>) -> Changes {
        for data in payloads {
            self.applied = AppliedMark { index: self.applied.index + 1, term: 1 };
            let entry = LogEntry { term: 1, index: self.applied.index, kind: EntryKind::Normal, data };
            let answer = self.applier.apply(entry).expect("the disk works");
            answer.expect("the benches send nothing that is refused");
        }
        Changes(self.applier.commit(self.applied).expect("the disk works"))
    }

    /// Moves all rows from memory to tables.
    pub fn settle(&self) {
        self.store.defragment().expect("the disk works");
    }

    /// Reads a range into the bytes that are sent, and says how many.
    pub fn range(&self, request: RangeRequest) -> usize {
        let query = shape::range_query(request).expect("the benches send nothing that is refused");
        let mut kvs = EncodedKvs::default();
        let end = self.store.visit_within(&query, None, &mut kvs).expect("the benches read what is there");
        let (_, _, bytes) = RangeAnswer::new(ResponseHeader::default(), kvs, end).pieces(0);
        bytes
    }
}

/// The index of the live keys by itself.
pub struct KeyIndex(key_index::KeyIndex);

impl Default for KeyIndex {
    fn default() -> KeyIndex {
        KeyIndex(KeyIndexBuilder::new().finish())
    }
}

impl KeyIndex {
    /// Sets the key to a version as an update leaves it. Returns whether the key was there.
    pub fn insert(&mut self, key: &[u8], created: i64, modified: i64) -> bool {
        let modified = ChangeId { main: Revision(modified), sub: 0 };
        let state = KeyState { modified, created: Revision(created), version: 2, lease: 0, row_bytes: 300 };
        self.0.insert(key, state).is_some()
    }

    /// Returns whether the key was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.0.remove(key).is_some()
    }

    /// The revision of the key's current version.
    pub fn modified(&self, key: &[u8]) -> Option<i64> {
        self.0.get(key).map(|state| state.modified.main.0)
    }

    pub fn count(&self, key: &[u8], range_end: &[u8]) -> usize {
        self.0.count(KeyRange::from_wire(key, range_end))
    }
}
