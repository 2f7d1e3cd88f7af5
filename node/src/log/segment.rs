//! Segment files: their names, and reading one record after the other.
//!
//! A segment is named by its sequence number and the index of the first entry it may hold (`%016x-%016x.wal`, etcd's
//! form). The scanner holds a window of the file, never the whole file, and checks form and crc; what records mean is
//! for `recovery`.

use std::sync::Arc;

use crc32c::crc32c_append;

use super::disk::DiskFile;
use super::error::LogError;
use super::record::{self, FRAME_ALIGN, RecordKind, Shape};

/// How much of a segment is read at once: large against a record, small against a segment. A longer record widens the
/// window while it is read.
const WINDOW_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentName {
    pub(super) sequence: u64,
    pub(super) first_index: u64,
}

impl SegmentName {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (sequence, first_index) = name.strip_suffix(".wal")?.split_once('-')?;
        let number = |text: &str| {
            let is_formed = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            is_formed.then(|| u64::from_str_radix(text, 16).ok()).flatten()
        };
        Some(Self { sequence: number(sequence)?, first_index: number(first_index)? })
    }
}

impl std::fmt::Display for SegmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{:016x}.wal", self.sequence, self.first_index)
    }
}

/// What stands at the scanner's place.
pub(super) enum Found {
    /// A record of good form whose crc continues the chain.
    Record(Shape),
    /// The end of the file, or zeros where a length should be.
    End,
    Damage(&'static str),
}

pub(super) struct Scanner {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) name: String,
    pub(super) size: u64,
    /// Offset of the next record.
    pub(super) offset: u64,
    /// The crc that the next record continues; none before the first record of the oldest segment.
    pub(super) chain: Option<u32>,
    window: Vec<u8>,
    window_offset: u64,
}

impl Scanner {
    pub(super) fn new(file: Arc<dyn DiskFile>, name: String, chain: Option<u32>) -> Result<Self, LogError> {
        let size = file.size().map_err(|source| LogError::io("size", &name, 0, source))?;
        Ok(Self { file, name, size, offset: 0, chain, window: Vec::new(), window_offset: 0 })
    }

    /// Looks at the next record without stepping over it.
    pub(super) fn look(&mut self) -> Result<Found, LogError> {
        let left = self.size - self.offset;
        let Some(field) = record::length_field(self.fill(8)?) else {
            let rest = self.fill(usize::try_from(left).unwrap_or(0))?;
            return Ok(if rest.iter().all(|byte| *byte == 0) {
                Found::End
            } else {
                Found::Damage("less than a length field is left of the file")
            });
        };
        if field == 0 {
            return Ok(Found::End);
        }
        let Some(bytes) = record::frame_bytes(field) else { return Ok(Found::Damage("not a length field")) };
        if bytes as u64 > left {
            return Ok(Found::Damage("the record is longer than the file"));
        }
        let Some(shape) = record::shape(self.fill(bytes)?) else { return Ok(Found::Damage("malformed record")) };
        let Some(chain) = self.chain else {
            // The oldest segment starts wherever the chain was when the segments before it were released.
            return Ok(if shape.kind == RecordKind::Crc {
                Found::Record(shape)
            } else {
                Found::Damage("does not start with a crc record")
            });
        };
        let crc = crc32c_append(chain, self.data(&shape));
        Ok(match shape.kind {
            _ if crc == shape.crc => Found::Record(shape),
            RecordKind::Crc => Found::Damage("the crc record does not continue the records before it"),
            RecordKind::Metadata | RecordKind::Entry | RecordKind::State | RecordKind::Snapshot => {
                Found::Damage("checksum mismatch")
            }
        })
    }

    /// The data of the record that `look` found.
    pub(super) fn data(&self, shape: &Shape) -> &[u8] {
        let start = self.window_start();
        &self.window[start + shape.data_start..start + shape.data_end]
    }

    pub(super) fn step(&mut self, shape: &Shape) {
        self.offset += shape.end as u64;
        self.chain = Some(shape.crc);
    }

    /// The offset behind the last byte that is not zero, or the scanner's own place when there is none after it.
    pub(super) fn last_used(&mut self) -> Result<u64, LogError> {
        let (mut at, mut used) = (self.offset, self.offset);
        let mut chunk = vec![0; WINDOW_BYTES];
        while at < self.size {
            let count = read(&*self.file, &self.name, &mut chunk, at)?;
            if count == 0 {
                break;
            }
            if let Some(last) = chunk[..count].iter().rposition(|byte| *byte != 0) {
                used = at + last as u64 + 1;
            }
            at += count as u64;
        }
        Ok(used)
    }

    fn window_start(&self) -> usize {
        usize::try_from(self.offset - self.window_offset).expect("the window covers the offset")
    }

    /// The next `wanted` bytes, fewer at the end of the file.
    fn fill(&mut self, wanted: usize) -> Result<&[u8], LogError> {
        let is_covered = self.offset >= self.window_offset
            && self.offset + wanted as u64 <= self.window_offset + self.window.len() as u64;
        if !is_covered {
            let left = usize::try_from(self.size - self.offset).unwrap_or(usize::MAX);
            let bytes = wanted.max(WINDOW_BYTES).min(left);
            self.window.clear();
            self.window.shrink_to(WINDOW_BYTES);
            self.window.resize(bytes, 0);
            let count = read(&*self.file, &self.name, &mut self.window, self.offset)?;
            self.window.truncate(count);
            self.window_offset = self.offset;
        }
        let start = self.window_start();
        let end = self.window.len().min(start.saturating_add(wanted));
        Ok(&self.window[start..end])
    }
}

pub(super) fn read(file: &dyn DiskFile, name: &str, buffer: &mut [u8], offset: u64) -> Result<usize, LogError> {
    file.read_at(buffer, offset).map_err(|source| LogError::io("read", name, offset, source))
}

/// Rounds up to where a frame may start.
pub(super) fn align(offset: usize) -> usize {
    offset.next_multiple_of(FRAME_ALIGN)
}
