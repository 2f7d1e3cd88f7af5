//! (being written)

pub(crate) mod key_index;
pub(crate) mod key_range;
pub(crate) mod revision;
