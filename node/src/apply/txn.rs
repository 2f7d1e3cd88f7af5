//! Puts, deletes and transactions over one open write transaction of the store.
//!
//! The order is etcd's (etcdserver/txn): every compare of every level is evaluated against the state before the
//! transaction, then everything that could fail in the branches taken is checked against that same state, and only then
//! does anything change. So a transaction that is refused has changed nothing, on any member.

use std::cmp::Ordering;

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, RequestOp,
    ResponseOp, TxnRequest, TxnResponse, compare, request_op, response_op,
};
use kuorum_proto::mvccpb::KeyValue;

use crate::admission::shape;
use crate::apply::{Failure, header, header_in};
use crate::lease::{LeaseId, Leases};
use crate::metrics;
use crate::mvcc::query::{self, RangeAnswer, RangeQuery};
use crate::mvcc::revision::Revision;
use crate::mvcc::{ReadError, Store, WriteTxn};
use crate::refusal::Refusal;

/// How often a read-only transaction starts over because a compaction overtook the revision it reads at.
const READ_ATTEMPTS_MAX: usize = 8;

/// Whether each transaction's compares hold, outermost first, then those nested in the branch taken, in order.
type Path = Vec<bool>;

/// Carries out a transaction.
pub(super) fn execute(txn: &mut WriteTxn<'_>, leases: &Leases, request: TxnRequest) -> Result<TxnResponse, Failure> {
    let mut path = Path::new();
    let mut read = |query: &RangeQuery| -> Result<RangeAnswer, Failure> { Ok(txn.range(query)??) };
    compare_all(&mut read, &request, &mut path)?;
    check(txn, leases, &request, &mut path.iter())?;
    run(txn, leases, request, &mut path.into_iter())
}

/// Carries out a transaction that only reads, at one revision.
///
/// # Errors
/// `Large` when its reads may look at more than so many keys together, if there is a bound.
pub(crate) fn read_only(
    store: &Store,
    request: &TxnRequest,
    keys_max: Option<usize>,
) -> Result<TxnResponse, ReadError> {
    let mut refused = None;
    for _ in 0..READ_ATTEMPTS_MAX {
        let at = store.revision();
        match read_only_at(store, request, at, keys_max) {
            // Starting over helps only when the compaction overtook `at`, not when a range names an old revision.
            Err(ReadError::Refused(query::Refusal::Compacted { compacted })) => {
                refused = Some(query::Refusal::Compacted { compacted });
                if compacted <= at {
                    break;
                }
            }
            answer => return answer,
        }
    }
    Err(ReadError::Refused(refused.expect("the loop ends early only with a refusal")))
}

fn read_only_at(
    store: &Store,
    request: &TxnRequest,
    at: Revision,
    mut keys_max: Option<usize>,
) -> Result<TxnResponse, ReadError> {
    let mut pinned = |query: &RangeQuery| {
        let compacted = store.compacted();
        if query.revision < 0 && query.revision < compacted.0 {
            return Err(ReadError::Refused(query::Refusal::Compacted { compacted }));
        }
        let revision = if query.revision > 0 { query.revision } else { at.0 };
        if revision > at.0 {
            return Err(ReadError::Refused(query::Refusal::Future { current: at }));
        }
        let answer = store.range_within(&RangeQuery { revision, ..query.clone() }, keys_max)?;
        keys_max = keys_max.map(|keys_max| keys_max.saturating_sub(answer.kvs.len()));
        Ok(answer)
    };
    let mut path = Path::new();
    compare_all(&mut |query| pinned(query), request, &mut path)?;
    let succeeded = path[0];
    let mut responses = Vec::new();
    for operation in if succeeded { &request.success } else { &request.failure } {
        let Some(request_op::Request::RequestRange(range)) = &operation.request else {
            unreachable!("the front door sends only transactions of reads here");
        };
        let query = shape::range_query(range.clone()).expect("checked at the front door");
        let answer = RangeAnswer { revision: at, ..pinned(&query)? };
        responses.push(respond(response_op::Response::ResponseRange(range_response(answer))));
    }
    Ok(TxnResponse { header: header(at), succeeded, responses })
}

/// Evaluates the compares of this transaction and of those nested in the branch it takes.
fn compare_all<E>(
    read: &mut impl FnMut(&RangeQuery) -> Result<RangeAnswer, E>,
    request: &TxnRequest,
    path: &mut Path,
) -> Result<(), E> {
    let mut holds = true;
    for compare in &request.compare {
        if !compare_holds(read, compare)? {
            holds = false;
            break;
        }
    }
    path.push(holds);
    for operation in branch(request, holds) {
        if let Some(request_op::Request::RequestTxn(nested)) = &operation.request {
            compare_all(read, nested, path)?;
        }
    }
    Ok(())
}

fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

