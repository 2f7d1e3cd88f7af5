//! The bytes of one record: etcd's WAL framing, written and read by hand.
//!
//! ```text
//! frame   length u64 LE (low 56 bits: record bytes; top byte 0x80 | padding when there is padding) | record | zero padding to 8 bytes
//! record  protobuf { 1: type, 2: crc32c, 3: data }, the crc rolling over the data of every record since the log began
//! data    by type: metadata, entry, hard state, (crc: none), snapshot mark; all small protobufs
//! ```
//!
//! The crc covers the data only, so the reader is strict about all else: fields in ascending order, shortest varints,
//! every length filled exactly, no unknown field. etcd writes just that. A flipped bit outside the data then breaks the
//! form instead of giving another meaning. Nothing here does I/O; allocation is bounded by the input.

use bytes::Bytes;
use crc32c::crc32c_append;

use super::{EntryKind, HardState, LogEntry, Metadata, SnapshotMark};

/// Frames start at multiples of this, so that a length is never torn by a sector boundary.
pub(super) const FRAME_ALIGN: usize = 8;
const LENGTH_BYTES: usize = 8;
/// Lengths have 56 bits in the frame.
const LENGTH_MASK: u64 = (1 << 56) - 1;
/// The longest varint of a u64, from the protocol.
const VARINT_BYTES_MAX: usize = 10;

/// etcd's record types (wal.go).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    Metadata = 1,
    Entry = 2,
    State = 3,
    Crc = 4,
    Snapshot = 5,
}

impl RecordKind {
    fn from_number(number: u64) -> Option<Self> {
        [Self::Metadata, Self::Entry, Self::State, Self::Crc, Self::Snapshot]
            .into_iter()
            .find(|kind| *kind as u64 == number)
    }
}

/// Encodes records into one reusable buffer and rolls the crc.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    pub(super) buffer: Vec<u8>,
    /// The crc after the last record, which seeds the next.
    pub(super) chain: u32,
}

impl Encoder {
    pub(super) fn start(&mut self, chain: u32) {
        self.buffer.clear();
        self.chain = chain;
    }

    pub(super) fn crc(&mut self) {
        self.frame(RecordKind::Crc, None);
    }

    pub(super) fn metadata(&mut self, metadata: &Metadata) {
        let mut head = Short::default();
        head.field(1, metadata.node_id);
        head.field(2, metadata.cluster_id);
        // Of our own; etcd's tools pass over it.
        if metadata.data_dir != 0 {
            head.field(3, metadata.data_dir);
        }
        self.frame(RecordKind::Metadata, Some((head.bytes(), &[])));
    }

    pub(super) fn entry(&mut self, entry: &LogEntry) {
        let mut head = Short::default();
        head.field(1, entry.kind as u64);
        head.field(2, entry.term);
        head.field(3, entry.index);
        if !entry.data.is_empty() {
            head.push(4 << 3 | 2);
            head.varint(entry.data.len() as u64);
        }
        self.frame(RecordKind::Entry, Some((head.bytes(), &entry.data)));
    }

    pub(super) fn state(&mut self, state: &HardState) {
        let mut head = Short::default();
        head.field(1, state.term);
        head.field(2, state.vote);
        head.field(3, state.commit);
        self.frame(RecordKind::State, Some((head.bytes(), &[])));
    }

    pub(super) fn snapshot(&mut self, mark: &SnapshotMark) {
        let mut head = Short::default();
        head.field(1, mark.index);
        head.field(2, mark.term);
        let mut members = Vec::new();
        for (field, ids) in [(1_u8, &mark.voters), (2, &mark.learners)] {
            for id in ids {
                let mut short = Short::default();
                short.field(field, *id);
                members.extend_from_slice(short.bytes());
            }
        }
        if mark.index > 0 || !members.is_empty() {
            // etcd refuses a mark above 0 without a conf state.
            head.push(3 << 3 | 2);
            head.varint(members.len() as u64);
        }
        self.frame(RecordKind::Snapshot, Some((head.bytes(), &members)));
    }

