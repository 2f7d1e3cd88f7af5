//! Reads a log back: every segment once, in order, through a window.
//!
//! Decides what is kept (the newest valid mark and the entries behind it), what is cut (a torn tail, see `tail`) and
//! what is refused. It changes the disk only at the end, to clean the tail; when it refuses, nothing has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::disk::{Disk, DiskFile};
use super::error::LogError;
use super::reader::Position;
use super::record::{self, RecordKind, Shape};
use super::segment::{Found, Scanner, SegmentName, read};
use super::tail::{self, Newest, Verdict};
use super::{HardState, LogEntry, Metadata, SnapshotMark, TMP_NAME};

/// Zeros read behind the last byte in use, so that a small record that ends in zeros is judged whole.
const ZEROS_READ_BYTES: u64 = 4096;
/// Marks above the commit index: a snapshot's mark comes before the hard state that confirms it, so there is one, or a
/// few after crashes.
const PENDING_MARKS_MAX: usize = 64;

/// What a log held when it was opened.
#[derive(Debug)]
pub struct Recovered {
    pub metadata: Metadata,
    pub hard_state: HardState,
    /// The newest mark that the hard state's commit index confirms.
    pub snapshot: SnapshotMark,
    /// The entries after `snapshot`, without a hole.
    pub entries: Vec<LogEntry>,
    /// Where each of `entries` lies.
    pub positions: Vec<Position>,
    pub torn_tail: Option<TornTail>,
    /// Files in the directory that are no part of the log, by name.
    pub foreign: Vec<String>,
}

/// What was cut off the end of the log: never acknowledged, because no sync covered it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
    pub damage: &'static str,
}

/// What the log needs to go on writing.
pub(super) struct Resume {
    pub(super) recovered: Recovered,
    pub(super) segments: BTreeMap<u64, (SegmentName, Arc<dyn DiskFile>)>,
    pub(super) end: u64,
    pub(super) chain: u32,
    pub(super) last_index: u64,
    pub(super) mark_sequence: u64,
}

pub(super) fn recover(disk: &dyn Disk) -> Result<Resume, LogError> {
    let (names, foreign) = list(disk)?;
    let mut replay = Replay::default();
    let mut segments = BTreeMap::new();
    let (mut chain, mut end, mut torn_tail) = (None, 0, None);
    for (position, name) in names.iter().enumerate() {
        let file_name = name.to_string();
        let file = disk.open(&file_name).map_err(|source| LogError::io("open", &file_name, 0, source))?;
        let mut scanner = Scanner::new(Arc::clone(&file), file_name, chain)?;
        let damage = replay.segment(&mut scanner, name.sequence)?;
        match (names.get(position + 1), damage) {
            (Some(next), Some(damage)) => return Err(corrupt(&scanner, damage, format!("segment {next} follows it"))),
            (Some(_), None) => {}
            (None, damage) => torn_tail = judge_tail(&mut scanner, damage, &replay)?,
        }
        chain = scanner.chain;
        end = scanner.offset;
        segments.insert(name.sequence, (name.clone(), file));
    }
    let chain = chain.expect("a segment that was accepted starts with a crc record");
    let mark_sequence = replay.mark_sequence;
    let (name, file) = segments.last_entry().map(|last| last.get().clone()).ok_or(LogError::Missing)?;
    let recovered = replay.finish(&name, torn_tail, foreign)?;
    let last_index = recovered.entries.last().map_or(recovered.snapshot.index, |entry| entry.index);
    clean_tail(&*file, &name.to_string(), end, recovered.torn_tail.as_ref())?;
    Ok(Resume { recovered, segments, end, chain, last_index, mark_sequence })
}

/// Sorts the directory into segments, which must follow each other, and foreign files.
fn list(disk: &dyn Disk) -> Result<(Vec<SegmentName>, Vec<String>), LogError> {
    let (mut segments, mut foreign) = (Vec::new(), Vec::new());
    for name in disk.list().map_err(|source| LogError::io("list", ".", 0, source))? {
        match SegmentName::parse(&name) {
            Some(segment) => segments.push(segment),
            None if name == TMP_NAME => {}
            None => foreign.push(name),
        }
    }
    segments.sort();
    for pair in segments.windows(2) {
        if pair[0].sequence.checked_add(1) != Some(pair[1].sequence) {
            return Err(LogError::Gap { reason: format!("segment {} is followed by {}", pair[0], pair[1]) });
        }
    }
    if segments.is_empty() { Err(LogError::Missing) } else { Ok((segments, foreign)) }
}

fn corrupt(scanner: &Scanner, damage: &'static str, evidence: String) -> LogError {
    LogError::Corrupt { file: scanner.name.clone(), offset: scanner.offset, damage, evidence }
}

