//! The durable Raft log, in etcd's WAL record framing.
//!
//! Owns `<data-dir>/member/wal` and what is in it: segments of preallocated space, each beginning with a crc, a
//! metadata and a hard state record, then whatever was appended.
//!
//! ```text
//! 0000000000000000-0000000000000000.wal   crc(0) metadata mark(0) | crc entry entry state | crc entry ...
//! 0000000000000001-00000000000004d2.wal   crc    metadata state   | crc entry ... 0 0 0 0 (preallocated)
//! ```
//!
//! Invariants: one crc chain runs through all records of all segments; behind the last record there are only zeros; a
//! segment gets its name after its head is synced; an append that follows a sync begins with a crc record, so that
//! recovery can tell what was durable (see `tail`).
//!
//! Called by the thread that persists for consensus, one call at a time; [`Reader`]s may be used from anywhere. It
//! knows nothing of Raft beyond the shape of entries, hard states and marks, and it refuses rather than guesses:
//! recovery cuts only what cannot have been acknowledged.

mod disk;
mod error;
mod mem_disk;
mod reader;
mod record;
mod recovery;
mod segment;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

pub use disk::{Disk, DiskFile, FileDisk};
pub use error::LogError;
pub use mem_disk::MemDisk;
pub use reader::{Position, Reader};
use record::Encoder;
pub use recovery::{Recovered, TornTail};
use segment::SegmentName;

/// From the design: as good as etcd's 64 MB.
const SEGMENT_BYTES: u64 = 64 << 20;
/// The name a segment has until its head is synced. One left by a crash is overwritten.
const TMP_NAME: &str = "0.tmp";
/// Capacity the buffer keeps between appends; a rare larger append gives its memory back.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    Normal = 0,
    ConfChange = 1,
    ConfChangeV2 = 2,
}

impl EntryKind {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Normal, Self::ConfChange, Self::ConfChangeV2].into_iter().find(|kind| *kind as u64 == number)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub term: u64,
    pub index: u64,
    pub kind: EntryKind,
    pub data: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    pub term: u64,
    pub vote: u64,
    pub commit: u64,
}

/// The state machine holds everything up to `index` durably, with these members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotMark {
    pub index: u64,
    pub term: u64,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    pub node_id: u64,
    pub cluster_id: u64,
    /// A number unlike that of any other data directory, so that a member whose directory was lost is not taken for the one
    /// that was. 0 in a log that has none, such as etcd's.
    pub data_dir: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// A segment that has reached this size is followed by a new one.
    pub segment_bytes: u64,
    /// etcd's `--unsafe-no-fsync`: acknowledged writes do not survive a power cut.
    pub unsafe_no_fsync: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: SEGMENT_BYTES, unsafe_no_fsync: false }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppendStats {
    pub bytes: u64,
    /// One for each entry of the call.
    pub positions: Vec<Position>,
    /// 0 when the call did not sync.
    pub sync_seconds: f64,
}

/// What is known of the bytes at and behind the end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TailState {
    Synced,
    Unsynced,
    /// A write failed in the middle and could not be taken back yet.
    Dirty,
    /// A sync failed.
    Unknown,
}

pub struct Log {
    disk: Arc<dyn Disk>,
    options: LogOptions,
    metadata: Metadata,
    names: BTreeMap<u64, SegmentName>,
    reader: Reader,
    file: Arc<dyn DiskFile>,
    /// Where the next record goes in the last segment, and the crc it continues.
    end: u64,
    chain: u32,
    tail: TailState,
    hard_state: HardState,
    last_index: u64,
    mark_index: u64,
    /// The segment that holds the newest mark; recovery needs it.
    mark_sequence: u64,
    encoder: Encoder,
}

impl Log {
    /// True when the directory holds a log, whatever its state.
    pub fn exists(disk: &dyn Disk) -> Result<bool, LogError> {
        let names = disk.list().map_err(|source| LogError::io("list", ".", 0, source))?;
        Ok(names.iter().any(|name| SegmentName::parse(name).is_some()))
    }

