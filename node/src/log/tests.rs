//! The log against a disk that loses power, lies and fills up.

use bytes::Bytes;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::mem_disk::MemDisk;
use super::*;

/// Segments small enough that a test fills several.
const SMALL_SEGMENT: u64 = 2_048;
const OWNER: Metadata = Metadata { node_id: 7, cluster_id: 9 };

fn entry(index: u64, payload: &[u8]) -> LogEntry {
    LogEntry { term: 1 + index / 10, index, kind: EntryKind::Normal, data: Bytes::copy_from_slice(payload) }
}

fn state(commit: u64) -> HardState {
    HardState { term: 1 + commit / 10, vote: 7, commit }
}

fn create(segment_bytes: u64) -> (MemDisk, Log) {
    let disk = MemDisk::default();
    let log = Log::create_with(disk.clone(), OWNER, segment_bytes).unwrap();
    (disk, log)
}

fn open(disk: &MemDisk) -> Result<(Log, Recovered), LogError> {
    Log::open_with(disk.clone(), SMALL_SEGMENT)
}

/// A log of so many synced entries.
fn filled(entries: u64, segment_bytes: u64) -> (MemDisk, Log) {
    let (disk, mut log) = create(segment_bytes);
    for index in 1..=entries {
        log.append(&[entry(index, format!("payload {index}").as_bytes())], Some(&state(index - 1)), true).unwrap();
    }
    (disk, log)
}

fn end_of(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

#[test]
fn what_was_appended_comes_back() {
    let (disk, log) = filled(200, SMALL_SEGMENT);
    drop(log);
    let (_, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.metadata, OWNER);
    assert_eq!(recovered.hard_state, state(199));
    assert_eq!(recovered.entries.len(), 200);
    assert_eq!(recovered.entries[136], entry(137, b"payload 137"));
    assert!(disk.names().len() > 3, "the log was meant to fill several segments: {:?}", disk.names());
    assert_eq!(recovered.warnings, []);
}

#[test]
fn a_loss_of_power_anywhere_in_an_unsynced_write_keeps_what_was_synced() {
    let (disk, mut log) = filled(5, 1 << 14);
    let synced = end_of(&disk.bytes(&disk.last_name()));
    let late: Vec<LogEntry> = (6..9).map(|index| entry(index, &[0xab; 100])).collect();
    log.append(&late, Some(&state(5)), false).unwrap();
    let written = end_of(&disk.bytes(&disk.last_name()));
    for kept in synced..=written {
        let broken = disk.after_power_loss(kept);
        let (mut log, recovered) = open(&broken).unwrap_or_else(|error| panic!("{kept} bytes kept: {error}"));
        let last = recovered.entries.last().unwrap().index;
        assert!((5..=8).contains(&last), "{kept} bytes kept: the last entry is {last}");
        // And the log goes on from there.
        log.append(&[entry(last + 1, b"next")], None, true).unwrap();
        let (_, again) = open(&broken).unwrap();
        assert_eq!(again.entries.last().unwrap(), &entry(last + 1, b"next"));
        assert_eq!(again.warnings, []);
    }
}

#[test]
fn the_last_record_may_be_torn_zeroed_or_garbled_at_any_byte() {
    let (disk, mut log) = filled(4, 1 << 13);
    let name = disk.last_name();
    let start = end_of(&disk.bytes(&name)).next_multiple_of(8);
    log.append(&[entry(5, &[0x5a; 200])], None, true).unwrap();
    let whole = disk.bytes(&name);
    let end = end_of(&whole);
    for at in start..end {
        for garbage in [0x00, 0xff, 0x3c] {
            let mut bytes = whole.clone();
            bytes[at..end].fill(garbage);
            if bytes == whole {
                continue;
            }
            let broken = MemDisk::default();
            broken.set_bytes(&name, bytes);
            let (_, recovered) = open(&broken).unwrap_or_else(|error| panic!("{garbage:x} from {at}: {error}"));
            assert_eq!(recovered.entries.len(), 4, "{garbage:x} from {at}");
            assert_eq!(end_of(&broken.bytes(&name)).next_multiple_of(8), start, "the rest is zeroed");
        }
    }
}

#[test]
fn a_flipped_bit_before_other_records_is_never_passed_over() {
    let (disk, log) = filled(6, 1 << 13);
    drop(log);
    let name = disk.last_name();
    let whole = disk.bytes(&name);
    let end = end_of(&whole);
    let (_, unbroken) = open(&disk).unwrap();
    // Up to the last entry and its state: from there on a damaged record has nothing valid behind it.
    for (at, bit) in (0..end - 120).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        let broken = MemDisk::default();
        broken.set_bytes(&name, bytes);
        match open(&broken) {
            // A record's type is outside its CRC: a flip there shows where the records stop making sense, later on.
            Err(LogError::Corrupt { file, .. }) => assert_eq!(file, name),
            Err(other) => panic!("flip at {at}: {other}"),
            // Padding between records carries nothing.
            Ok((_, recovered)) => assert_eq!(recovered.entries, unbroken.entries, "flip at {at} changed the log"),
        }
    }
}

