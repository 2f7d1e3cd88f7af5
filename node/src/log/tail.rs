//! Is damage in the last segment a torn write or corruption?
//!
//! A power cut tears only what no sync covered, and that is the end of the log. So damage with a later record behind it
//! is corruption, damage with none is a torn tail. A **later record** is a frame
//! - of perfect form (length, padding, every inner length; see `record`),
//! - that starts behind the damaged record's own extent when that record's form still gives one. The value of a torn
//!   put may hold the image of a log; what lies inside the record never counts. When the form is gone, every aligned
//!   offset is tried;
//! - that is newer than all before the damage: an entry by (term, index), a hard state by (term, commit, vote), a mark
//!   by index. A stale frame is not.
//! - or that continues the damaged record: its crc follows from the crc the damaged record claims, or from the crc its
//!   bytes give when only what stands around the data is damaged. So an unchanged hard state and a bare crc record
//!   count too.
//!
//! The chained crc cannot decide alone: when the data is damaged and the claimed crc with it, the seed of what follows
//! is lost.
//!
//! One thing looks like corruption and is none: the pages of one unsynced write may reach the disk in any order, so
//! that a hole of zeros stands before intact records. Every append that follows a sync starts with a crc record, the
//! **sync marker**: what precedes it was durable. A hole of zeroed sectors with no marker behind it is therefore torn;
//! with one it is corruption. A marker counts when the record behind it continues its crc. The price: a bit that rots
//! in the last append, in a value that itself holds a sector of zeros, is taken for a torn write.
//!
//! That a marker is missing says something only of a writer that sets them. In a segment whose entries follow none
//! (etcd's, or one written without syncs) a hole with records behind it is corruption like any other damage.

use crc32c::crc32c_append;

use super::HardState;
use super::record::{self, FRAME_ALIGN, RecordKind, Shape};
use super::segment::align;

/// Disks write sectors whole; etcd's decoder looks for torn writes at the same size.
const SECTOR_BYTES: u64 = 512;
/// The start of a frame (length field and first record fields) is never zero, so fewer zeros than this prove no lost
/// sector.
const HOLE_BYTES_MIN: usize = 16;
/// What stands before a record's data at most: frame length, type, crc, length of the data, each varint at its longest
/// in use.
const HEAD_BYTES_MAX: usize = 32;
/// Records longer than this are not searched for a damaged head; etcd's largest request is 1.5 MiB by default.
const SEARCHED_BYTES_MAX: usize = 2 << 20;

/// What all records before the damage say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Newest {
    pub(super) term: u64,
    pub(super) index: u64,
    pub(super) state: HardState,
    pub(super) mark_index: u64,
    /// The newest entries stand behind a sync marker of their own segment: their writer sets them.
    pub(super) marks_syncs: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Torn,
    /// Offset, from the damage, of a record written later.
    Corrupt {
        later: usize,
    },
}

/// Judges the damage at the start of `rest`, which lies at `offset` in its segment, follows the crc `chain`, and
/// reaches behind the last byte in use.
pub(super) fn judge(rest: &[u8], offset: u64, chain: u32, newest: &Newest) -> Verdict {
    let damaged = record::outline(rest);
    let start = damaged.map_or(FRAME_ALIGN, |shape| align(shape.end));
    let mut is_first = true;
    let mut later = None;
    for at in (start..rest.len()).step_by(FRAME_ALIGN) {
        let frame = &rest[at..];
        let Some(shape) = record::shape(frame) else { continue };
        // Only the next record can continue the damaged one.
        let is_next = std::mem::replace(&mut is_first, false);
        if is_next && has_whole_data(&rest[..at], damaged.as_ref(), chain, frame, &shape) {
            return Verdict::Corrupt { later: at };
        }
        let repeats_claim = is_next && damaged.is_some_and(|damaged| continues(damaged.crc, frame, &shape));
        if repeats_claim || is_newer(frame, &shape, newest) {
            later = Some(at);
            break;
        }
    }
    let Some(later) = later else { return Verdict::Torn };
    if newest.marks_syncs && has_hole(&rest[..later], offset) && !has_marker(rest, start) {
        Verdict::Torn
    } else {
        Verdict::Corrupt { later }
    }
}

fn continues(seed: u32, frame: &[u8], shape: &Shape) -> bool {
    frame.get(shape.data_start..shape.data_end).is_some_and(|data| crc32c_append(seed, data) == shape.crc)
}

/// True when `frame` continues the data in `gap` as it stands: then only the head around that data is damaged, and no
/// sector was lost.
fn has_whole_data(gap: &[u8], damaged: Option<&Shape>, chain: u32, frame: &[u8], shape: &Shape) -> bool {
    if let Some(damaged) = damaged {
        let held = gap.get(damaged.data_start..damaged.data_end);
        return held.is_some_and(|held| continues(crc32c_append(chain, held), frame, shape));
    }
    if gap.len() > SEARCHED_BYTES_MAX {
        return false;
    }
    // The data ends before at most seven bytes of padding, and starts somewhere in the first bytes.
    let ends = gap.len() - (FRAME_ALIGN - 1)..=gap.len();
    ends.into_iter().any(|end| {
        (FRAME_ALIGN..HEAD_BYTES_MAX.min(end))
            .any(|begin| continues(crc32c_append(chain, &gap[begin..end]), frame, shape))
    })
}

fn is_newer(frame: &[u8], shape: &Shape, newest: &Newest) -> bool {
    let data = &frame[shape.data_start..shape.data_end.min(frame.len())];
    match shape.kind {
        RecordKind::Entry => {
            let head = record::entry_head(data, shape.data_end - shape.data_start);
            head.is_some_and(|head| (head.term, head.index) > (newest.term, newest.index))
        }
        RecordKind::State => record::decode_state(data).is_some_and(|state| {
            let seen = newest.state;
            (state.term, state.commit) > (seen.term, seen.commit)
                || (state.term, state.commit) == (seen.term, seen.commit) && state.vote != seen.vote
        }),
        RecordKind::Snapshot => record::decode_snapshot(data).is_some_and(|mark| mark.index > newest.mark_index),
        RecordKind::Metadata | RecordKind::Crc => false,
    }
}

/// True when a whole sector of `gap` is zero, or the part of the first sector that `gap` takes.
fn has_hole(gap: &[u8], offset: u64) -> bool {
    let first = usize::try_from(SECTOR_BYTES - offset % SECTOR_BYTES).expect("a sector is small").min(gap.len());
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let sector = usize::try_from(SECTOR_BYTES).expect("a sector is small");
    (first >= HOLE_BYTES_MIN && is_zero(&gap[..first])) || gap[first..].chunks_exact(sector).any(is_zero)
}

fn has_marker(rest: &[u8], start: usize) -> bool {
    (start..rest.len()).step_by(FRAME_ALIGN).any(|at| {
        let Some(marker) = record::shape(&rest[at..]).filter(|shape| shape.kind == RecordKind::Crc) else {
            return false;
        };
        let next = &rest[(at + marker.end).min(rest.len())..];
        record::shape(next).is_some_and(|shape| {
            next.get(shape.data_start..shape.data_end)
                .is_some_and(|data| !data.is_empty() && crc32c_append(marker.crc, data) == shape.crc)
        })
    })
}
