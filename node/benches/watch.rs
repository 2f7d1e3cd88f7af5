//! Handing changes to watchers: matching, encoding, and putting the responses into the streams' outboxes.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kuorum::bench::{Member, Watchers, encode_event, encode_response, put_payload};
use kuorum_proto::etcdserverpb::PutRequest;
use kuorum_proto::mvccpb::KeyValue;
use load::VALUE_BYTES;

mod load;
mod settings;

/// Changes of one batch.
const CHANGES: usize = 64;
const KEYS: usize = 10_000;

fn value() -> Bytes {
    vec![b'v'; VALUE_BYTES].into()
}

/// Time of one batch of changes; throughput in events sent.
fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("watch/publish");
    let keys = load::shuffled_keys(KEYS);
    let one_range = vec![(load::key(0), load::key(KEYS)); 1_000];
    let single_keys: Vec<(Bytes, Bytes)> = keys.iter().map(|key| (key.clone(), Bytes::new())).collect();
    for (name, ranges, events) in [
        ("1000_watchers_of_one_prefix", one_range, CHANGES * 1_000),
        ("10000_watchers_of_single_keys", single_keys, CHANGES),
    ] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build directory can be written");
        let mut member = Member::new(dir.path(), None);
        let mut watchers = Watchers::new(&member);
        for (key, range_end) in ranges {
            watchers.watch(key, range_end);
        }
        let responses = watchers.responses();
        let put = |key: &Bytes| put_payload(PutRequest { key: key.clone(), value: value(), ..PutRequest::default() });
        let mut puts = keys.iter().cycle().map(put);
        let mut changes = || {
            responses.take();
            member.apply(puts.by_ref().take(CHANGES))
        };
        group.throughput(Throughput::Elements(events as u64));
        group.bench_function(name, |bencher| {
            bencher.iter_batched(&mut changes, |changes| watchers.publish(changes), BatchSize::PerIteration);
        });
    }
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("watch/encode");
    let kv = KeyValue {
        key: load::key(1),
        create_revision: 1_000_000,
        mod_revision: 2_000_000,
        version: 2,
        value: value(),
        ..KeyValue::default()
    };
    group.bench_function("event", |bencher| bencher.iter(|| encode_event(&kv)));
    let events = vec![encode_event(&kv); CHANGES];
    group.throughput(Throughput::Elements(CHANGES as u64));
    group.bench_function("response", |bencher| bencher.iter(|| encode_response(&events)));
}

criterion_group! {
    name = watch;
    config = settings::criterion();
    targets = publish, encode
}
criterion_main!(watch);
