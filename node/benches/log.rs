//! Appending to the Raft log, without the sync: encoding, checksums and one write.

use std::sync::Arc;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kuorum::log::{Disk, EntryKind, FileDisk, HardState, Log, LogEntry, LogOptions, MemDisk, Metadata};
use tempfile::TempDir;

mod settings;

/// A put of some 250 bytes.
const ENTRY_BYTES: usize = 300;
/// Entries of one round, each on a new log: a log that only grows would fill the memory, or the disk.
const ENTRIES: u64 = 4_096;
/// Takes all entries of a round, so that no segment is cut in between.
const OPTIONS: LogOptions = LogOptions { segment_bytes: 4 << 20, unsafe_no_fsync: false };

/// A log with nothing in it, and what it lies on.
struct Empty {
    log: Log,
    _dir: Option<TempDir>,
}

impl Empty {
    fn on(disk: Arc<dyn Disk>, dir: Option<TempDir>) -> Empty {
        let log =
            Log::create(disk, Metadata { node_id: 1, cluster_id: 1, data_dir: 0 }, OPTIONS).expect("the disk is empty");
        Empty { log, _dir: dir }
    }

    fn in_memory() -> Empty {
        Empty::on(Arc::new(MemDisk::new()), None)
    }

    /// Below the build directory: the place for temporary files may be in memory.
    fn in_files() -> Empty {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("the build directory can be written");
        let disk = FileDisk::open(dir.path()).expect("a new directory is nobody's");
        Empty::on(Arc::new(disk), Some(dir))
    }
}

fn entries() -> Vec<LogEntry> {
    let data = Bytes::from(vec![b'v'; ENTRY_BYTES]);
    let entry = |index| LogEntry { term: 1, index, kind: EntryKind::Normal, data: data.clone() };
    (1..=ENTRIES).map(entry).collect()
}

/// Time and throughput of a round of [`ENTRIES`].
fn append(criterion: &mut Criterion) {
    let entries = entries();
    let mut group = criterion.benchmark_group("log/append");
    group.throughput(Throughput::Elements(ENTRIES));
    let disks = [("memory", Empty::in_memory as fn() -> Empty), ("file", Empty::in_files)];
    for (disk, make) in disks {
        for batch in [1, 16, 256] {
            group.bench_with_input(BenchmarkId::new(disk, batch), &batch, |bencher, batch| {
                let round = |empty: &mut Empty| {
                    for entries in entries.chunks(*batch) {
                        let state = HardState { term: 1, vote: 1, commit: entries[0].index - 1 };
                        empty.log.append(entries, Some(&state), false).expect("the disk has room");
                    }
                };
                bencher.iter_batched_ref(make, round, BatchSize::PerIteration);
            });
        }
    }
}

criterion_group! {
    name = log;
    config = settings::criterion();
    targets = append
}
criterion_main!(log);