    /// Makes a new log, durable when this returns. Refuses where there is one.
    pub fn create(disk: Arc<dyn Disk>, metadata: Metadata, options: LogOptions) -> Result<Self, LogError> {
        let names = disk.list().map_err(|source| LogError::io("list", ".", 0, source))?;
        if let Some(name) = names.iter().find(|name| SegmentName::parse(name).is_some()) {
            return Err(LogError::Exists { file: name.clone() });
        }
        let mut encoder = Encoder::default();
        encoder.start(0);
        encoder.crc();
        encoder.metadata(&metadata);
        encoder.snapshot(&SnapshotMark::default());
        let name = SegmentName { sequence: 0, first_index: 0 };
        let file = make_segment(&*disk, &options, &name, &encoder.buffer)?;
        let log = Self {
            end: encoder.buffer.len() as u64,
            chain: encoder.chain,
            reader: Reader { segments: Arc::new(RwLock::new(BTreeMap::from([(0, Arc::clone(&file))]))) },
            names: BTreeMap::from([(0, name)]),
            tail: TailState::Synced,
            hard_state: HardState::default(),
            last_index: 0,
            mark_index: 0,
            mark_sequence: 0,
            disk,
            options,
            metadata,
            file,
            encoder,
        };
        Ok(log)
    }

    /// Reads the log back, cuts a torn tail, and is ready to append. Refuses a damaged log and changes nothing then.
    pub fn open(disk: Arc<dyn Disk>, options: LogOptions) -> Result<(Self, Recovered), LogError> {
        let resume = recovery::recover(&*disk)?;
        let (_, (_, file)) = resume.segments.last_key_value().ok_or(LogError::Missing)?;
        let file = Arc::clone(file);
        reserve(&*file, &options, resume.end)?;
        let mut names = BTreeMap::new();
        let mut files = BTreeMap::new();
        for (sequence, (name, file)) in resume.segments {
            names.insert(sequence, name);
            files.insert(sequence, file);
        }
        let log = Self {
            disk,
            options,
            metadata: resume.recovered.metadata,
            names,
            reader: Reader { segments: Arc::new(RwLock::new(files)) },
            file,
            end: resume.end,
            chain: resume.chain,
            tail: TailState::Synced,
            hard_state: resume.recovered.hard_state,
            last_index: resume.last_index,
            mark_index: resume.recovered.snapshot.index,
            mark_sequence: resume.mark_sequence,
            encoder: Encoder::default(),
        };
        Ok((log, resume.recovered))
    }

    /// Appends entries, then the hard state, in one write, and syncs when told to.
    ///
    /// Entries replace what the log holds from the first one's index on. After a failed write (`is_no_space`) the log
    /// is as before the call and the call may be repeated. After a failed sync nobody knows what is on disk: every
    /// later call answers `Stopped`.
    pub fn append(
        &mut self,
        entries: &[LogEntry],
        hard_state: Option<&HardState>,
        sync: bool,
    ) -> Result<AppendStats, LogError> {
        self.make_ready()?;
        self.start_batch();
        let sequence = self.sequence();
        let mut positions = Vec::with_capacity(entries.len());
        for entry in entries {
            let (start, chain) = (self.encoder.buffer.len(), self.encoder.chain);
            self.encoder.entry(entry);
            positions.push(Position::of(sequence, self.end + start as u64, chain, self.encoder.buffer.len() - start));
        }
        if let Some(state) = hard_state {
            self.encoder.state(state);
        }
        let bytes = self.write_batch()?;
        if let Some(state) = hard_state {
            self.hard_state = *state;
        }
        self.last_index = entries.last().map_or(self.last_index, |entry| entry.index);
        let sync_seconds = if sync { self.sync()? } else { 0.0 };
        Ok(AppendStats { bytes, positions, sync_seconds })
    }

    /// Makes all that was appended durable.
    pub fn sync(&mut self) -> Result<f64, LogError> {
        if self.options.unsafe_no_fsync || self.tail == TailState::Synced {
            return Ok(0.0);
        }
        match self.file.sync() {
            Ok(took) => {
                self.tail = TailState::Synced;
                Ok(took.as_secs_f64())
            }
            Err(source) => {
                self.tail = TailState::Unknown;
                Err(LogError::io("sync", &self.name(), self.end, source))
            }
        }
    }

