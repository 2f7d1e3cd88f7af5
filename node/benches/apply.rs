//! Applying committed entries: decoding, the transaction, its rows, and the commit of the batch to the store.

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kuorum::bench::{Member, put_payload, txn_payload};
use kuorum_proto::etcdserverpb::{Compare, PutRequest, RequestOp, TxnRequest, compare, request_op};
use load::VALUE_BYTES;

mod load;
mod settings;

/// Keys that are written over and over. Few enough that the key index and the value cache hold them all.
const KEYS: usize = 10_000;

fn put(key: Bytes) -> PutRequest {
    PutRequest { key, value: vec![b'v'; VALUE_BYTES].into(), ..PutRequest::default() }
}

/// A put if the key exists: Kubernetes names the revision there, which costs the same.
fn compare_and_put(key: Bytes) -> TxnRequest {
    let exists = Compare {
        result: compare::CompareResult::Greater.into(),
        target: compare::CompareTarget::Mod.into(),
        key: key.clone(),
        target_union: Some(compare::TargetUnion::ModRevision(0)),
        ..Compare::default()
    };
    let put = RequestOp { request: Some(request_op::Request::RequestPut(put(key))) };
    TxnRequest { compare: vec![exists], success: vec![put], ..TxnRequest::default() }
}

/// Time of one batch, commit included; throughput in requests.
fn apply(criterion: &mut Criterion) {
    let keys = load::shuffled_keys(KEYS);
    let puts: Vec<Bytes> = keys.iter().cloned().map(|key| put_payload(put(key))).collect();
    let txns: Vec<Bytes> = keys.into_iter().map(|key| txn_payload(compare_and_put(key))).collect();
    let mut group = criterion.benchmark_group("apply");
    for (name, payloads) in [("put", &puts), ("compare_and_put", &txns)] {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build directory can be written");
        let mut member = Member::new(dir.path(), None);
        member.apply(puts.iter().cloned());
        let mut requests = payloads.iter().cycle().cloned();
        for batch in [1, 64, 1024] {
            group.throughput(Throughput::Elements(batch as u64));
            group.bench_function(BenchmarkId::new(name, batch), |bencher| {
                bencher.iter(|| member.apply(requests.by_ref().take(batch)));
            });
        }
    }
}

criterion_group! {
    name = applying;
    config = settings::criterion();
    targets = apply
}
criterion_main!(applying);
