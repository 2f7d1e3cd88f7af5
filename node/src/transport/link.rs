//! The way to one member for one stream: a queue, and a thread that keeps a connection and writes the queue to it.
//!
//! Sending never waits. What can't be sent is dropped, as a network drops it: Raft asks again, and whoever forwards a
//! request is told. Frames that may not wait go ahead of bulk.

use std::io::{self, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::set_tcp_user_timeout;

use super::frame::{self, Kind, Reader};
use super::hello::{self, Hello, MAGIC, Reason, Stream};
use super::{DEAD_AFTER, Inlet};
use crate::metrics;

/// Bytes that may wait to be written. Beyond it frames are dropped and Raft probes until the member keeps up again.
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes kept while there is no connection: a few messages for the first moment after it is there.
const UNCONNECTED_BYTES_MAX: usize = 1 << 20;
/// A buffer that grew beyond this is given back once written.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// How long connecting and being greeted may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a connection failed: short at first, since a member that restarts is soon back.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// A ping is sent when nothing else was for so long, several times in [`DEAD_AFTER`].
const PING_AFTER: Duration = Duration::from_secs(1);

/// A running link. Ends when told to by [`Link::stop`].
pub(super) struct Link {
    stream: Stream,
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    urgent: Vec<u8>,
    bulk: Vec<u8>,
    /// To be shut when the link stops, so that a write under way ends.
    connection: Option<TcpStream>,
    /// Since when there is one.
    since: Option<Instant>,
    urls: Vec<String>,
    stopping: bool,
}

impl Link {
    /// Starts a link for this greeting to the member at these URLs.
    pub(super) fn start(hello: Hello, urls: Vec<String>, inlet: Arc<dyn Inlet>) -> io::Result<Link> {
        let queue = Mutex::new(Queue { urls, ..Queue::default() });
        let shared = Arc::new(Shared { queue, changed: Condvar::new() });
        let stream = hello.stream;
        let counts = metrics::get().peer(&hello.from.to_string(), &hello.to.to_string());
        counts.known.set(1.0);
        let dialer = Dialer { shared: Arc::clone(&shared), hello, inlet, counts, said: String::new() };
        let thread = std::thread::Builder::new().name("peer-out".into()).spawn(move || dialer.run())?;
        Ok(Link { stream, shared, thread })
    }

    /// Puts a frame in the queue. Returns false when it was dropped, since too much waits already.
    pub(super) fn send(&self, urgent: bool, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.shared.queue.lock();
        let room = match (&queue.connection, self.stream) {
            (Some(_), _) => QUEUE_BYTES_MAX,
            // Raft's messages may be lost; of a request somebody would wait for the answer.
            (None, Stream::Messages) => UNCONNECTED_BYTES_MAX,
            (None, Stream::Requests | Stream::Snapshot) => return false,
        };
        let waiting = queue.urgent.len() + queue.bulk.len();
        if waiting > room {
            return false;
        }
        let buffer = if urgent { &mut queue.urgent } else { &mut queue.bulk };
        frame::write(buffer, kind, write);
        drop(queue);
        if waiting == 0 {
            self.shared.changed.notify_one();
        }
        true
    }

    /// For how long there has been a connection.
    pub(super) fn connected_for(&self) -> Option<Duration> {
        self.shared.queue.lock().since.map(|since| since.elapsed())
    }

    pub(super) fn urls(&self) -> Vec<String> {
        self.shared.queue.lock().urls.clone()
    }

    /// Where the member is from now on. A connection that stands stays.
    pub(super) fn set_urls(&self, urls: Vec<String>) {
        self.shared.queue.lock().urls = urls;
    }

    /// Tells the link to end. What waits is lost.
    pub(super) fn stop(self) -> JoinHandle<()> {
        let mut queue = self.shared.queue.lock();
        queue.stopping = true;
        if let Some(connection) = &queue.connection {
            // Closed by the other side already: then the write has ended.
            connection.shutdown(Shutdown::Both).ok();
        }
        drop(queue);
        self.shared.changed.notify_all();
        self.thread
    }
}

impl Shared {
    /// Takes what waits, urgent first, waiting up to `patience` for something. `None` when the link stops.
    fn take(&self, urgent: &mut Vec<u8>, bulk: &mut Vec<u8>, patience: Duration) -> Option<()> {
        let mut queue = self.queue.lock();
        if queue.urgent.is_empty() && queue.bulk.is_empty() && !queue.stopping {
            self.changed.wait_for(&mut queue, patience);
        }
        if queue.stopping {
            return None;
        }
        std::mem::swap(&mut queue.urgent, urgent);
        std::mem::swap(&mut queue.bulk, bulk);
        Some(())
    }

    /// Waits, or returns `None` at once when the link stops.
    fn pause(&self, pause: Duration) -> Option<()> {
        let mut queue = self.queue.lock();
        if !queue.stopping {
            // A frame that arrives ends the pause early only to begin it anew: dialing sets the pace.
            self.changed.wait_while_for(&mut queue, |queue| !queue.stopping, pause);
        }
        (!queue.stopping).then_some(())
    }

    /// Notes that there is no connection, and returns what waited for it.
    fn disconnect(&self) -> [Vec<u8>; 2] {
        let mut queue = self.queue.lock();
        queue.connection = None;
        queue.since = None;
        [std::mem::take(&mut queue.urgent), std::mem::take(&mut queue.bulk)]
    }
}

struct Dialer {
    shared: Arc<Shared>,
    hello: Hello,
    inlet: Arc<dyn Inlet>,
    counts: metrics::Peer,
    /// What was last logged of this link, so that it is logged once.
    said: String,
}

/// Why there is no connection.
pub(super) enum Failure {
    Io(String),
    Refused(Reason, String),
}

impl Dialer {
    fn run(mut self) {
        let mut pause = PAUSE_MIN;
        let mut attempt = 0;
        loop {
            match self.dial(attempt) {
                Ok(connection) => {
                    self.said.clear();
                    pause = PAUSE_MIN;
                    let ended = self.write_all(&connection);
                    let Some(error) = ended else { return };
                    self.say(&format!("lost the connection to the member: {error}"));
                    self.counts.sent_failures.increment(1);
                    if self.hello.stream == Stream::Messages {
                        self.counts.active.set(0.0);
                        self.counts.disconnected.increment(1);
                    }
                }
                Err(Failure::Io(error)) => self.say(&error),
                Err(Failure::Refused(reason, sentence)) => {
                    self.say(&sentence);
                    self.inlet.refused(self.hello.to, reason, &sentence);
                }
            }
            for frames in self.shared.disconnect() {
                self.give_back(&frames);
            }
            self.inlet.lost(self.hello.to);
            attempt += 1;
            if self.shared.pause(pause).is_none() {
                return;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn say(&mut self, what: &str) {
        if self.said != what {
            what.clone_into(&mut self.said);
            crate::warn!(
                "a peer can't be reached",
                "remote-peer-id" = self.hello.to.to_string(),
                stream = format!("{:?}", self.hello.stream),
                error = what
            );
        }
    }

    /// Connects to one of the member's URLs, another at each attempt, and greets it.
    fn dial(&self, attempt: usize) -> Result<TcpStream, Failure> {
        let urls = self.shared.queue.lock().urls.clone();
        if urls.is_empty() {
            return Err(Failure::Io("the member has no peer URL".to_owned()));
        }
        let connection = dial(&self.hello, &urls[attempt % urls.len()])?;
        let to_shut = connection.try_clone().map_err(|error| Failure::Io(error.to_string()))?;
        let mut queue = self.shared.queue.lock();
        queue.connection = Some(to_shut);
        queue.since = Some(now());
        if self.hello.stream == Stream::Messages {
            self.counts.active.set(1.0);
        }
        drop(queue);
        crate::info!(
            "established TCP streaming connection with remote peer",
            "remote-peer-id" = self.hello.to.to_string(),
            stream = format!("{:?}", self.hello.stream)
        );
        Ok(connection)
    }

    /// Writes what comes until the connection breaks, which is returned, or the link stops.
    fn write_all(&self, mut connection: &TcpStream) -> Option<io::Error> {
        let (mut urgent, mut bulk) = (Vec::new(), Vec::new());
        loop {
            self.shared.take(&mut urgent, &mut bulk, PING_AFTER)?;
            if let Err(error) = is_open(connection) {
                // Written now, it would be lost without a word.
                self.give_back(&urgent);
                self.give_back(&bulk);
                return Some(error);
            }
            if urgent.is_empty() && bulk.is_empty() {
                frame::write(&mut urgent, Kind::Ping, |_| ());
            }
            for buffer in [&mut urgent, &mut bulk] {
                if !buffer.is_empty()
                    && let Err(error) = connection.write_all(buffer)
                {
                    return Some(error);
                }
                self.counts.sent_bytes.increment(buffer.len() as u64);
                buffer.clear();
                buffer.shrink_to(KEPT_BYTES_MAX);
            }
        }
    }

    /// Tells of frames that were never written.
    fn give_back(&self, frames: &[u8]) {
        let mut reader = Reader::new(frames);
        while let Ok((kind, payload)) = reader.next() {
            self.inlet.unsent(self.hello.to, kind, payload);
        }
    }
}

/// Connects to a URL and greets whoever is there.
pub(super) fn dial(hello: &Hello, url: &str) -> Result<TcpStream, Failure> {
    let io = |error: io::Error| Failure::Io(format!("{url}: {error}"));
    let place = url.strip_prefix("http://").ok_or_else(|| Failure::Io(format!("{url}: only http:// is dialed")))?;
    let address = place.to_socket_addrs().map_err(io)?.next();
    let address = address.ok_or_else(|| Failure::Io(format!("{url}: the host has no address")))?;
    let mut connection = TcpStream::connect_timeout(&address, DIAL_TIMEOUT).map_err(io)?;
    connection.set_nodelay(true).map_err(io)?;
    connection.set_read_timeout(Some(DIAL_TIMEOUT)).map_err(io)?;
    connection.set_write_timeout(Some(DEAD_AFTER)).map_err(io)?;
    // A network that swallows everything does not fail a write: without this the connection would seem to stand for a quarter
    // of an hour, and to be back a minute after the network is.
    let dead_after_ms = u32::try_from(DEAD_AFTER.as_millis()).expect("seconds fit");
    set_tcp_user_timeout(&connection, dead_after_ms).map_err(|error| io(error.into()))?;
    let mut bytes = MAGIC.to_vec();
    frame::write(&mut bytes, Kind::Hello, |out| hello.encode(out));
    connection.write_all(&bytes).map_err(io)?;
    let answer = connection.try_clone().map_err(io)?;
    match Reader::new(answer).next().map_err(io)? {
        (Kind::Welcome, _) => Ok(connection),
        (Kind::Refused, words) => {
            let (reason, sentence) = hello::decode_refusal(words);
            Err(Failure::Refused(reason, sentence))
        }
        _ => Err(Failure::Io(format!("{url}: no member answers there"))),
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock seam of connections: how long each has stood")]
fn now() -> Instant {
    Instant::now()
}

/// Whether the other side has not closed the connection. It never writes after its greeting, so there is nothing to read.
fn is_open(connection: &TcpStream) -> io::Result<()> {
    let mut byte = [0];
    match rustix::net::recv(connection, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(io::ErrorKind::ConnectionReset.into()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "the member talks where it should listen")),
        Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
