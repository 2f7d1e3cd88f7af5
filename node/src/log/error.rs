//! What can go wrong with the log, in words an operator can act on.

use std::fmt;
use std::io;

/// Why the log refused or failed.
#[derive(Debug)]
pub enum LogError {
    /// The disk refused an operation. After a failed write the log may be used again (see `Log::append`); after a
    /// failed sync it may not.
    Io { op: &'static str, file: String, offset: u64, source: io::Error },
    /// A record is damaged and records written later are intact, so this is no torn write.
    Corrupt { file: String, offset: u64, damage: &'static str, evidence: String },
    /// An intact record cannot stand where it stands.
    Inconsistent { file: String, offset: u64, reason: String },
    /// The segment sequence has a hole, or does not start where the snapshot mark needs it to.
    Gap { reason: String },
    /// There is no segment in the directory.
    Missing,
    /// `create` found segments in the directory.
    Exists { file: String },
    /// A segment was unlinked by `release_to` before it was read.
    Released { segment: u64 },
    /// An earlier sync failed, so what is on disk is unknown until the log is opened again.
    Stopped,
}

impl LogError {
    pub(super) fn io(op: &'static str, file: &str, offset: u64, source: io::Error) -> Self {
        Self::Io { op, file: file.to_owned(), offset, source }
    }

    /// True when the disk or the quota is full: the caller may free space and try again.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Io { source, op, .. } => {
                *op != "sync" && matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Corrupt { .. }
            | Self::Inconsistent { .. }
            | Self::Gap { .. }
            | Self::Missing
            | Self::Exists { .. }
            | Self::Released { .. }
            | Self::Stopped => false,
        }
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { op, file, offset, source } => write!(f, "log: {op} of {file} at offset {offset}: {source}"),
            Self::Corrupt { file, offset, damage, evidence } => write!(
                f,
                "log segment {file} is damaged at offset {offset} ({damage}) and {evidence}, so this is no torn write and records that were \
                 acknowledged are lost here; remove this member from the cluster and add it again with an empty data directory, or restore a snapshot"
            ),
            Self::Inconsistent { file, offset, reason } => write!(
                f,
                "log segment {file} at offset {offset}: {reason}; remove this member from the cluster and add it again with an empty data directory, or restore a snapshot"
            ),
            Self::Gap { reason } => {
                write!(
                    f,
                    "log: {reason}; put the missing segment back, or remove this member from the cluster and add it again with an empty data directory"
                )
            }
            Self::Missing => write!(f, "log: the directory holds no segment"),
            Self::Exists { file } => write!(f, "log: cannot create a log where {file} exists"),
            Self::Released { segment } => write!(f, "log segment {segment} was released"),
            Self::Stopped => {
                write!(f, "log: an earlier sync failed; what is on disk is unknown until the member restarts")
            }
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Corrupt { .. }
            | Self::Inconsistent { .. }
            | Self::Gap { .. }
            | Self::Missing
            | Self::Exists { .. }
            | Self::Released { .. }
            | Self::Stopped => None,
        }
    }
}
