//! Wire parity: Kuorum and a real etcd get the same requests and must give the same answers.
//!
//! `edges` replays hand-picked scripts, `random` generated ones, `directed` holds what a script cannot say, `doctored`
//! proves that a wrong answer is seen, and `tidy` holds the rules about the source.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod directed;
mod doctored;
mod edges;
mod pages;
mod random;
mod tidy;

use std::path::PathBuf;

/// A directory of this suite's own files.
fn own_directory(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("wire").join(name)
}

/// Runs a test on a runtime of one thread.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built").block_on(test)
}
