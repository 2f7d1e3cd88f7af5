//! A member's whole store on its way to another: what `catch_up` does with threads, files and a connection of its own.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::apply::thread::Installed;
use crate::cluster::{self, Members};
use crate::log::SnapshotMark;
use crate::mvcc::filter::Floor;
use crate::mvcc::{self, AppliedMark, CurrentStore, MvccOptions, Store, Writer};
use crate::storage::memory::Memory;
use crate::storage::{Row, Space, Storage, StorageError};

/// Rows removed by a compaction in one batch: few, so that a crash meets a compaction half done.
const COMPACTION_ROWS_MAX: usize = 5;

/// As in `catch_up`: the last that arrived, and one before.
const ARRIVALS_MAX: usize = 2;

/// The store in use of a member's directory, as the file `current` names it. Outlives processes.
// A lock, since the member and the apply turn of its process hold it.
#[derive(Clone, Default)]
pub(super) struct Directory(Arc<Mutex<(Memory, Option<SnapshotMark>)>>);

impl Directory {
    pub(super) fn rows(&self) -> Memory {
        self.0.lock().0.clone()
    }

    /// The entry that a store which came from another member stands for.
    pub(super) fn mark(&self) -> Option<SnapshotMark> {
        self.0.lock().1.clone()
    }
}

/// A store made of another member's rows, durable and open, that waits for raft's word.
pub(super) struct Arrival {
    mark: SnapshotMark,
    rows: Memory,
    store: Store,
    writer: Writer,
    applied: AppliedMark,
}

/// Rows that are ready for a member, or on their way.
pub(super) struct Shipment {
    pub(super) mark: SnapshotMark,
    rows: Vec<(Space, Row)>,
}

impl Shipment {
    /// The rows of a store as of its last commit.
    pub(super) fn of(store: &Store) -> Result<Shipment, StorageError> {
        let export = store.export()?;
        let members = export.sys_get(cluster::MEMBERS_ROW)?.unwrap_or_default();
        let members = Members::from_rows(&members, None).expect("a member knows the members");
        let mark = members.mark(export.applied.index, export.applied.term);
        Ok(Shipment { mark, rows: export.collect::<Result<_, _>>()? })
    }

    /// Makes a store of the rows, with this member's own identity.
    pub(super) fn unpack(self, identity: Vec<u8>) -> Result<Arrival, StorageError> {
        let rows = Memory::default();
        let floor = Floor::new();
        let storage = Storage::in_memory(&rows, floor.filters());
        let mut batch = storage.batch();
        for (space, (key, value)) in self.rows {
            batch.put(space, key, value);
        }
        batch.put(Space::Sys, Bytes::from_static(cluster::IDENTITY_ROW), identity);
        batch.commit()?;
        storage.persist()?;
        let (store, writer, applied) = mvcc::open(storage, floor, options())?;
        Ok(Arrival { mark: self.mark, rows, store, writer, applied })
    }
}

/// Where rows wait between their arrival and raft's word.
pub(super) type Arrivals = Arc<Mutex<Vec<Arrival>>>;

/// Keeps what arrived, and the one before it, which raft may have taken just now.
pub(super) fn keep(arrivals: &Arrivals, arrival: Arrival) {
    let mut arrivals = arrivals.lock();
    arrivals.retain(|earlier| earlier.mark.index != arrival.mark.index);
    arrivals.push(arrival);
    if arrivals.len() > ARRIVALS_MAX {
        arrivals.remove(0);
    }
}

/// Puts the store that arrived in the place of the one in use, durably, as `server` does.
pub(super) fn install(
    directory: Directory,
    current: CurrentStore,
    arrivals: Arrivals,
) -> Box<dyn FnMut(u64) -> Installed + Send> {
    Box::new(move |index| {
        let arrived = arrivals.lock().extract_if(.., |arrival| arrival.mark.index == index).next();
        let Arrival { mark, rows, store, writer, applied } = arrived.expect("rows that raft took are there");
        *directory.0.lock() = (rows, Some(mark));
        current.replace(store.clone());
        Installed { store, writer, applied }
    })
}

/// Opens the store in use.
pub(super) fn open(directory: &Directory) -> Result<(Store, Writer, AppliedMark), StorageError> {
    let floor = Floor::new();
    let storage = Storage::in_memory(&directory.rows(), floor.filters());
    mvcc::open(storage, floor, options())
}

fn options() -> MvccOptions {
    // No dump of the index: it is a file, and only a shortcut.
    MvccOptions::new(PathBuf::new(), COMPACTION_ROWS_MAX)
}