/// Whether what lies behind the last good record of the last segment may be cut.
fn judge_tail(
    scanner: &mut Scanner,
    damage: Option<&'static str>,
    replay: &Replay,
) -> Result<Option<TornTail>, LogError> {
    let used = scanner.last_used()?;
    if !replay.head_is_read {
        return Err(corrupt(
            scanner,
            damage.unwrap_or("no records"),
            "its first records were synced before it got its name".to_owned(),
        ));
    }
    if used == scanner.offset {
        return Ok(None);
    }
    let damage = damage.unwrap_or("zeros before the end");
    let until = (used + ZEROS_READ_BYTES).min(scanner.size);
    let mut rest = vec![0; usize::try_from(until - scanner.offset).unwrap_or(usize::MAX)];
    let count = read(&*scanner.file, &scanner.name, &mut rest, scanner.offset)?;
    rest.truncate(count);
    match tail::judge(&rest, scanner.offset, scanner.chain.unwrap_or(0), &replay.newest) {
        Verdict::Torn => Ok(Some(TornTail {
            file: scanner.name.clone(),
            offset: scanner.offset,
            bytes: used - scanner.offset,
            damage,
        })),
        Verdict::Corrupt { later } => {
            let evidence = format!("a record at offset {} was written after it", scanner.offset + later as u64);
            Err(corrupt(scanner, damage, evidence))
        }
    }
}

/// Leaves nothing but zeros behind the end, and makes sure that what was read is on disk: a process that died before
/// its sync may have left it in the page cache only, and from here on it counts as durable.
fn clean_tail(file: &dyn DiskFile, name: &str, end: u64, torn: Option<&TornTail>) -> Result<(), LogError> {
    if torn.is_some() {
        file.truncate(end).map_err(|source| LogError::io("truncate", name, end, source))?;
    }
    file.sync().map_err(|source| LogError::io("sync", name, end, source))?;
    Ok(())
}

/// Why a record cannot follow the ones before it.
enum Refusal {
    /// Its bytes cannot be what was written: subject to the tail rule.
    Damage(&'static str),
    /// It is what was written, and makes no sense.
    Inconsistent(String),
}

#[derive(Default)]
struct Replay {
    metadata: Option<Metadata>,
    newest: Newest,
    snapshot: Option<SnapshotMark>,
    mark_sequence: u64,
    pending: Vec<(SnapshotMark, u64)>,
    entries: Vec<LogEntry>,
    positions: Vec<Position>,
    /// The crc and metadata records of the segment at hand have been read.
    head_is_read: bool,
    /// So has a sync marker of it.
    marker_is_read: bool,
}

impl Replay {
    /// Reads a segment to its end or to the first damage.
    fn segment(&mut self, scanner: &mut Scanner, sequence: u64) -> Result<Option<&'static str>, LogError> {
        self.head_is_read = false;
        self.marker_is_read = false;
        let mut count = 0_u64;
        loop {
            let shape = match scanner.look()? {
                Found::Record(shape) => shape,
                Found::End if !self.head_is_read => return Ok(Some("no records")),
                Found::End => return Ok(None),
                Found::Damage(damage) => return Ok(Some(damage)),
            };
            let expected = [RecordKind::Crc, RecordKind::Metadata].get(usize::try_from(count).unwrap_or(2));
            if expected.is_some_and(|kind| *kind != shape.kind) {
                return Ok(Some("a segment starts with a crc and a metadata record"));
            }
            match self.record(scanner, &shape, sequence) {
                Ok(()) => {}
                Err(Refusal::Damage(damage)) => return Ok(Some(damage)),
                Err(Refusal::Inconsistent(reason)) => {
                    return Err(LogError::Inconsistent { file: scanner.name.clone(), offset: scanner.offset, reason });
                }
            }
            scanner.step(&shape);
            count += 1;
            self.head_is_read = count >= 2;
        }
    }

    fn record(&mut self, scanner: &Scanner, shape: &Shape, sequence: u64) -> Result<(), Refusal> {
        let data = scanner.data(shape);
        match shape.kind {
            RecordKind::Crc => {
                // The scanner has compared it with the chain. The one that every segment starts with marks no sync.
                self.marker_is_read = self.head_is_read;
                self.newest.marks_syncs |= self.head_is_read;
                Ok(())
            }
            RecordKind::Metadata => {
                self.metadata(record::decode_metadata(data).ok_or(Refusal::Damage("malformed metadata"))?)
            }
            RecordKind::State => self.state(record::decode_state(data).ok_or(Refusal::Damage("malformed hard state"))?),
            RecordKind::Snapshot => {
                self.mark(record::decode_snapshot(data).ok_or(Refusal::Damage("malformed snapshot mark"))?, sequence)
            }
            RecordKind::Entry => {
                let entry = record::decode_entry(data).ok_or(Refusal::Damage("malformed entry"))?;
                self.entry(entry, Position::of(sequence, scanner.offset, scanner.chain.unwrap_or(0), shape.end))
            }
        }
    }

