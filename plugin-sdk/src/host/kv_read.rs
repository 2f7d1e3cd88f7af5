//! Keys of the store at the call's revision, within the prefixes that the operator grants.
//!
//! In an admission check, each key that was read joins the request's read set: the write is carried out only if the key is
//! as it was, and judged again otherwise. So a policy over several keys holds under concurrent writes too.

use crate::Failure;
#[cfg(target_arch = "wasm32")]
use crate::bindings::host::kuorum::policy::kv_read as raw;
pub use crate::bindings::host::kuorum::policy::kv_read::{Kv, ReadError};
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::kv_read as raw;

/// The key's row, or none where the key isn't set.
pub fn get(key: impl AsRef<[u8]>) -> Result<Option<Kv>, ReadError> {
    raw::get(key.as_ref())
}

/// What [`scan`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan<'a> {
    /// What the keys begin with.
    pub prefix: &'a [u8],
    /// Only keys behind this one: the last of the rows before.
    pub after: Option<&'a [u8]>,
    /// How many rows at most.
    pub limit: u32,
    /// Leaves the values empty.
    pub keys_only: bool,
}

/// Rows in the order of their keys. Denied in an admission check, whose reads are kept key by key.
pub fn scan(scan: Scan) -> Result<Vec<Kv>, ReadError> {
    raw::scan(scan.prefix, scan.after, scan.limit, scan.keys_only)
}

impl From<ReadError> for Failure {
    /// Only a revision that was compacted meanwhile is worth another try.
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Denied => Self::Permanent("a key outside the granted prefixes was read".into()),
            ReadError::TooLarge => Self::Permanent("a read is larger than the host hands over".into()),
            ReadError::Budget => Self::Permanent("a call read more than its budget".into()),
            ReadError::Compacted => Self::Transient(("the revision of the call is compacted".into(), 0)),
        }
    }
}
