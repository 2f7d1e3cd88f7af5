//! Behaviour in scripts (`testscripts/log`), crash points and damage by property, mutated segments by a seeded fuzzer.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use goldenscript::{Command, Context, Runner};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const METADATA: Metadata = Metadata { node_id: 0x1111_2222_3333_4444, cluster_id: 7, data_dir: 0 };
const SMALL: LogOptions = LogOptions { segment_bytes: 2048, unsafe_no_fsync: false };

fn entry(term: u64, index: u64, data: impl Into<Bytes>) -> LogEntry {
    LogEntry { term, index, kind: EntryKind::Normal, data: data.into() }
}

fn filled(byte: u8, bytes: u64) -> Vec<u8> {
    vec![byte; usize::try_from(bytes).unwrap()]
}

fn low_byte(number: u64) -> u8 {
    number.to_le_bytes()[0]
}

fn state(term: u64, commit: u64) -> HardState {
    HardState { term, vote: 1, commit }
}

fn open(disk: &MemDisk, options: LogOptions) -> Result<(Log, Recovered), LogError> {
    Log::open(Arc::new(disk.clone()), options)
}

fn create(disk: &MemDisk, options: LogOptions) -> Log {
    Log::create(Arc::new(disk.clone()), METADATA, options).unwrap()
}

fn segments(disk: &MemDisk) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| name.ends_with(".wal")).collect()
}

#[test]
fn a_log_begun_anew_behind_a_mark_holds_nothing_from_before() {
    let mark = SnapshotMark { index: 9, term: 4, voters: vec![1, 2], learners: vec![3] };
    // Entries up to 6, short of the mark, and up to 12, past it, of which 3 are committed; later ones of a higher term.
    for last in [3, 6, 9, 12] {
        let disk = MemDisk::new();
        let mut log = create(&disk, SMALL);
        let entries: Vec<LogEntry> =
            (1..=last).map(|index| entry(if index > 3 { 5 } else { 2 }, index, "old")).collect();
        log.append(&entries, Some(&state(5, 3)), true).unwrap();
        log.restart_at(&mark, Some(&state(6, 9))).unwrap();
        // Again, as after a crash that came between the store and the log.
        if last == 6 {
            log.restart_at(&mark, None).unwrap();
        }
        let recovered = open(&disk.copy(), SMALL).unwrap().1;
        assert_eq!((recovered.snapshot.clone(), recovered.entries.len()), (mark.clone(), 0), "{last}");
        assert_eq!(recovered.hard_state, HardState { term: 6, vote: 1, commit: 9 });
        log.append(&[entry(6, 10, "new")], Some(&state(6, 10)), true).unwrap();
        let recovered = open(&disk, SMALL).unwrap().1;
        assert_eq!(recovered.entries, [entry(6, 10, "new")], "{last}");
    }
}

/// Where each frame of a segment starts, and where the last one ends.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let mut starts = vec![0];
    let mut at = 0;
    while let Some(size) = bytes.get(at..).and_then(record::length_field).and_then(record::frame_bytes) {
        at += size;
        starts.push(at);
    }
    starts
}

/// Opens a copy with the last segment replaced.
fn open_with(disk: &MemDisk, bytes: Vec<u8>, options: LogOptions) -> (MemDisk, Result<(Log, Recovered), LogError>) {
    let copy = disk.copy();
    copy.replace(segments(&copy).last().unwrap(), bytes);
    let opened = open(&copy, options);
    (copy, opened)
}

/// A log whose last append is one record, and that record's place.
fn log_with_last_record(payload: &[u8]) -> (MemDisk, Vec<u8>, usize, usize) {
    let disk = MemDisk::new();
    let options = LogOptions { segment_bytes: 16384, ..SMALL };
    let mut log = create(&disk, options);
    for index in 1..=5 {
        log.append(&[entry(1, index, filled(b'v', 37 * index))], Some(&state(1, index - 1)), true).unwrap();
    }
    log.append(&[entry(1, 6, payload.to_vec())], None, true).unwrap();
    let bytes = disk.contents(&segments(&disk)[0]).unwrap();
    let starts = frames(&bytes);
    (disk, bytes, starts[starts.len() - 2], starts[starts.len() - 1])
}

