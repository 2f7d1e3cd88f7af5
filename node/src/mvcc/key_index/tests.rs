use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::*;
use crate::mvcc::revision::{ChangeId, Revision};

type Model = BTreeMap<Vec<u8>, KeyState>;

impl KeyIndex {
    /// Checks every invariant of the tree.
    pub(super) fn check(&self) {
        assert_eq!(self.root.count(), self.len);
        if self.len > 0 {
            self.root.check();
        }
    }
}

fn state(seed: i64) -> KeyState {
    let modified = ChangeId { main: Revision(seed), sub: u32::try_from(seed % 3).unwrap() };
    let lease = if seed % 5 == 0 { seed << 32 } else { 0 };
    let created = Revision(seed - seed % 1000);
    KeyState { modified, created, version: 1 + seed % 7, lease, row_bytes: 200 }
}

fn fresh(main: i64) -> KeyState {
    let modified = ChangeId { main: Revision(main), sub: 0 };
    KeyState { modified, created: modified.main, version: 1, lease: 0, row_bytes: 300 }
}

fn contents(index: &KeyIndex, range: KeyRange<'_>) -> Vec<(Vec<u8>, KeyState)> {
    let mut contents = Vec::new();
    index.visit(range, |key, state| {
        contents.push((key.to_vec(), *state));
        ControlFlow::Continue(())
    });
    contents
}

fn check_range(index: &KeyIndex, model: &Model, range: KeyRange<'_>) {
    let expected: Vec<_> = if range.is_empty() {
        Vec::new()
    } else {
        let in_range = model.range::<[u8], _>((Bound::Included(range.start()), range.end()));
        in_range.map(|(key, state)| (key.clone(), *state)).collect()
    };
    assert_eq!(index.count(range), expected.len(), "{range:?}");
    assert!(contents(index, range) == expected, "{range:?}");
}

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>, i64),
    Remove(Vec<u8>),
    /// Removes every key in a span.
    Clear(Vec<u8>, Vec<u8>),
    Range(Vec<u8>, Vec<u8>),
}

/// Runs `ops` on an index and on a map, and compares what they answer.
fn check(ops: Vec<Op>) {
    let (mut index, mut model) = (KeyIndex::new(), Model::new());
    for (number, op) in ops.into_iter().enumerate() {
        match op {
            Op::Insert(key, seed) => {
                let previous = index.insert(&key, state(seed));
                assert_eq!(previous, model.insert(key.clone(), state(seed)));
                assert_eq!(index.get(&key), Some(state(seed)));
            }
            Op::Remove(key) => {
                assert_eq!(index.remove(&key), model.remove(&key));
                assert_eq!(index.get(&key), None);
            }
            Op::Clear(start, end) => {
                for (key, state) in contents(&index, KeyRange::Span(&start, &end)) {
                    assert_eq!(index.remove(&key), Some(state));
                    assert_eq!(model.remove(&key), Some(state));
                }
            }
            Op::Range(start, end) => {
                check_range(&index, &model, KeyRange::Span(&start, &end));
                check_range(&index, &model, KeyRange::From(&start));
                check_range(&index, &model, KeyRange::One(&end));
            }
        }
        if number % 64 == 0 {
            index.check();
        }
    }
    index.check();
    assert_eq!(index.len(), model.len());
    check_range(&index, &model, KeyRange::ALL);
    let rebuilt = KeyIndex::bulk_build(model.iter().map(|(key, state)| (key, *state)));
    rebuilt.check();
    check_range(&rebuilt, &model, KeyRange::ALL);
    for key in model.keys() {
        assert_eq!(index.remove(key), rebuilt.get(key));
    }
    index.check();
    assert_eq!((index.len(), index.resident_bytes()), (0, KeyIndex::new().resident_bytes()));
}

/// Keys that meet often and share much or nothing, from empty to larger than several pages.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let binary = prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 0..4);
    let path = (0..4_u8, 0..600_u16).prop_map(|(a, b)| format!("/registry/pods/ns-{a}/pod-{b:05}").into_bytes());
    let long_prefix =
        (0..3_usize, 0..400_u16).prop_map(|(a, b)| [vec![b'p'; 300 * a], b.to_be_bytes().to_vec()].concat());
    let huge = (0..6_u8, 1..61_440_usize).prop_map(|(a, len)| [vec![b'h', a], vec![a; len]].concat());
    prop_oneof![3 => binary, 12 => path, 6 => long_prefix, 1 => huge]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        60 => (key(), 1..1_i64 << 40).prop_map(|(key, seed)| Op::Insert(key, seed)),
        20 => key().prop_map(Op::Remove),
        1 => (key(), key()).prop_map(|(start, end)| Op::Clear(start, end)),
        8 => (key(), key()).prop_map(|(start, end)| Op::Range(start, end)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn index_answers_as_an_ordered_map(ops in prop::collection::vec(op(), 1..3000)) {
        check(ops);
    }
}

