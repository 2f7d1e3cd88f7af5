//! Random histories against a model that keeps every version in a map: reads at any revision, counts, the history,
//! hashes over restarts and compactions, and what is in use.

use std::collections::BTreeMap;

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng as _};
use std::ops::Bound;
use tempfile::TempDir;

use super::*;
use crate::mvcc::filter::Floor;
use crate::mvcc::query::{RangeQuery, Refusal};
use crate::mvcc::revision::Revision;
use crate::storage::{Space, Storage};

const STEPS: u32 = 700;
const KEYS: [&str; 8] = ["a", "a\0", "a\0b", "ab", "b", "c", "ca", "d"];

/// A version: value, or none for a tombstone; created, version.
type Stored = Option<(String, i64, i64)>;

#[derive(Default)]
struct Model {
    /// By key, versions by change id.
    versions: BTreeMap<String, BTreeMap<(i64, u32), Stored>>,
    revision: i64,
    compacted: i64,
}

impl Model {
    fn at(&self, key: &str, revision: i64) -> Option<KeyValue> {
        let (id, stored) = self.versions.get(key)?.range(..=(revision, u32::MAX)).next_back()?;
        let (value, created, version) = stored.clone()?;
        Some(KeyValue {
            key: key.to_owned().into(),
            value: value.into(),
            create_revision: created,
            mod_revision: id.0,
            version,
            lease: 0,
        })
    }

    fn range(&self, from: &str, to: &str, revision: i64) -> Vec<KeyValue> {
        self.versions
            .keys()
            .filter(|key| from <= key.as_str() && key.as_str() < to)
            .filter_map(|key| self.at(key, revision))
            .collect()
    }

    /// etcd's hash, the slow way: every record in revision order.
    fn hash(&self, at: i64) -> u32 {
        let visible: Vec<(i64, u32)> = self
            .versions
            .values()
            .filter_map(|versions| versions.range(..=(at, u32::MAX)).next_back())
            .filter(|(_, stored)| stored.is_some())
            .map(|(id, _)| *id)
            .collect();
        let mut records: BTreeMap<(i64, u32), (&String, &Stored)> = BTreeMap::new();
        for (key, versions) in &self.versions {
            for (id, stored) in versions.range(..=(at, u32::MAX)) {
                let left =
                    versions.range(..=(self.compacted, u32::MAX)).next_back().is_some_and(|(last, _)| last == id);
                let physically_there = id.0 > self.compacted || (left && (stored.is_some() || id.0 == self.compacted));
                if !physically_there && !visible.contains(id) {
                    continue;
                }
                if id.0 <= self.compacted && !visible.is_empty() && !visible.contains(id) {
                    continue;
                }
                if stored.is_none() && id.0 == self.compacted {
                    continue;
                }
                records.insert(*id, (key, stored));
            }
        }
        let mut bytes = b"key".to_vec();
        for ((main, sub), (key, stored)) in records {
            bytes.extend_from_slice(&main.to_be_bytes());
            bytes.push(b'_');
            bytes.extend_from_slice(&u64::from(sub).to_be_bytes());
            let mut kv = KeyValue { key: key.clone().into(), ..KeyValue::default() };
            match stored {
                Some((value, created, version)) => {
                    kv = KeyValue {
                        create_revision: *created,
                        mod_revision: main,
                        version: *version,
                        value: value.clone().into(),
                        ..kv
                    };
                }
                None => bytes.push(b't'),
            }
            kv.encode(&mut bytes).unwrap();
        }
        crc32c::crc32c(&bytes)
    }
}

struct Subject {
    dir: TempDir,
    open: Option<(Store, Writer)>,
    applied: AppliedMark,
}

impl Subject {
    fn new() -> Subject {
        let mut subject = Subject { dir: TempDir::new().unwrap(), open: None, applied: AppliedMark::default() };
        subject.reopen();
        subject
    }

    fn reopen(&mut self) {
        self.open = None;
        let floor = Floor::new();
        let storage = Storage::open(&self.dir.path().join("store"), floor.filters()).unwrap();
        let options = MvccOptions::new(self.dir.path().join("index"), 2);
        let (store, writer, applied) = super::open(storage, floor, options).unwrap();
        assert_eq!(applied, self.applied);
        self.open = Some((store, writer));
    }

    fn store(&self) -> &Store {
        &self.open.as_ref().unwrap().0
    }

