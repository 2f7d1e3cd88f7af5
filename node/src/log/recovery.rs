//! Reading the log back, and telling a torn tail from corruption.
//!
//! Records are read in order along the CRC chain until the zeros after the last one. A record that is damaged ends the
//! reading, and the question is whether it was ever acknowledged. A write that a crash tore leaves nothing valid behind it:
//! so if nothing valid follows, the record and the rest are cut. If something valid follows, the write of the damaged
//! record had been finished, and it may have been acknowledged: the log refuses to open.
//!
//! What counts as valid after damage: a frame whose CRC continues the chain of the frame before it (the damaged one's own
//! stored CRC counts for that), or a frame whose record is an entry that could follow the last one read. Frames are looked
//! for at every multiple of eight, after the damaged frame's end if it parses as one; user data inside the damaged
//! record that looks like frames is so passed over. Damage in any segment but the last is always corruption, since a
//! segment is begun only when the one before is complete and synced.

use std::fmt;

use bytes::Bytes;

use crate::log::disk::Disk;
use crate::log::record::{ALIGNMENT, Frame, LENGTH_BYTES, Record};
use crate::log::segment::SegmentName;
use crate::log::{HardState, LogEntry, LogError, Metadata, SnapshotMark, failed};

/// An entry this far past the last one read is still taken for one that followed it.
const ENTRIES_AHEAD_MAX: u64 = 65_536;

/// What a log holds.
#[derive(Debug)]
pub struct Recovered {
    pub metadata: Metadata,
    pub hard_state: HardState,
    /// The newest snapshot mark; its entries and those before are left out.
    pub before: SnapshotMark,
    /// The entries after it, without gaps.
    pub entries: Vec<LogEntry>,
    pub warnings: Vec<Warning>,
}

/// Something found that is not as it should be, and does no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Warning {
    /// The rest of a write that was never acknowledged was cut.
    TornTail {
        file: String,
        offset: u64,
    },
    ForeignFile(String),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::TornTail { file, offset } => {
                write!(f, "segment {file} ends in an unfinished write at offset {offset}, which was cut")
            }
            Warning::ForeignFile(name) => write!(f, "{name} is no segment of the log and is left alone"),
        }
    }
}

/// Where the log goes on.
pub(super) struct End {
    pub(super) segments: Vec<SegmentName>,
    pub(super) offset: u64,
    pub(super) crc: u32,
}

pub(super) fn recover(disk: &mut dyn Disk) -> Result<(Recovered, End), LogError> {
    let (segments, mut warnings) = segments(disk)?;
    // The chain of a log that is whole from its making on starts at zero; where the head was released, anywhere.
    let crc = segments.first().filter(|first| first.sequence == 0).map(|_| 0);
    let mut reader = Reader { crc, ..Reader::default() };
    let mut offset = 0;
    for (position, segment) in segments.iter().enumerate() {
        let name = segment.to_string();
        let bytes = Bytes::from(disk.read(&name).map_err(failed("read", &name))?);
        let is_last = position + 1 == segments.len();
        offset = match reader.read_segment(&name, &bytes)? {
            SegmentEnd::Clean(offset) => offset,
            SegmentEnd::Damaged { offset, what } if !is_last || reader.valid_follows(&bytes, offset) => {
                return Err(LogError::Corrupt { file: name, offset: offset as u64, what });
            }
            SegmentEnd::Damaged { offset, .. } => {
                cut(disk, &name, &bytes, offset)?;
                warnings.push(Warning::TornTail { file: name, offset: offset as u64 });
                offset
            }
        };
    }
    let file = segments.last().map_or_else(String::new, SegmentName::to_string);
    let corrupt = |what: &str| LogError::Corrupt { file: file.clone(), offset: offset as u64, what: what.to_owned() };
    let metadata = reader.metadata.ok_or_else(|| corrupt("it does not say whose log it is"))?;
    let before = reader.snapshot;
    let mut entries = reader.entries;
    entries.retain(|entry| entry.index > before.index);
    if let Some(first) = entries.first()
        && first.index != before.index + 1
    {
        return Err(corrupt(&format!("entry {} follows the mark of entry {}", first.index, before.index)));
    }
    let crc = reader.crc.ok_or_else(|| corrupt("it holds no record"))?;
    let recovered = Recovered { metadata, hard_state: reader.hard_state, before, entries, warnings };
    Ok((recovered, End { segments, offset: offset as u64, crc }))
}

/// The segments in order, and files that are none.
fn segments(disk: &mut dyn Disk) -> Result<(Vec<SegmentName>, Vec<Warning>), LogError> {
    let mut segments = Vec::new();
    let mut warnings = Vec::new();
    for name in disk.list().map_err(failed("list", "the log's directory"))? {
        match SegmentName::parse(&name) {
            Some(segment) => segments.push(segment),
            // A segment that was being made when the process died.
            None if name.ends_with(".tmp") => {}
            None => warnings.push(Warning::ForeignFile(name)),
        }
    }
    segments.sort();
    for pair in segments.windows(2) {
        if pair[1].sequence != pair[0].sequence + 1 {
            let what = format!("the next segment present is {}: those between are missing", pair[1]);
            return Err(LogError::Corrupt { file: pair[0].to_string(), offset: 0, what });
        }
    }
    Ok((segments, warnings))
}

