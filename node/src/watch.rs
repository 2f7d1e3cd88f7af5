//! Watches: changes go out to whoever asked for them, in order, each once.
//!
//! One thread, the *watch* thread, owns every watcher ([`core`]). The apply thread hands it each batch of changes right
//! after the commit; streams hand it their requests; it puts encoded responses into each stream's outbox, from which
//! the stream's shard sends them. The queue into the thread is one: a request made after a write was acknowledged is
//! looked at after that write.
//!
//! Bounds: changes that wait for the thread ([`Options::feed_bytes_max`]; past it they are not passed on, and watchers
//! catch up from the store), recent changes kept ([`Options::recent_bytes_max`]), bytes that wait for one client
//! ([`Options::stream_bytes_max`]).

#[cfg(feature = "bench")]
pub(crate) mod bench;
mod core;
mod encode;
#[cfg(test)]
mod golden;
mod intervals;
#[cfg(test)]
mod model;
mod outbox;
mod recent;
mod synced;
mod watcher;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kuorum_proto::etcdserverpb::WatchCreateRequest;

use self::core::{Core, Counts, Event};
use crate::cluster::Facts;
use crate::consensus::inbox::Inbox;
use crate::maintenance::clock::now_ms;
use crate::metrics;
use crate::mvcc::revision::Revision;
use crate::mvcc::{Committed, Store};
use crate::watch::outbox::Outbox;

/// How long the watch thread sleeps without work: the precision of progress notices.
const TICK: Duration = Duration::from_millis(100);

/// How often the slowest watcher is looked for: with a million watchers that takes some 10 ms.
const SLOWEST_LOOK_MS: u64 = 1_000;

/// Bytes that may wait for a client before its further requests are left unread.
const UNREAD_BYTES_MAX: usize = 32 << 20;

/// Bounds and intervals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Size at which a response is split for a watcher that asked for fragments.
    pub(crate) fragment_bytes: usize,
    pub(crate) progress_interval_ms: u64,
    /// Changes that may wait for the watch thread.
    pub(crate) feed_bytes_max: usize,
    /// Recent changes kept for watchers that are a little behind.
    pub(crate) recent_bytes_max: usize,
    /// Bytes that may wait for one client before its watchers are put behind.
    pub(crate) stream_bytes_max: usize,
}

struct Queue {
    events: Inbox<Message>,
    /// Bytes of changes that wait in `events`.
    waiting_bytes: AtomicUsize,
    next_stream: AtomicU64,
    /// The lowest revision that a watcher behind still needs, when last looked at; 0 when none is behind.
    slowest: AtomicI64,
}

enum Message {
    Event(Event),
    Changes(Committed, usize),
    Stop,
}

impl Queue {
    fn new() -> Queue {
        Queue {
            events: Inbox::new(),
            waiting_bytes: AtomicUsize::new(0),
            next_stream: AtomicU64::new(0),
            slowest: AtomicI64::new(0),
        }
    }
}

/// Where streams are opened. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Hub {
    queue: Arc<Queue>,
    resume_bytes: usize,
}

/// Where the apply thread puts what it committed.
pub(crate) struct Feed {
    queue: Arc<Queue>,
    bytes_max: usize,
}

/// The watch thread.
pub(crate) struct Running {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Closes every stream and ends the thread.
    pub(crate) fn stop(self) {
        self.queue.events.push(Message::Stop);
        self.thread.join().expect("the watch thread does not panic: it has no input that it trusts");
    }
}

/// Starts the watch thread.
pub(crate) fn start(
    store: Store,
    facts: Arc<Facts>,
    options: Options,
    started: Instant,
) -> std::io::Result<(Hub, Feed, Running)> {
    let (hub, feed, queue) = ways_in(options);
    let thread = std::thread::Builder::new().name("watch".into()).spawn({
        let queue = Arc::clone(&queue);
        move || {
            let mut turns = Turns::new(queue, Core::new(store, facts, options));
            while turns.take(TICK, || now_ms(started)) {
                show(turns.core.counts());
            }
        }
    })?;
    Ok((hub, feed, Running { queue, thread }))
}

/// The watch thread's work without the thread, for the simulation.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn in_turns(store: Store, facts: Arc<Facts>, options: Options) -> (Hub, Feed, Turns) {
    let (hub, feed, queue) = ways_in(options);
    (hub, feed, Turns::new(queue, Core::new(store, facts, options)))
}

fn ways_in(options: Options) -> (Hub, Feed, Arc<Queue>) {
    let queue = Arc::new(Queue::new());
    let hub = Hub { queue: Arc::clone(&queue), resume_bytes: options.stream_bytes_max / 2 };
    let feed = Feed { queue: Arc::clone(&queue), bytes_max: options.feed_bytes_max };
    (hub, feed, queue)
}

