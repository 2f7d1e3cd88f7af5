//! The network between the members of a cluster, in which each direction between two members can be cut, held or slowed.
//!
//! Before each member stands a proxy whose address the member advertises, so that the others dial the proxy. A member
//! writes only on connections that it dialed itself and says who it is in its greeting, so a connection is one direction
//! of one pair; only the answer to the greeting goes the other way on it.
//!
//! ```text
//!        bytes 0..8   magic
//!              8..17  length, checksum and kind of the greeting's frame
//!             17..28  protocol u16, stream u8, cluster u64
//!             28..36  the caller's id, little-endian; what follows ends at byte 52
//! ```
//!
//! Runs on a thread of its own, so that a test that waits for a process does not stop the traffic.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

use crate::member::Member;

const GREETING_BYTES: usize = 52;
const CALLER: Range<usize> = 28..36;
/// Bytes moved at once on an open link.
const PIECE_BYTES: usize = 64 << 10;

/// How one direction between two members is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    Open,
    /// Connections break, and new ones break once greeted.
    Cut,
    /// Nothing arrives, and nobody is told. What was sent arrives when the link is open again, as TCP would repeat it.
    Held,
    /// Each piece of so many bytes takes so long.
    Slow {
        bytes: usize,
        delay: Duration,
    },
}

pub struct Network {
    links: Arc<Links>,
    /// The members' ids, by number.
    ids: Vec<u64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The condition of each link: from a member's id to a member's number.
#[derive(Default)]
struct Links {
    // A lock: set by the test, looked at by the network's thread when a connection begins.
    conditions: Mutex<HashMap<(u64, usize), watch::Sender<Condition>>>,
}

impl Links {
    fn with<T>(&self, from: u64, to: usize, use_link: impl FnOnce(&watch::Sender<Condition>) -> T) -> T {
        let mut conditions = self.conditions.lock().expect("nobody panics with the lock");
        use_link(conditions.entry((from, to)).or_insert_with(|| watch::Sender::new(Condition::Open)))
    }
}

impl Network {
    /// Puts a proxy before each member, none of which has started. All links are open.
    pub fn between(members: &mut [Member]) -> Network {
        let links = Arc::new(Links::default());
        let mut proxies = Vec::new();
        for member in members {
            let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
            let port = listener.local_addr().expect("a bound listener has an address").port();
            listener.set_nonblocking(true).expect("a socket can be made not to block");
            member.advertised_peer_port = Some(port);
            proxies.push((listener, member.peer_port));
        }
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&links);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be built").block_on(async {
                for (number, (listener, port)) in proxies.into_iter().enumerate() {
                    let listener = TcpListener::from_std(listener).expect("the runtime takes a listener");
                    tokio::spawn(accept(listener, number, port, Arc::clone(&served)));
                }
                // Dropped with the network, which says the same.
                drop(stopped.await);
            });
        });
        Network { links, ids: Vec::new(), stop: Some(stop), thread: Some(thread) }
    }

    /// Says which ids the members greet with, by number.
    pub fn introduce(&mut self, ids: Vec<u64>) {
        self.ids = ids;
    }

    /// Sets the direction from one member to another.
    pub fn set(&self, from: usize, to: usize, condition: Condition) {
        self.links.with(self.ids[from], to, |link| link.send_replace(condition));
    }

    /// Opens every link.
    pub fn heal(&self) {
        for from in 0..self.ids.len() {
            for to in (0..self.ids.len()).filter(|to| *to != from) {
                self.set(from, to, Condition::Open);
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // What made it panic was printed; a test that ends must not panic again.
            drop(thread.join());
        }
    }
}

async fn accept(listener: TcpListener, to: usize, port: u16, links: Arc<Links>) {
    // A member that closed while it was being accepted is no reason to stop.
    loop {
        if let Ok((caller, _)) = listener.accept().await {
            let links = Arc::clone(&links);
            // A connection ends when either side or the link does; the members deal with that.
            tokio::spawn(async move { serve(caller, to, port, &links).await.ok() });
        }
    }
}

async fn serve(mut caller: TcpStream, to: usize, port: u16, links: &Links) -> io::Result<()> {
    let mut greeting = [0; GREETING_BYTES];
    caller.read_exact(&mut greeting).await?;
    let from = u64::from_le_bytes(greeting[CALLER].try_into().expect("eight bytes"));
    let mut condition = links.with(from, to, watch::Sender::subscribe);
    let relayed = relay(caller, port, greeting, condition.clone());
    tokio::select! {
        relayed = relayed => relayed,
        _ = condition.wait_for(|condition| *condition == Condition::Cut) => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

async fn relay(
    mut caller: TcpStream,
    port: u16,
    greeting: [u8; GREETING_BYTES],
    mut condition: watch::Receiver<Condition>,
) -> io::Result<()> {
    passage(&mut condition).await;
    let mut callee = TcpStream::connect(("127.0.0.1", port)).await?;
    for connection in [&caller, &callee] {
        connection.set_nodelay(true)?;
    }
    callee.write_all(&greeting).await?;
    let (from_caller, to_caller) = caller.split();
    let (from_callee, to_callee) = callee.split();
    tokio::select! {
        there = pump(from_caller, to_callee, condition.clone()) => there,
        back = pump(from_callee, to_caller, condition) => back,
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut condition: watch::Receiver<Condition>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let bytes_max = match *condition.borrow() {
            Condition::Slow { bytes, .. } => bytes.clamp(1, PIECE_BYTES),
            Condition::Open | Condition::Held | Condition::Cut => PIECE_BYTES,
        };
        let count = from.read(&mut piece[..bytes_max]).await?;
        if count == 0 {
            return Ok(());
        }
        passage(&mut condition).await;
        to.write_all(&piece[..count]).await?;
    }
}

/// Waits until a piece may pass.
async fn passage(condition: &mut watch::Receiver<Condition>) {
    let is_held = |condition: &Condition| matches!(condition, Condition::Held | Condition::Cut);
    // Closed only when the network is gone, and this task with it.
    let now = condition.wait_for(|condition| !is_held(condition)).await.map_or(Condition::Open, |condition| *condition);
    if let Condition::Slow { delay, .. } = now {
        tokio::time::sleep(delay).await;
    }
}
