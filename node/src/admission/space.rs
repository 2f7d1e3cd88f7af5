//! Space: what a request would add to the store, and how large the store is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kuorum_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest, request_op};

/// What etcd reckons a lease to cost in bytes (quota.go: leaseOverhead).
pub(crate) const LEASE_COST: u64 = 64;
/// What etcd reckons a key to cost beyond its key and value (quota.go: kvOverhead).
const KEY_COST: u64 = 256;

/// The store's size as last looked at by upkeep. Cheap to clone and to read.
#[derive(Clone, Default)]
pub(crate) struct Sizes(Arc<AtomicU64>);

impl Sizes {
    pub(crate) fn set_allocated_bytes(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Release);
    }

    /// An estimate until the next look: what was just written went to disk.
    pub(crate) fn add_allocated_bytes(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Whether the disk has room. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Room(Arc<RoomState>);

#[derive(Default)]
struct RoomState {
    low: AtomicBool,
    log_waits: AtomicBool,
}

impl Room {
    /// Little is left on the disk. Returns what was known before.
    pub(crate) fn set_low(&self, low: bool) -> bool {
        self.0.low.swap(low, Ordering::AcqRel)
    }

    /// A write of the log found the disk full and is tried again and again. Returns what was known before.
    pub(crate) fn set_log_waits(&self, waits: bool) -> bool {
        self.0.log_waits.swap(waits, Ordering::AcqRel)
    }

    pub(crate) fn log_waits(&self) -> bool {
        self.0.log_waits.load(Ordering::Acquire)
    }

    pub(crate) fn is_short(&self) -> bool {
        self.0.low.load(Ordering::Acquire) || self.log_waits()
    }
}

pub(crate) fn put_cost(request: &PutRequest) -> u64 {
    KEY_COST + request.key.len() as u64 + request.value.len() as u64
}

/// The dearer of the two branches, as etcd reckons; 0 for a transaction that puts nothing.
pub(crate) fn txn_cost(request: &TxnRequest) -> u64 {
    let branch = |operations: &[RequestOp]| operations.iter().map(operation_cost).sum::<u64>();
    branch(&request.success).max(branch(&request.failure))
}

fn operation_cost(operation: &RequestOp) -> u64 {
    match &operation.request {
        Some(request_op::Request::RequestPut(put)) => put_cost(put),
        Some(request_op::Request::RequestTxn(txn)) => txn_cost(txn),
        Some(request_op::Request::RequestRange(_) | request_op::Request::RequestDeleteRange(_)) | None => 0,
    }
}