/// A compare over a range holds when it holds for every key of it. A missing key compares as zero, except that nothing
/// can be said of the value it does not have.
fn compare_holds<E>(
    read: &mut impl FnMut(&RangeQuery) -> Result<RangeAnswer, E>,
    compare: &Compare,
) -> Result<bool, E> {
    let by_value = compare.target() == compare::CompareTarget::Value;
    let query = RangeQuery { key: compare.key.clone(), range_end: compare.range_end.clone(), ..RangeQuery::default() };
    let found = read(&query)?.kvs;
    if found.is_empty() {
        return Ok(!by_value && key_holds(compare, &KeyValue::default()));
    }
    Ok(found.iter().all(|kv| key_holds(compare, kv)))
}

fn key_holds(compare: &Compare, kv: &KeyValue) -> bool {
    use compare::{CompareTarget, TargetUnion};
    // A union of another target than the one named counts as not set, and so as zero or empty.
    let order = match (CompareTarget::try_from(compare.target), &compare.target_union) {
        (Ok(CompareTarget::Value), Some(TargetUnion::Value(value))) => kv.value.cmp(value),
        (Ok(CompareTarget::Value), _) => kv.value.cmp(&Bytes::new()),
        (Ok(CompareTarget::Create), Some(TargetUnion::CreateRevision(revision))) => kv.create_revision.cmp(revision),
        (Ok(CompareTarget::Create), _) => kv.create_revision.cmp(&0),
        (Ok(CompareTarget::Mod), Some(TargetUnion::ModRevision(revision))) => kv.mod_revision.cmp(revision),
        (Ok(CompareTarget::Mod), _) => kv.mod_revision.cmp(&0),
        (Ok(CompareTarget::Version), Some(TargetUnion::Version(version))) => kv.version.cmp(version),
        (Ok(CompareTarget::Version), _) => kv.version.cmp(&0),
        (Ok(CompareTarget::Lease), Some(TargetUnion::Lease(lease))) => kv.lease.cmp(lease),
        (Ok(CompareTarget::Lease), _) => kv.lease.cmp(&0),
        // etcd compares nothing for a target it does not know, and takes that for equal.
        (Err(_), _) => Ordering::Equal,
    };
    match compare::CompareResult::try_from(compare.result) {
        Ok(compare::CompareResult::Equal) => order.is_eq(),
        Ok(compare::CompareResult::NotEqual) => order.is_ne(),
        Ok(compare::CompareResult::Greater) => order.is_gt(),
        Ok(compare::CompareResult::Less) => order.is_lt(),
        // Likewise, a result it does not know holds.
        Err(_) => true,
    }
}

