//! The harness of the black-box suites.
//!
//! Every suite drives the built binary over loopback and never links the server. Where a claim is "as etcd does it", a
//! real etcd runs beside Kuorum, both get the same requests, and the answers are compared as text.
//!
//! - [`subject`], [`member`], [`etcdctl`], [`plugin_command`]: processes under test, their directories and [`ports`]; each
//!   is killed by its own id; and the command lines beside them; [`plugin_file`]: plugins to load
//! - [`client`]: the gRPC clients of one member
//! - [`names`], [`request`], [`render`]: the request language of the scripts, and answers written so that two servers
//!   compare
//! - [`watch_log`], [`side`]: one server answering a script
//! - [`script`], [`lockstep`]: script files with expectations, and two sides run step by step
//! - [`generate`], [`shrink`]: random scripts from a seed, and the smallest script that still shows a difference
//! - [`cluster`], [`network`], [`small_disk`]: several members, the links between them, and disks that can be filled
//! - [`recorder`], [`history`]: what clients and watchers of a cluster asked and were told; [`linearizability`],
//!   [`watches`]: whether it can be true
//! - [`random`], [`clock`]: the seed and the clock; nothing else draws numbers or reads the time

pub mod client;
pub mod clock;
pub mod cluster;
pub mod etcdctl;
pub mod generate;
pub mod history;
pub mod linearizability;
pub mod lockstep;
pub mod member;
pub mod names;
pub mod network;
pub mod plugin_command;
pub mod plugin_file;
pub mod ports;
pub mod random;
pub mod recorder;
pub mod render;
pub mod request;
mod revisions;
pub mod script;
pub mod shrink;
pub mod side;
pub mod small_disk;
pub mod subject;
pub mod watch_log;
pub mod watches;
