//! The other member's side: rows are taken into a store of their own beside the one in use.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::head::{self, Head};
use crate::cluster::{self, Identity, MemberId};
use crate::consensus::event::Event;
use crate::consensus::handle::Shared;
use crate::consensus::inbox::Inbox;
use crate::log::SnapshotMark;
use crate::mvcc::{self, AppliedMark, MvccOptions, Store, Writer};
use crate::storage::{Row, Space, StorageError};
use crate::transport::{Conversation, Kind};

/// How long the sender may be silent: it reads its store meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Earlier arrivals that are kept while another comes.
const ARRIVALS_KEPT: usize = 1;

/// A store made of another member's rows, durable and open, that waits for raft's word.
pub(crate) struct Arrival {
    pub(crate) mark: SnapshotMark,
    /// The name of its directory.
    pub(crate) name: String,
    pub(crate) store: Store,
    pub(crate) writer: Writer,
    pub(crate) applied: AppliedMark,
}

/// Where rows arrive. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Receiver(Arc<Inner>);

struct Inner {
    /// The directory with the store in use.
    dir: PathBuf,
    identity: Identity,
    /// Rows removed by a compaction between two pauses.
    compaction_rows_max: usize,
    shared: Arc<Shared>,
    inbox: Arc<Inbox<Event>>,
    // A lock between the connection that brings rows and the apply thread that takes them; held for a look.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    receiving: bool,
    /// The entry as of which rows were last taken.
    taken: u64,
    /// Oldest first.
    arrivals: VecDeque<Arrival>,
}

impl Receiver {
    pub(crate) fn new(
        dir: PathBuf,
        identity: Identity,
        compaction_rows_max: usize,
        shared: Arc<Shared>,
        inbox: Arc<Inbox<Event>>,
    ) -> Receiver {
        Receiver(Arc::new(Inner { dir, identity, compaction_rows_max, shared, inbox, state: Mutex::default() }))
    }

    /// Takes what arrived as of this entry.
    pub(crate) fn take(&self, index: u64) -> Option<Arrival> {
        let mut state = self.0.state.lock();
        let place = state.arrivals.iter().position(|arrival| arrival.mark.index == index)?;
        state.taken = index;
        state.arrivals.remove(place)
    }

    /// Whether rows as of this entry would tell nothing new, or are here: the store they would be made into may be in use.
    fn is_here(&self, index: u64) -> bool {
        let state = self.0.state.lock();
        index <= state.taken.max(self.0.shared.applied())
            || state.arrivals.iter().any(|arrival| arrival.mark.index == index)
    }

    /// Takes in what another member sends, on the thread of its connection.
    pub(crate) fn converse(&self, from: MemberId, mut connection: Conversation) {
        {
            let mut state = self.0.state.lock();
            if state.receiving {
                return connection.refuse("another snapshot is being received");
            }
            state.receiving = true;
        }
        let received = self.receive(from, &mut connection);
        self.0.state.lock().receiving = false;
        match received {
            Ok(()) => {
                // Lost with the connection: the leader then sends again, and raft does not need it.
                connection.send(Kind::Taken, |_| ()).ok();
            }
            Err(error) => {
                crate::warn!(
                    "a snapshot was not taken",
                    "remote-peer-id" = from.to_string(),
                    error = error.to_string()
                );
                connection.refuse(&error.to_string());
            }
        }
    }

    fn receive(&self, from: MemberId, connection: &mut Conversation) -> io::Result<()> {
        let head = match connection.receive(SILENCE_MAX)? {
            (Kind::Head, payload) => Head::decode(payload).map_err(io::Error::other)?,
            _ => return Err(io::Error::other("rows without a head")),
        };
        let mark = head.mark;
        if self.is_here(mark.index) {
            return Err(io::Error::other(format!("the rows as of entry {} are here already", mark.index)));
        }
        while let Some(unwanted) = self.unwanted() {
            self.remove(unwanted);
        }
        let name = format!("store-{:x}", mark.index);
        let path = self.0.dir.join(&name);
        self.clear(&name)?;
        let options = MvccOptions::new(self.0.dir.join(index_dump(&name)), self.0.compaction_rows_max);
        let identity = serde_json::to_vec(&self.0.identity)?;
        let own_row = (cluster::IDENTITY_ROW, identity);
        let mut rows = Rows { connection, waiting: VecDeque::new(), count: 0, sum: 0 };
        let made = mvcc::import(&path, own_row, options, &mut || rows.next()).map_err(io::Error::other);
        let made = made.and_then(|made| match made.2 {
            applied if (applied.index, applied.term) == (mark.index, mark.term) => Ok(made),
            applied => Err(io::Error::other(format!("rows as of entry {}, not {}", applied.index, mark.index))),
        });
        let (store, writer, applied) = made.inspect_err(|_| {
            // Best effort: the next start removes what is left.
            self.clear(&name).ok();
        })?;
        fs::File::open(&self.0.dir)?.sync_all()?;
        crate::info!(
            "received and saved database snapshot",
            "remote-peer-id" = from.to_string(),
            "snapshot-index" = mark.index
        );
        let arrival = Arrival { mark: mark.clone(), name, store, writer, applied };
        self.0.state.lock().arrivals.push_back(arrival);
        self.0.inbox.push(Event::SnapshotArrived { from: from.0, term: head.term, mark });
        Ok(())
    }