fn check_torn(disk: &MemDisk, bytes: Vec<u8>, what: &str) {
    let options = LogOptions { segment_bytes: 16384, ..SMALL };
    let (copy, opened) = open_with(disk, bytes, options);
    let (mut log, recovered) = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(recovered.entries.len() >= 5, "{what}: entries {:?}", recovered.entries.len());
    assert_eq!(recovered.hard_state, state(1, 4), "{what}");
    // The log goes on, and no stale byte comes back.
    let next = log.last_index() + 1;
    log.append(&[entry(2, next, "next")], None, true).unwrap();
    let (_, again) = open(&copy, options).unwrap_or_else(|error| panic!("{what}, reopened: {error}"));
    assert_eq!(again.entries.last().unwrap().index, next, "{what}");
    assert_eq!(again.torn_tail, None, "{what}");
}

#[test]
fn a_last_record_torn_at_any_byte_is_cut() {
    let (disk, bytes, start, end) = log_with_last_record(&[b'x'; 700]);
    let mut random = StdRng::seed_from_u64(1);
    for cut in start..end {
        let mut zeroed = bytes.clone();
        zeroed[cut..end].fill(0);
        check_torn(&disk, zeroed, &format!("zeroed from {cut}"));
        let mut truncated = bytes.clone();
        truncated.truncate(cut);
        check_torn(&disk, truncated, &format!("truncated at {cut}"));
        let mut garbled = bytes.clone();
        random.fill(&mut garbled[cut..end]);
        check_torn(&disk, garbled, &format!("garbled from {cut}"));
        let mut sector = bytes.clone();
        sector[cut..(cut + 512).min(end)].fill(0);
        check_torn(&disk, sector, &format!("sector lost at {cut}"));
    }
}

#[test]
fn an_image_of_a_log_inside_a_torn_value_is_no_later_record() {
    let (other, image, ..) = log_with_last_record(b"newer");
    let mut log = open(&other, SMALL).unwrap().0;
    log.append(&(7..20).map(|index| entry(9, index, "image")).collect::<Vec<_>>(), Some(&state(9, 15)), true).unwrap();
    assert!(!image.is_empty());
    let image = other.contents(&segments(&other)[0]).unwrap();
    let used = *frames(&image).last().unwrap();
    for shift in 0..8 {
        let payload = [&vec![0xff; shift], &image[..used], &[0xff; 40]].concat();
        let (disk, bytes, start, end) = log_with_last_record(&payload);
        for cut in (start..end).step_by(3).chain(start + 30..start + 60) {
            let mut torn = bytes.clone();
            torn[cut..end].fill(0);
            check_torn(&disk, torn, &format!("shift {shift}, zeroed from {cut}"));
            let mut flipped = bytes.clone();
            flipped[end - 10] ^= 1;
            check_torn(&disk, flipped, "flipped at its end");
        }
    }
}

#[test]
fn any_bit_flipped_before_the_last_record_is_refused_or_harmless() {
    let disk = MemDisk::new();
    let options = LogOptions { segment_bytes: 8192, ..SMALL };
    let mut log = create(&disk, options);
    log.append(
        &(1..=4).map(|index| entry(1, index, filled(7, 24 * index))).collect::<Vec<_>>(),
        Some(&state(1, 2)),
        true,
    )
    .unwrap();
    log.append(&[entry(1, 5, Bytes::new()), entry(2, 6, "six")], Some(&state(2, 5)), false).unwrap();
    // The same hard state again: the last record is newer than nothing.
    log.append(&[entry(2, 7, vec![8; 600])], Some(&state(2, 5)), true).unwrap();
    let expected = open(&disk, options).unwrap().1;
    let bytes = disk.contents(&segments(&disk)[0]).unwrap();
    let starts = frames(&bytes);
    for at in 0..starts[starts.len() - 2] {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            match open_with(&disk, flipped, options).1 {
                // A type flipped between entry and hard state may pass as the other; what follows then does not fit.
                Err(LogError::Corrupt { .. } | LogError::Inconsistent { .. }) => {}
                Err(error) => panic!("byte {at} bit {bit}: {error}"),
                Ok((_, recovered)) => {
                    assert_eq!(
                        (recovered.entries, recovered.hard_state),
                        (expected.entries.clone(), expected.hard_state),
                        "byte {at} bit {bit}"
                    );
                }
            }
        }
    }
}