    /// `data` comes in two parts so that a payload is copied once, straight into the buffer.
    fn frame(&mut self, kind: RecordKind, data: Option<(&[u8], &[u8])>) {
        let mut head = Short::default();
        head.field(1, kind as u64);
        let (first, second) = data.unwrap_or_default();
        self.chain = crc32c_append(crc32c_append(self.chain, first), second);
        head.field(2, u64::from(self.chain));
        if data.is_some() {
            head.push(3 << 3 | 2);
            head.varint((first.len() + second.len()) as u64);
        }
        let length = head.len + first.len() + second.len();
        let padding = length.wrapping_neg() % FRAME_ALIGN;
        let mut field = length as u64;
        if padding > 0 {
            field |= (0x80 | padding as u64) << 56;
        }
        self.buffer.reserve(LENGTH_BYTES + length + padding);
        self.buffer.extend_from_slice(&field.to_le_bytes());
        self.buffer.extend_from_slice(head.bytes());
        self.buffer.extend_from_slice(first);
        self.buffer.extend_from_slice(second);
        self.buffer.resize(self.buffer.len() + padding, 0);
    }
}

/// The few fixed fields that stand before a payload, built on the stack.
struct Short {
    bytes: [u8; 4 * (1 + VARINT_BYTES_MAX)],
    len: usize,
}

impl Default for Short {
    fn default() -> Self {
        Self { bytes: [0; 4 * (1 + VARINT_BYTES_MAX)], len: 0 }
    }
}

impl Short {
    fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.push((value & 0x7f) as u8);
    }

    fn field(&mut self, number: u8, value: u64) {
        self.push(number << 3);
        self.varint(value);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Where the parts of a well-formed frame lie, counted from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) kind: RecordKind,
    pub(super) crc: u32,
    pub(super) data_start: usize,
    pub(super) data_end: usize,
    /// Where the next frame starts.
    pub(super) end: usize,
}

/// Reads a frame's length field: record bytes and padding. `None` unless etcd could have written it.
pub(super) fn frame_length(field: u64) -> Option<(usize, usize)> {
    let length = usize::try_from(field & LENGTH_MASK).ok()?;
    let padding = length.wrapping_neg() % FRAME_ALIGN;
    let top = if padding > 0 { 0x80 | padding as u64 } else { 0 };
    (length > 0 && field >> 56 == top).then_some((length, padding))
}

/// The size of the frame with this length field, length field and padding included.
pub(super) fn frame_bytes(field: u64) -> Option<usize> {
    frame_length(field).map(|(length, padding)| LENGTH_BYTES + length + padding)
}

/// Checks the form of the frame at the start of `bytes`, which may lack the end of an entry's payload. Says nothing of
/// the crc.
pub(super) fn shape(bytes: &[u8]) -> Option<Shape> {
    let shape = outline(bytes)?;
    let held = &bytes[shape.data_start.min(bytes.len())..shape.data_end.min(bytes.len())];
    let is_formed = match shape.kind {
        RecordKind::Entry => entry_head(held, shape.data_end - shape.data_start).is_some(),
        RecordKind::Metadata => decode_metadata(held).is_some(),
        RecordKind::State => decode_state(held).is_some(),
        RecordKind::Snapshot => decode_snapshot(held).is_some(),
        RecordKind::Crc => true,
    };
    is_formed.then_some(shape)
}

/// Checks the form of a frame without looking at its data: the frame's length and the record's own must agree.
pub(super) fn outline(bytes: &[u8]) -> Option<Shape> {
    let (length, padding) = frame_length(length_field(bytes)?)?;
    let record_end = LENGTH_BYTES.checked_add(length)?;
    let record = &bytes[..record_end.min(bytes.len())];
    let mut fields = Cursor { bytes: record, at: LENGTH_BYTES };
    fields.tag(1, 0)?;
    let kind = RecordKind::from_number(fields.varint()?)?;
    fields.tag(2, 0)?;
    let crc = u32::try_from(fields.varint()?).ok()?;
    if kind == RecordKind::Crc {
        let end = record_end.checked_add(padding)?;
        return (fields.at == record_end).then_some(Shape {
            kind,
            crc,
            data_start: record_end,
            data_end: record_end,
            end,
        });
    }
    fields.tag(3, 2)?;
    let data = usize::try_from(fields.varint()?).ok()?;
    if fields.at.checked_add(data)? != record_end {
        return None;
    }
    Some(Shape { kind, crc, data_start: fields.at, data_end: record_end, end: record_end.checked_add(padding)? })
}

pub(super) fn length_field(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<LENGTH_BYTES>().map(|field| u64::from_le_bytes(*field))
}

/// What stands before an entry's payload.
pub(super) struct EntryHead {
    pub(super) kind: EntryKind,
    pub(super) term: u64,
    pub(super) index: u64,
    payload_start: usize,
}