#[test]
fn a_value_that_looks_like_records_does_not_make_a_torn_tail_corrupt() {
    let (disk, mut log) = filled(3, 1 << 14);
    let name = disk.last_name();
    let image = disk.bytes(&name)[..end_of(&disk.bytes(&name))].to_vec();
    log.append(&[entry(4, &image)], None, true).unwrap();
    let mut bytes = disk.bytes(&name);
    let end = end_of(&bytes);
    bytes[end - 30..end].fill(0);
    let broken = MemDisk::default();
    broken.set_bytes(&name, bytes);
    let (_, recovered) = open(&broken).unwrap();
    assert_eq!(recovered.entries.len(), 3);
}

#[test]
fn damage_in_a_segment_before_the_last_is_corruption_even_at_its_end() {
    let (disk, log) = filled(100, SMALL_SEGMENT);
    drop(log);
    let first = disk.names()[0].clone();
    let mut bytes = disk.bytes(&first);
    let end = end_of(&bytes);
    bytes[end - 4] ^= 0xff;
    disk.set_bytes(&first, bytes);
    let error = open(&disk).err().unwrap().to_string();
    assert!(error.contains(&first) && error.contains("corrupt at offset"), "{error}");
}

#[test]
fn a_missing_segment_is_named() {
    let (disk, log) = filled(150, SMALL_SEGMENT);
    drop(log);
    let names = disk.names();
    disk.remove_file(&names[1]);
    let error = open(&disk).err().unwrap().to_string();
    assert!(error.contains(&names[2]) && error.contains("missing"), "{error}");
}

#[test]
fn a_full_disk_changes_nothing_and_the_write_can_be_repeated() {
    for writes in 0..30 {
        let (disk, mut log) = create(SMALL_SEGMENT);
        disk.fill_after(Some(writes));
        let mut appended = 0;
        let refused = loop {
            match log.append(&[entry(appended + 1, &[0x77; 300])], None, true) {
                Ok(_) => appended += 1,
                Err(error) => break error,
            }
        };
        assert!(refused.is_no_space(), "after {writes} writes: {refused}");
        // Whatever the failed write left behind is no record: not now, and not after a shorter one in its place.
        let copy = disk.after_power_loss(usize::MAX);
        assert_eq!(open(&copy).unwrap().1.entries.len() as u64, appended, "after {writes} writes");
        disk.fill_after(None);
        log.append(&[entry(appended + 1, b"short")], None, true).unwrap();
        let (_, recovered) = open(&disk).unwrap();
        assert_eq!(recovered.entries.last(), Some(&entry(appended + 1, b"short")), "after {writes} writes");
        assert_eq!(recovered.warnings, [], "after {writes} writes");
    }
}

#[test]
fn a_new_leaders_entries_replace_the_old_ones() {
    let (disk, mut log) = filled(9, SMALL_SEGMENT);
    let newer = LogEntry { term: 5, ..entry(4, b"newer") };
    log.append(&[newer.clone()], Some(&HardState { term: 5, vote: 8, commit: 3 }), true).unwrap();
    let (_, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.entries.len(), 4);
    assert_eq!(recovered.entries[3], newer);
}