    /// One of those that came before this one and that raft has no use for, as far as can be told here: the last of them it may
    /// have taken just now, and the apply thread then looks for it.
    fn unwanted(&self) -> Option<Arrival> {
        let applied = self.0.shared.applied();
        let arrivals = &mut self.0.state.lock().arrivals;
        let is_surplus =
            |place: usize, arrival: &Arrival| arrival.mark.index <= applied || place + ARRIVALS_KEPT < arrivals.len();
        let place = arrivals.iter().enumerate().position(|(place, arrival)| is_surplus(place, arrival))?;
        arrivals.remove(place)
    }

    fn remove(&self, unwanted: Arrival) {
        let Arrival { name, store, writer, .. } = unwanted;
        drop((store, writer));
        // Best effort: the next start removes what is left.
        self.clear(&name).ok();
    }

    /// Removes a store and its dump.
    fn clear(&self, name: &str) -> io::Result<()> {
        let path = self.0.dir.join(name);
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
        let dump = self.0.dir.join(index_dump(name));
        if dump.exists() {
            fs::remove_file(dump)?;
        }
        Ok(())
    }
}

/// Where the key index of a store is dumped, by the name of the store's directory.
pub(crate) fn index_dump(store: &str) -> String {
    format!("index{}", store.strip_prefix("store").unwrap_or(store))
}

/// The rows of a connection, one by one.
struct Rows<'a> {
    connection: &'a mut Conversation,
    waiting: VecDeque<(Space, Row)>,
    count: u64,
    sum: u32,
}

impl Rows<'_> {
    fn next(&mut self) -> Result<Option<(Space, Row)>, StorageError> {
        let failed = |source: io::Error| StorageError::Io { path: PathBuf::from("a member's snapshot"), source };
        loop {
            if let Some(row) = self.waiting.pop_front() {
                self.count += 1;
                return Ok(Some(row));
            }
            let (kind, payload) = self.connection.receive(SILENCE_MAX).map_err(failed)?;
            match kind {
                Kind::Rows => {
                    self.sum = crc32c::crc32c_append(self.sum, payload);
                    let (space, rows) = head::decode_rows(payload).map_err(io::Error::other).map_err(failed)?;
                    let own = |(name, _): &Row| space == Space::Sys && name == cluster::IDENTITY_ROW;
                    let before = rows.len();
                    self.waiting.extend(rows.into_iter().filter(|row| !own(row)).map(|row| (space, row)));
                    // Counted though it is left out: whose store it is stays this member's affair.
                    self.count += (before - self.waiting.len()) as u64;
                }
                Kind::End => {
                    let end = head::decode_end(payload).map_err(io::Error::other).map_err(failed)?;
                    if end != (self.count, self.sum) {
                        return Err(failed(io::Error::other("rows are missing or differ from those that were sent")));
                    }
                    return Ok(None);
                }
                _ => return Err(failed(io::Error::other("a frame that has no place among rows"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterId;
    use crate::mvcc::filter::Floor;
    use crate::storage::Storage;

    fn arrival(dir: &std::path::Path, index: u64) -> Arrival {
        let name = format!("store-{index:x}");
        let floor = Floor::new();
        let storage = Storage::open(&dir.join(&name), floor.filters()).unwrap();
        let options = MvccOptions::new(dir.join(index_dump(&name)), 10);
        let (store, writer, applied) = mvcc::open(storage, floor, options).unwrap();
        let mark = SnapshotMark { index, term: 1, voters: vec![1], learners: Vec::new() };
        Arrival { mark, name, store, writer, applied }
    }

    #[test]
    fn rows_that_are_here_or_were_taken_are_not_received_again() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity { cluster_id: ClusterId(1), member_id: MemberId(1) };
        let (shared, inbox) = (Arc::new(Shared::new(5, 0)), Arc::new(Inbox::new()));
        let receiver = Receiver::new(dir.path().to_owned(), identity, 10, shared, inbox);
        assert!(receiver.is_here(5) && !receiver.is_here(6));
        receiver.0.state.lock().arrivals.push_back(arrival(dir.path(), 10));
        assert!(receiver.is_here(10) && !receiver.is_here(9));
        let taken = receiver.take(10).unwrap();
        // Not applied yet by what everybody is told, and its directory is in use.
        assert!(receiver.is_here(10) && receiver.is_here(9) && !receiver.is_here(11));
        assert!(receiver.take(10).is_none());
        drop(taken);
    }

    #[test]
    fn the_last_that_arrived_is_kept_while_others_come() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity { cluster_id: ClusterId(1), member_id: MemberId(1) };
        let shared = Arc::new(Shared::new(5, 0));
        let receiver = Receiver::new(dir.path().to_owned(), identity, 10, Arc::clone(&shared), Arc::new(Inbox::new()));
        for index in 10..20 {
            receiver.0.state.lock().arrivals.push_back(arrival(dir.path(), index));
        }
        while let Some(unwanted) = receiver.unwanted() {
            receiver.remove(unwanted);
        }
        let kept: Vec<u64> = receiver.0.state.lock().arrivals.iter().map(|arrival| arrival.mark.index).collect();
        assert_eq!(kept.len(), ARRIVALS_KEPT);
        assert_eq!(kept.last(), Some(&19));
        assert!(!dir.path().join("store-a").exists() && dir.path().join("store-13").exists());
        shared.set_applied(30);
        assert_eq!(receiver.unwanted().unwrap().mark.index, kept[0]);
    }
}