#[test]
fn any_byte_flipped_in_an_earlier_segment_is_refused_or_harmless() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogOptions { segment_bytes: 512, ..SMALL });
    for index in 1..=20 {
        log.append(&[entry(1, index, filled(low_byte(index), 50))], Some(&state(1, index - 1)), true).unwrap();
    }
    let expected = open(&disk, SMALL).unwrap().1;
    let name = segments(&disk)[1].clone();
    let bytes = disk.contents(&name).unwrap();
    for at in 0..bytes.len() {
        let copy = disk.copy();
        let mut flipped = bytes.clone();
        flipped[at] ^= 0xff;
        copy.replace(&name, flipped);
        match open(&copy, SMALL) {
            Err(LogError::Corrupt { .. }) => {}
            Err(error) => panic!("byte {at}: {error}"),
            Ok((_, recovered)) => assert_eq!(recovered.entries, expected.entries, "byte {at}"),
        }
    }
}

#[test]
fn pages_of_an_unsynced_write_may_be_lost_in_any_order() {
    let disk = MemDisk::new();
    let options = LogOptions { segment_bytes: 65536, ..SMALL };
    let mut log = create(&disk, options);
    log.append(&[entry(1, 1, vec![1; 300])], Some(&state(1, 0)), true).unwrap();
    let batch: Vec<_> = (2..=40).map(|index| entry(1, index, filled(low_byte(index), 300))).collect();
    let synced = log.end;
    log.append(&batch, Some(&state(1, 1)), false).unwrap();
    let bytes = disk.contents(&segments(&disk)[0]).unwrap();
    let end = log.end;
    log.sync().unwrap();
    log.append(&[entry(1, 41, "acknowledged before this")], None, true).unwrap();
    let continued = disk.contents(&segments(&disk)[0]).unwrap();
    for sector in synced / 512 + 1..end / 512 {
        let hole = usize::try_from(sector * 512).unwrap();
        let mut torn = bytes.clone();
        torn[hole..hole + 512].fill(0);
        let recovered = open_with(&disk, torn, options).1.unwrap_or_else(|error| panic!("hole at {hole}: {error}")).1;
        assert!(!recovered.entries.is_empty() && recovered.torn_tail.is_some(), "hole at {hole}");
        let mut lost = continued.clone();
        lost[hole..hole + 512].fill(0);
        assert!(
            matches!(open_with(&disk, lost, options).1, Err(LogError::Corrupt { .. })),
            "hole at {hole} before a marker"
        );
    }
}

/// Zeroes one sector after the other between two places of the last segment.
fn with_holes(disk: &MemDisk, range: std::ops::Range<u64>) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let bytes = disk.contents(segments(disk).last().unwrap()).unwrap();
    (range.start.div_ceil(512)..range.end / 512).map(move |sector| {
        let hole = usize::try_from(sector * 512).unwrap();
        let mut torn = bytes.clone();
        torn[hole..hole + 512].fill(0);
        (hole, torn)
    })
}

#[test]
fn a_hole_is_corruption_where_the_writer_sets_no_markers() {
    let disk = MemDisk::new();
    let synced = LogOptions { segment_bytes: 8192, ..SMALL };
    let unsynced = LogOptions { unsafe_no_fsync: true, ..synced };
    // Markers in an earlier segment say nothing of this one.
    let mut log = create(&disk, synced);
    for index in 1..=2 {
        log.append(&[entry(1, index, filled(1, 5000))], Some(&state(1, index - 1)), true).unwrap();
    }
    drop(log);
    let (mut log, recovered) = open(&disk, unsynced).unwrap();
    assert_eq!(recovered.entries.len(), 2);
    for index in 3..=20 {
        log.append(&[entry(1, index, filled(low_byte(index), 300))], Some(&state(1, index - 1)), true).unwrap();
    }
    assert_eq!(segments(&disk).len(), 2);
    let last_record = 400;
    for (hole, torn) in with_holes(&disk, 512..log.end - last_record) {
        let opened = open_with(&disk, torn, unsynced).1.map(|(_, recovered)| recovered);
        assert!(matches!(opened, Err(LogError::Corrupt { .. })), "hole at {hole}: {opened:?}");
    }
}

