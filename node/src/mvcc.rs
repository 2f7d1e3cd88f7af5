//! Revisions, the key index, the history, and reads and writes over them.

pub(crate) mod key_index;
pub(crate) mod key_range;
pub(crate) mod query;
pub(crate) mod revision;
