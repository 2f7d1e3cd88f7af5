//! Watchers that count and time what reaches them, and a writer that keeps just ahead of them.
//!
//! The writer sends a put once few of its puts ([`Audience::ahead_max`]) have not reached every watcher: the row measures
//! delivery, and a backlog that grows for as long as the row runs would measure its length. Each value begins with the
//! time of its put, so latency is from the put's sending to the event's arrival.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hdrhistogram::Histogram;
use kuorum_proto::etcdserverpb::watch_request::RequestUnion;
use kuorum_proto::etcdserverpb::{PutRequest, WatchCreateRequest, WatchRequest};
use kuorum_tests::random::Random;
use prost::Message as _;
use tokio::sync::Notify;

use super::clock::now;
use super::load::{Connection, Run, block_on, new_histogram};
use super::process::{Mark, Process, Taken, resident_bytes};
use super::wire::Said;
use super::workloads::{Keys, PUT, Source};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// Watchers of one stream, and streams of one connection (etcd's benchmark: many watchers share a stream).
const WATCHERS_PER_STREAM: usize = 10;
const STREAMS_PER_CONNECTION: usize = 10;
/// Puts that may be on their way to watchers: of those that reach all of them, and of those that reach one.
const AHEAD_OF_ALL_MAX: u64 = 32;
const AHEAD_OF_ONE_MAX: u64 = 256;
/// No watcher is created or reached for so long: the server hangs.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Fields of WatchResponse, Event and KeyValue.
const FIELD_CREATED: u64 = 3;
const FIELD_CANCELED: u64 = 4;
const FIELD_EVENTS: u64 = 11;
const FIELD_EVENT_KV: u64 = 2;
const FIELD_KV_VALUE: u64 = 5;
/// Bytes of the time at the beginning of a value.
const TIME_BYTES: usize = 8;

/// Who watches what.
#[derive(Clone, Copy)]
pub(crate) struct Audience {
    pub(crate) watchers: usize,
    /// Each watches a key of its own, rather than all of them the prefix.
    pub(crate) own_keys: bool,
    pub(crate) keys: Keys,
}

impl Audience {
    fn ahead_max(self) -> u64 {
        if self.own_keys { AHEAD_OF_ONE_MAX } else { AHEAD_OF_ALL_MAX }
    }

    /// Watchers that one put reaches.
    fn reach(self) -> u64 {
        if self.own_keys { 1 } else { u64::try_from(self.watchers).expect("a count fits") }
    }

    fn request(self, watcher: usize) -> Vec<u8> {
        let (key, range_end) = match self.own_keys {
            true => (self.keys.key(u64::try_from(watcher).expect("a count fits")), Bytes::new()),
            false => (Bytes::from(self.keys.prefix), self.keys.end()),
        };
        let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }.encode_to_vec()
    }
}

struct Shared {
    start: Instant,
    created: usize,
    /// Events since the beginning, and while it counts.
    delivered: u64,
    counted: u64,
    counting: bool,
    stopping: bool,
    latency_us: Histogram<u64>,
    last_event: Instant,
    pause: Duration,
}

/// Delivers for `measured` after `warm_up`. A call of the result is an event delivered.
pub(crate) fn run(
    endpoint: &str,
    process: Process,
    audience: Audience,
    source: &mut Source,
    warm_up: Duration,
    measured: Duration,
) -> Result<Run, String> {
    let shared = RefCell::new(Shared {
        start: now(),
        created: 0,
        delivered: 0,
        counted: 0,
        counting: false,
        stopping: false,
        latency_us: new_histogram(),
        last_event: now(),
        pause: Duration::ZERO,
    });
    let progress = Notify::new();
    let per_connection = WATCHERS_PER_STREAM * STREAMS_PER_CONNECTION;
    let taken = block_on(async {
        let watching = (0..audience.watchers).step_by(per_connection).map(|first| {
            let last = audience.watchers.min(first + per_connection);
            watch(endpoint, audience, first..last, &shared, &progress)
        });
        let watching = futures::future::try_join_all(watching);
        let conduct = async {
            while shared.borrow().created < audience.watchers {
                heard(&progress).await?;
            }
            let (_, taken) = futures::future::try_join(
                write(endpoint, audience, source, &shared, &progress),
                conduct(process, &shared, warm_up, measured),
            )
            .await?;
            Ok::<Taken, String>(taken)
        };
        tokio::select! {
            taken = conduct => taken,
            ended = watching => Err(ended.err().unwrap_or_else(|| "the watchers ended".into())),
        }
    })?;
    let shared = shared.into_inner();
    Ok(Run {
        calls: shared.counted,
        taken,
        latency_us: shared.latency_us,
        pause: shared.pause,
        resident_bytes: resident_bytes(&[process]),
    })
}

async fn heard(progress: &Notify) -> Result<(), String> {
    let heard = tokio::time::timeout(SILENCE_MAX, progress.notified());
    heard.await.map_err(|_| format!("nothing reached a watcher within {} s", SILENCE_MAX.as_secs()))
}