#[test]
fn a_hole_in_the_first_append_of_a_segment_is_torn() {
    let disk = MemDisk::new();
    let options = LogOptions { segment_bytes: 2048, ..SMALL };
    let mut log = create(&disk, options);
    log.append(&[entry(1, 1, vec![1; 3000])], Some(&state(1, 0)), true).unwrap();
    let batch: Vec<_> = (2..=20).map(|index| entry(1, index, filled(low_byte(index), 300))).collect();
    log.append(&batch, Some(&state(1, 1)), false).unwrap();
    assert_eq!(segments(&disk).len(), 2);
    for (hole, torn) in with_holes(&disk, 512..log.end) {
        let recovered = open_with(&disk, torn, options).1.unwrap_or_else(|error| panic!("hole at {hole}: {error}")).1;
        assert!(!recovered.entries.is_empty() && recovered.torn_tail.is_some(), "hole at {hole}");
    }
    // The marker itself is lost, and with it the head of the append.
    let mut bytes = disk.contents(&segments(&disk)[1]).unwrap();
    let start = frames(&bytes)[3];
    assert!(start < 512);
    bytes[start..512].fill(0);
    let recovered = open_with(&disk, bytes, options).1.unwrap().1;
    assert_eq!((recovered.entries.len(), recovered.torn_tail.unwrap().offset), (1, start as u64));
}

#[derive(Clone, Debug)]
enum Step {
    Append { count: u64, bytes: usize, sync: bool },
    Rewrite { back: u64 },
    Mark,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..6_u64, 0..400_usize, any::<bool>()).prop_map(|(count, bytes, sync)| Step::Append { count, bytes, sync }),
        1 => (1..5_u64).prop_map(|back| Step::Rewrite { back }),
        1 => Just(Step::Mark),
        1 => Just(Step::Release),
    ];
    prop::collection::vec(step, 1..40)
}

/// What a log must hold, kept beside it.
#[derive(Clone, Default)]
struct Model {
    entries: Vec<LogEntry>,
    state: HardState,
    mark: u64,
}