/// What the watch thread does, turn by turn.
pub(crate) struct Turns {
    queue: Arc<Queue>,
    core: Core,
    /// Watchers could be brought forward at once.
    more: bool,
    slowest_look_ms: u64,
}

impl Turns {
    fn new(queue: Arc<Queue>, core: Core) -> Turns {
        Turns { queue, core, more: false, slowest_look_ms: 0 }
    }

    /// Takes in what has arrived, waiting for it if nothing is left to do. Returns false at a stop.
    pub(crate) fn take(&mut self, wait: Duration, now_ms: impl FnOnce() -> u64) -> bool {
        let mut messages = Vec::new();
        self.queue.events.take(&mut messages, if self.more { Duration::ZERO } else { wait });
        for message in messages {
            match message {
                Message::Event(event) => self.core.handle(event),
                Message::Changes(committed, bytes) => {
                    self.queue.waiting_bytes.fetch_sub(bytes, Ordering::AcqRel);
                    let Committed { revision, compacted, changes } = committed;
                    metrics::get().watch.events.increment(changes.len() as u64);
                    self.core.handle(Event::Published { revision, compacted, changes });
                }
                Message::Stop => {
                    self.core.close_all();
                    return false;
                }
            }
        }
        let now_ms = now_ms();
        self.core.handle(Event::Tick { now_ms });
        self.more = self.core.catch_up();
        if now_ms >= self.slowest_look_ms {
            self.slowest_look_ms = now_ms + SLOWEST_LOOK_MS;
            let slowest = self.core.slowest().map_or(0, |revision| revision.0);
            self.queue.slowest.store(slowest, Ordering::Relaxed);
        }
        true
    }

    /// Whether a turn would find something to do, whatever the time.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_due(&self) -> bool {
        self.more || !self.queue.events.is_empty()
    }
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats, and counts stay far below 2^53")]
fn show(counts: Counts) {
    let metrics = &metrics::get().watch;
    metrics.streams.set(counts.streams as f64);
    metrics.watchers.set(counts.watchers as f64);
    metrics.slow_watchers.set(counts.slow_watchers as f64);
}

impl Feed {
    /// Hands on what was committed. Never waits for a client.
    pub(crate) fn publish(&mut self, committed: Committed) {
        let size = |change: &crate::mvcc::query::Change| change.kv.key.len() + change.kv.value.len() + 64;
        let bytes: usize = committed.changes.iter().map(size).sum();
        let waiting = self.queue.waiting_bytes.load(Ordering::Acquire);
        // What changes no key takes no room; most of all a compaction must not put everybody behind.
        if bytes > 0 && waiting > 0 && waiting + bytes > self.bytes_max {
            let Committed { revision, compacted, .. } = committed;
            self.queue.events.push(Message::Event(Event::Skipped { revision, compacted }));
            return;
        }
        self.queue.waiting_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.queue.events.push(Message::Changes(committed, bytes));
    }
}

impl Feed {
    /// Another store has taken the place of the one in use; watchers catch up from it.
    pub(crate) fn replaced(&mut self, store: Store) {
        self.queue.events.push(Message::Event(Event::Replaced { store }));
    }
}

impl Hub {
    /// The lowest revision that a watcher still needs that is behind, as of a second ago. `None` when none is.
    pub(crate) fn slowest_watcher(&self) -> Option<Revision> {
        let slowest = self.queue.slowest.load(Ordering::Relaxed);
        (slowest != 0).then_some(Revision(slowest))
    }

    /// Opens a stream for one client.
    pub(crate) fn open(&self) -> (WatchRequests, WatchResponses) {
        let stream = self.queue.next_stream.fetch_add(1, Ordering::Relaxed);
        let outbox = Outbox::default();
        self.queue.events.push(Message::Event(Event::Open { stream, outbox: outbox.clone() }));
        let requests = WatchRequests { queue: Arc::clone(&self.queue), stream, outbox: outbox.clone() };
        let responses =
            WatchResponses { queue: Arc::clone(&self.queue), stream, outbox, resume_bytes: self.resume_bytes };
        (requests, responses)
    }
}

/// The client's side of a stream: what it asks for. Dropping it leaves the stream open: a client that has nothing more
/// to ask still wants to hear.
pub(crate) struct WatchRequests {
    queue: Arc<Queue>,
    stream: u64,
    outbox: Outbox,
}

impl WatchRequests {
    /// Resolves when another request may be made: each is answered, and the answers of a client that does not read them
    /// must not pile up.
    pub(crate) async fn ready(&self) {
        self.outbox.room(UNREAD_BYTES_MAX).await;
    }

    pub(crate) fn create(&self, request: WatchCreateRequest) {
        self.push(Event::Create { stream: self.stream, request });
    }

