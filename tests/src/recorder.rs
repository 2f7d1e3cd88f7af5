//! Clients and watchers that run beside each other against all members of a cluster, and write down what they ask and are
//! told.
//!
//! Half of the clients stay with one member each, so that a member that was cut off goes on being asked; the others ask
//! any. A request that gets no answer in time is given up, its outcome unknown. Watchers leave their stream at random and
//! when it falls silent, and resume where they were, on any member. [`crate::linearizability`] and [`crate::watches`]
//! judge what was written down.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_proto::mvccpb::{self, KeyValue};
use pb::compare::{CompareResult, CompareTarget, TargetUnion};
use pb::watch_request::RequestUnion;
use pb::{request_op::Request as Op, response_op::Response as OpAnswer};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::client::Client;
use crate::clock::{Deadline, Stopwatch};
use crate::history::{Answer, Event, History, Keys, Notice, Operation, Outcome, Request, Seen};
use crate::random::Random;

/// A request that is not answered by then is given up. Below the seven seconds after which a member gives up itself, so
/// that clients of a member that is cut off ask more than once in a round.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Between two requests of a client: enough for hundreds of requests a second in all, and a history that is soon checked.
const PAUSE_MILLISECONDS_MAX: u64 = 8;
/// After a request that failed, so that a member that is down does not fill the history.
const FAILURE_PAUSE: Duration = Duration::from_millis(50);
/// Few keys, so that requests meet.
const KEYS: u64 = 6;
/// A watcher asks for progress so often, between events and in silence, and leaves a stream on which nothing comes for so
/// long.
const PROGRESS_EVERY: Duration = Duration::from_millis(20);
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// A watcher stays with one stream for at most so long.
const STAY_MILLISECONDS_MAX: u64 = 1_500;
/// A watcher that has not come to the end by then never will.
const END_WITHIN: Duration = Duration::from_secs(60);
/// Requests of one watch stream that the server has not taken yet.
const ASKED_MAX: usize = 16;
/// No revision: the end is not known yet.
const NO_END: i64 = i64::MAX;

/// The watcher that is told all when all is over.
const PAST: &str = "past";

/// What is to run against a cluster.
#[derive(Clone, Debug)]
pub struct Load {
    /// Addresses of all members' client ports.
    pub endpoints: Vec<String>,
    /// All keys begin with it, and nobody else uses such keys. It ends in a slash.
    pub prefix: String,
    /// The next revision of the store.
    pub first_revision: i64,
    pub clients: usize,
    /// Whether gets may be stale, which the checkers must then see.
    pub serializable: bool,
    pub seed: u64,
    /// Where the history is to be found when the test fails.
    pub saved_as: PathBuf,
}

/// What runs against a cluster in one round.
pub struct Recorder {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<()>>,
}

struct Shared {
    clock: Stopwatch,
    load: Load,
    // A lock: tasks of several clients append. Never held over an await.
    operations: Mutex<Vec<Operation>>,
    notices: Mutex<BTreeMap<String, Vec<Notice>>>,
    stopping: AtomicBool,
    /// The revision at which watchers are done.
    end: AtomicI64,
}

impl Recorder {
    /// Starts the clients, and four watchers.
    pub fn start(load: Load) -> Recorder {
        let (clients, first_revision, seed) = (load.clients, load.first_revision, load.seed);
        let shared = Arc::new(Shared {
            clock: Stopwatch::start(),
            load,
            operations: Mutex::default(),
            notices: Mutex::default(),
            stopping: AtomicBool::new(false),
            end: AtomicI64::new(NO_END),
        });
        let mut random = Random::new(seed);
        let spawned = (1..=clients).map(|number| {
            let (shared, random) = (Arc::clone(&shared), Random::new(random.number()));
            tokio::spawn(async move { ClientOf::new(&shared, number, random).run().await })
        });
        let spawned = spawned.collect();
        let all = || Keys::Prefix(shared.load.prefix.clone());
        let one = Keys::One(shared.key(0));
        let watched = [(all(), first_revision), (all(), first_revision), (all(), 0), (one, first_revision)];
        let watchers = watched.into_iter().enumerate().map(|(number, (keys, from))| {
            let name = format!("w{}", number + 1);
            let watcher = Watcher::new(&shared, name, keys, from, Random::new(random.number()));
            tokio::spawn(watcher.run())
        });
        let watchers = watchers.collect();
        Recorder { shared, clients: spawned, watchers }
    }

    /// Requests that were answered so far.
    pub fn answered(&self) -> usize {
        let operations = self.shared.operations.lock().expect("nobody panics with the lock");
        operations.iter().filter(|operation| operation.answer().is_some()).count()
    }