impl Model {
    fn take(&mut self, log: &mut Log, step: &Step) -> bool {
        let last = self.entries.last().map_or(0, |entry| entry.index);
        match step {
            Step::Append { count, bytes, sync } => {
                let term = self.state.term.max(1);
                let new: Vec<_> =
                    (1..=*count).map(|offset| entry(term, last + offset, vec![low_byte(offset); *bytes])).collect();
                let next = HardState { term, vote: 1, commit: self.state.commit.max(last.saturating_sub(3)) };
                log.append(&new, Some(&next), *sync).unwrap();
                self.entries.extend(new);
                self.state = next;
                *sync
            }
            Step::Rewrite { back } => {
                let index = (last + 1).saturating_sub(*back).max(self.state.commit + 1);
                let next = HardState { term: self.state.term.max(1) + 1, vote: 2, commit: self.state.commit };
                let new = entry(next.term, index, "rewritten");
                log.append(std::slice::from_ref(&new), Some(&next), true).unwrap();
                self.entries.retain(|held| held.index < index);
                self.entries.push(new);
                self.state = next;
                true
            }
            Step::Mark => {
                let index = self.state.commit;
                let term = self.entries.iter().find(|entry| entry.index == index).map_or(0, |entry| entry.term);
                log.mark_snapshot(&SnapshotMark { index, term, voters: vec![1, 2, 3], learners: vec![4] }).unwrap();
                self.mark = index;
                true
            }
            Step::Release => {
                log.release_to(self.mark).unwrap();
                false
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_keeps_what_was_synced(steps in steps(), kept in any::<prop::sample::Index>(), segment_bytes in 300..3000_u64) {
        let options = LogOptions { segment_bytes, unsafe_no_fsync: false };
        let disk = MemDisk::new();
        let mut log = create(&disk, options);
        let mut model = Model::default();
        let (mut synced, mut history) = (Model::default(), vec![Model::default()]);
        for step in &steps {
            let is_synced = model.take(&mut log, step);
            history.push(model.clone());
            if is_synced {
                synced = model.clone();
                history = vec![model.clone()];
            }
        }
        drop(log);
        disk.crash(kept.index(disk.unsynced_bytes() + 1));
        let (mut log, recovered) = open(&disk, options).unwrap();
        prop_assert_eq!(recovered.metadata, METADATA);
        prop_assert!(recovered.snapshot.index >= synced.mark);
        prop_assert!(recovered.hard_state.commit >= synced.state.commit && recovered.hard_state.term >= synced.state.term);
        // Every entry is one that was appended, in order, and none that was synced is missing.
        let newest = history.last().unwrap();
        let expected: Vec<_> = newest.entries.iter().filter(|entry| entry.index > recovered.snapshot.index).cloned().collect();
        prop_assert_eq!(&recovered.entries[..], &expected[..recovered.entries.len()]);
        let last_synced = synced.entries.last().map_or(0, |entry| entry.index);
        prop_assert!(recovered.entries.last().map_or(recovered.snapshot.index, |entry| entry.index) >= last_synced);
        let reader = log.reader();
        for (entry, position) in recovered.entries.iter().zip(&recovered.positions) {
            prop_assert_eq!(&reader.read(*position).unwrap(), entry);
        }
        let next = entry(recovered.hard_state.term.max(1) + 9, log.last_index() + 1, "after the crash");
        log.append(std::slice::from_ref(&next), None, true).unwrap();
        let (_, again) = open(&disk, options).unwrap();
        prop_assert_eq!(again.entries.last(), Some(&next));
        prop_assert_eq!(again.torn_tail, None);
    }
}

#[test]
fn mutated_segments_never_panic_the_reader() {
    // Replay: the seed is fixed; change it to look elsewhere.
    let seed = 0x6b75_6f72_756d;
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let disk = MemDisk::new();
    let mut log = create(&disk, SMALL);
    for index in 1..=12 {
        log.append(&[entry(1, index, filled(low_byte(index), 90))], Some(&state(1, index - 1)), index % 2 == 0)
            .unwrap();
    }
    log.mark_snapshot(&SnapshotMark { index: 6, term: 1, voters: vec![1, 2], learners: vec![3] }).unwrap();
    let names = segments(&disk);
    for _ in 0..6000 {
        let copy = disk.copy();
        let name = &names[random.random_range(0..names.len())];
        let mut bytes = copy.contents(name).unwrap();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..5) {
                0 => bytes[at] ^= 1 << random.random_range(0..8),
                1 => {
                    let end = (at + random.random_range(1..64)).min(bytes.len());
                    random.fill(&mut bytes[at..end]);
                }
                2 => bytes[at..].fill(0),
                3 => {
                    let (from, count) = (random.random_range(0..bytes.len()), random.random_range(1..128));
                    let part = bytes[from..(from + count).min(bytes.len())].to_vec();
                    bytes.splice(at..at, part);
                }
                _ => bytes.truncate(at.max(1)),
            }
        }
        copy.replace(name, bytes);
        if let Ok((mut log, _)) = open(&copy, SMALL) {
            let next = log.last_index() + 1;
            log.append(&[entry(99, next, "next")], None, true).unwrap();
            let (_, again) = open(&copy, SMALL).expect("a log that was opened and appended to opens again");
            assert_eq!(again.entries.last().map(|entry| entry.index), Some(next));
        }
    }
}

#[test]
fn an_append_that_meets_a_full_disk_can_be_repeated() {
    let disk = MemDisk::new();
    let mut log = create(&disk, SMALL);
    log.append(&[entry(1, 1, "one")], Some(&state(1, 0)), true).unwrap();
    disk.set_capacity(Some(2048));
    let large = [entry(1, 2, vec![2; 3000]), entry(1, 3, "three")];
    let error = log.append(&large, None, true).unwrap_err();
    assert!(error.is_no_space(), "{error}");
    let (_, recovered) = open(&disk.copy(), SMALL).unwrap();
    assert_eq!(recovered.entries.len(), 1);
    disk.set_capacity(None);
    log.append(&[entry(1, 2, "two")], None, true).unwrap();
    let (_, recovered) = open(&disk, SMALL).unwrap();
    assert_eq!((recovered.entries.len(), recovered.torn_tail), (2, None));
}

#[test]
fn a_cut_that_meets_a_full_disk_can_be_repeated() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogOptions { segment_bytes: 512, ..SMALL });
    log.append(&[entry(1, 1, vec![1; 600])], None, true).unwrap();
    disk.set_capacity(Some(800));
    assert!(log.append(&[entry(1, 2, "two")], None, true).unwrap_err().is_no_space());
    disk.set_capacity(None);
    log.append(&[entry(1, 2, "two")], None, true).unwrap();
    assert_eq!(segments(&disk).len(), 2);
    assert_eq!(open(&disk, SMALL).unwrap().1.entries.len(), 2);
}

