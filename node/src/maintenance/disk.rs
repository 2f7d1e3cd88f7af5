//! The disk thread: long work on the store, one thing at a time.

use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, never, select, tick};
use tokio::sync::watch;

use crate::consensus::Handle;
use crate::maintenance::Job;
use crate::metrics;
use crate::mvcc::CurrentStore;
use crate::mvcc::revision::Revision;
use crate::refusal::Refusal;

/// How often the store is made durable, so that a crash of the machine leaves little of the log to replay (DESIGN 4).
const PERSIST_INTERVAL: Duration = Duration::from_secs(5);
/// How often the key index is dumped; a start reads the dump and what came after it.
const DUMP_INTERVAL: Duration = Duration::from_secs(180);

/// How nice the thread is to those that answer: what it does has time, and a compaction keeps a core busy for seconds.
const NICENESS: i32 = 10;

/// Everything the disk thread works with.
pub(crate) struct Parts {
    pub(crate) store: CurrentStore,
    pub(crate) consensus: Handle,
    pub(crate) jobs: Receiver<Job>,
    /// Compactions to carry out, in order.
    pub(crate) compactions: Receiver<Revision>,
    /// Requests of the raft thread to make the store durable, so that the log's head can go.
    pub(crate) durability: Receiver<()>,
    /// Closed when the node stops.
    pub(crate) stop: Receiver<()>,
    pub(crate) compacted: watch::Sender<i64>,
    /// Pause between two batches of a compaction (etcd: --compaction-sleep-interval).
    pub(crate) compaction_pause: Duration,
}

/// Starts the thread. It ends when the stop channel closes, after a last persist and dump.
pub(crate) fn start(parts: Parts) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("disk".into()).spawn(move || run(&parts))
}

fn run(parts: &Parts) {
    // Of this thread alone, on Linux. Where it is not allowed all works, but less evenly.
    rustix::process::setpriority_process(None, NICENESS).ok();
    let persist = tick(PERSIST_INTERVAL);
    let dump = tick(DUMP_INTERVAL);
    let idle = never::<()>();
    let mut persisted_index = 0;
    let mut dumped = Revision::INITIAL;
    loop {
        select! {
            recv(parts.stop) -> _ => break,
            recv(parts.jobs) -> job => match job {
                Ok(Job::Defragment(done, _defragmenting)) => {
                    // The client may have gone; the store is smaller all the same.
                    drop(done.send(defragment(parts)));
                }
                Err(_) => break,
            },
            recv(parts.compactions) -> to => match to {
                Ok(to) => compact(parts, to),
                Err(_) => break,
            },
            recv(parts.durability) -> _ => {
                persisted_index = persist_store(parts);
                parts.consensus.store_is_durable(persisted_index);
            }
            recv(persist) -> _ => {
                // With a commit under way too: it may wait for ever for an engine that has failed, which this finds out.
                if parts.consensus.status().applied != persisted_index || parts.store.get().commit_under_way().is_some() {
                    persisted_index = persist_store(parts);
                }
            }
            recv(dump) -> _ => {
                if parts.store.get().revision() != dumped {
                    dumped = parts.store.get().revision();
                    dump_index(parts);
                }
            }
            recv(idle) -> _ => {}
        }
    }
    dump_index(parts);
    persist_store(parts);
}

/// Makes the store durable; returns the log index that it then surely holds.
fn persist_store(parts: &Parts) -> u64 {
    // Looked up first: what is applied while the store syncs may or may not be covered.
    let applied = parts.consensus.status().applied;
    if let Err(error) = parts.store.get().persist() {
        // The engine takes no write any more after this. What was acknowledged is in the log; a restart replays it.
        crate::fatal!(
            "the store can't be made durable; the member stops so that nothing is lost",
            error = error.to_string()
        );
    }
    applied
}

fn dump_index(parts: &Parts) {
    if let Err(error) = parts.store.get().dump_index() {
        crate::warn!("the key index can't be dumped; the next start reads the whole store", error = error.to_string());
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock seam of upkeep: durations for logs and metrics")]
fn compact(parts: &Parts, to: Revision) {
    if to.0 <= *parts.compacted.borrow() {
        return;
    }
    let begun = Instant::now();
    let pause = parts.compaction_pause;
    let mvcc = &metrics::get().mvcc;
    let mut batch_begun = begun;
    let mut rest = || {
        mvcc.compaction_pause_ms.record(batch_begun.elapsed().as_secs_f64() * 1_000.0);
        std::thread::sleep(pause);
        batch_begun = Instant::now();
    };
    match parts.store.get().compact_physically(to, &mut rest) {
        Ok(done) => {
            let seconds = begun.elapsed().as_secs_f64();
            mvcc.compacted_keys.increment(done.rows_removed);
            mvcc.compaction_total_ms.record(seconds * 1_000.0);
            if let Ok(since_1970) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
                mvcc.compaction_last_seconds.set(since_1970.as_secs_f64());
            }
            crate::info!(
                "finished scheduled compaction",
                "compact-revision" = to.0,
                "removed-rows" = done.rows_removed,
                "read-rows" = done.rows_read,
                took = format!("{seconds:.3}s")
            );
            parts.compacted.send_replace(to.0);
        }
        Err(error) => crate::error!("compaction failed; it is taken up again at the next", error = error.to_string()),
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock seam of upkeep: durations for logs and metrics")]
fn defragment(parts: &Parts) -> Result<(), Refusal> {
    let begun = Instant::now();
    let metrics = &metrics::get().disk;
    metrics.defrag_inflight.set(1.0);
    let before = parts.store.get().sizes().allocated_bytes;
    let result = parts.store.get().defragment();
    metrics.defrag_inflight.set(0.0);
    let seconds = begun.elapsed().as_secs_f64();
    metrics.defrag_seconds.record(seconds);
    match result {
        Ok(()) => {
            let after = parts.store.get().sizes().allocated_bytes;
            crate::info!(
                "finished defragmenting",
                "bytes-before" = before,
                "bytes-after" = after,
                took = format!("{seconds:.3}s")
            );
            Ok(())
        }
        Err(error) => {
            crate::error!("defragmenting failed", error = error.to_string());
            Err(Refusal::Internal(error.to_string()))
        }
    }
}
