//! The operator's policies: the question, the answer, the native default, the guard rails.
//!
//! Where no plugin is enforced, every answer is the native default, which is etcd's own behaviour.

pub(crate) mod compaction;
pub(crate) mod epoch;
pub(crate) mod plan;
pub(crate) mod plugins;
pub(crate) mod timeline;
