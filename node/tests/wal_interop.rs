//! The log's format is etcd's: our reader on a log that etcd wrote, and etcd's reader on one of ours. `make oracle` builds
//! the program `walcheck` around etcd's own package.

use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use kuorum::log::{EntryKind, FileDisk, HardState, Log, LogEntry, Metadata, SnapshotMark};

const OWNER: Metadata = Metadata { node_id: 7, cluster_id: 9 };

fn walcheck() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let dir = std::env::var_os("KUORUM_ORACLE_DIR").map_or_else(|| workspace.join("target/oracle"), PathBuf::from);
    let program = dir.join("walcheck");
    assert!(
        program.exists(),
        "{} is missing: run `make oracle`, or name its folder in KUORUM_ORACLE_DIR",
        program.display()
    );
    program
}

/// What etcd reads from a log directory.
fn read_by_etcd(dir: &Path) -> String {
    let output = Command::new(walcheck()).arg("read").arg(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn open(dir: &Path) -> (Log, kuorum::log::Recovered) {
    Log::open(FileDisk::open(dir, true).unwrap()).unwrap()
}

fn entry(index: u64, data: Vec<u8>) -> LogEntry {
    LogEntry { term: 3, index, kind: EntryKind::Normal, data: Bytes::from(data) }
}

/// The same listing as etcd's, of what we know to be in the log.
fn listing(mark: u64, entries: &[LogEntry], state: HardState) -> String {
    let mut out = format!("metadata 08071009\nmark {mark}\n");
    for entry in entries.iter().filter(|entry| entry.index > mark) {
        let digest: String = sha256(&entry.data);
        out.push_str(&format!("entry {} {} {digest}\n", entry.term, entry.index));
    }
    out.push_str(&format!("state {} {} {}\n", state.term, state.vote, state.commit));
    out
}

fn sha256(data: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn we_read_what_etcd_wrote_in_several_segments() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("wal");
    let status = Command::new(walcheck()).args(["write".as_ref(), dir.as_os_str(), "300".as_ref()]).status().unwrap();
    assert!(status.success());
    assert!(std::fs::read_dir(&dir).unwrap().count() > 3, "the log was meant to fill several segments");
    let (_, recovered) = open(&dir);
    assert_eq!(recovered.metadata, OWNER);
    assert_eq!(recovered.before, SnapshotMark { index: 150, term: 4, voters: vec![7], learners: vec![] });
    assert_eq!(recovered.hard_state, HardState { term: 7, vote: 7, commit: 299 });
    let expected: Vec<LogEntry> = (151..=300)
        .map(|n| LogEntry {
            term: 1 + n / 50,
            index: n,
            kind: EntryKind::Normal,
            data: format!("etcd entry {n}").repeat(usize::try_from(n % 40).unwrap()).into(),
        })
        .collect();
    assert_eq!(recovered.entries, expected);
}

#[test]
fn etcd_reads_what_we_wrote() {
    let home = tempfile::tempdir().unwrap();
    let mut log = Log::create(FileDisk::open(home.path(), true).unwrap(), OWNER).unwrap();
    let mut entries = Vec::new();
    let mut state = HardState::default();
    // Large enough to fill more than one segment of 64 MiB.
    for index in 1..=90 {
        entries.push(entry(index, vec![u8::try_from(index).unwrap(); 1 << 20]));
        state = HardState { term: 3, vote: 7, commit: index - 1 };
        log.append(&entries[entries.len() - 1..], Some(&state), index % 10 == 0).unwrap();
    }
    assert_eq!(read_by_etcd(home.path()), listing(0, &entries, state));

    log.mark_snapshot(&SnapshotMark { index: 80, term: 3, voters: vec![7], learners: vec![8] }).unwrap();
    log.release_to(80).unwrap();
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1);
    assert_eq!(read_by_etcd(home.path()), listing(80, &entries, state));
}

#[test]
fn etcd_reads_our_log_after_a_torn_tail_was_cut() {
    let home = tempfile::tempdir().unwrap();
    let mut log = Log::create(FileDisk::open(home.path(), true).unwrap(), OWNER).unwrap();
    let entries: Vec<LogEntry> = (1..=5).map(|index| entry(index, vec![9; 100])).collect();
    let state = HardState { term: 3, vote: 7, commit: 2 };
    log.append(&entries[..4], Some(&state), true).unwrap();
    log.append(&entries[4..], None, true).unwrap();
    drop(log);
    let segment = std::fs::read_dir(home.path()).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&segment).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[end - 20..].fill(0);
    std::fs::write(&segment, bytes).unwrap();
    let (mut log, recovered) = open(home.path());
    assert_eq!((recovered.entries.len(), recovered.warnings.len()), (4, 1));
    let state = HardState { commit: 4, ..state };
    log.append(&entries[4..], Some(&state), true).unwrap();
    assert_eq!(read_by_etcd(home.path()), listing(0, &entries, state));
}
