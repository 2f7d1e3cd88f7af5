//! The durable Raft log: segments in etcd's WAL format under `member/wal`.
//!
//! Owned by the log thread (and, while that is idle, the raft thread). An append is one write and at most one fdatasync;
//! what it returned for is durable. A new segment is begun when the last one is full; segments that hold nothing any more
//! needed are unlinked from the head. Nothing here knows of consensus: entries are numbered payloads.
//!
//! At open, a damaged record with no valid record after it is a torn tail, the rest of a write that was never
//! acknowledged: it is cut. A damaged record with a valid one after it is corruption, and the log refuses to open; see
//! [`recovery`]. etcd's tools read this log, and this module reads etcd's.

mod disk;
#[cfg(test)]
mod mem_disk;
mod record;
pub(crate) mod recovery;
mod segment;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;

use bytes::Bytes;

pub use disk::{Disk, FileDisk};
pub use recovery::{Recovered, Warning};

use record::Encoder;
use segment::SegmentName;

/// Size at which a segment is full (etcd: wal.SegmentSizeBytes).
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// An entry of the Raft log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogEntry {
    pub term: u64,
    pub index: u64,
    pub kind: EntryKind,
    pub data: Bytes,
}

/// What an entry's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    Normal,
    ConfChange,
    ConfChangeV2,
}

/// What Raft must not forget besides the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HardState {
    pub term: u64,
    /// The member voted for in this term; 0 for none.
    pub vote: u64,
    pub commit: u64,
}

/// The state machine is durable up to here; entries up to it are not needed at a start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SnapshotMark {
    pub index: u64,
    pub term: u64,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
}

/// Whose log it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metadata {
    pub node_id: u64,
    pub cluster_id: u64,
}

/// Why the log can't be used.
#[derive(Debug)]
pub enum LogError {
    Io {
        operation: &'static str,
        file: String,
        source: io::Error,
    },
    /// The sentence says what, where and what to do.
    Corrupt {
        file: String,
        offset: u64,
        what: String,
    },
}

impl LogError {
    /// Nothing is lost: the write may be tried again once there is room.
    pub fn is_no_space(&self) -> bool {
        match self {
            // A failed sync says nothing of what is on the disk, whatever its reason.
            LogError::Io { operation, source, .. } => {
                *operation != "sync" && source.kind() == io::ErrorKind::StorageFull
            }
            LogError::Corrupt { .. } => false,
        }
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Io { operation, file, source } => write!(f, "{operation} {file}: {source}"),
            LogError::Corrupt { file, offset, what } => write!(
                f,
                "segment {file} is corrupt at offset {offset}: {what}. Restore the file or the data directory; starting \
                 without it would lose acknowledged writes"
            ),
        }
    }
}

impl std::error::Error for LogError {}

fn failed<'a>(operation: &'static str, file: &'a str) -> impl FnOnce(io::Error) -> LogError + 'a {
    move |source| LogError::Io { operation, file: file.to_owned(), source }
}

/// What an append did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Appended {
    pub bytes: usize,
}

/// The open log.
pub struct Log {
    disk: Box<dyn Disk>,
    encoder: Encoder,
    metadata: Metadata,
    hard_state: HardState,
    segments: Vec<SegmentName>,
    /// Where the next record goes in the last segment.
    offset: u64,
    /// End of bytes that a failed write may have left behind the offset.
    dirty_end: u64,
    last_index: u64,
    segment_bytes: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// Whether there is a log.
    pub fn exists(disk: &mut dyn Disk) -> io::Result<bool> {
        Ok(disk.list()?.iter().any(|name| SegmentName::parse(name).is_some()))
    }

    /// Makes a log that holds nothing but whose it is.
    pub fn create(disk: impl Disk + 'static, metadata: Metadata) -> Result<Log, LogError> {
        Log::create_with(disk, metadata, SEGMENT_BYTES)
    }

    fn create_with(disk: impl Disk + 'static, metadata: Metadata, segment_bytes: u64) -> Result<Log, LogError> {
        let mut log = Log {
            disk: Box::new(disk),
            encoder: Encoder::new(0),
            metadata,
            hard_state: HardState::default(),
            segments: Vec::new(),
            offset: 0,
            dirty_end: 0,
            last_index: 0,
            segment_bytes,
            buffer: Vec::new(),
        };
        log.begin_segment(SegmentName { sequence: 0, first_index: 0 }, |out, encoder| {
            encoder.push_snapshot(out, &SnapshotMark::default());
        })?;
        Ok(log)
    }

    /// Opens a log and reads what it holds. A torn tail is cut, which [`Recovered::warnings`] tells.
    pub fn open(disk: impl Disk + 'static) -> Result<(Log, Recovered), LogError> {
        Log::open_with(disk, SEGMENT_BYTES)
    }

    fn open_with(disk: impl Disk + 'static, segment_bytes: u64) -> Result<(Log, Recovered), LogError> {
        let mut disk: Box<dyn Disk> = Box::new(disk);
        let (recovered, end) = recovery::recover(disk.as_mut())?;
        let last_index = recovered.entries.last().map_or(recovered.before.index, |entry| entry.index);
        let log = Log {
            disk,
            encoder: Encoder::new(end.crc),
            metadata: recovered.metadata,
            hard_state: recovered.hard_state,
            segments: end.segments,
            offset: end.offset,
            dirty_end: end.offset,
            last_index,
            segment_bytes,
            buffer: Vec::new(),
        };
        Ok((log, recovered))
    }

