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
pub(crate) struct Sizes(Arc<SizesState>);

#[derive(Default)]
struct SizesState {
    allocated_bytes: AtomicU64,
    disk_free_bytes: AtomicU64,
}

impl Sizes {
    pub(crate) fn set_allocated_bytes(&self, bytes: u64) {
        self.0.allocated_bytes.store(bytes, Ordering::Release);
    }

    /// Of the disk that the store is on.
    pub(crate) fn set_disk_free_bytes(&self, bytes: u64) {
        self.0.disk_free_bytes.store(bytes, Ordering::Release);
    }

    pub(crate) fn disk_free_bytes(&self) -> u64 {
        self.0.disk_free_bytes.load(Ordering::Acquire)
    }

    /// An estimate until the next look: what was just written went to disk.
    pub(crate) fn add_allocated_bytes(&self, bytes: u64) {
        self.0.allocated_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.0.allocated_bytes.load(Ordering::Acquire)
    }
}

/// Whether the disk has room. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Room(Arc<RoomState>);

struct RoomState {
    /// Free bytes above the reserve, when last looked at.
    spare_bytes: AtomicU64,
    /// What was admitted since.
    admitted_bytes: AtomicU64,
    log_waits: AtomicBool,
    /// A refusal was logged, and there has not been ample room since.
    said: AtomicBool,
}

impl Default for RoomState {
    fn default() -> RoomState {
        // Until the first look, everything is admitted.
        RoomState {
            spare_bytes: AtomicU64::new(u64::MAX),
            admitted_bytes: AtomicU64::new(0),
            log_waits: AtomicBool::new(false),
            said: AtomicBool::new(false),
        }
    }
}

/// How often an admitted byte is written in the worst case: in the log, in the journal of the store, in a table.
const WRITTEN_TIMES: u64 = 3;

impl Room {
    /// How much is free above the reserve now.
    pub(crate) fn look(&self, free_bytes: u64, reserve_bytes: u64) {
        let spare_bytes = free_bytes.saturating_sub(reserve_bytes);
        self.0.admitted_bytes.store(0, Ordering::Release);
        self.0.spare_bytes.store(spare_bytes, Ordering::Release);
        if spare_bytes > reserve_bytes && self.0.said.swap(false, Ordering::AcqRel) {
            crate::info!("there is room on the disk again", free_bytes = free_bytes);
        }
    }

    /// Whether a request of this cost still fits.
    pub(crate) fn fits(&self, cost_bytes: u64) -> bool {
        if self.log_waits() {
            return false;
        }
        let admitted = self.0.admitted_bytes.load(Ordering::Acquire).saturating_add(cost_bytes);
        let spare_bytes = self.0.spare_bytes.load(Ordering::Acquire);
        let fits = admitted.saturating_mul(WRITTEN_TIMES) < spare_bytes;
        if !fits && !self.0.said.swap(true, Ordering::AcqRel) {
            crate::error!(
                "writes are refused: the disk is nearly full; make room, then disarm the alarm",
                spare_bytes = spare_bytes
            );
        }
        fits
    }

    /// A request of this cost is to be proposed; it counts until the next look.
    pub(crate) fn take(&self, cost_bytes: u64) {
        self.0.admitted_bytes.fetch_add(cost_bytes, Ordering::AcqRel);
    }

    /// A write of the log found the disk full and is tried again and again. Returns what was known before.
    pub(crate) fn set_log_waits(&self, waits: bool) -> bool {
        self.0.log_waits.swap(waits, Ordering::AcqRel)
    }

    pub(crate) fn log_waits(&self) -> bool {
        self.0.log_waits.load(Ordering::Acquire)
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
