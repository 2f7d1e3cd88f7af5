//! Closed-loop load: each client has one call in flight and sends the next when it is answered.
//!
//! Ten clients share a connection, as etcd's own benchmark does at its documented settings. All connections live on one
//! thread. A call that is refused ends the run: a row of refusals would look fast.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kuorum_tests::member::Member;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::clock::now;
use super::process::{Mark, Process, Taken, resident_bytes};
use super::wire::{Said, Wire};

/// Clients of one connection.
pub(crate) const CLIENTS_PER_CONNECTION: usize = 10;
/// A server that answers nothing for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// What the clients ask for.
pub(crate) trait Workload {
    /// Writes the next request of `client` and returns its path, or nothing when the client is done.
    fn next(&mut self, client: usize, message: &mut Vec<u8>) -> Option<&'static str>;
    /// Looks at the answer.
    ///
    /// # Errors
    /// A sentence when the answer is not what the row is about.
    fn answered(&mut self, _client: usize, _message: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// Where the clients connect, each member taking an equal part of them, and whose CPU and memory count.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) endpoints: Vec<String>,
    pub(crate) processes: Vec<Process>,
}

impl Target {
    /// The members at these places.
    pub(crate) fn of<'a>(members: impl IntoIterator<Item = &'a Member>) -> Target {
        let (endpoints, processes) =
            members.into_iter().map(|member| (member.endpoint(), Process(member.id()))).unzip();
        Target { endpoints, processes }
    }
}

/// How long a run takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    /// Measured for a time, after a time that does not count.
    Time { warm_up: Duration, measured: Duration },
    /// Until the clients are done.
    Whole,
}

/// What a run showed.
pub(crate) struct Run {
    pub(crate) calls: u64,
    pub(crate) taken: Taken,
    /// Microseconds from request to answer.
    pub(crate) latency_us: Histogram<u64>,
    /// The longest time without any answer.
    pub(crate) pause: Duration,
    pub(crate) resident_bytes: u64,
}

/// A connection with its socket.
pub(crate) struct Connection {
    socket: TcpStream,
    pub(crate) wire: Wire,
}

impl Connection {
    pub(crate) async fn open(endpoint: &str) -> Result<Connection, String> {
        let socket = TcpStream::connect(endpoint).await.map_err(|error| format!("connect {endpoint}: {error}"))?;
        socket.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Connection { socket, wire: Wire::new(endpoint) })
    }

    pub(crate) async fn flush(&mut self) -> Result<(), String> {
        self.socket.write_all(&self.wire.out).await.map_err(|error| format!("write: {error}"))?;
        self.wire.out.clear();
        Ok(())
    }

    /// Waits for more of what the server says. May be dropped while it waits.
    pub(crate) async fn read(&mut self) -> Result<(), String> {
        self.wire.input.reserve(1 << 16);
        match self.socket.read_buf(&mut self.wire.input).await {
            Ok(0) => Err("the server closed the connection".into()),
            Ok(_) => Ok(()),
            Err(error) => Err(format!("read: {error}")),
        }
    }
}

/// What all connections of a run share.
struct Shared<'a> {
    workload: &'a mut dyn Workload,
    latency_us: Histogram<u64>,
    calls: u64,
    counting: bool,
    stopping: bool,
    last_answer: Instant,
    pause: Duration,
}

impl Shared<'_> {
    fn answered(&mut self, begun: Instant, now: Instant) {
        if !self.counting {
            return;
        }
        self.calls += 1;
        self.pause = self.pause.max(now - self.last_answer);
        self.last_answer = now;
        let micros = u64::try_from((now - begun).as_micros()).unwrap_or(u64::MAX);
        self.latency_us.saturating_record(micros);
    }
}

