//! (being written)

pub(crate) mod key_index;
pub(crate) mod revision;
