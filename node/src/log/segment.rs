//! Names of segments: sequence number and index of the first entry, as etcd writes them.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SegmentName {
    /// Counts up by one from segment to segment.
    pub(super) sequence: u64,
    /// Entries below this index stand in earlier segments.
    pub(super) first_index: u64,
}

impl SegmentName {
    /// `None` when the name is not a segment's.
    pub(super) fn parse(name: &str) -> Option<SegmentName> {
        let (sequence, first_index) = name.strip_suffix(".wal")?.split_once('-')?;
        let number = |text: &str| match text.len() {
            16 => u64::from_str_radix(text, 16).ok(),
            _ => None,
        };
        Some(SegmentName { sequence: number(sequence)?, first_index: number(first_index)? })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.wal", self.sequence, self.first_index)
    }
}