    /// Ends the clients.
    pub async fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.await.expect("a client does not panic");
        }
    }

    /// Reads every key through every member, once the clients have stopped.
    pub async fn read_all(&self) {
        for member in 1..=self.shared.load.endpoints.len() {
            let mut reader = ClientOf::new(&self.shared, 0, Random::new(0));
            for number in 0..KEYS {
                reader.perform(member, Request::Get { key: self.shared.key(number) }).await;
            }
        }
    }

    /// Lets the watchers come to `end`, the store's last revision, and returns all that was written down.
    ///
    /// # Panics
    /// When a watcher does not come to the end.
    pub async fn finish(&mut self, end: i64) -> History {
        self.shared.end.store(end, Ordering::Relaxed);
        let past = Watcher::new(
            &self.shared,
            PAST.to_owned(),
            Keys::Prefix(self.shared.load.prefix.clone()),
            self.shared.load.first_revision,
            Random::new(1),
        );
        self.watchers.push(tokio::spawn(past.run()));
        let deadline = Deadline::after(END_WITHIN);
        for watcher in self.watchers.drain(..) {
            let ended = tokio::time::timeout(deadline.left(), watcher).await;
            let ended =
                ended.unwrap_or_else(|_| panic!("a watcher has not come to {end} in {} s", END_WITHIN.as_secs()));
            ended.expect("a watcher does not panic");
        }
        self.history()
    }

    fn history(&self) -> History {
        let mut operations = self.shared.operations.lock().expect("nobody panics with the lock").clone();
        operations.sort_by_key(|operation| operation.begun_us);
        let mut watchers = self.shared.notices.lock().expect("nobody panics with the lock").clone();
        let past = watchers.remove(PAST).unwrap_or_default().into_iter().flat_map(|notice| match notice {
            Notice::Events { events, .. } => events,
            Notice::Asks { .. } | Notice::Created { .. } | Notice::Progress { .. } | Notice::Lost { .. } => Vec::new(),
        });
        History { operations, past: past.collect(), watchers }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.history().save(&self.shared.load.saved_as);
            eprintln!("the history is in {}", self.shared.load.saved_as.display());
        }
    }
}

impl Shared {
    fn key(&self, number: u64) -> String {
        format!("{}{number}", self.load.prefix)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn note(&self, watcher: &str, notice: Notice) {
        let mut notices = self.notices.lock().expect("nobody panics with the lock");
        notices.entry(watcher.to_owned()).or_default().push(notice);
    }
}

/// One client of a round.
struct ClientOf {
    shared: Arc<Shared>,
    number: usize,
    random: Random,
    connections: Vec<Client>,
    /// The mod revisions that were last seen, for updates.
    revisions: HashMap<String, i64>,
    /// Values this client has used.
    values: u64,
}

impl ClientOf {
    fn new(shared: &Arc<Shared>, number: usize, random: Random) -> ClientOf {
        let connections = shared.load.endpoints.iter().map(|endpoint| Client::new(endpoint)).collect();
        ClientOf { shared: Arc::clone(shared), number, random, connections, revisions: HashMap::new(), values: 0 }
    }