/// Reads the head of an entry of `length` bytes; `data` may lack the end of the payload.
pub(super) fn entry_head(data: &[u8], length: usize) -> Option<EntryHead> {
    let mut fields = Cursor { bytes: data, at: 0 };
    let mut head = EntryHead { kind: EntryKind::Normal, term: 0, index: 0, payload_start: length };
    let mut last = 0;
    while fields.at < length {
        let tag = fields.varint()?;
        if tag >> 3 <= last {
            return None;
        }
        last = tag >> 3;
        match (tag >> 3, tag & 7) {
            (1, 0) => head.kind = EntryKind::from_number(fields.varint()?)?,
            (2, 0) => head.term = fields.varint()?,
            (3, 0) => head.index = fields.varint()?,
            (4, 2) => {
                let payload = usize::try_from(fields.varint()?).ok()?;
                head.payload_start = fields.at;
                return (fields.at.checked_add(payload)? == length).then_some(head);
            }
            (_, _) => return None,
        }
    }
    (fields.at == length).then_some(head)
}

pub(super) fn decode_entry(data: &[u8]) -> Option<LogEntry> {
    let head = entry_head(data, data.len())?;
    let payload = Bytes::copy_from_slice(&data[head.payload_start..]);
    Some(LogEntry { term: head.term, index: head.index, kind: head.kind, data: payload })
}

pub(super) fn decode_metadata(data: &[u8]) -> Option<Metadata> {
    let [node_id, cluster_id, data_dir] = Cursor { bytes: data, at: 0 }.numbers()?;
    Some(Metadata { node_id, cluster_id, data_dir })
}

pub(super) fn decode_state(data: &[u8]) -> Option<HardState> {
    let [term, vote, commit] = Cursor { bytes: data, at: 0 }.numbers()?;
    Some(HardState { term, vote, commit })
}

/// Refuses a mark in a joint configuration: neither etcd nor Kuorum makes one.
pub(super) fn decode_snapshot(data: &[u8]) -> Option<SnapshotMark> {
    let mut mark = SnapshotMark::default();
    let mut fields = Cursor { bytes: data, at: 0 };
    let mut last = 0;
    while fields.at < data.len() {
        let tag = fields.varint()?;
        if tag >> 3 <= last {
            return None;
        }
        last = tag >> 3;
        match (tag >> 3, tag & 7) {
            (1, 0) => mark.index = fields.varint()?,
            (2, 0) => mark.term = fields.varint()?,
            (3, 2) => {
                let members = fields.slice()?;
                decode_members(members, &mut mark)?;
            }
            (_, _) => return None,
        }
    }
    (!data.is_empty()).then_some(mark)
}

fn decode_members(members: &[u8], mark: &mut SnapshotMark) -> Option<()> {
    let mut fields = Cursor { bytes: members, at: 0 };
    while fields.at < members.len() {
        let tag = fields.varint()?;
        match (tag >> 3, tag & 7) {
            (1, 0) => mark.voters.push(fields.varint()?),
            (2, 0) => mark.learners.push(fields.varint()?),
            (field @ (1 | 2), 2) => {
                let packed = fields.slice()?;
                let mut ids = Cursor { bytes: packed, at: 0 };
                while ids.at < packed.len() {
                    let id = ids.varint()?;
                    if field == 1 { mark.voters.push(id) } else { mark.learners.push(id) }
                }
            }
            // auto_leave, which etcd writes as false outside a joint configuration.
            (5, 0) if fields.varint()? == 0 => {}
            (_, _) => return None,
        }
    }
    Some(())
}

/// A bounds-checked reader of protobuf fields.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A varint in its shortest form.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for position in 0..VARINT_BYTES_MAX {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if position == VARINT_BYTES_MAX - 1 && bits > 1 {
                return None;
            }
            value |= bits << (7 * position);
            if byte < 0x80 {
                return (byte != 0 || position == 0).then_some(value);
            }
        }
        None
    }

    fn tag(&mut self, field: u64, wire_type: u64) -> Option<()> {
        (self.varint()? == field << 3 | wire_type).then_some(())
    }

    fn slice(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let end = self.at.checked_add(length)?;
        let slice = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(slice)
    }

    /// A message of nothing but the numbers 1 to `N`, in order; a missing one is 0, and so may not all be missing.
    fn numbers<const N: usize>(mut self) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        let mut last = 0;
        while self.at < self.bytes.len() {
            let tag = self.varint()?;
            let field = usize::try_from(tag >> 3).ok()?;
            if tag & 7 != 0 || field <= last || field > N {
                return None;
            }
            last = field;
            numbers[field - 1] = self.varint()?;
        }
        (last > 0).then_some(numbers)
    }
}
