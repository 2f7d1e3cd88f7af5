//! Random writes against random watchers: each must see the model's history, in order, whole revisions, nothing twice,
//! and no progress notice ahead of an event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt as _;
use kuorum_proto::etcdserverpb::{WatchCreateRequest, WatchResponse, watch_create_request::FilterType};
use kuorum_proto::mvccpb::{self, event::EventType};
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

use super::Options;
use super::core::{Core, Event};
use super::outbox::Outbox;
use crate::cluster::{ClusterId, Facts, MemberId};
use crate::mvcc::filter::Floor;
use crate::mvcc::revision::Revision;
use crate::mvcc::{self, AppliedMark, Committed, MvccOptions, Store, Writer};
use crate::storage::Storage;

const SEEDS: u64 = 30;
const STEPS: usize = 400;
const STREAMS: u64 = 3;

pub(super) const OPTIONS: Options = Options {
    fragment_bytes: 200,
    progress_interval_ms: 1_000,
    feed_bytes_max: 1 << 20,
    recent_bytes_max: 1 << 20,
    stream_bytes_max: 1 << 20,
};

/// A change as the model knows it: revision, key, value or `None` for a delete, value before.
#[derive(Clone, PartialEq, Debug)]
struct Change {
    revision: i64,
    key: String,
    value: Option<String>,
    before: Option<String>,
}

/// What a watcher asked for and how far it has come.
#[derive(Clone, Debug)]
struct Watching {
    request: WatchCreateRequest,
    /// The first revision it is to see; known once the watcher is created.
    start: i64,
    /// Changes of the model that were looked at already.
    seen: usize,
    fragments_open: bool,
}

impl Watching {
    fn wants(&self, change: &Change) -> bool {
        let (key, end) = (&self.request.key[..], &self.request.range_end[..]);
        let own = if end.is_empty() {
            change.key.as_bytes() == key
        } else {
            change.key.as_bytes() >= key && (end == [0] || change.key.as_bytes() < end)
        };
        let filter = if change.value.is_some() { FilterType::Noput } else { FilterType::Nodelete };
        own && change.revision >= self.start && !self.request.filters.contains(&i32::from(filter))
    }

    /// The next change that it has to be told of.
    fn next<'a>(&self, history: &'a [Change]) -> Option<(usize, &'a Change)> {
        history.iter().enumerate().skip(self.seen).find(|(_, change)| self.wants(change))
    }
}

/// A watch core over a real store, driven by hand.
struct Harness {
    store: Store,
    writer: Writer,
    core: Core,
    options: Options,
    outboxes: BTreeMap<u64, Outbox>,
    applied: AppliedMark,
    _directory: TempDir,
}

impl Harness {
    fn new(options: Options) -> Harness {
        let directory = TempDir::new().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&directory.path().join("store"), floor.filters()).unwrap();
        let mvcc_options = MvccOptions::new(directory.path().join("index"), 100);
        let (store, writer, applied) = mvcc::open(storage, floor, mvcc_options).unwrap();
        let facts = Arc::new(Facts::new(ClusterId(1), MemberId(2)));
        let core = Core::new(store.clone(), facts, options);
        Harness { store, writer, core, options, outboxes: BTreeMap::new(), applied, _directory: directory }
    }

    fn open(&mut self, stream: u64) {
        let outbox = Outbox::default();
        self.outboxes.insert(stream, outbox.clone());
        self.core.handle(Event::Open { stream, outbox });
    }

    /// Commits what the writer has done and tells the core, of the changes or only that there were some.
    fn commit(&mut self, pass_on: bool) {
        self.applied.index += 1;
        let Committed { revision, compacted, changes } = self.writer.commit(self.applied).unwrap();
        self.core.handle(if pass_on {
            Event::Published { revision, compacted, changes }
        } else {
            Event::Skipped { revision, compacted }
        });
    }

    fn compact(&mut self, to: Revision) {
        self.writer.compact(to).unwrap();
        self.commit(true);
    }

    /// Carries the compaction out on disk, which takes its time.
    fn compact_physically(&mut self) {
        self.store.compact_physically(self.store.compacted(), &mut || {}).unwrap();
    }

    /// The client reads one response, as `WatchResponses::next` does.
    fn read(&mut self, stream: u64) -> Option<WatchResponse> {
        let (response, waiting) = self.outboxes[&stream].next().now_or_never().flatten()?;
        let resume_bytes = self.options.stream_bytes_max / 2;
        if waiting <= resume_bytes && waiting + response.len() > resume_bytes {
            self.core.handle(Event::Drained { stream });
        }
        Some(WatchResponse::decode(response).unwrap())
    }
}