#[test]
fn a_failed_sync_stops_the_log() {
    let disk = MemDisk::new();
    let mut log = create(&disk, SMALL);
    disk.fail_syncs(1);
    let error = log.append(&[entry(1, 1, "one")], None, true).unwrap_err();
    assert!(matches!(error, LogError::Io { op: "sync", .. }) && !error.is_no_space());
    assert!(matches!(log.append(&[entry(1, 1, "one")], None, true), Err(LogError::Stopped)));
}

#[test]
fn an_append_is_one_write_and_one_sync() {
    let disk = MemDisk::new();
    let mut log = create(&disk, LogOptions::default());
    let before = disk.counts();
    log.append(&[entry(1, 1, "one"), entry(1, 2, "two")], Some(&state(1, 1)), true).unwrap();
    let after = disk.counts();
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1));
}

#[test]
fn a_real_directory_is_held_by_one_process_and_survives_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member/wal");
    let disk = Arc::new(FileDisk::open(&path).unwrap());
    assert_eq!(FileDisk::open(&path).unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    let mut log = Log::create(disk, METADATA, LogOptions::default()).unwrap();
    log.append(&[entry(1, 1, "one")], Some(&state(1, 1)), true).unwrap();
    drop(log);
    let (log, recovered) = Log::open(Arc::new(FileDisk::open(&path).unwrap()), LogOptions::default()).unwrap();
    assert_eq!((recovered.entries.len(), recovered.torn_tail, log.last_index()), (1, None, 1));
}

/// Runs the scripts. State: one disk, and the log when it is open.
struct Script {
    disk: MemDisk,
    log: Option<Log>,
}

#[test]
fn scripts() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testscripts/log");
    let mut paths: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        goldenscript::run(&mut Script { disk: MemDisk::new(), log: None }, &path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn number<T: std::str::FromStr<Err: Error + 'static>>(
    args: &mut goldenscript::ArgumentConsumer<'_>,
    key: &str,
) -> Result<Option<T>, Box<dyn Error>> {
    Ok(args.take_key(key).map(str::parse).transpose()?)
}

impl Script {
    fn log(&mut self) -> Result<&mut Log, Box<dyn Error>> {
        self.log.as_mut().ok_or_else(|| "no log is open".into())
    }