    pub(crate) fn cancel(&self, id: i64) {
        self.push(Event::Cancel { stream: self.stream, id });
    }

    pub(crate) fn progress(&self) {
        self.push(Event::Progress { stream: self.stream });
    }

    fn push(&self, event: Event) {
        self.queue.events.push(Message::Event(event));
    }
}

/// The server's side of a stream: encoded `WatchResponse`s, in order. Dropping it ends the stream's watchers.
pub(crate) struct WatchResponses {
    queue: Arc<Queue>,
    stream: u64,
    outbox: Outbox,
    resume_bytes: usize,
}

impl WatchResponses {
    /// The next response; `None` when the node stops.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let (response, waiting) = self.outbox.next().await?;
        // Told once, on the way down past the mark; the watch thread takes it for what it is if nobody was held back.
        if waiting <= self.resume_bytes && waiting + response.len() > self.resume_bytes {
            self.queue.events.push(Message::Event(Event::Drained { stream: self.stream }));
        }
        Some(response)
    }
}

impl Drop for WatchResponses {
    fn drop(&mut self) {
        self.queue.events.push(Message::Event(Event::Close { stream: self.stream }));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::executor::block_on;
    use kuorum_proto::etcdserverpb::WatchResponse;
    use prost::Message as _;

    use super::*;
    use crate::cluster::{ClusterId, MemberId};
    use crate::mvcc::filter::Floor;
    use crate::mvcc::query::{Change, ChangeKind, Previous};
    use crate::mvcc::revision::ChangeId;
    use crate::mvcc::{self, AppliedMark, MvccOptions};
    use crate::storage::Storage;

    fn committed(revision: i64, value_bytes: usize) -> Committed {
        let id = ChangeId { main: Revision(revision), sub: 0 };
        let kv = kuorum_proto::mvccpb::KeyValue { value: vec![b'v'; value_bytes].into(), ..Default::default() };
        let change = Change { id, kind: ChangeKind::Put, kv, previous: Previous::Absent };
        let changes = if value_bytes == 0 { Vec::new() } else { vec![change] };
        Committed { revision: Revision(revision), compacted: Revision(-1), changes }
    }

    #[test]
    fn changes_past_the_bound_are_not_passed_on_while_others_wait() {
        let queue = Arc::new(Queue::new());
        let mut feed = Feed { queue: Arc::clone(&queue), bytes_max: 1_000 };
        // The first is passed on whatever its size; a batch without changes always is.
        for (revision, bytes) in [(2, 5_000), (3, 10), (3, 0)] {
            feed.publish(committed(revision, bytes));
        }
        let mut messages = Vec::new();
        queue.events.take(&mut messages, Duration::ZERO);
        let [
            Message::Changes(first, bytes),
            Message::Event(Event::Skipped { revision, .. }),
            Message::Changes(last, 0),
        ] = &messages[..]
        else {
            panic!("{} messages of other kinds", messages.len());
        };
        assert_eq!((first.changes.len(), *revision, last.changes.len()), (1, Revision(3), 0));
        queue.waiting_bytes.fetch_sub(*bytes, Ordering::AcqRel);
        feed.publish(committed(4, 10));
        let mut messages = Vec::new();
        queue.events.take(&mut messages, Duration::ZERO);
        assert!(matches!(messages[..], [Message::Changes(..)]));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the thread wants to know when the process started")]
    fn a_stream_gets_what_is_committed_until_the_node_stops() {
        let directory = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&directory.path().join("store"), floor.filters()).unwrap();
        let options = MvccOptions::new(directory.path().join("index"), 3);
        let (store, mut writer, _) = mvcc::open(storage, floor, options).unwrap();
        let facts = Arc::new(Facts::new(ClusterId(1), MemberId(2)));
        let (hub, mut feed, running) = start(store, facts, model::OPTIONS, Instant::now()).unwrap();
        let (requests, mut responses) = hub.open();
        block_on(requests.ready());
        requests.create(WatchCreateRequest { key: "a".into(), ..WatchCreateRequest::default() });
        let mut next = || block_on(responses.next()).map(|bytes| WatchResponse::decode(bytes).unwrap());
        assert!(next().unwrap().created);
        for index in 1..=3 {
            let mut txn = writer.txn();
            txn.put("a".into(), format!("{index}").into(), 0);
            txn.finish();
            feed.publish(writer.commit(AppliedMark { index, term: 1 }).unwrap());
            let response = next().unwrap();
            assert_eq!(response.events[0].kv.as_ref().unwrap().mod_revision, response.header.unwrap().revision);
        }
        requests.progress();
        assert_eq!(next().unwrap().header.unwrap().revision, 4);
        running.stop();
        assert_eq!(next(), None);
        assert_eq!(requests.ready().now_or_never(), Some(()));
    }
}
