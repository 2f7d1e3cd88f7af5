//! The key index by itself, and reads of the store.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kuorum::bench::{KeyIndex, Member, put_payload};
use kuorum_proto::etcdserverpb::{PutRequest, RangeRequest};
use load::VALUE_BYTES;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

mod load;
mod settings;

/// Keys of the store that is read. All of their values fit the node's value cache.
const STORED_KEYS: usize = 100_000;
/// Entries of one batch while it is filled.
const FILL_BATCH: usize = 1_000;
/// Far less than the values take, so that a read of a random key misses. Not zero: a miss makes room in the cache.
const SMALL_CACHE_BYTES: u64 = 1 << 20;
/// The revision at which all keys of an index were made.
const CREATED: i64 = 1_000_000;

fn key_index(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mvcc/key_index");
    for count in [10_000, 1_000_000] {
        // Keys in the order in which they are used: only the index is walked at random.
        let keys = load::shuffled_keys(count);
        let new_keys: Vec<Bytes> = keys.iter().map(|key| [key.as_ref(), b"-new"].concat().into()).collect();
        let mut index = KeyIndex::default();
        for (key, created) in keys.iter().zip(CREATED..) {
            index.insert(key, created, 2 * CREATED);
        }
        let id = |name| BenchmarkId::new(name, count);

        let mut wanted = keys.iter().cycle();
        let mut next = || wanted.next().expect("the keys go round and round");
        let end = load::key(count);
        group.bench_function(id("lookup"), |bencher| bencher.iter(|| index.modified(next())));
        group.bench_function(id("count"), |bencher| bencher.iter(|| index.count(next(), &end)));
        let mut modified = 2 * CREATED;
        group.bench_function(id("insert_over"), |bencher| {
            bencher.iter(|| {
                modified += 1;
                index.insert(next(), CREATED, modified)
            });
        });
        // Both, so that the index stays as large as it is called.
        let mut new = new_keys.iter().cycle();
        group.bench_function(id("insert_new_and_remove"), |bencher| {
            bencher.iter(|| {
                let key = new.next().expect("the keys go round and round");
                index.insert(key, CREATED, CREATED);
                index.remove(key)
            });
        });
    }
}

/// A store whose rows lie in tables, all of whose blocks the engine has in memory.
fn filled(value_cache_bytes: Option<u64>) -> (TempDir, Member) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build directory can be written");
    let mut member = Member::new(dir.path(), value_cache_bytes);
    let mut random = StdRng::seed_from_u64(2);
    for keys in load::shuffled_keys(STORED_KEYS).chunks(FILL_BATCH) {
        let put = |key: &Bytes| {
            // Random, so that the engine's compression does not make the rows smaller than they would be.
            let mut value = vec![0; VALUE_BYTES];
            random.fill(&mut value[..]);
            put_payload(PutRequest { key: key.clone(), value: value.into(), ..PutRequest::default() })
        };
        member.apply(keys.iter().map(put));
    }
    member.settle();
    // Once through all of it: the tables' blocks into the engine's cache, the values into ours as far as they fit.
    for key in load::shuffled_keys(STORED_KEYS) {
        member.range(RangeRequest { key, ..RangeRequest::default() });
    }
    (dir, member)
}

fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mvcc/read");
    let keys = load::shuffled_keys(STORED_KEYS);
    let mut wanted = keys.iter().cycle();
    let mut one = || {
        let key = wanted.next().expect("the keys go round and round");
        RangeRequest { key: key.clone(), ..RangeRequest::default() }
    };
    {
        let (_dir, member) = filled(Some(SMALL_CACHE_BYTES));
        group.bench_function("point_miss", |bencher| bencher.iter(|| member.range(one())));
    }
    let (_dir, member) = filled(None);
    group.bench_function("point_hit", |bencher| bencher.iter(|| member.range(one())));
    for count in [10, 1_000, 10_000] {
        group.throughput(Throughput::Elements(count as u64));
        let (start, end) = (STORED_KEYS / 2, STORED_KEYS / 2 + count);
        let request = RangeRequest { key: load::key(start), range_end: load::key(end), ..RangeRequest::default() };
        group.bench_function(BenchmarkId::new("range", count), |bencher| {
            bencher.iter(|| member.range(black_box(request.clone())));
        });
    }
}

criterion_group! {
    name = mvcc;
    config = settings::criterion();
    targets = key_index, read
}
criterion_main!(mvcc);