async fn conduct(
    process: Process,
    shared: &RefCell<Shared>,
    warm_up: Duration,
    measured: Duration,
) -> Result<Taken, String> {
    tokio::time::sleep(warm_up).await;
    let mark = Mark::new(&[process]);
    {
        let mut shared = shared.borrow_mut();
        shared.counting = true;
        shared.last_event = now();
    }
    tokio::time::sleep(measured).await;
    let mut shared = shared.borrow_mut();
    (shared.counting, shared.stopping) = (false, true);
    Ok(mark.taken(&[process]))
}

/// The watchers of one connection.
async fn watch(
    endpoint: &str,
    audience: Audience,
    watchers: std::ops::Range<usize>,
    shared: &RefCell<Shared>,
    progress: &Notify,
) -> Result<(), String> {
    let mut connection = Connection::open(endpoint).await?;
    let mut stream = 0;
    for (number, watcher) in watchers.enumerate() {
        let request = audience.request(watcher);
        match number % WATCHERS_PER_STREAM {
            0 => stream = connection.wire.call(WATCH, &request, false),
            _ => connection.wire.send(stream, &request, false),
        }
    }
    loop {
        connection.flush().await?;
        connection.read().await?;
        let shared = &mut *shared.borrow_mut();
        let now = now();
        let mut problem = Ok(());
        connection.wire.hear(|said| match said {
            Said::Message { message, .. } => {
                if let Err(cause) = shared.hear(message, now) {
                    problem = Err(cause);
                }
            }
            Said::End { .. } => problem = Err("a watch ended".into()),
        })?;
        problem?;
        progress.notify_one();
    }
}

impl Shared {
    /// Looks at a WatchResponse. Field by field, since decoding it whole would cost more than serving it.
    fn hear(&mut self, message: &[u8], now: Instant) -> Result<(), String> {
        for field in Fields(message) {
            match field? {
                (FIELD_CREATED, Value::Number(1)) => self.created += 1,
                (FIELD_CANCELED, Value::Number(1)) => return Err("a watcher was canceled".into()),
                (FIELD_EVENTS, Value::Bytes(event)) => self.event(event, now)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &[u8], now: Instant) -> Result<(), String> {
        self.delivered += 1;
        if !self.counting {
            return Ok(());
        }
        self.counted += 1;
        self.pause = self.pause.max(now - self.last_event);
        self.last_event = now;
        let kv = bytes_of(event, FIELD_EVENT_KV)?;
        let sent = bytes_of(kv, FIELD_KV_VALUE)?.first_chunk::<TIME_BYTES>().ok_or("an event without a time")?;
        let micros = u64::try_from((now - self.start).as_micros()).unwrap_or(u64::MAX);
        self.latency_us.saturating_record(micros.saturating_sub(u64::from_be_bytes(*sent)));
        Ok(())
    }
}

/// The fields of one protobuf message, one after the other.
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        (!self.0.is_empty()).then(|| self.field().ok_or_else(|| "a message that is no protobuf".to_owned()))
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

fn bytes_of(message: &[u8], wanted: u64) -> Result<&[u8], String> {
    for field in Fields(message) {
        if let (number, Value::Bytes(bytes)) = field?
            && number == wanted
        {
            return Ok(bytes);
        }
    }
    Err(format!("a message without field {wanted}"))
}

/// Puts, never far ahead of the watchers, until the measurement is over and all is delivered.
async fn write(
    endpoint: &str,
    audience: Audience,
    source: &mut Source,
    shared: &RefCell<Shared>,
    progress: &Notify,
) -> Result<(), String> {
    let mut connection = Connection::open(endpoint).await?;
    let already = shared.borrow().delivered;
    let mut sent = 0;
    let mut answered = 0;
    loop {
        let (delivered, stopping) = (shared.borrow().delivered - already, shared.borrow().stopping);
        let arrived = delivered / audience.reach();
        if stopping && arrived == sent && answered == sent {
            return Ok(());
        }
        while !stopping && sent - arrived.min(answered) < audience.ahead_max() {
            let micros = shared.borrow().start.elapsed().as_micros();
            connection.wire.call(PUT, &put(audience, source, u64::try_from(micros).unwrap_or(u64::MAX)), true);
            sent += 1;
        }
        connection.flush().await?;
        tokio::select! {
            read = connection.read() => read?,
            heard = heard(progress) => heard?,
        }
        let mut refused = false;
        connection.wire.hear(|said| {
            if let Said::End { messages, .. } = said {
                answered += 1;
                refused |= messages == 0;
            }
        })?;
        if refused {
            return Err("a put was refused".into());
        }
    }
}

fn put(audience: Audience, source: &mut Source, micros: u64) -> Vec<u8> {
    let Audience { watchers, own_keys, keys } = audience;
    let among = if own_keys { u64::try_from(watchers).expect("a count fits") } else { keys.count };
    let random: &mut Random = &mut source.random;
    let key = keys.key(random.below(among));
    let mut value = source.values.draw(random).to_vec();
    value[..TIME_BYTES].copy_from_slice(&micros.to_be_bytes());
    PutRequest { key, value: value.into(), ..PutRequest::default() }.encode_to_vec()
}
