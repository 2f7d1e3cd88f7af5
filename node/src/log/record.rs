//! Records of the log: etcd's WAL framing, encoded and decoded here alone.
//!
//! ```text
//! frame  = length (8 bytes, little-endian) | record | padding to a multiple of 8
//!          the length's top byte is 0x80 + padding bytes when there is padding, else 0
//! record = protobuf { type = 1, crc = 2, data = 3 }
//! ```
//!
//! The CRC-32C of a record covers its data and, through the CRC before it, everything that precedes it in the log: the
//! chain starts anew nowhere, and each segment begins with a record that repeats where it stands.

use bytes::{Buf, Bytes};
use prost::Message as _;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_varint, encoded_len_varint, skip_field,
};

use crate::log::{EntryKind, HardState, LogEntry, Metadata, SnapshotMark};

/// Bytes of a frame's length.
pub(super) const LENGTH_BYTES: usize = 8;
/// Frames start at multiples of this.
pub(super) const ALIGNMENT: usize = 8;
/// Largest record taken for one: far above what a request may be, so that a damaged length is told from a long record.
const RECORD_BYTES_MAX: u64 = 512 << 20;

/// etcd's record types.
const METADATA: u64 = 1;
const ENTRY: u64 = 2;
const STATE: u64 = 3;
const CRC: u64 = 4;
const SNAPSHOT: u64 = 5;

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Record {
    Metadata(Metadata),
    Entry(LogEntry),
    State(HardState),
    /// The CRC of everything before; first in each segment.
    Crc,
    Snapshot(SnapshotMark),
}

/// A frame whose length is plausible and whose record parses; whether its CRC holds depends on what comes before.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    kind: u64,
    pub(super) crc: u32,
    data: Bytes,
    /// Bytes of the whole frame.
    pub(super) size: usize,
}

/// Encodes records onto one buffer, continuing a CRC chain.
pub(super) struct Encoder {
    crc: u32,
    scratch: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(crc: u32) -> Encoder {
        Encoder { crc, scratch: Vec::new() }
    }

    pub(super) fn crc(&self) -> u32 {
        self.crc
    }

    /// Where the chain stands, for the head of a segment.
    pub(super) fn push_crc(&mut self, out: &mut Vec<u8>) {
        self.scratch.clear();
        self.push(out, CRC);
    }

    pub(super) fn push_metadata(&mut self, out: &mut Vec<u8>, metadata: &Metadata) {
        self.scratch.clear();
        push_number(&mut self.scratch, 1, metadata.node_id);
        push_number(&mut self.scratch, 2, metadata.cluster_id);
        self.push(out, METADATA);
    }

    pub(super) fn push_entry(&mut self, out: &mut Vec<u8>, entry: &LogEntry) {
        self.scratch.clear();
        let kind = match entry.kind {
            EntryKind::Normal => 0,
            EntryKind::ConfChange => 1,
            EntryKind::ConfChangeV2 => 2,
        };
        push_number(&mut self.scratch, 1, kind);
        push_number(&mut self.scratch, 2, entry.term);
        push_number(&mut self.scratch, 3, entry.index);
        if !entry.data.is_empty() {
            push_bytes(&mut self.scratch, 4, &entry.data);
        }
        self.push(out, ENTRY);
    }

    pub(super) fn push_state(&mut self, out: &mut Vec<u8>, state: &HardState) {
        self.scratch.clear();
        push_number(&mut self.scratch, 1, state.term);
        push_number(&mut self.scratch, 2, state.vote);
        push_number(&mut self.scratch, 3, state.commit);
        self.push(out, STATE);
    }

    pub(super) fn push_snapshot(&mut self, out: &mut Vec<u8>, mark: &SnapshotMark) {
        self.scratch.clear();
        push_number(&mut self.scratch, 1, mark.index);
        push_number(&mut self.scratch, 2, mark.term);
        if !mark.voters.is_empty() || !mark.learners.is_empty() {
            let conf_state = kuorum_proto::raftpb::ConfState {
                voters: mark.voters.clone(),
                learners: mark.learners.clone(),
                ..Default::default()
            };
            push_bytes(&mut self.scratch, 3, &conf_state.encode_to_vec());
        }
        self.push(out, SNAPSHOT);
    }

    /// Frames the record whose data stands in the scratch buffer.
    fn push(&mut self, out: &mut Vec<u8>, kind: u64) {
        let data = &self.scratch;
        self.crc = crc32c::crc32c_append(self.crc, data);
        let mut length = 2 + 1 + encoded_len_varint(self.crc.into());
        if !data.is_empty() {
            length += 1 + encoded_len_varint(data.len() as u64) + data.len();
        }
        let padding = length.next_multiple_of(ALIGNMENT) - length;
        let top = if padding == 0 { 0 } else { 0x80 | padding as u64 };
        out.extend_from_slice(&(length as u64 | top << 56).to_le_bytes());
        push_number(out, 1, kind);
        push_number(out, 2, self.crc.into());
        if !data.is_empty() {
            push_bytes(out, 3, data);
        }
        out.resize(out.len() + padding, 0);
    }
}