    /// Records that the state machine holds everything up to the mark. Call it when that is durable, never before.
    ///
    /// The mark comes with a hard state that confirms it: recovery believes only marks at or below the commit index,
    /// and the commit index on disk may lag.
    pub fn mark_snapshot(&mut self, mark: &SnapshotMark) -> Result<(), LogError> {
        assert!(mark.index >= self.mark_index, "snapshot mark {} after {}", mark.index, self.mark_index);
        self.make_ready()?;
        self.start_batch();
        self.encoder.snapshot(mark);
        let mut state = self.hard_state;
        if state.commit < mark.index {
            state.commit = mark.index;
            if state.term < mark.term {
                (state.term, state.vote) = (mark.term, 0);
            }
            self.encoder.state(&state);
        }
        self.write_batch()?;
        self.hard_state = state;
        self.mark_index = mark.index;
        self.mark_sequence = self.sequence();
        self.last_index = self.last_index.max(mark.index);
        self.sync().map(|_| ())
    }

    /// Begins anew behind a mark, with the hard state, for a store that came from another member: what the log held before
    /// does not lead up to what follows the mark. Durable when this returns.
    pub fn restart_at(&mut self, mark: &SnapshotMark, hard_state: Option<&HardState>) -> Result<(), LogError> {
        let uncommitted = self.hard_state.commit.max(self.mark_index) + 1;
        if self.last_index >= uncommitted {
            // An entry in the place of the first that may be another's cuts off all that stood from there on. A crash before
            // the mark leaves it: the caller comes again with the same mark before it believes the log.
            let cut = LogEntry { term: mark.term, index: uncommitted, kind: EntryKind::Normal, data: Bytes::new() };
            self.append(&[cut], None, false)?;
        }
        if let Some(state) = hard_state {
            // Its commit index is told by the mark.
            self.hard_state = HardState { commit: self.hard_state.commit, ..*state };
        }
        self.mark_snapshot(mark)
    }

    /// Unlinks the segments at the head whose entries are all at or below `index`, and says how many. Keeps the last
    /// segment and the newest mark's.
    pub fn release_to(&mut self, index: u64) -> Result<usize, LogError> {
        assert!(index <= self.mark_index, "log released to {index} beyond the snapshot mark {}", self.mark_index);
        let keeps_needed = |(sequence, name): (&u64, &SegmentName)| {
            (*sequence <= self.mark_sequence && name.first_index <= index.saturating_add(1)).then_some(*sequence)
        };
        let first_kept = self.names.iter().filter_map(keeps_needed).next_back().unwrap_or(0);
        let released: Vec<SegmentName> = self.names.range(..first_kept).map(|(_, name)| name.clone()).collect();
        for segment in &released {
            // Oldest first and each made durable, so that a crash in between leaves no hole in the sequence.
            let name = segment.to_string();
            self.disk.remove(&name).map_err(|source| LogError::io("remove", &name, 0, source))?;
            self.names.remove(&segment.sequence);
            self.reader.segments.write().remove(&segment.sequence);
            self.sync_directory(&name)?;
        }
        Ok(released.len())
    }

    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    pub fn last_index(&self) -> u64 {
        self.last_index
    }

    /// Takes back a failed write, and cuts when the segment is full. Nothing is written before both have worked.
    fn make_ready(&mut self) -> Result<(), LogError> {
        match self.tail {
            TailState::Unknown => return Err(LogError::Stopped),
            TailState::Dirty => self.take_back()?,
            TailState::Synced | TailState::Unsynced => {}
        }
        if self.end >= self.options.segment_bytes { self.cut() } else { Ok(()) }
    }

