//! Revisions, the key index, the history, and reads and writes over them.
//!
//! ```text
//!   revision     2        3        4        5             6
//!   key a        put 1             put 2                  delete
//!   key b                 put 1             (txn) put 2
//!   key c                                   (txn) put 1
//!
//!   kv rows, in order:  a@6†  a@4  a@2   b@5.0  b@3   c@5.1      († tombstone)
//!   key index now:      b -> 5.0 created 3 version 2,   c -> 5.1 created 5 version 1
//! ```
//!
//! One writer, the apply thread, owns [`Writer`]; any thread reads through [`Store`]. Readers see whole batches: the
//! writer keeps what a batch changes beside the key index until the batch is in the engine, and then puts index and
//! revision in place together. Nothing here awaits, reads a clock or draws a random number.

pub(crate) mod compaction;
mod current;
mod export;
pub(crate) mod filter;
pub(crate) mod found;
pub(crate) mod hash;
pub(crate) mod history;
pub(crate) mod key_index;
pub(crate) mod key_range;
mod loader;
pub(crate) mod query;
pub(crate) mod range;
pub(crate) mod revision;
pub(crate) mod row;
pub(crate) mod startup;
pub(crate) mod store;
pub(crate) mod value_cache;
pub(crate) mod write_txn;
pub(crate) mod writer;

#[cfg(test)]
mod model;

use std::fmt;
use std::path::PathBuf;

pub(crate) use current::CurrentStore;
pub(crate) use export::{Export, import};
pub(crate) use history::HistoryLimit;
pub(crate) use startup::open;
pub(crate) use store::{KvHash, Sizes, Store};
pub(crate) use write_txn::WriteTxn;
pub(crate) use writer::{Committed, Writer};

use crate::storage::StorageError;

/// How the store is run.
#[derive(Clone, Debug)]
pub(crate) struct MvccOptions {
    /// Where the key index is dumped.
    pub(crate) index_dump: PathBuf,
    /// Rows removed by a compaction between two pauses (etcd: --compaction-batch-limit).
    pub(crate) compaction_rows_max: usize,
    /// Memory for current values of hot keys.
    pub(crate) value_cache_bytes: u64,
}

impl MvccOptions {
    pub(crate) fn new(index_dump: PathBuf, compaction_rows_max: usize) -> MvccOptions {
        MvccOptions { index_dump, compaction_rows_max, value_cache_bytes: value_cache::CACHE_BYTES }
    }
}

/// The last log entry whose effects the store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AppliedMark {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// Why a read was not served.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// Any member would refuse alike.
    Refused(query::Refusal),
    /// It may look at more than the caller allowed.
    Large,
    Storage(StorageError),
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> ReadError {
        ReadError::Storage(error)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Refused(query::Refusal::Compacted { compacted }) => write!(f, "compacted up to {compacted}"),
            ReadError::Refused(query::Refusal::Future { current }) => write!(f, "past the current revision {current}"),
            ReadError::Large => write!(f, "the read is a large one"),
            ReadError::Storage(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReadError {}
