//! Crashes: what was acknowledged survives, what was damaged is noticed, and a restart that hangs is called by its
//! name.
//!
//! `kill` is kill -9 under load, `damage` a torn or corrupt log, `restart` what must look the same before and after.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod damage;
mod kill;
mod restart;

/// Runs a test on a runtime of one thread.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built").block_on(test)
}