    fn writer(&mut self) -> &mut Writer {
        &mut self.open.as_mut().unwrap().1
    }

    fn commit(&mut self) {
        self.applied.index += 1;
        let applied = self.applied;
        self.writer().commit(applied).unwrap();
    }
}

/// One request of a few writes, in the model and in the store.
fn write(random: &mut StdRng, model: &mut Model, subject: &mut Subject) {
    let mut txn = subject.writer().txn();
    let main = model.revision + 1;
    let mut sub = 0;
    for _ in 0..random.random_range(1..4) {
        let key = KEYS[random.random_range(0..KEYS.len())];
        // A request writes a key once: anything else is refused before it gets here.
        if model.versions.get(key).is_some_and(|versions| versions.keys().any(|id| id.0 == main)) {
            continue;
        }
        let before = model.at(key, main).map(|kv| (kv.create_revision, kv.version));
        if random.random_range(0..3) == 0 {
            let deleted = txn.delete_range(key.as_bytes(), b"");
            assert_eq!(deleted.len(), usize::from(before.is_some()));
            if before.is_some() {
                model.versions.entry(key.to_owned()).or_default().insert((main, sub), None);
                sub += 1;
            }
        } else {
            let value = format!("{}", random.next_u32() % 1_000);
            txn.put(Bytes::from_static(key.as_bytes()), value.clone().into(), 0);
            let (created, version) = before.map_or((main, 1), |(created, version)| (created, version + 1));
            model.versions.entry(key.to_owned()).or_default().insert((main, sub), Some((value, created, version)));
            sub += 1;
        }
    }
    txn.finish();
    if sub > 0 {
        model.revision = main;
    }
}

fn check_reads(random: &mut StdRng, model: &Model, subject: &Subject) {
    let revision = random.random_range(model.compacted.max(1) - 1..=model.revision + 1);
    let (from, to) = [("a", "z"), ("a", "b"), ("a\0", "c"), ("c", "a")][random.random_range(0..4)];
    let limit = random.random_range(0..4);
    let count_only = random.random_range(0..4) == 0;
    let query =
        RangeQuery { key: from.into(), range_end: to.into(), revision, limit, count_only, ..RangeQuery::default() };
    let answer = subject.store().range(&query);
    match answer {
        Err(ReadError::Refused(Refusal::Future { .. })) => assert!(revision > model.revision),
        Err(ReadError::Refused(Refusal::Compacted { .. })) => assert!(revision < model.compacted),
        Err(error @ (ReadError::Large | ReadError::Storage(_))) => panic!("{error}"),
        Ok(answer) => {
            let at = if revision <= 0 { model.revision } else { revision };
            let expected = model.range(from, to, at);
            assert_eq!(answer.count, i64::try_from(expected.len()).unwrap(), "count of {from}..{to} at {at}");
            if count_only {
                assert_eq!((answer.kvs.len(), answer.more), (0, false));
                return;
            }
            let shown = if limit > 0 { expected.len().min(usize::try_from(limit).unwrap()) } else { expected.len() };
            assert_eq!(answer.kvs, expected[..shown], "{from}..{to} at {at}");
            assert_eq!(answer.more, shown < expected.len());
        }
    }
}

fn check_history(random: &mut StdRng, model: &Model, subject: &Subject) {
    let from = model.compacted.max(1);
    let mut any_limit = || [1, 7, 1 << 20][random.random_range(0..3)];
    let limit = HistoryLimit { revisions_max: any_limit(), bytes_max: any_limit(), rows_max: any_limit() };
    let (mut changes, mut next) = (Vec::new(), Revision(from));
    while next.0 <= model.revision {
        let portion = subject.store().history(next, Revision(i64::MAX - 1), limit, &mut |_| true).unwrap();
        assert!(portion.next > next, "{next}");
        changes.extend(portion.changes);
        next = portion.next;
    }
    let found: Vec<(i64, u32, String, bool)> = changes
        .iter()
        .map(|change| {
            let key = String::from_utf8(change.kv.key.to_vec()).unwrap();
            (change.id.main.0, change.id.sub, key, change.kind == query::ChangeKind::Put)
        })
        .collect();
    let mut expected: Vec<(i64, u32, String, bool)> = Vec::new();
    for (key, versions) in &model.versions {
        for ((main, sub), stored) in versions.range((from, 0)..) {
            // At the compacted revision itself only what the compaction left can be asked for.
            expected.push((*main, *sub, key.clone(), stored.is_some()));
        }
    }
    expected.sort();
    assert_eq!(found, expected);
}