    /// Adds entries and a hard state, in one write. With `sync` they are durable when this returns.
    ///
    /// # Errors
    /// When [`LogError::is_no_space`], the log is as before and the call may be repeated. After any other error what the
    /// disk holds is not known, and the caller must stop.
    pub fn append(
        &mut self,
        entries: &[LogEntry],
        hard_state: Option<&HardState>,
        sync: bool,
    ) -> Result<Appended, LogError> {
        // Begun before the write rather than after it, so that a segment that can't be begun fails no write that was made.
        if self.offset >= self.segment_bytes {
            self.cut()?;
        }
        self.write(sync, |out, encoder| {
            for entry in entries {
                encoder.push_entry(out, entry);
            }
            if let Some(state) = hard_state {
                encoder.push_state(out, state);
            }
        })?;
        if let Some(last) = entries.last() {
            self.last_index = last.index;
        }
        if let Some(state) = hard_state {
            self.hard_state = *state;
        }
        Ok(Appended { bytes: self.buffer.len() })
    }

    /// Notes durably that entries up to the mark are not needed at a start.
    pub fn mark_snapshot(&mut self, mark: &SnapshotMark) -> Result<(), LogError> {
        self.write(true, |out, encoder| encoder.push_snapshot(out, mark))
    }

    /// Unlinks the segments at the head that hold no entry past `index`. The last segment always stays.
    pub fn release_to(&mut self, index: u64) -> Result<(), LogError> {
        let mut removed = false;
        while let [first, second, ..] = self.segments[..] {
            if second.first_index > index + 1 {
                break;
            }
            let name = first.to_string();
            self.disk.remove(&name).map_err(failed("remove", &name))?;
            self.segments.remove(0);
            removed = true;
        }
        if removed {
            self.disk.sync_dir().map_err(failed("sync", "the log's directory"))?;
        }
        Ok(())
    }

    /// Writes records at the end of the last segment.
    fn write(&mut self, sync: bool, push: impl FnOnce(&mut Vec<u8>, &mut Encoder)) -> Result<(), LogError> {
        let crc = self.encoder.crc();
        self.buffer.clear();
        push(&mut self.buffer, &mut self.encoder);
        let length = self.buffer.len();
        // Whatever a failed write left behind the new end would look like a damaged record.
        let stale = usize::try_from(self.dirty_end.saturating_sub(self.offset + length as u64)).unwrap_or(usize::MAX);
        self.buffer.resize(length + stale, 0);
        let name = self.tail().to_string();
        if let Err(error) = self.disk.write_at(&name, self.offset, &self.buffer) {
            self.encoder = Encoder::new(crc);
            self.dirty_end = self.dirty_end.max(self.offset + self.buffer.len() as u64);
            return Err(failed("write", &name)(error));
        }
        if sync {
            self.disk.sync(&name).map_err(failed("sync", &name))?;
        }
        self.buffer.truncate(length);
        self.offset += length as u64;
        self.dirty_end = self.offset;
        Ok(())
    }

    /// Begins the next segment.
    fn cut(&mut self) -> Result<(), LogError> {
        // What was written without a sync must not be lost behind a segment that was.
        let tail = self.tail().to_string();
        self.disk.sync(&tail).map_err(failed("sync", &tail))?;
        let next = SegmentName { sequence: self.tail().sequence + 1, first_index: self.last_index + 1 };
        let state = self.hard_state;
        self.begin_segment(next, |out, encoder| encoder.push_state(out, &state))
    }

    /// Makes a segment with its head, under a name of its own first, so that a segment is there whole or not at all.
    fn begin_segment(
        &mut self,
        name: SegmentName,
        push: impl FnOnce(&mut Vec<u8>, &mut Encoder),
    ) -> Result<(), LogError> {
        let crc = self.encoder.crc();
        let mut head = Vec::new();
        self.encoder.push_crc(&mut head);
        self.encoder.push_metadata(&mut head, &self.metadata);
        push(&mut head, &mut self.encoder);
        let name_text = name.to_string();
        let temporary = format!("{name_text}.tmp");
        let length = self.segment_bytes.max(head.len() as u64);
        let made = (|| {
            self.disk.create(&temporary, length).map_err(failed("create", &temporary))?;
            self.disk.write_at(&temporary, 0, &head).map_err(failed("write", &temporary))?;
            self.disk.sync(&temporary).map_err(failed("sync", &temporary))?;
            self.disk.rename(&temporary, &name_text).map_err(failed("rename", &temporary))?;
            self.disk.sync_dir().map_err(failed("sync", "the log's directory"))
        })();
        if let Err(error) = made {
            self.encoder = Encoder::new(crc);
            return Err(error);
        }
        self.segments.push(name);
        self.offset = head.len() as u64;
        self.dirty_end = self.offset;
        Ok(())
    }

    fn tail(&self) -> SegmentName {
        *self.segments.last().expect("a log has a segment from its making on")
    }
}