fn push_number(out: &mut Vec<u8>, field: u8, number: u64) {
    out.push(field << 3);
    encode_varint(number, out);
}

fn push_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// The size of the frame at the start of these bytes, by its length alone; `None` when the length is not one.
fn frame_size(bytes: &[u8]) -> Option<(usize, usize)> {
    let field = u64::from_le_bytes(*bytes.first_chunk::<LENGTH_BYTES>()?);
    let length = field & 0x00ff_ffff_ffff_ffff;
    let top = field >> 56;
    let padding = match top {
        0 => 0,
        0x81..=0x87 => top & 0x7,
        _ => return None,
    };
    if length == 0 || length > RECORD_BYTES_MAX || !(length + padding).is_multiple_of(ALIGNMENT as u64) {
        return None;
    }
    let length = usize::try_from(length).ok()?;
    Some((length, LENGTH_BYTES + length + usize::try_from(padding).ok()?))
}

impl Frame {
    /// Reads the frame at the start of these bytes.
    pub(super) fn parse(bytes: &Bytes) -> Option<Frame> {
        let (length, size) = frame_size(bytes)?;
        if size > bytes.len() {
            return None;
        }
        let mut rest = bytes.slice(LENGTH_BYTES..LENGTH_BYTES + length);
        let (mut kind, mut crc, mut data) = (None, None, Bytes::new());
        while rest.has_remaining() {
            let (tag, wire_type) = decode_key(&mut rest).ok()?;
            match (tag, wire_type) {
                (1, WireType::Varint) => kind = Some(decode_varint(&mut rest).ok()?),
                (2, WireType::Varint) => crc = Some(u32::try_from(decode_varint(&mut rest).ok()?).ok()?),
                (3, WireType::LengthDelimited) => data = take_delimited(&mut rest)?,
                _ => skip_field(wire_type, tag, &mut rest, DecodeContext::default()).ok()?,
            }
        }
        let kind = kind.filter(|kind| (METADATA..=SNAPSHOT).contains(kind))?;
        Some(Frame { kind, crc: crc?, data, size })
    }

    /// Whether the record continues a chain that stands at this CRC. At the head of the first segment kept, whose
    /// predecessors are gone, any CRC record does: `None`.
    pub(super) fn continues(&self, crc: Option<u32>) -> bool {
        match crc {
            Some(crc) => crc32c::crc32c_append(crc, &self.data) == self.crc,
            None => self.kind == CRC,
        }
    }

    /// What the record says; `None` when its data is not what its type demands.
    pub(super) fn record(&self) -> Option<Record> {
        let data = self.data.clone();
        Some(match self.kind {
            METADATA => {
                let [node_id, cluster_id] = numbers(data)?.0;
                Record::Metadata(Metadata { node_id, cluster_id })
            }
            ENTRY => Record::Entry(entry(data)?),
            STATE => {
                let ([term, vote, commit], payload) = numbers(data)?;
                // The type is outside the CRC: an entry must not pass for a state.
                if !payload.is_empty() {
                    return None;
                }
                Record::State(HardState { term, vote, commit })
            }
            CRC => Record::Crc,
            _ => Record::Snapshot(snapshot(data)?),
        })
    }
}

fn entry(data: Bytes) -> Option<LogEntry> {
    let ([kind, term, index, _], payload) = numbers::<4>(data)?;
    let kind = match kind {
        0 => EntryKind::Normal,
        1 => EntryKind::ConfChange,
        2 => EntryKind::ConfChangeV2,
        _ => return None,
    };
    Some(LogEntry { term, index, kind, data: payload })
}

fn snapshot(data: Bytes) -> Option<SnapshotMark> {
    let ([index, term, _], conf_state) = numbers::<3>(data)?;
    let conf_state = kuorum_proto::raftpb::ConfState::decode(conf_state).ok()?;
    Some(SnapshotMark { index, term, voters: conf_state.voters, learners: conf_state.learners })
}

/// The numbers in fields 1 to N, and the bytes of the last field that holds bytes.
fn numbers<const N: usize>(mut data: Bytes) -> Option<([u64; N], Bytes)> {
    let mut found = [0; N];
    let mut bytes = Bytes::new();
    while data.has_remaining() {
        let (tag, wire_type) = decode_key(&mut data).ok()?;
        match wire_type {
            WireType::Varint => {
                let number = decode_varint(&mut data).ok()?;
                if let Some(place) = found.get_mut(tag as usize - 1) {
                    *place = number;
                }
            }
            WireType::LengthDelimited => bytes = take_delimited(&mut data)?,
            _ => skip_field(wire_type, tag, &mut data, DecodeContext::default()).ok()?,
        }
    }
    Some((found, bytes))
}

fn take_delimited(bytes: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
    (length <= bytes.len()).then(|| bytes.split_to(length))
}