/// Bytes of the rows that are still needed, counted one by one.
fn bytes_in_use(model: &Model, subject: &Subject) -> u64 {
    let view = subject.store().0.storage.view();
    let mut bytes = 0;
    for found in view.scan(Space::Kv, (Bound::Unbounded, Bound::Unbounded)) {
        let (row_key, value) = found.unwrap();
        let (prefix, id) = row::split_kv_key(&row_key).unwrap();
        let key = String::from_utf8(row::unescape(prefix)).unwrap();
        let versions = &model.versions[&key];
        let needed = id.main.0 > model.compacted
            || versions.range(..=(model.compacted, u32::MAX)).next_back().is_some_and(|(last, stored)| {
                (last.0, last.1) == (id.main.0, id.sub) && (stored.is_some() || last.0 == model.compacted)
            });
        if needed {
            bytes += (row_key.len() + value.len()) as u64;
        }
    }
    bytes
}

fn step(random: &mut StdRng, model: &mut Model, subject: &mut Subject) {
    match random.random_range(0..100) {
        0..55 => {
            for _ in 0..random.random_range(1..4) {
                write(random, model, subject);
            }
            subject.commit();
        }
        55..80 => check_reads(random, model, subject),
        80..84 => {
            let to = random.random_range(model.compacted.max(0)..=model.revision + 1);
            let result = subject.writer().compact(Revision(to));
            assert_eq!(result.is_ok(), to > model.compacted && to <= model.revision);
            if result.is_ok() {
                model.compacted = to;
            }
            subject.commit();
        }
        84..88 => {
            if random.random_range(0..3) == 0 {
                cut_compaction(random.random_range(0..4), model, subject);
            }
            subject.store().compact_physically(Revision(model.compacted), &mut || {}).unwrap();
            let in_use = subject.store().sizes().in_use_bytes - subject_fixed(subject);
            assert_eq!(in_use, bytes_in_use(model, subject), "bytes in use, compacted to {}", model.compacted);
        }
        88..90 => subject.store().defragment().unwrap(),
        90..92 => subject.store().0.storage.nudge().unwrap(),
        92..94 => subject.store().dump_index().unwrap(),
        94..97 => {
            let at = random.random_range(model.compacted.max(1)..=model.revision);
            if subject.store().0.compaction_hashes.read().iter().all(|stored| stored.hash_revision != at) {
                assert_eq!(subject.store().hash(at).unwrap().hash, model.hash(at), "hash at {at}");
            }
        }
        97 => check_history(random, model, subject),
        _ => {
            if random.random_range(0..2) == 0 {
                std::fs::remove_file(subject.dir.path().join("index")).ok();
            }
            subject.reopen();
            assert_eq!(subject.store().revision().0, model.revision);
        }
    }
}

/// Carries the compaction out up to some batch, as a crash would.
fn cut_compaction(batches: u32, model: &Model, subject: &mut Subject) {
    let store = subject.store().clone();
    let mut left = batches;
    let mut pause = || match left.checked_sub(1) {
        Some(fewer) => left = fewer,
        // A panic that says nothing.
        None => std::panic::resume_unwind(Box::new(())),
    };
    let pass = std::panic::AssertUnwindSafe(|| store.compact_physically(Revision(model.compacted), &mut pause).is_ok());
    assert_ne!(std::panic::catch_unwind(pass).ok(), Some(false));
    drop(store);
    subject.reopen();
}

/// What `sizes` adds for the fixed rows.
fn subject_fixed(subject: &Subject) -> u64 {
    let inner = &subject.store().0;
    let rows = inner.written_bytes.load(std::sync::atomic::Ordering::Acquire)
        - inner.freed_bytes.load(std::sync::atomic::Ordering::Acquire);
    subject.store().sizes().in_use_bytes - rows
}

#[test]
fn random_histories_are_those_of_the_model() {
    for seed in 0..6_u64 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut model = Model { revision: 1, compacted: -1, ..Model::default() };
        let mut subject = Subject::new();
        for _ in 0..STEPS {
            step(&mut random, &mut model, &mut subject);
        }
    }
}