/// Runs `clients` clients of `workload` against a server.
///
/// # Errors
/// A sentence when the server refuses a call, goes away or hangs.
pub(crate) fn run(target: &Target, clients: usize, workload: &mut dyn Workload, length: Length) -> Result<Run, String> {
    let processes = &target.processes;
    let shared = RefCell::new(Shared {
        workload,
        latency_us: new_histogram(),
        calls: 0,
        counting: matches!(length, Length::Whole),
        stopping: false,
        last_answer: now(),
        pause: Duration::ZERO,
    });
    let taken = block_on(async {
        let members = target.endpoints.len();
        let drives = target.endpoints.iter().enumerate().flat_map(|(number, endpoint)| {
            let (begin, end) = (clients * number / members, clients * (number + 1) / members);
            let shared = &shared;
            (begin..end).step_by(CLIENTS_PER_CONNECTION).map(move |first| {
                let last = end.min(first + CLIENTS_PER_CONNECTION);
                drive(endpoint, first..last, shared)
            })
        });
        let drives = futures::future::try_join_all(drives);
        match length {
            Length::Whole => {
                let mark = Mark::new(processes);
                drives.await?;
                Ok(mark.taken(processes))
            }
            Length::Time { warm_up, measured } => {
                let conduct = conduct(processes, &shared, warm_up, measured);
                futures::future::try_join(drives, conduct).await.map(|(_, taken)| taken)
            }
        }
    })?;
    let shared = shared.into_inner();
    let (calls, latency_us, pause) = (shared.calls, shared.latency_us, shared.pause);
    Ok(Run { calls, taken, latency_us, pause, resident_bytes: resident_bytes(processes) })
}

/// Lets the clients run for a time that does not count, then for one that does, and stops them.
async fn conduct(
    processes: &[Process],
    shared: &RefCell<Shared<'_>>,
    warm_up: Duration,
    measured: Duration,
) -> Result<Taken, String> {
    tokio::time::sleep(warm_up).await;
    let mark = Mark::new(processes);
    {
        let mut shared = shared.borrow_mut();
        shared.counting = true;
        shared.last_answer = now();
    }
    tokio::time::sleep(measured).await;
    let mut shared = shared.borrow_mut();
    shared.pause = shared.pause.max(now() - shared.last_answer);
    (shared.counting, shared.stopping) = (false, true);
    Ok(mark.taken(processes))
}

/// One connection and its clients, until they are done.
async fn drive(endpoint: &str, clients: Range<usize>, shared: &RefCell<Shared<'_>>) -> Result<(), String> {
    let mut connection = Connection::open(endpoint).await?;
    let mut calls = HashMap::new();
    let mut message = Vec::new();
    for client in clients {
        ask(client, &mut connection.wire, &mut calls, &mut message, &mut shared.borrow_mut());
    }
    let mut done = Vec::new();
    while !calls.is_empty() {
        connection.flush().await?;
        let read = tokio::time::timeout(SILENCE_MAX, connection.read());
        read.await.map_err(|_| format!("no answer within {} s", SILENCE_MAX.as_secs()))??;
        let shared = &mut *shared.borrow_mut();
        let now = now();
        let mut refused = Ok(());
        connection.wire.hear(|said| match said {
            Said::Message { stream, message } => {
                if let Some((client, _)) = calls.get(&stream)
                    && let Err(problem) = shared.workload.answered(*client, message)
                {
                    refused = Err(problem);
                }
            }
            Said::End { stream, messages } => match calls.remove(&stream) {
                Some(_) if messages == 0 => refused = Err(format!("call {stream} was refused")),
                Some((client, begun)) => {
                    shared.answered(begun, now);
                    done.push(client);
                }
                None => refused = Err(format!("call {stream} ended twice")),
            },
        })?;
        refused?;
        for client in done.drain(..) {
            ask(client, &mut connection.wire, &mut calls, &mut message, shared);
        }
    }
    Ok(())
}

fn ask(
    client: usize,
    wire: &mut Wire,
    calls: &mut HashMap<u32, (usize, Instant)>,
    message: &mut Vec<u8>,
    shared: &mut Shared<'_>,
) {
    message.clear();
    if !shared.stopping
        && let Some(path) = shared.workload.next(client, message)
    {
        let stream = wire.call(path, message, true);
        calls.insert(stream, (client, now()));
    }
}

/// Latencies from a microsecond to two minutes, to a percent.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 120_000_000, 2).expect("the bounds are in order")
}

/// Runs one future on a runtime of this thread alone.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(future)
}