    async fn run(mut self) {
        let members = u64::try_from(self.connections.len()).expect("a count fits");
        let own = 1 + (self.number / 2) % self.connections.len();
        while !self.shared.is_stopping() {
            let member = match self.number % 2 {
                0 => own,
                _ => usize::try_from(self.random.between(1, members)).expect("a count fits"),
            };
            let request = self.draw();
            let is_answered = self.perform(member, request).await;
            let pause = match is_answered {
                true => Duration::from_millis(self.random.below(PAUSE_MILLISECONDS_MAX)),
                false => FAILURE_PAUSE,
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn draw(&mut self) -> Request {
        let number = self.random.below(KEYS);
        let key = self.shared.key(number);
        match self.random.below(10) {
            0..4 => Request::Get { key },
            4..6 => Request::Put { pairs: vec![(key, self.value())] },
            6 => {
                let other = self.shared.key((number + 1) % KEYS);
                let value = self.value();
                Request::Put { pairs: vec![(key, value.clone()), (other, value)] }
            }
            7 => Request::Delete { key },
            _ => Request::Update { expected: self.revisions.get(&key).copied().unwrap_or(0), value: self.value(), key },
        }
    }

    fn value(&mut self) -> String {
        self.values += 1;
        format!("{}.{}", self.number, self.values)
    }

    /// Asks a member, numbered from 1, and writes down what it says. Returns whether it was answered.
    async fn perform(&mut self, member: usize, request: Request) -> bool {
        let client = self.connections[member - 1].clone();
        let begun_us = self.shared.clock.elapsed_us();
        let outcome = match tokio::time::timeout(CALL_MAX, ask(client, &request, self.shared.load.serializable)).await {
            Ok(Ok(answer)) => Outcome::Answered(answer),
            Ok(Err(status)) => outcome_of(&status),
            Err(_) => Outcome::Unknown("no answer in time".to_owned()),
        };
        let ended_us = self.shared.clock.elapsed_us();
        let operation = Operation { client: self.number, member, begun_us, ended_us, request, outcome };
        self.learn(&operation);
        let is_answered = operation.answer().is_some();
        self.shared.operations.lock().expect("nobody panics with the lock").push(operation);
        is_answered
    }

    fn learn(&mut self, operation: &Operation) {
        let Some(Answer { revision, wrote, seen }) = operation.answer() else { return };
        for (key, seen) in operation.request.keys().into_iter().zip(seen) {
            let held = match (wrote, &operation.request) {
                (true, Request::Delete { .. }) => 0,
                (true, _) => *revision,
                (false, _) => seen.as_ref().map_or(0, |seen| seen.mod_revision),
            };
            self.revisions.insert(key.to_owned(), held);
        }
    }
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        prev_kv: true,
        ..pb::PutRequest::default()
    }
}

fn range(key: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.to_owned().into(), ..pb::RangeRequest::default() }
}

async fn ask(mut client: Client, request: &Request, serializable: bool) -> Result<Answer, Status> {
    let revision = |header: Option<pb::ResponseHeader>| header.map_or(0, |header| header.revision);
    Ok(match request {
        Request::Get { key } => {
            let get = pb::RangeRequest { serializable, ..range(key) };
            let answer = client.kv.range(get).await?.into_inner();
            let seen = vec![answer.kvs.first().map(seen)];
            Answer { revision: revision(answer.header), wrote: false, seen }
        }
        Request::Delete { key } => {
            let delete =
                pb::DeleteRangeRequest { key: key.clone().into(), prev_kv: true, ..pb::DeleteRangeRequest::default() };
            let answer = client.kv.delete_range(delete).await?.into_inner();
            let seen = vec![answer.prev_kvs.first().map(seen)];
            Answer { revision: revision(answer.header), wrote: answer.deleted > 0, seen }
        }
        Request::Put { pairs } if pairs.len() == 1 => {
            let (key, value) = &pairs[0];
            let answer = client.kv.put(put(key, value)).await?.into_inner();
            let seen = vec![answer.prev_kv.as_ref().map(seen)];
            Answer { revision: revision(answer.header), wrote: true, seen }
        }
        Request::Put { .. } | Request::Update { .. } => {
            let answer = client.kv.txn(txn(request)).await?.into_inner();
            let seen = answer.responses.iter().map(|response| match &response.response {
                Some(OpAnswer::ResponsePut(put)) => put.prev_kv.as_ref().map(seen),
                Some(OpAnswer::ResponseRange(range)) => range.kvs.first().map(seen),
                Some(OpAnswer::ResponseDeleteRange(_) | OpAnswer::ResponseTxn(_)) | None => None,
            });
            Answer { revision: revision(answer.header), wrote: answer.succeeded, seen: seen.collect() }
        }
    })
}

/// The txn of several puts, or of an update.
fn txn(request: &Request) -> pb::TxnRequest {
    let effects = request.effects().into_iter();
    let puts = effects.map(|(key, value)| Op::RequestPut(put(key, value.expect("only a delete leaves nothing"))));
    let success = puts.map(|put| pb::RequestOp { request: Some(put) }).collect();
    let Request::Update { key, expected, .. } = request else {
        return pb::TxnRequest { success, ..pb::TxnRequest::default() };
    };
    let compare = pb::Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.clone().into(),
        target_union: Some(TargetUnion::ModRevision(*expected)),
        ..pb::Compare::default()
    };
    let failure = vec![pb::RequestOp { request: Some(Op::RequestRange(range(key))) }];
    pb::TxnRequest { compare: vec![compare], success, failure }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn seen(kv: &KeyValue) -> Seen {
    Seen { value: text(&kv.value), mod_revision: kv.mod_revision, version: kv.version }
}

/// What a failure says of whether the request was carried out.
fn outcome_of(status: &Status) -> Outcome {
    let words = format!("{:?} {}", status.code(), status.message()).replace('\n', " ");
    let is_unsent = words.contains("tcp connect error");
    match status.code() {
        // Refused before the log, or by the store without a change; a member that is down was sent nothing.
        Code::ResourceExhausted | Code::InvalidArgument | Code::OutOfRange | Code::FailedPrecondition => {
            Outcome::Refused(words)
        }
        _ if is_unsent => Outcome::Refused(words),
        _ => Outcome::Unknown(words),
    }
}

/// One watcher of a round.
struct Watcher {
    shared: Arc<Shared>,
    name: String,
    keys: Keys,
    /// The revision from which to ask next. 0: from now on.
    next: i64,
    random: Random,
}

/// Why a stream is left.
enum Left {
    Done,
    Because(String),
}

impl Watcher {
    fn new(shared: &Arc<Shared>, name: String, keys: Keys, next: i64, random: Random) -> Watcher {
        Watcher { shared: Arc::clone(shared), name, keys, next, random }
    }