/// Checks everything that could fail in the branches taken, against the state before the transaction.
fn check<'a>(
    txn: &WriteTxn<'_>,
    leases: &Leases,
    request: &TxnRequest,
    path: &mut impl Iterator<Item = &'a bool>,
) -> Result<(), Failure> {
    let succeeded = *path.next().expect("one entry for each transaction of the branches taken");
    for operation in branch(request, succeeded) {
        match &operation.request {
            Some(request_op::Request::RequestRange(range)) => check_revision(txn, range)?,
            Some(request_op::Request::RequestPut(put)) => check_put(txn, leases, put)?,
            Some(request_op::Request::RequestTxn(nested)) => check(txn, leases, nested, path)?,
            Some(request_op::Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

/// Unlike a read of its own, a read inside a transaction takes a negative revision for what it is, below the compacted
/// one, which is -1 before the first compaction (etcd: checkRange).
fn check_revision(txn: &WriteTxn<'_>, range: &RangeRequest) -> Result<(), Failure> {
    let (current, compacted) = (txn.base_revision(), txn.compacted());
    if range.revision == 0 {
        return Ok(());
    }
    if range.revision > current.0 {
        return Err(query::Refusal::Future { current }.into());
    }
    if range.revision < compacted.0 {
        return Err(query::Refusal::Compacted { compacted }.into());
    }
    Ok(())
}

/// The lease must exist; and the key too, when its value or lease is to be kept.
pub(super) fn check_put(txn: &WriteTxn<'_>, leases: &Leases, request: &PutRequest) -> Result<(), Failure> {
    if request.lease != 0 && !leases.exists(LeaseId(request.lease)) {
        return Err(Refusal::LeaseNotFound.into());
    }
    if (request.ignore_value || request.ignore_lease) && txn.state(&request.key).is_none() {
        return Err(Refusal::KeyNotFound.into());
    }
    Ok(())
}

/// Carries out the operations of the branches taken, in order.
fn run(
    txn: &mut WriteTxn<'_>,
    leases: &Leases,
    request: TxnRequest,
    path: &mut impl Iterator<Item = bool>,
) -> Result<TxnResponse, Failure> {
    let succeeded = path.next().expect("one entry for each transaction of the branches taken");
    let operations = if succeeded { request.success } else { request.failure };
    let mut responses = Vec::with_capacity(operations.len());
    for operation in operations {
        let response = match operation.request {
            Some(request_op::Request::RequestRange(range)) => {
                let answer = txn.range(&shape::range_query(range)?)??;
                response_op::Response::ResponseRange(range_response(answer))
            }
            Some(request_op::Request::RequestPut(request)) => {
                response_op::Response::ResponsePut(put(txn, leases, request)?)
            }
            Some(request_op::Request::RequestDeleteRange(request)) => {
                response_op::Response::ResponseDeleteRange(delete_range(txn, leases, &request)?)
            }
            Some(request_op::Request::RequestTxn(nested)) => {
                let mut response = run(txn, leases, nested, path)?;
                // Nested answers name no revision of their own.
                response.header = Some(kuorum_proto::etcdserverpb::ResponseHeader::default());
                response_op::Response::ResponseTxn(response)
            }
            None => return Err(Refusal::KeyNotFound.into()),
        };
        responses.push(respond(response));
    }
    Ok(TxnResponse { header: header_in(txn), succeeded, responses })
}

/// Stores a key that [`check_put`] found fit.
pub(super) fn put(txn: &mut WriteTxn<'_>, leases: &Leases, request: PutRequest) -> Result<PutResponse, Failure> {
    let wants_previous = request.prev_kv || request.ignore_value;
    let previous = if wants_previous { txn.get(&request.key)? } else { None };
    let state = txn.state(&request.key);
    let value = match &previous {
        Some(previous) if request.ignore_value => previous.value.clone(),
        None if request.ignore_value => return Err(Refusal::KeyNotFound.into()),
        Some(_) | None => request.value,
    };
    let lease = match &state {
        Some(state) if request.ignore_lease => state.lease,
        None if request.ignore_lease => return Err(Refusal::KeyNotFound.into()),
        Some(_) | None => request.lease,
    };
    let metrics = &metrics::get().mvcc;
    metrics.puts.increment(1);
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; requests are far below 2^53 bytes")]
    metrics.put_bytes.increment((request.key.len() + value.len()) as f64);
    leases.reattach(&request.key, state.map_or(0, |state| state.lease), lease);
    let prev_kv = previous.clone().filter(|_| request.prev_kv);
    match previous {
        Some(previous) => txn.put_over(request.key, value, lease, previous),
        None => {
            txn.put(request.key, value, lease);
        }
    }
    Ok(PutResponse { header: header_in(txn), prev_kv })
}

pub(super) fn delete_range(
    txn: &mut WriteTxn<'_>,
    leases: &Leases,
    request: &DeleteRangeRequest,
) -> Result<DeleteRangeResponse, Failure> {
    let prev_kvs = if request.prev_kv {
        let query =
            RangeQuery { key: request.key.clone(), range_end: request.range_end.clone(), ..RangeQuery::default() };
        txn.range(&query)??.kvs
    } else {
        Vec::new()
    };
    metrics::get().mvcc.deletes.increment(1);
    let deleted = txn.delete_range(&request.key, &request.range_end);
    for (key, state) in &deleted {
        leases.reattach(key, state.lease, 0);
    }
    let deleted = i64::try_from(deleted.len()).expect("fewer keys than bytes of memory");
    Ok(DeleteRangeResponse { header: header_in(txn), deleted, prev_kvs })
}

fn range_response(answer: RangeAnswer) -> RangeResponse {
    RangeResponse { header: header(answer.revision), kvs: answer.kvs, more: answer.more, count: answer.count }
}

fn respond(response: response_op::Response) -> ResponseOp {
    ResponseOp { response: Some(response) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::filter::Floor;
    use crate::mvcc::{self, AppliedMark, MvccOptions};
    use crate::storage::Storage;

    #[test]
    fn reads_of_one_transaction_share_what_they_may_look_at() {
        let dir = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&dir.path().join("store"), floor.filters()).unwrap();
        let (store, mut writer, _) =
            mvcc::open(storage, floor, MvccOptions::new(dir.path().join("index"), 100)).unwrap();
        for key in ["a", "b", "c"] {
            let mut txn = writer.txn();
            txn.put(key.into(), Bytes::new(), 0);
            txn.finish();
        }
        writer.commit(AppliedMark::default()).unwrap();
        let read = |revision| {
            let range = RangeRequest { key: "a".into(), range_end: "z".into(), revision, ..RangeRequest::default() };
            RequestOp { request: Some(request_op::Request::RequestRange(range)) }
        };
        let keys = |operations: [RequestOp; 2], keys_max| {
            let request = TxnRequest { success: operations.into(), ..TxnRequest::default() };
            let responses = match read_only(&store, &request, keys_max) {
                Err(ReadError::Large) => return None,
                answer => answer.unwrap().responses,
            };
            let counts = responses.into_iter().map(|response| match response.response {
                Some(response_op::Response::ResponseRange(range)) => range.count,
                other => panic!("{other:?}"),
            });
            Some(counts.collect::<Vec<_>>())
        };
        assert_eq!(keys([read(0), read(0)], Some(6)), Some(vec![3, 3]));
        assert_eq!(keys([read(0), read(0)], Some(5)), None);
        assert_eq!(keys([read(0), read(3)], Some(100)), None);
        assert_eq!(keys([read(0), read(3)], None), Some(vec![3, 2]));
    }
}
