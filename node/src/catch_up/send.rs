//! The leader's side: rows are made ready when raft asks for them, and streamed to the member that raft names.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::head::{self, Head};
use crate::cluster::{self, MemberId, Members};
use crate::consensus::effects::SendSnapshot;
use crate::consensus::event::Event;
use crate::consensus::inbox::Inbox;
use crate::log::SnapshotMark;
use crate::mvcc::{CurrentStore, Export};
use crate::storage::Space;
use crate::transport::{Conversation, Kind, Peers};

/// Bytes of rows in one frame, or one larger row.
const FRAME_BYTES: usize = 256 << 10;
/// Bytes sent in a second: as fast as a member takes them in, and slow enough that others are served meanwhile.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// How long rows are held ready for raft to ask for them: several heartbeats of the slowest allowed.
const READY_PATIENCE: Duration = Duration::from_secs(10);
/// How long a member may take to make the rows durable and to read them once.
const TAKEN_PATIENCE: Duration = Duration::from_secs(600);

/// What the raft thread tells to send. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sender(Arc<Inner>);

struct Inner {
    store: CurrentStore,
    peers: Peers,
    inbox: Arc<Inbox<Event>>,
    // A lock between the raft thread and the one transfer under way; held for a look.
    transfer: Mutex<Option<crossbeam_channel::Sender<SendSnapshot>>>,
}

impl Sender {
    pub(crate) fn new(store: CurrentStore, peers: Peers, inbox: Arc<Inbox<Event>>) -> Sender {
        Sender(Arc::new(Inner { store, peers, inbox, transfer: Mutex::default() }))
    }

    /// Makes rows ready on a thread of their own, and tells the raft thread, unless a transfer is under way.
    pub(crate) fn prepare(&self) {
        let mut transfer = self.0.transfer.lock();
        if transfer.is_some() {
            return;
        }
        let (orders, ordered) = crossbeam_channel::bounded(1);
        let sender = self.clone();
        let started = std::thread::Builder::new().name("snapshot-out".into()).spawn(move || {
            let (to, arrived) = sender.transfer(&ordered);
            *sender.0.transfer.lock() = None;
            sender.0.inbox.push(Event::SnapshotSent { to, arrived });
        });
        match started {
            Ok(_) => *transfer = Some(orders),
            Err(error) => crate::warn!("a snapshot for a member gets no thread", error = error.to_string()),
        }
    }

    /// Sends the rows that are ready to a member.
    pub(crate) fn send(&self, order: SendSnapshot) {
        let to = order.to;
        let transfer = self.0.transfer.lock();
        if transfer.as_ref().is_none_or(|transfer| transfer.try_send(order).is_err()) {
            self.0.inbox.push(Event::SnapshotSent { to, arrived: false });
        }
    }

    /// Returns to whom rows were sent, 0 for nobody, and whether they are safe there.
    fn transfer(&self, ordered: &crossbeam_channel::Receiver<SendSnapshot>) -> (u64, bool) {
        let (export, mark) = match self.export() {
            Ok(found) => found,
            Err(error) => {
                crate::error!("the store can't be read for a snapshot", error = error);
                return (0, false);
            }
        };
        self.0.inbox.push(Event::SnapshotReady(mark.clone()));
        let Ok(order) = ordered.recv_timeout(READY_PATIENCE) else { return (0, false) };
        let (to, index) = (order.to, mark.index);
        if order.mark != mark {
            return (to, false);
        }
        let head = Head { term: order.term, mark };
        match stream(&self.0.peers, MemberId(to), &head, export) {
            Ok(bytes) => {
                crate::info!(
                    "sent database snapshot",
                    "remote-peer-id" = MemberId(to).to_string(),
                    "snapshot-index" = index,
                    bytes = bytes
                );
                (to, true)
            }
            Err(error) => {
                crate::warn!(
                    "failed to send database snapshot",
                    "remote-peer-id" = MemberId(to).to_string(),
                    "snapshot-index" = index,
                    error = error.to_string()
                );
                (to, false)
            }
        }
    }

    /// The rows, and the entry and the members as of which they are.
    fn export(&self) -> Result<(Export, SnapshotMark), String> {
        let export = self.0.store.get().export().map_err(|error| error.to_string())?;
        let row = export.sys_get(cluster::MEMBERS_ROW).map_err(|error| error.to_string())?.unwrap_or_default();
        let members = Members::from_rows(&row, None).map_err(|error| error.to_string())?;
        let mark = members.mark(export.applied.index, export.applied.term);
        Ok((export, mark))
    }
}

/// Sends head, rows and end, and waits for the other side's word. Returns how many bytes the rows took.
fn stream(peers: &Peers, to: MemberId, head: &Head, export: Export) -> io::Result<u64> {
    let mut connection = peers.converse(to)?;
    connection.send(Kind::Head, |out| head.encode(out))?;
    let mut pace = Pace::begin();
    let (mut rows, mut sum, mut open) = (0, 0, None);
    let mut frame = Vec::new();
    for found in export {
        let (space, row) = found.map_err(io::Error::other)?;
        if open != Some(space) || frame.len() >= FRAME_BYTES {
            flush(&mut connection, &mut frame, &mut sum, &mut pace)?;
            head::encode_space(space, &mut frame);
            open = Some::<Space>(space);
        }
        head::encode_row(&row, &mut frame);
        rows += 1;
    }
    flush(&mut connection, &mut frame, &mut sum, &mut pace)?;
    connection.send(Kind::End, |out| head::encode_end(rows, sum, out))?;
    match connection.receive(TAKEN_PATIENCE)? {
        (Kind::Taken, _) => Ok(pace.bytes),
        (_, words) => Err(io::Error::other(String::from_utf8_lossy(words).into_owned())),
    }
}

fn flush(connection: &mut Conversation, frame: &mut Vec<u8>, sum: &mut u32, pace: &mut Pace) -> io::Result<()> {
    if frame.is_empty() {
        return Ok(());
    }
    *sum = crc32c::crc32c_append(*sum, frame);
    connection.send(Kind::Rows, |out| out.extend_from_slice(frame))?;
    pace.keep(frame.len() as u64);
    frame.clear();
    Ok(())
}

/// Holds a transfer to [`BYTES_PER_SECOND`].
struct Pace {
    begun: Instant,
    bytes: u64,
}

impl Pace {
    #[expect(clippy::disallowed_methods, reason = "the clock seam of transfers: their pace")]
    fn begin() -> Pace {
        Pace { begun: Instant::now(), bytes: 0 }
    }

    fn keep(&mut self, bytes: u64) {
        self.bytes += bytes;
        let due = Duration::from_micros(self.bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND);
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}
