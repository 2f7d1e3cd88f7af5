//! Kuorum: a replicated key-value store that speaks the etcd v3.7 API.
//!
//! A put in eleven lines, each naming the module that does it:
//! 1. `rpc` decodes the request on the shard that owns the client's connection;
//! 2. `admission` refuses what is malformed, too large, over quota or over the backlog, and `roster` what plugins deny;
//! 3. `command` encodes what is left as one log entry;
//! 4. `consensus` proposes it;
//! 5. `log` makes it durable;
//! 6. `consensus` learns that it is committed;
//! 7. `apply` turns it into changes, the same on every member;
//! 8. `mvcc` gives the changes a revision;
//! 9. `storage` commits them with the applied index in one batch;
//! 10. `watch` hands the events to whoever waits for them;
//! 11. `rpc` answers the client.
//!
//! The modules below stand in that order: front door, before the log, consensus, the pure core, out again, upkeep.

pub mod cli;
pub mod config;
pub mod server;

pub(crate) mod http;
mod rpc;

pub(crate) mod admission;
pub(crate) mod command;
pub(crate) mod refusal;

pub(crate) mod catch_up;
pub(crate) mod consensus;
pub mod log;
pub(crate) mod transport;

pub(crate) mod alarm;
pub(crate) mod apply;
pub(crate) mod cluster;
pub(crate) mod lease;
pub(crate) mod mvcc;
pub(crate) mod storage;

pub(crate) mod watch;

pub(crate) mod policy;

pub mod plugin;
pub(crate) mod roster;

pub(crate) mod maintenance;
pub(crate) mod metrics;
pub(crate) mod sabotage;
pub mod trace;

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
