//! tmp
pub(crate) mod method;