    fn metadata(&mut self, metadata: Metadata) -> Result<(), Refusal> {
        match self.metadata {
            Some(known) if known != metadata => Err(Refusal::Damage("metadata differs from that of the first segment")),
            Some(_) | None => {
                self.metadata = Some(metadata);
                Ok(())
            }
        }
    }

    fn state(&mut self, state: HardState) -> Result<(), Refusal> {
        let seen = self.newest.state;
        if state.term < seen.term || state.commit < seen.commit || (state.term == 0 && state != HardState::default()) {
            return Err(Refusal::Damage("the hard state goes back"));
        }
        self.newest.state = state;
        let (confirmed, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|(mark, _)| mark.index <= state.commit);
        self.pending = pending;
        for (mark, sequence) in confirmed {
            self.confirm(mark, sequence);
        }
        Ok(())
    }

    fn mark(&mut self, mark: SnapshotMark, sequence: u64) -> Result<(), Refusal> {
        if mark.index < self.newest.mark_index {
            return Err(Refusal::Damage("the snapshot mark goes back"));
        }
        if mark.index <= self.newest.state.commit {
            self.confirm(mark, sequence);
            return Ok(());
        }
        if self.pending.len() == PENDING_MARKS_MAX {
            self.pending.remove(0);
        }
        self.pending.push((mark, sequence));
        Ok(())
    }

    /// Takes a mark as the new start; the entries up to it are no longer needed.
    fn confirm(&mut self, mark: SnapshotMark, sequence: u64) {
        let first_kept = self.entries.partition_point(|entry| entry.index <= mark.index);
        self.entries.drain(..first_kept);
        self.positions.drain(..first_kept);
        self.newest.mark_index = mark.index;
        self.snapshot = Some(mark);
        self.mark_sequence = sequence;
    }

    fn last_index(&self) -> u64 {
        self.entries.last().map_or_else(|| self.snapshot.as_ref().map_or(0, |mark| mark.index), |entry| entry.index)
    }

    fn entry(&mut self, entry: LogEntry, position: Position) -> Result<(), Refusal> {
        if entry.term == 0 || entry.index == 0 {
            return Err(Refusal::Damage("an entry without term or index"));
        }
        if entry.index <= self.newest.state.commit && self.last_index() >= entry.index {
            return Err(Refusal::Damage("a committed entry is rewritten"));
        }
        let last = self.last_index();
        // The oldest segment may hold marks whose entries were released; `finish` checks that the newest one joins.
        let is_start = self.newest.index == 0;
        let follows_mark = self.pending.iter().any(|(mark, _)| mark.index + 1 == entry.index);
        if entry.index > last + 1 && !is_start && !follows_mark {
            return Err(Refusal::Inconsistent(format!("entry {} follows {last}", entry.index)));
        }
        // A mark above an entry that comes after it was never confirmed: the log went on without that snapshot.
        self.pending.retain(|(mark, _)| mark.index < entry.index);
        // A new leader's entry replaces the one at its index and all behind it.
        let kept = self.entries.partition_point(|held| held.index < entry.index);
        self.entries.truncate(kept);
        self.positions.truncate(kept);
        if self.entries.last().is_some_and(|before| before.term > entry.term) {
            return Err(Refusal::Damage("an entry's term is below that of the entry before it"));
        }
        (self.newest.term, self.newest.index) = (self.newest.term, self.newest.index).max((entry.term, entry.index));
        self.newest.marks_syncs = self.marker_is_read;
        self.entries.push(entry);
        self.positions.push(position);
        Ok(())
    }

    /// Checks that mark and entries join.
    fn finish(
        mut self,
        name: &SegmentName,
        torn_tail: Option<TornTail>,
        foreign: Vec<String>,
    ) -> Result<Recovered, LogError> {
        let Some(snapshot) = self.snapshot else {
            return Err(LogError::Gap {
                reason: format!("no snapshot mark at or below the commit index up to segment {name}"),
            });
        };
        let hole = self.entries.iter().zip(snapshot.index + 1..).position(|(entry, expected)| entry.index != expected);
        if let Some(hole) = hole {
            let found = self.entries[hole].index;
            if !self.pending.iter().any(|(mark, _)| mark.index + 1 == found) {
                return Err(LogError::Gap {
                    reason: format!(
                        "entry {found} does not follow the snapshot mark at {} and the entries after it",
                        snapshot.index
                    ),
                });
            }
            // The hard state that would confirm the mark never reached the disk, so nothing behind the mark was
            // acknowledged.
            self.entries.truncate(hole);
            self.positions.truncate(hole);
        }
        let metadata = self.metadata.expect("the head of every segment was read");
        let hard_state = self.newest.state;
        Ok(Recovered {
            metadata,
            hard_state,
            snapshot,
            entries: self.entries,
            positions: self.positions,
            torn_tail,
            foreign,
        })
    }
}