#[test]
fn a_released_head_is_gone_and_the_rest_is_whole() {
    let (disk, mut log) = filled(200, SMALL_SEGMENT);
    let segments = disk.names().len();
    let mark = SnapshotMark { index: 120, term: 13, voters: vec![7], learners: vec![] };
    log.mark_snapshot(&mark).unwrap();
    log.release_to(100).unwrap();
    assert!(disk.names().len() < segments);
    log.append(&[entry(201, b"after")], None, true).unwrap();
    let (_, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.before, mark);
    assert_eq!(recovered.entries.first(), Some(&entry(121, b"payload 121")));
    assert_eq!(recovered.entries.last(), Some(&entry(201, b"after")));
    // All of it released: the last segment stays, and says how far the log had come.
    let (mut log, _) = open(&disk).unwrap();
    log.mark_snapshot(&SnapshotMark { index: 201, ..mark }).unwrap();
    log.release_to(201).unwrap();
    let (_, recovered) = open(&disk).unwrap();
    assert_eq!((recovered.before.index, recovered.entries.len(), disk.names().len()), (201, 0, 1));
}

#[test]
fn files_that_are_no_segments_are_named_and_left_alone() {
    let (disk, log) = filled(3, SMALL_SEGMENT);
    drop(log);
    disk.set_bytes("notes.txt", b"hello".to_vec());
    disk.set_bytes("0000000000000001-0000000000000004.wal.tmp", vec![1; 100]);
    let (_, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.warnings, [Warning::ForeignFile("notes.txt".into())]);
    assert_eq!(disk.bytes("notes.txt"), b"hello");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_of_appends_and_reopenings_is_kept(
        steps in prop::collection::vec((0usize..4, 0usize..900, any::<bool>()), 1..60),
    ) {
        let (disk, mut log) = create(SMALL_SEGMENT);
        let mut model: Vec<LogEntry> = Vec::new();
        for (count, size, reopen) in steps {
            let next = model.len() as u64 + 1;
            let batch: Vec<LogEntry> =
                (0..count as u64).map(|n| entry(next + n, &vec![n as u8; size])).collect();
            log.append(&batch, Some(&state(next)), true).unwrap();
            model.extend(batch);
            if reopen {
                let (reopened, recovered) = open(&disk).unwrap();
                prop_assert_eq!(&recovered.entries, &model);
                log = reopened;
            }
        }
        prop_assert_eq!(open(&disk).unwrap().1.entries, model);
    }
}

/// Mutated segments: no panic, and never an entry that was not written, unless its bytes were touched by chance in a way
/// that a CRC cannot see.
#[test]
fn mutated_segments_do_not_make_the_reader_panic() {
    const ROUNDS: u32 = 3_000;
    const SEED: u64 = 0x6b75_6f72_756d;
    println!("seed {SEED:#x}");
    let mut random = StdRng::seed_from_u64(SEED);
    let (disk, log) = filled(12, 1 << 12);
    drop(log);
    let name = disk.last_name();
    let whole = disk.bytes(&name);
    for _ in 0..ROUNDS {
        let mut bytes = whole.clone();
        for _ in 0..random.random_range(1..12) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..4) {
                0 => bytes[at] = random.random(),
                1 => bytes.truncate(at.max(1)),
                2 => bytes[at..].fill(random.random()),
                _ => {
                    let from = random.random_range(0..bytes.len());
                    let length = random.random_range(0..64).min(bytes.len() - at.max(from));
                    bytes.copy_within(from..from + length, at);
                }
            }
        }
        let broken = MemDisk::default();
        broken.set_bytes(&name, bytes);
        if let Ok((_, recovered)) = open(&broken) {
            for found in recovered.entries {
                assert_eq!(found, entry(found.index, format!("payload {}", found.index).as_bytes()));
            }
        }
    }
}
