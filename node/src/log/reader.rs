//! Reading single entries back while the log goes on: what an in-memory tail has dropped and a slow follower still
//! needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crc32c::crc32c_append;
use parking_lot::RwLock;

use super::LogEntry;
use super::disk::DiskFile;
use super::error::LogError;
use super::record::{self, RecordKind};
use super::segment::read;

/// Where an entry's record lies, and the crc it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub segment: u64,
    pub offset: u64,
    /// Bytes of the whole frame.
    pub len: u32,
    chain: u32,
}

impl Position {
    pub(super) fn of(segment: u64, offset: u64, chain: u32, len: usize) -> Self {
        Self { segment, offset, len: u32::try_from(len).expect("an entry is far smaller than 4 GiB"), chain }
    }
}

/// A cheap handle for any thread.
#[derive(Clone)]
pub struct Reader {
    // A lock and not an owner: readers live on other threads than the log, and hold it for one lookup only.
    pub(super) segments: Arc<RwLock<BTreeMap<u64, Arc<dyn DiskFile>>>>,
}

impl Reader {
    /// Reads one entry and checks its crc.
    pub fn read(&self, position: Position) -> Result<LogEntry, LogError> {
        let Position { segment, offset, len, chain } = position;
        let file = self.segments.read().get(&segment).cloned().ok_or(LogError::Released { segment })?;
        let name = format!("segment {segment}");
        let mut frame = vec![0; len as usize];
        let count = read(&*file, &name, &mut frame, offset)?;
        let shape =
            record::shape(&frame[..count]).filter(|shape| shape.kind == RecordKind::Entry && shape.end == count);
        let data = shape.map(|shape| (&frame[shape.data_start..shape.data_end], shape.crc));
        let entry = data
            .filter(|(data, crc)| crc32c_append(chain, data) == *crc)
            .and_then(|(data, _)| record::decode_entry(data));
        entry.ok_or_else(|| LogError::Corrupt {
            file: name,
            offset,
            damage: "checksum mismatch",
            evidence: "it was whole when it was written".into(),
        })
    }
}