    fn open(&mut self) -> Result<String, Box<dyn Error>> {
        self.log = None;
        let (log, recovered) = open(&self.disk, SMALL)?;
        self.log = Some(log);
        let mut out = String::new();
        let HardState { term, vote, commit } = recovered.hard_state;
        writeln!(out, "state term={term} vote={vote} commit={commit}")?;
        writeln!(
            out,
            "mark index={} term={} voters={:?}",
            recovered.snapshot.index, recovered.snapshot.term, recovered.snapshot.voters
        )?;
        for entry in &recovered.entries {
            let text = String::from_utf8_lossy(&entry.data);
            let shown: String = text.chars().take(12).collect();
            writeln!(out, "entry {}@{} {shown:?} {} bytes", entry.index, entry.term, entry.data.len())?;
        }
        if let Some(torn) = recovered.torn_tail {
            writeln!(out, "torn {} bytes at {} in {}: {}", torn.bytes, torn.offset, torn.file, torn.damage)?;
        }
        if !recovered.foreign.is_empty() {
            writeln!(out, "foreign {:?}", recovered.foreign)?;
        }
        Ok(out)
    }

    /// Damages a segment: counted from the start of a record, the last being -1.
    fn damage(&mut self, command: &Command) -> Result<String, Box<dyn Error>> {
        let mut args = command.consume_args();
        let segment: usize = number(&mut args, "segment")?.unwrap_or(segments(&self.disk).len() - 1);
        let record: i64 = number(&mut args, "record")?.unwrap_or(-1);
        let at: usize = number(&mut args, "at")?.unwrap_or(0);
        let name = segments(&self.disk)[segment].clone();
        let mut bytes = self.disk.contents(&name).ok_or("no such segment")?;
        let starts = frames(&bytes);
        let position = if record < 0 { i64::try_from(starts.len())? - 1 + record } else { record };
        let place = starts[usize::try_from(position)?] + at;
        match command.name.as_str() {
            "flip" => bytes[place] ^= 0xff,
            "zero" => bytes[place..].fill(0),
            "truncate" => bytes.truncate(place),
            other => return Err(format!("no damage {other}").into()),
        }
        args.reject_next()?;
        self.disk.replace(&name, bytes);
        self.log = None;
        Ok(String::new())
    }

    fn append(&mut self, command: &Command) -> Result<String, Box<dyn Error>> {
        let mut args = command.consume_args();
        let (term, first): (u64, u64) =
            (number(&mut args, "term")?.unwrap_or(1), number(&mut args, "index")?.unwrap_or(0));
        let (sync, fill): (bool, usize) =
            (number(&mut args, "sync")?.unwrap_or(true), number(&mut args, "fill")?.unwrap_or(0));
        let commit: Option<u64> = number(&mut args, "commit")?;
        let values: Vec<&str> = std::iter::from_fn(|| args.next_pos()).collect();
        args.reject_next()?;
        let entries: Vec<_> = (first..)
            .zip(&values)
            .map(|(index, value)| entry(term, index, format!("{value}{}", ".".repeat(fill))))
            .collect();
        let hard_state = commit.map(|commit| state(term, commit));
        self.log()?.append(&entries, hard_state.as_ref(), sync)?;
        Ok(String::new())
    }
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut args = command.consume_args();
        match command.name.as_str() {
            "create" => self.log = Some(Log::create(Arc::new(self.disk.clone()), METADATA, SMALL)?),
            "open" => return self.open(),
            "append" => return self.append(command),
            "flip" | "zero" | "truncate" => return self.damage(command),
            "mark" => {
                let (index, term) = (number(&mut args, "index")?.unwrap_or(0), number(&mut args, "term")?.unwrap_or(1));
                self.log()?.mark_snapshot(&SnapshotMark { index, term, voters: vec![1, 2, 3], learners: vec![] })?;
            }
            "release" => {
                let index = number(&mut args, "index")?.unwrap_or(0);
                return Ok(format!("released {}", self.log()?.release_to(index)?));
            }
            "segments" => return Ok(segments(&self.disk).join("\n")),
            "file" => self.disk.replace(args.next_pos().ok_or("a name")?, b"foreign".to_vec()),
            "remove" => {
                let segment: usize = number(&mut args, "segment")?.unwrap_or(0);
                self.disk.remove(&segments(&self.disk)[segment])?;
                self.disk.sync_dir()?;
            }
            "crash" => {
                self.log = None;
                self.disk.crash(number(&mut args, "kept")?.unwrap_or(0));
            }
            other => return Err(format!("no command {other}").into()),
        }
        Ok(String::new())
    }
}