/// Zeros everything from the offset on, so that what stood there never looks like a record again.
fn cut(disk: &mut dyn Disk, name: &str, bytes: &Bytes, offset: usize) -> Result<(), LogError> {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(offset, |last| (last + 1).max(offset));
    disk.write_at(name, offset as u64, &vec![0; end - offset]).map_err(failed("write", name))?;
    disk.sync(name).map_err(failed("sync", name))
}

enum SegmentEnd {
    /// Zeros, or nothing, from here on.
    Clean(usize),
    Damaged {
        offset: usize,
        what: String,
    },
}

#[derive(Default)]
struct Reader {
    /// Where the chain stands; `None` before the first record.
    crc: Option<u32>,
    metadata: Option<Metadata>,
    hard_state: HardState,
    snapshot: SnapshotMark,
    entries: Vec<LogEntry>,
}

impl Reader {
    fn read_segment(&mut self, name: &str, bytes: &Bytes) -> Result<SegmentEnd, LogError> {
        let mut offset = 0;
        loop {
            let rest = bytes.slice(offset..);
            if rest.iter().take(LENGTH_BYTES).all(|byte| *byte == 0) && rest.iter().all(|byte| *byte == 0) {
                return Ok(SegmentEnd::Clean(offset));
            }
            let damaged = |what: &str| Ok(SegmentEnd::Damaged { offset, what: what.to_owned() });
            let Some(frame) = Frame::parse(&rest) else { return damaged("a record can't be read") };
            if !frame.continues(self.crc) {
                return damaged("a record's checksum does not match");
            }
            let Some(record) = frame.record() else { return damaged("a record is not what its type demands") };
            self.crc = Some(frame.crc);
            self.take(record).map_err(|what| LogError::Corrupt {
                file: name.to_owned(),
                offset: offset as u64,
                what,
            })?;
            offset += frame.size;
        }
    }

    fn take(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Crc => {}
            Record::Metadata(metadata) => {
                if self.metadata.is_some_and(|known| known != metadata) {
                    return Err("it belongs to another member than the segments before it".to_owned());
                }
                self.metadata = Some(metadata);
            }
            Record::State(state) => {
                if state.term < self.hard_state.term {
                    return Err(format!("term {} follows term {}", state.term, self.hard_state.term));
                }
                self.hard_state = state;
            }
            Record::Snapshot(mark) => {
                if mark.index >= self.snapshot.index {
                    self.snapshot = mark;
                }
            }
            Record::Entry(entry) => self.take_entry(entry)?,
        }
        Ok(())
    }

    /// An entry replaces those at and after its index: a new leader's.
    fn take_entry(&mut self, entry: LogEntry) -> Result<(), String> {
        if let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) {
            if entry.index > last.index + 1 {
                return Err(format!("entry {} follows entry {}", entry.index, last.index));
            }
            let kept = usize::try_from(entry.index.saturating_sub(first.index)).unwrap_or(usize::MAX);
            self.entries.truncate(kept);
        }
        // A copy: the record is a slice of the whole segment.
        self.entries.push(LogEntry { data: Bytes::copy_from_slice(&entry.data), ..entry });
        Ok(())
    }

    /// Whether a valid record stands somewhere after the damaged one at this offset.
    fn valid_follows(&self, bytes: &Bytes, damaged: usize) -> bool {
        // Only a frame that parses is taken at its length: a length that was hit itself could reach past everything.
        let own = parse_at(bytes, damaged);
        if let Some(own) = &own
            && parse_at(bytes, damaged + own.size).is_some_and(|next| next.continues(Some(own.crc)))
        {
            return true;
        }
        let mut at = damaged + own.map_or(ALIGNMENT, |own| own.size);
        while at + LENGTH_BYTES <= bytes.len() {
            if let Some(frame) = parse_at(bytes, at) {
                let next = parse_at(bytes, at + frame.size);
                if self.could_follow(&frame) || next.is_some_and(|next| next.continues(Some(frame.crc))) {
                    return true;
                }
            }
            at += ALIGNMENT;
        }
        false
    }

    fn could_follow(&self, frame: &Frame) -> bool {
        let Some(Record::Entry(entry)) = frame.record() else { return false };
        let last = self.entries.last().map_or(self.snapshot.index, |entry| entry.index);
        let term = self.entries.last().map_or(self.snapshot.term, |entry| entry.term);
        entry.index > last && entry.index - last <= ENTRIES_AHEAD_MAX && entry.term >= term
    }
}

fn parse_at(bytes: &Bytes, at: usize) -> Option<Frame> {
    (at < bytes.len()).then(|| Frame::parse(&bytes.slice(at..))).flatten()
}