/// The numbers below `end`, in an order that is random but the same each time.
fn shuffled(end: usize) -> Vec<usize> {
    let mut numbers: Vec<_> = (0..end).collect();
    numbers.shuffle(&mut StdRng::seed_from_u64(7));
    numbers
}

fn pod(n: usize) -> Vec<u8> {
    format!("/registry/pods/ns-{:03}/pod-{:06}", n / 2000, n % 2000).into_bytes()
}

#[test]
fn three_levels_keep_their_counts() {
    let keys = 300_000;
    let mut index = KeyIndex::new();
    for n in shuffled(keys) {
        assert_eq!(index.insert(&pod(n), state(1 + n as i64)), None);
    }
    index.check();
    for n in (0..keys).step_by(997) {
        assert_eq!(index.get(&pod(n)), Some(state(1 + n as i64)));
        assert_eq!(index.count(KeyRange::Span(&pod(0), &pod(n))), n);
        assert_eq!(index.count(KeyRange::From(&pod(n))), keys - n);
    }
    for n in shuffled(keys).into_iter().filter(|n| n % 10 != 0) {
        assert_eq!(index.remove(&pod(n)), Some(state(1 + n as i64)));
    }
    index.check();
    assert_eq!(index.count(KeyRange::ALL), keys / 10);
}

#[test]
fn visit_stops_when_told() {
    let index = KeyIndex::bulk_build((0..5000).map(|n| (pod(n), fresh(2))));
    let mut seen = 0;
    index.visit(KeyRange::ALL, |key, _| {
        assert_eq!(key, pod(seen));
        seen += 1;
        if seen == 3000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(seen, 3000);
}

#[test]
#[should_panic(expected = "ascending order")]
fn bulk_build_refuses_a_key_twice() {
    KeyIndex::bulk_build([(b"a", fresh(2)), (b"a", fresh(3))]);
}

/// Asserts that the index takes at most `bytes_max` a key.
fn check_bytes_per_key(what: &str, index: &KeyIndex, bytes_max: f64) {
    let bytes = index.resident_bytes() as f64 / index.len() as f64;
    println!("{what}: {bytes:.1} bytes a key");
    assert!(bytes < bytes_max, "{what}: {bytes:.1} bytes a key");
}

// Neighbours share at least 28 of their 32 bytes; the bounds are what was measured and a little room.
#[test]
fn million_keys_take_few_bytes_each() {
    let keys = 1_000_000;
    assert_eq!(pod(0).len(), 32);
    let main = |n: usize| 10_000_000 + n as i64;
    let mut index = KeyIndex::new();
    for n in 0..keys {
        index.insert(&pod(n), fresh(main(n)));
    }
    check_bytes_per_key("ascending", &index, 16.0);
    for n in 0..keys {
        let updated =
            KeyState { modified: ChangeId { main: Revision(main(keys + n)), sub: 0 }, version: 2, ..fresh(main(n)) };
        assert_eq!(index.insert(&pod(n), updated), Some(fresh(main(n))));
    }
    check_bytes_per_key("updated once", &index, 22.0);
    let mut index = KeyIndex::new();
    for n in shuffled(keys) {
        index.insert(&pod(n), fresh(main(n)));
    }
    check_bytes_per_key("shuffled", &index, 24.0);
    let rebuilt = KeyIndex::bulk_build((0..keys).map(|n| (pod(n), fresh(main(n)))));
    check_bytes_per_key("bulk", &rebuilt, 16.0);
}

#[test]
fn ascending_runs_between_other_keys_leave_full_leaves() {
    let mut index = KeyIndex::new();
    for n in 0..2000 {
        for run in 0..100 {
            index.insert(&pod(run * 2000 + n), fresh(10_000_000));
        }
    }
    index.check();
    check_bytes_per_key("interleaved runs", &index, 18.0);
}

#[test]
fn memory_is_flat_under_churn() {
    let live = 20_000;
    let mut index = KeyIndex::new();
    // A window that moves on, keys that come and go in place, and a descending fill.
    for n in 0..10 * live {
        index.insert(&pod(n), fresh(10_000_000 + n as i64));
        if n >= live {
            assert!(index.remove(&pod(n - live)).is_some());
        }
    }
    check_bytes_per_key("moving window", &index, 20.0);
    let base = 9 * live;
    for round in 0..10 {
        for n in shuffled(live).into_iter().filter(|n| n % 11 != round) {
            assert!(index.remove(&pod(base + n)).is_some());
        }
        index.check();
        check_bytes_per_key("thinned out", &index, 60.0);
        for n in shuffled(live).into_iter().filter(|n| n % 11 != round) {
            index.insert(&pod(base + n), fresh(10_000_000));
        }
        index.check();
        check_bytes_per_key("refilled", &index, 32.0);
    }
    for n in (0..base).rev() {
        index.insert(&pod(n), fresh(10_000_000));
    }
    index.check();
    check_bytes_per_key("descending", &index, 22.0);
}
