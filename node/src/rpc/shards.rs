//! Shards: one single-threaded runtime a core. A connection lives on the shard it was given; nothing moves between
//! them.
//!
//! The acceptor hands accepted sockets round-robin to the shards. (A runtime of several workers was measured and
//! rejected: its p99 was seven times that of single-threaded ones.) The first shard also does the little that is to be
//! done for all: watching for a lost leader and folding histogram samples.
//!
//! Stops in the reverse order of starting: no more connections, open streams end, calls under way get a moment, and
//! then the runtimes are dropped.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::connection;
use super::listen::{Bound, Role};
use super::{Node, Options};
use crate::command::TXN_STACK_BYTES;
use crate::consensus::answers::PostOffice;
use crate::metrics;

/// Accepted sockets that may wait for one shard; past it the acceptor waits.
const SOCKETS_WAITING_MAX: usize = 1024;
/// Open files that are not for connections (etcd: reservedInternalFDNum), and the limit assumed where it is unknown.
const FILES_RESERVED: u64 = 150;
const FILES_ASSUMED: u64 = 1024;
/// How long calls under way may take once the node stops. etcd waits for up to seven seconds, but a member that hands
/// its work over should be gone within a second and a half.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// Pause after a failed accept, which is nearly always for want of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Looks without a leader after which streams that require one are ended (etcd: maxNoLeaderCnt).
const LEADERLESS_LOOKS_MAX: u32 = 3;
/// How often histogram samples are folded: samples that nobody scrapes must not pile up.
const FOLD_INTERVAL: Duration = Duration::from_secs(5);
/// Threads beside each shard for reads that take long. There are more for policies: as many as the slow lane has.
const READ_THREADS_MAX: usize = 4;

/// What every call reaches.
pub(super) struct Front {
    pub(super) node: Arc<Node>,
    pub(super) options: Options,
    /// Becomes true when the node stops.
    pub(super) stopping: watch::Receiver<bool>,
    /// True while there has been no leader for some time.
    pub(super) leaderless: watch::Receiver<bool>,
}

/// A socket on its way to a shard. The permit counts it as a connection until it is closed.
struct Accepted {
    socket: std::net::TcpStream,
    role: Role,
    permit: OwnedSemaphorePermit,
}

/// How many shards there are: one a core.
pub(crate) fn shards() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cores).unwrap_or(u16::MAX)
}

/// The front door while it serves.
pub(crate) struct Serving {
    stopping: watch::Sender<bool>,
    open: watch::Sender<bool>,
    addresses: Vec<(SocketAddr, Role)>,
    acceptor: JoinHandle<()>,
    shards: Vec<JoinHandle<()>>,
}

/// Serves other members on the bound listeners, and after [`Serving::open`] clients too. `office` must have been made for [`shards`] shards.
///
/// # Errors
/// When the system gives no thread or runtime.
pub(crate) fn serve(node: Arc<Node>, bound: Bound, office: PostOffice, options: &Options) -> io::Result<Serving> {
    let (stopping, stop) = watch::channel(false);
    let (open, opened) = watch::channel(false);
    let (leaderless_sender, leaderless) = watch::channel(false);
    let front = Arc::new(Front { node, options: options.clone(), stopping: stop.clone(), leaderless });
    let mut leaderless_sender = Some(leaderless_sender);
    let mut doors = Vec::new();
    let mut threads = Vec::new();
    let blocking_threads = READ_THREADS_MAX + usize::from(shards());
    for number in 0..office.shards() {
        let (door, sockets) = mpsc::channel(SOCKETS_WAITING_MAX);
        doors.push(door);
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(blocking_threads).build()?;
        let shard =
            Shard { number, front: Arc::clone(&front), office: office.clone(), for_all: leaderless_sender.take() };
        let thread = std::thread::Builder::new().name(format!("shard-{number}")).stack_size(TXN_STACK_BYTES);
        threads.push(thread.spawn(move || shard.run(runtime, sockets))?);
    }
    let addresses: io::Result<Vec<_>> =
        bound.listeners.iter().map(|(listener, role)| Ok((listener.local_addr()?, *role))).collect();
    let addresses = addresses?;
    let acceptor =
        std::thread::Builder::new().name("accept".into()).spawn(move || accept_all(bound, doors, stop, opened))?;
    Ok(Serving { stopping, open, addresses, acceptor, shards: threads })
}

impl Serving {
    /// Lets clients in.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Where gRPC clients are served.
    pub(crate) fn client_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let for_clients = self.addresses.iter().filter(|(_, role)| matches!(role, Role::Client | Role::Grpc));
        for_clients.map(|(address, _)| *address)
    }

    /// Waits until the process is asked to stop, and returns the signal's name as Go writes it; `None` when the member was
    /// removed from the cluster.
    ///
    /// # Errors
    /// When the system lets no signal be caught.
    pub(crate) fn wait_for_signal(&self, departed: &Notify) -> io::Result<Option<&'static str>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::select! {
                _ = terminate.recv() => Ok(Some("terminated")),
                _ = interrupt.recv() => Ok(Some("interrupt")),
                () = departed.notified() => Ok(None),
            }
        })
    }

    /// Ends open streams, gives calls under way a moment, and closes every connection.
    pub(crate) fn stop(self) {
        self.stopping.send_replace(true);
        for thread in std::iter::once(self.acceptor).chain(self.shards) {
            thread.join().expect("a thread of the front door ends the process rather than panic");
        }
    }
}

