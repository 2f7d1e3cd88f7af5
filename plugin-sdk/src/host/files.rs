//! Files in directories that the operator grants by name; for backup targets. Paths are relative to the directory.

#[cfg(target_arch = "wasm32")]
use crate::bindings::host::kuorum::policy::files as raw;
pub use crate::bindings::host::kuorum::policy::files::{Entry, FsError};
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::files as raw;
use crate::{Failure, backup_target::BlobWriter};

/// A file that is being written. It appears under its name once [`Writer::commit`] returns `Ok`, and never in part.
pub struct Writer(raw::Writer);

impl Writer {
    /// Adds to the end.
    pub fn append(&mut self, chunk: &[u8]) -> Result<(), FsError> {
        self.0.append(chunk)
    }

    /// Makes the file durable and gives it its name.
    pub fn commit(self) -> Result<(), FsError> {
        self.0.commit()
    }
}

impl BlobWriter for Writer {
    fn append(&mut self, chunk: &[u8]) -> Result<(), Failure> {
        Ok(self.0.append(chunk)?)
    }

    fn commit(self) -> Result<(), Failure> {
        Ok(self.0.commit()?)
    }
}

/// Begins a file that isn't there yet.
pub fn create(grant: &str, path: &str) -> Result<Writer, FsError> {
    raw::create(grant, path).map(Writer)
}

/// At most `max` bytes of a file from `offset` on; none past its end.
pub fn read(grant: &str, path: &str, offset: u64, max: u32) -> Result<Vec<u8>, FsError> {
    raw::read(grant, path, offset, max)
}

/// The files whose path begins with `under`.
pub fn list_entries(grant: &str, under: &str) -> Result<Vec<Entry>, FsError> {
    raw::list_entries(grant, under)
}

/// Deletes a file.
pub fn remove(grant: &str, path: &str) -> Result<(), FsError> {
    raw::remove(grant, path)
}

/// How long a failure of the disk asks to wait before another try: it takes a person to free space.
const RETRY_MS: u32 = 60_000;

impl From<FsError> for Failure {
    /// Only what may change by itself is worth another try.
    fn from(error: FsError) -> Self {
        match error {
            FsError::Denied => Self::Permanent("a path that no grant covers".into()),
            FsError::NotFound => Self::Permanent("the file is not there".into()),
            FsError::Exists => Self::Permanent("the file is there already".into()),
            FsError::TooLarge => Self::Permanent("a read or a write is larger than the host hands over".into()),
            FsError::NoSpace => Self::Transient(("no space left for the file".into(), RETRY_MS)),
            FsError::Io => Self::Transient(("the disk fails".into(), RETRY_MS)),
        }
    }
}