struct World {
    seed: u64,
    random: StdRng,
    harness: Harness,
    history: Vec<Change>,
    now: BTreeMap<String, String>,
    revision: i64,
    compacted: i64,
    /// Created, in the order of the requests; their responses are still to come.
    asked: BTreeMap<u64, Vec<Watching>>,
    watching: BTreeMap<(u64, i64), Watching>,
    events: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        let options = Options {
            recent_bytes_max: [0, 400, 5_000, 1 << 20][random.random_range(0..4)],
            stream_bytes_max: [0, 300, 2_000, 1 << 20][random.random_range(0..4)],
            ..OPTIONS
        };
        let mut harness = Harness::new(options);
        (0..STREAMS).for_each(|stream| harness.open(stream));
        World {
            seed,
            random,
            harness,
            history: Vec::new(),
            now: BTreeMap::new(),
            revision: 1,
            compacted: -1,
            asked: BTreeMap::new(),
            watching: BTreeMap::new(),
            events: 0,
        }
    }

    fn key(&mut self) -> String {
        ["a", "b", "c", "d", "e", "f"][self.random.random_range(0..6)].to_owned()
    }

    /// One to three requests in one batch, each of one to three writes of different keys.
    fn write(&mut self) {
        for _ in 0..self.random.random_range(1..=3) {
            let keys: BTreeSet<String> = (0..self.random.random_range(1..=3)).map(|_| self.key()).collect();
            let revision = self.revision + 1;
            let mut txn = self.harness.writer.txn();
            for key in keys {
                let before = self.now.get(&key).cloned();
                let value = self.random.random_bool(0.7).then(|| format!("{key}{revision}"));
                match &value {
                    Some(value) => {
                        txn.put(key.clone().into(), value.clone().into(), 0);
                        self.now.insert(key.clone(), value.clone());
                    }
                    None if before.is_none() => continue,
                    None => {
                        txn.delete_range(key.as_bytes(), b"");
                        self.now.remove(&key);
                    }
                }
                self.revision = revision;
                self.history.push(Change { revision, key, value, before });
            }
            txn.finish();
        }
        let pass_on = self.random.random_bool(0.9);
        self.harness.commit(pass_on);
    }

    fn create(&mut self) {
        let stream = self.random.random_range(0..STREAMS);
        let mut request = WatchCreateRequest { key: self.key().into(), ..WatchCreateRequest::default() };
        match self.random.random_range(0..4) {
            0 => request.range_end = "\0".into(),
            1 => request.range_end = "g".into(),
            _ => {}
        }
        request.start_revision = match self.random.random_range(0..4) {
            0 => 0,
            1 => self.revision + self.random.random_range(1..5),
            _ => self.random.random_range(1..=self.revision),
        };
        for filter in [FilterType::Noput, FilterType::Nodelete] {
            if self.random.random_bool(0.15) {
                request.filters.push(filter.into());
            }
        }
        request.prev_kv = self.random.random_bool(0.4);
        request.progress_notify = self.random.random_bool(0.4);
        request.fragment = self.random.random_bool(0.3);
        let watching =
            Watching { request: request.clone(), start: request.start_revision, seen: 0, fragments_open: false };
        self.asked.entry(stream).or_default().push(watching);
        self.harness.core.handle(Event::Create { stream, request });
    }

    fn compact(&mut self) {
        if self.compacted < self.revision {
            let to = self.random.random_range(self.compacted.max(0) + 1..=self.revision);
            self.compacted = to;
            self.harness.compact(Revision(to));
            if self.random.random_bool(0.2) {
                self.harness.compact_physically();
            }
        }
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..40 => self.write(),
            40..50 => self.create(),
            50..52 => self.compact(),
            52..55 => {
                let chosen = self.random.random_range(0..self.watching.len().max(1));
                if let Some((stream, id)) = self.watching.keys().nth(chosen).copied() {
                    self.harness.core.handle(Event::Cancel { stream, id });
                }
            }
            55..60 => {
                let stream = self.random.random_range(0..STREAMS);
                self.harness.core.handle(Event::Progress { stream });
            }
            60..65 => {
                let now_ms = u64::try_from(self.revision).unwrap() * 300;
                self.harness.core.handle(Event::Tick { now_ms });
            }
            65..80 => drop(self.harness.core.catch_up()),
            _ => {
                let stream = self.random.random_range(0..STREAMS);
                for _ in 0..self.random.random_range(1..20) {
                    let Some(response) = self.harness.read(stream) else { break };
                    self.check(stream, &response);
                }
            }
        }
    }

    fn check(&mut self, stream: u64, response: &WatchResponse) {
        let seed = self.seed;
        let revision = response.header.unwrap().revision;
        if response.created {
            assert!(!response.canceled, "seed {seed}: {response:?}");
            let mut watching = self.asked.get_mut(&stream).unwrap().remove(0);
            if watching.start == 0 {
                watching.start = revision + 1;
            }
            let known = self.watching.insert((stream, response.watch_id), watching);
            assert!(known.is_none(), "seed {seed}: id {} is given twice", response.watch_id);
            return;
        }
        if response.canceled {
            let Some(watching) = self.watching.remove(&(stream, response.watch_id)) else {
                // Cancelled by a compaction first and by its client then.
                return;
            };
            if response.compact_revision != 0 {
                let needed =
                    watching.start.max(watching.seen.checked_sub(1).map_or(0, |last| self.history[last].revision + 1));
                assert!(needed < response.compact_revision, "seed {seed}: {watching:?} needs nothing before {needed}");
            }
            return;
        }
        if response.events.is_empty() {
            for ((of, id), watching) in &self.watching {
                if *of == stream && (response.watch_id == -1 || response.watch_id == *id) {
                    let next = watching.next(&self.history).map(|(_, change)| change);
                    let late = next.is_none_or(|next| next.revision > revision);
                    assert!(late, "seed {seed}: progress to {revision} of {watching:?} overtakes {next:?}");
                }
            }
            return;
        }
        let mut watching = self.watching[&(stream, response.watch_id)].clone();
        for event in &response.events {
            self.check_event(&mut watching, event);
        }
        let last = self.history[watching.seen - 1].revision;
        assert!(last <= revision, "seed {seed}: an event of {last} in a response of {revision}");
        let cut = watching.next(&self.history).is_some_and(|(_, next)| next.revision == last);
        assert!(!cut || response.fragment, "seed {seed}: revision {last} is cut for {watching:?}");
        assert!(watching.request.fragment || !response.fragment, "seed {seed}: a fragment nobody asked for");
        watching.fragments_open = response.fragment;
        self.watching.insert((stream, response.watch_id), watching);
    }

    fn check_event(&mut self, watching: &mut Watching, event: &mvccpb::Event) {
        let seed = self.seed;
        let Some((place, change)) = watching.next(&self.history) else {
            panic!("seed {seed}: {watching:?} is told of {event:?}, which it must not see");
        };
        let kv = event.kv.as_ref().unwrap();
        let value = (event.r#type() == EventType::Put).then(|| String::from_utf8(kv.value.to_vec()).unwrap());
        let told = (kv.mod_revision, &kv.key[..], value);
        assert_eq!(told, (change.revision, change.key.as_bytes(), change.value.clone()), "seed {seed}: {watching:?}");
        match event.prev_kv.as_ref().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap()) {
            Some(before) => {
                assert!(watching.request.prev_kv, "seed {seed}: a previous version nobody asked for");
                assert_eq!(Some(before), change.before, "seed {seed}: {change:?}");
            }
            None => {
                let compacted = change.revision - 1 < self.compacted;
                let none = !watching.request.prev_kv || change.before.is_none() || compacted;
                assert!(none, "seed {seed}: the version before {change:?} is missing");
            }
        }
        watching.seen = place + 1;
        self.events += 1;
    }

    /// Every client reads everything; whoever was not cancelled has seen it all.
    fn finish(mut self) -> usize {
        for round in 0.. {
            assert!(round < 100_000, "seed {}: no end of catching up", self.seed);
            let mut idle = !self.harness.core.catch_up();
            for stream in 0..STREAMS {
                while let Some(response) = self.harness.read(stream) {
                    idle = false;
                    self.check(stream, &response);
                }
            }
            if idle {
                break;
            }
        }
        for (id, watching) in &self.watching {
            let missed = watching.next(&self.history);
            assert!(missed.is_none(), "seed {}: {id:?} {watching:?} was never told of {missed:?}", self.seed);
            assert!(!watching.fragments_open, "seed {}: {id:?} waits for a last fragment", self.seed);
        }
        assert!(self.asked.values().all(Vec::is_empty), "seed {}: a request without a response", self.seed);
        self.events
    }
}

#[test]
fn every_watcher_sees_exactly_its_part_of_the_history() {
    let mut events = 0;
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        events += world.finish();
    }
    assert!(events > 10_000, "only {events} events were looked at");
}
