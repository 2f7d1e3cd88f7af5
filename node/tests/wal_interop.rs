//! The log and etcd's own WAL package read each other's segments. The oracle is `tests/oracle/walcheck`, which `make
//! oracle` builds.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use kuorum::log::{EntryKind, FileDisk, HardState, Log, LogEntry, LogOptions, Metadata, Recovered, SnapshotMark};
use sha1::{Digest, Sha1};

const OPTIONS: LogOptions = LogOptions { segment_bytes: 64 * 1024, unsafe_no_fsync: true };

fn walcheck(args: &[&str]) -> String {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/oracle");
    let directory = std::env::var_os("KUORUM_ORACLE_DIR").map_or(default, PathBuf::from);
    let program = directory.join("walcheck");
    assert!(program.exists(), "{} is missing: run `make oracle`, or set KUORUM_ORACLE_DIR", program.display());
    let output = Command::new(&program).args(args).output().unwrap();
    assert!(output.status.success(), "walcheck {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Our reading, in the words of `walcheck read`.
fn describe(recovered: &Recovered) -> String {
    let (Metadata { node_id, cluster_id, .. }, HardState { term, vote, commit }) =
        (recovered.metadata, recovered.hard_state);
    let voters: Vec<String> = recovered.snapshot.voters.iter().map(u64::to_string).collect();
    let mut out = format!("metadata {node_id} {cluster_id}\n");
    writeln!(out, "mark {} {} [{}]", recovered.snapshot.index, recovered.snapshot.term, voters.join(" ")).unwrap();
    writeln!(out, "state {term} {vote} {commit}").unwrap();
    for entry in &recovered.entries {
        let hash: String = Sha1::digest(&entry.data).iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(out, "entry {} {} {} {} {hash}", entry.term, entry.index, entry.kind as u8, entry.data.len()).unwrap();
    }
    out
}

fn open(path: &Path) -> (Log, Recovered) {
    Log::open(Arc::new(FileDisk::open(path).unwrap()), OPTIONS).unwrap()
}

/// Appends what a log sees in its life: batches, a new leader's rewrite, marks, releases.
fn append_life(log: &mut Log, first: u64, base_term: u64) {
    let mut index = first;
    for round in 0..120_u64 {
        let term = base_term + round / 40;
        let entries: Vec<LogEntry> = (0..round % 4)
            .map(|offset| {
                let kind = [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2]
                    [usize::try_from(offset % 3).unwrap()];
                let length = usize::try_from((round * 37 + offset * 101) % 3000).unwrap();
                LogEntry { term, index: index + offset, kind, data: vec![u8::try_from(round).unwrap(); length].into() }
            })
            .collect();
        let state = HardState { term, vote: 3, commit: index - 1 };
        log.append(&entries, Some(&state), round % 3 == 0).unwrap();
        // Each fortieth round the last entry is not committed, and the next leader's replaces it.
        index += entries.len() as u64 - u64::from(round % 40 == 39 && !entries.is_empty());
        if round % 50 == 49 {
            log.mark_snapshot(&SnapshotMark { index: index - 1, term, voters: vec![1, 2, 3], learners: vec![] })
                .unwrap();
            log.release_to(index.saturating_sub(30)).unwrap();
        }
    }
}

#[test]
fn etcd_reads_our_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("wal");
    let metadata = Metadata { node_id: u64::MAX - 5, cluster_id: 12, data_dir: u64::MAX };
    let mut log = Log::create(Arc::new(FileDisk::open(&path).unwrap()), metadata, OPTIONS).unwrap();
    append_life(&mut log, 1, 1);
    drop(log);
    let theirs = walcheck(&["read", path.to_str().unwrap()]);
    assert_eq!(describe(&open(&path).1), theirs);
    assert!(theirs.lines().count() > 20, "{theirs}");
}

#[test]
fn we_read_etcds_log_and_go_on_with_it() {
    for seed in 1..6 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wal");
        walcheck(&["write", path.to_str().unwrap(), &seed.to_string(), "400"]);
        let theirs = walcheck(&["read", path.to_str().unwrap()]);
        let (mut log, recovered) = open(&path);
        assert_eq!(describe(&recovered), theirs, "seed {seed}");
        let first = log.last_index() + 1;
        append_life(&mut log, first, recovered.hard_state.term);
        drop(log);
        let theirs = walcheck(&["read", path.to_str().unwrap()]);
        assert_eq!(describe(&open(&path).1), theirs, "seed {seed}, continued");
    }
}