fn accept_all(
    bound: Bound,
    doors: Vec<mpsc::Sender<Accepted>>,
    stop: watch::Receiver<bool>,
    opened: watch::Receiver<bool>,
) {
    let Bound { runtime, listeners } = bound;
    let files = metrics::descriptors_max().unwrap_or(FILES_ASSUMED).saturating_sub(FILES_RESERVED).max(1);
    let connections_max = usize::try_from(files).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
    let connections = Arc::new(Semaphore::new(connections_max));
    runtime.block_on(async move {
        let mut accepting = JoinSet::new();
        for (listener, role) in listeners {
            let accepts = accept(listener, role, doors.clone(), Arc::clone(&connections));
            let opened = opened.clone();
            accepting.spawn(async move {
                // Clients wait in the listener's queue until this member knows the cluster.
                if role != Role::Peer {
                    becomes_true(opened).await;
                }
                accepts.await;
            });
        }
        // Dropping the set then closes the listeners.
        becomes_true(stop).await;
    });
}

async fn accept(listener: TcpListener, role: Role, doors: Vec<mpsc::Sender<Accepted>>, connections: Arc<Semaphore>) {
    for door in doors.iter().cycle() {
        let permit = Arc::clone(&connections).acquire_owned().await.expect("the semaphore is never closed");
        let socket = loop {
            match listener.accept().await.and_then(|(socket, _)| socket.into_std()) {
                Ok(socket) => break socket,
                Err(error) => {
                    crate::warn!("a connection could not be accepted", error = error.to_string());
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        if door.send(Accepted { socket, role, permit }).await.is_err() {
            return;
        }
    }
}

struct Shard {
    number: u16,
    front: Arc<Front>,
    office: PostOffice,
    /// On the shard that does what is to be done for all.
    for_all: Option<watch::Sender<bool>>,
}

impl Shard {
    fn run(self, runtime: Runtime, sockets: mpsc::Receiver<Accepted>) {
        runtime.block_on(self.serve(sockets));
        // Reads that still run elsewhere have nobody to answer to.
        runtime.shutdown_background();
    }

    async fn serve(self, mut sockets: mpsc::Receiver<Accepted>) {
        tokio::spawn(self.office.run_shard(self.number));
        if let Some(leaderless) = self.for_all {
            tokio::spawn(watch_leader(Arc::clone(&self.front), leaderless));
            tokio::spawn(fold_samples());
            let node = Arc::clone(&self.front.node);
            tokio::spawn(node.questions.clone().answer_all(Arc::clone(&node)));
            tokio::spawn(node.errands.clone().run_all(node));
        }
        let pages = connection::Pages::new(&self.front);
        let stopping = becomes_true(self.front.stopping.clone());
        tokio::pin!(stopping);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut stopping => break,
                Some(_) = connections.join_next() => {}
                accepted = sockets.recv() => {
                    let Some(accepted) = accepted else { break };
                    let served = serve_one(Arc::clone(&self.front), pages.clone(), accepted);
                    connections.spawn(served);
                }
            }
        }
        let drained = async { while connections.join_next().await.is_some() {} };
        // What is left after the grace is dropped with the set.
        drop(tokio::time::timeout(STOP_GRACE, drained).await);
    }
}

async fn serve_one(front: Arc<Front>, pages: connection::Pages, accepted: Accepted) {
    let Accepted { socket, role, permit } = accepted;
    // A socket that its client has closed already is no error worth a line.
    if socket.set_nodelay(true).is_ok()
        && let Ok(socket) = TcpStream::from_std(socket)
    {
        connection::serve(front, pages, socket, role, permit).await;
    }
}

/// Resolves once the value is true, or nobody is left who could make it so.
pub(super) async fn becomes_true(mut value: watch::Receiver<bool>) {
    drop(value.wait_for(|value| *value).await);
}

/// Tells streams that require a leader when there has been none for [`LEADERLESS_LOOKS_MAX`] election timeouts.
async fn watch_leader(front: Arc<Front>, leaderless: watch::Sender<bool>) {
    let mut looks = tokio::time::interval(front.options.election_timeout);
    let mut without = 0;
    loop {
        looks.tick().await;
        without = match front.node.consensus.status().leader {
            Some(_) => 0,
            None => u32::min(without + 1, LEADERLESS_LOOKS_MAX),
        };
        let now = without == LEADERLESS_LOOKS_MAX;
        leaderless.send_if_modified(|before| std::mem::replace(before, now) != now);
    }
}

async fn fold_samples() {
    let mut interval = tokio::time::interval(FOLD_INTERVAL);
    loop {
        interval.tick().await;
        metrics::get().fold_samples();
    }
}
