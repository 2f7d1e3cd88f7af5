//! The operator's policies: the question, the answer, the native default, the guard rails.
//!
//! In this release every answer is the native default, which is etcd's own behaviour.

pub(crate) mod compaction;
pub(crate) mod epoch;
pub(crate) mod plugins;
