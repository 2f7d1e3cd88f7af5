//! Shape: what can be said of a request by looking at it alone. Order and choice of refusals are etcd's (v3rpc/key.go),
//! except where etcd lets through what it then dies of or loses data by (etcd#22445: a delete of "every key from" that
//! overlaps a put).

use std::collections::HashSet;

use kuorum_proto::etcdserverpb::{
    AlarmRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, alarm_request, range_request,
    request_op,
};

use crate::mvcc::key_range::KeyRange;
use crate::mvcc::query::{RangeQuery, SortOrder, SortTarget};
use crate::refusal::Refusal;

/// Longest key the store takes. Its rows carry the key escaped beside a revision and the engine's own limit is 64 KiB;
/// an escape doubles a zero byte.
pub(crate) const KEY_BYTES_MAX: usize = 30 << 10;

pub(crate) fn check_put(request: &PutRequest) -> Result<(), Refusal> {
    if request.key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    if request.key.len() > KEY_BYTES_MAX {
        return Err(Refusal::KeyTooLarge);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Refusal::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Refusal::LeaseProvided);
    }
    Ok(())
}

pub(crate) fn check_delete(request: &DeleteRangeRequest) -> Result<(), Refusal> {
    if request.key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    Ok(())
}

pub(crate) fn check_alarm(request: &AlarmRequest) -> Result<(), Refusal> {
    match alarm_request::AlarmAction::try_from(request.action) {
        Ok(_) => Ok(()),
        Err(_) => Err(Refusal::Invalid(format!("unknown alarm action {}", request.action))),
    }
}

/// Checks a read and turns it into a query.
pub(crate) fn range_query(request: RangeRequest) -> Result<RangeQuery, Refusal> {
    if request.key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    let order = match range_request::SortOrder::try_from(request.sort_order) {
        Ok(range_request::SortOrder::None) => SortOrder::None,
        Ok(range_request::SortOrder::Ascend) => SortOrder::Ascend,
        Ok(range_request::SortOrder::Descend) => SortOrder::Descend,
        Err(_) => return Err(Refusal::InvalidSortOption),
    };
    let target = match range_request::SortTarget::try_from(request.sort_target) {
        Ok(range_request::SortTarget::Key) => SortTarget::Key,
        Ok(range_request::SortTarget::Version) => SortTarget::Version,
        Ok(range_request::SortTarget::Create) => SortTarget::Create,
        Ok(range_request::SortTarget::Mod) => SortTarget::Mod,
        Ok(range_request::SortTarget::Value) => SortTarget::Value,
        Err(_) => return Err(Refusal::InvalidSortOption),
    };
    Ok(RangeQuery {
        key: request.key,
        range_end: request.range_end,
        limit: request.limit,
        revision: request.revision,
        order,
        target,
        keys_only: request.keys_only,
        count_only: request.count_only,
        min_mod_revision: request.min_mod_revision,
        max_mod_revision: request.max_mod_revision,
        min_create_revision: request.min_create_revision,
        max_create_revision: request.max_create_revision,
    })
}

/// Checks a transaction at every depth, whichever branch will be taken.
pub(crate) fn check_txn(request: &TxnRequest, operations_max: usize) -> Result<(), Refusal> {
    check_operations(request, operations_max)?;
    // Overlaps are looked for only in what is known to be small.
    check_overlaps(&request.success)?;
    check_overlaps(&request.failure)?;
    Ok(())
}

fn check_operations(request: &TxnRequest, operations_max: usize) -> Result<(), Refusal> {
    let widest = request.compare.len().max(request.success.len()).max(request.failure.len());
    // What this level uses is missing to the levels below it.
    let Some(left) = operations_max.checked_sub(widest) else {
        return Err(Refusal::TooManyOperations);
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Refusal::EmptyKey);
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(request_op::Request::RequestRange(range)) => check_range(range)?,
            Some(request_op::Request::RequestPut(put)) => check_put(put)?,
            Some(request_op::Request::RequestDeleteRange(delete)) => check_delete(delete)?,
            Some(request_op::Request::RequestTxn(txn)) => check_operations(txn, left)?,
            None => return Err(Refusal::KeyNotFound),
        }
    }
    Ok(())
}

fn check_range(request: &RangeRequest) -> Result<(), Refusal> {
    // Cloning bytes is counting references; the query itself is built again where it is used.
    range_query(request.clone()).map(|_| ())
}

/// What a list of operations puts and deletes, at any depth.
#[derive(Default)]
struct Writes<'a> {
    puts: HashSet<&'a [u8]>,
    deletes: Vec<KeyRange<'a>>,
}

impl<'a> Writes<'a> {
    fn deletes_key(&self, key: &[u8]) -> bool {
        self.deletes.iter().any(|range| range.contains(key))
    }
}

/// Refuses a key that is put twice, or put and deleted, by operations that can both run.
fn check_overlaps(operations: &[RequestOp]) -> Result<Writes<'_>, Refusal> {
    let mut writes = Writes::default();
    for operation in operations {
        if let Some(request_op::Request::RequestDeleteRange(delete)) = &operation.request {
            writes.deletes.push(KeyRange::from_wire(&delete.key, &delete.range_end));
        }
    }
    // A nested put is checked against the deletes beside its transaction, then its own deletes join them: etcd's order,
    // so that two nested transactions may delete what the other puts only when the put comes first.
    for operation in operations {
        let Some(request_op::Request::RequestTxn(txn)) = &operation.request else { continue };
        let then = check_overlaps(&txn.success)?;
        let otherwise = check_overlaps(&txn.failure)?;
        for key in &then.puts {
            if writes.puts.contains(key) || writes.deletes_key(key) {
                return Err(Refusal::DuplicateKey);
            }
        }
        for key in &otherwise.puts {
            if writes.puts.contains(key) || writes.deletes_key(key) {
                return Err(Refusal::DuplicateKey);
            }
        }
        writes.puts.extend(then.puts);
        // The two branches exclude each other: the same key in both is fine.
        writes.puts.extend(otherwise.puts);
        writes.deletes.extend(then.deletes);
        writes.deletes.extend(otherwise.deletes);
    }
    for operation in operations {
        let Some(request_op::Request::RequestPut(put)) = &operation.request else { continue };
        if writes.deletes_key(&put.key) || !writes.puts.insert(&put.key) {
            return Err(Refusal::DuplicateKey);
        }
    }
    Ok(writes)
}

/// Whether every operation is a read. A nested transaction counts as a write, whatever it holds, as in etcd.
pub(crate) fn is_read_only(request: &TxnRequest) -> bool {
    operations(request).all(|operation| matches!(&operation.request, Some(request_op::Request::RequestRange(_))))
}

/// Whether every operation is a serializable read.
pub(crate) fn is_serializable(request: &TxnRequest) -> bool {
    operations(request).all(|operation| match &operation.request {
        Some(request_op::Request::RequestRange(range)) => range.serializable,
        _ => false,
    })
}

fn operations(request: &TxnRequest) -> impl Iterator<Item = &RequestOp> {
    request.success.iter().chain(&request.failure)
}