    async fn run(mut self) {
        let members = u64::try_from(self.shared.load.endpoints.len()).expect("a count fits");
        // One that was told all before the end was known has nothing more to wait for.
        while self.next <= self.shared.end.load(Ordering::Relaxed) {
            let member = usize::try_from(self.random.between(1, members)).expect("a count fits");
            self.note(Notice::Asks { member, keys: self.keys.clone(), from: self.next });
            match self.stay(member).await {
                Left::Done => return,
                Left::Because(reason) => self.note(Notice::Lost { reason: reason.replace('\n', " ") }),
            }
            tokio::time::sleep(FAILURE_PAUSE).await;
        }
    }

    fn note(&self, notice: Notice) {
        self.shared.note(&self.name, notice);
    }

    /// Follows one stream of a member until it ends, falls silent, has been followed for long, or tells the last revision.
    async fn stay(&mut self, member: usize) -> Left {
        let mut client = Client::new(&self.shared.load.endpoints[member - 1]);
        let (asking, asked) = mpsc::channel(ASKED_MAX);
        let (key, range_end) = match &self.keys {
            Keys::One(key) => (key.clone(), String::new()),
            Keys::Prefix(prefix) => (prefix.clone(), end_of(prefix)),
        };
        let create = pb::WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            start_revision: self.next,
            ..pb::WatchCreateRequest::default()
        };
        let ask = |union| pb::WatchRequest { request_union: Some(union) };
        asking.try_send(ask(RequestUnion::CreateRequest(create))).expect("the queue is empty");
        let mut answers = match tokio::time::timeout(SILENCE_MAX, client.watch.watch(ReceiverStream::new(asked))).await
        {
            Ok(Ok(answers)) => answers.into_inner(),
            Ok(Err(status)) => return Left::Because(status.message().to_owned()),
            Err(_) => return Left::Because("no answer in time".to_owned()),
        };
        let leave = Deadline::after(Duration::from_millis(self.random.between(100, STAY_MILLISECONDS_MAX)));
        let mut silence = Deadline::after(SILENCE_MAX);
        let mut progress = tokio::time::interval(PROGRESS_EVERY);
        loop {
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        silence = Deadline::after(SILENCE_MAX);
                        if let Some(left) = self.take(&answer) {
                            return left;
                        }
                    }
                    Ok(None) => return Left::Because("the stream was closed".to_owned()),
                    Err(status) => return Left::Because(status.message().to_owned()),
                },
                // A member that takes no more requests is silent, and left for that.
                _ = progress.tick() => {
                    drop(asking.try_send(ask(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}))));
                }
            }
            if silence.has_passed() {
                return Left::Because("the stream is silent".to_owned());
            }
            if leave.has_passed() && self.shared.end.load(Ordering::Relaxed) == NO_END {
                return Left::Because("left at random".to_owned());
            }
        }
    }

    fn take(&mut self, answer: &pb::WatchResponse) -> Option<Left> {
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        if answer.canceled {
            return Some(Left::Because(format!("canceled: {}", answer.cancel_reason)));
        }
        if answer.created {
            self.note(Notice::Created { revision });
            // What comes from now on comes after this.
            self.next = if self.next == 0 { revision + 1 } else { self.next };
            return None;
        }
        let events: Vec<Event> = answer.events.iter().map(event).collect();
        let told = match events.last() {
            Some(last) => last.mod_revision,
            None => revision,
        };
        self.next = self.next.max(told + 1);
        self.note(match events.is_empty() {
            true => Notice::Progress { revision },
            false => Notice::Events { revision, events },
        });
        let end = self.shared.end.load(Ordering::Relaxed);
        (self.next > end).then_some(Left::Done)
    }
}

fn event(event: &mvccpb::Event) -> Event {
    let kv = event.kv.clone().unwrap_or_default();
    let is_delete = event.r#type() == mvccpb::event::EventType::Delete;
    Event {
        key: text(&kv.key),
        value: (!is_delete).then(|| text(&kv.value)),
        mod_revision: kv.mod_revision,
        version: kv.version,
    }
}

/// One past every key of a prefix that ends in `/`.
fn end_of(prefix: &str) -> String {
    let kept = prefix.strip_suffix('/').expect("a prefix ends in a slash");
    format!("{kept}0")
}