    fn start_batch(&mut self) {
        if self.encoder.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.encoder.buffer = Vec::new();
        }
        self.encoder.start(self.chain);
        if self.tail == TailState::Synced && !self.options.unsafe_no_fsync {
            // The sync marker: all before it is durable. See `tail`.
            self.encoder.crc();
        }
    }

    fn write_batch(&mut self) -> Result<u64, LogError> {
        if let Err(source) = self.file.write_at(&self.encoder.buffer, self.end) {
            let error = LogError::io("write", &self.name(), self.end, source);
            self.tail = TailState::Dirty;
            if self.take_back().is_err() {
                // The write's own failure is the one to report; the next call tries again to take it back and fails
                // until it can.
            }
            return Err(error);
        }
        let bytes = self.encoder.buffer.len() as u64;
        self.end += bytes;
        self.chain = self.encoder.chain;
        self.tail = TailState::Unsynced;
        Ok(bytes)
    }

    /// Cuts off what a failed write may have left. The space reserved behind it goes too; later writes extend the file.
    fn take_back(&mut self) -> Result<(), LogError> {
        self.file.truncate(self.end).map_err(|source| LogError::io("truncate", &self.name(), self.end, source))?;
        // Whether the bytes before were synced is no longer known here. Without a marker recovery is more lenient, but
        // for a hole in the first append of a segment, which it then refuses.
        self.tail = TailState::Unsynced;
        Ok(())
    }

    /// Ends the segment and starts the next. etcd's order: the old one durable and without spare space, then the new
    /// one's head, then its name.
    fn cut(&mut self) -> Result<(), LogError> {
        let name = self.name();
        self.file.truncate(self.end).map_err(|source| LogError::io("truncate", &name, self.end, source))?;
        self.tail = TailState::Unsynced;
        self.sync()?;
        self.encoder.start(self.chain);
        self.encoder.crc();
        self.encoder.metadata(&self.metadata);
        if self.hard_state != HardState::default() {
            self.encoder.state(&self.hard_state);
        }
        let next = SegmentName { sequence: self.sequence() + 1, first_index: self.last_index + 1 };
        let file = make_segment(&*self.disk, &self.options, &next, &self.encoder.buffer)?;
        self.reader.segments.write().insert(next.sequence, Arc::clone(&file));
        self.names.insert(next.sequence, next);
        self.file = file;
        self.end = self.encoder.buffer.len() as u64;
        self.chain = self.encoder.chain;
        self.tail = TailState::Synced;
        Ok(())
    }

    fn sequence(&self) -> u64 {
        *self.names.last_key_value().expect("a log has a segment").0
    }

    fn name(&self) -> String {
        self.names.last_key_value().expect("a log has a segment").1.to_string()
    }

    fn sync_directory(&self, name: &str) -> Result<(), LogError> {
        if self.options.unsafe_no_fsync {
            return Ok(());
        }
        self.disk.sync_dir().map_err(|source| LogError::io("sync directory", name, 0, source))
    }
}

/// Writes a segment's head under a temporary name and gives it its own name when it is durable.
fn make_segment(
    disk: &dyn Disk,
    options: &LogOptions,
    name: &SegmentName,
    head: &[u8],
) -> Result<Arc<dyn DiskFile>, LogError> {
    let file = disk.create(TMP_NAME).map_err(|source| LogError::io("create", TMP_NAME, 0, source))?;
    let filled = file.preallocate(options.segment_bytes).map_err(|source| ("preallocate", source));
    let written = filled.and_then(|()| file.write_at(head, 0).map_err(|source| ("write", source)));
    if let Err((op, source)) = written {
        // Gives the space back; should that fail too, the next segment overwrites the file.
        return match disk.remove(TMP_NAME) {
            Ok(()) | Err(_) => Err(LogError::io(op, TMP_NAME, 0, source)),
        };
    }
    if !options.unsafe_no_fsync {
        file.sync().map_err(|source| LogError::io("sync", TMP_NAME, 0, source))?;
    }
    let name = name.to_string();
    disk.rename(TMP_NAME, &name).map_err(|source| LogError::io("rename", &name, 0, source))?;
    if !options.unsafe_no_fsync {
        disk.sync_dir().map_err(|source| LogError::io("sync directory", &name, 0, source))?;
    }
    Ok(file)
}

/// Reserves the rest of a segment that recovery has cut. A full disk is no reason not to start: appends will say so.
fn reserve(file: &dyn DiskFile, options: &LogOptions, end: u64) -> Result<(), LogError> {
    if end >= options.segment_bytes {
        return Ok(());
    }
    match file
        .preallocate(options.segment_bytes)
        .map_err(|source| LogError::io("preallocate", "the last segment", end, source))
    {
        Err(error) if !error.is_no_space() => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
