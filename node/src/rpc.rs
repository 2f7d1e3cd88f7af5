//! The front door: client connections, gRPC on them, and the services.
//!
//! [`listen`] binds, [`shards`] serves: one single-threaded runtime a core, a connection stays on the shard that got
//! it. [`connection`] tells gRPC (HTTP/2) from pages (HTTP/1.1, see [`crate::http`]). [`grpc`] finds the method,
//! decodes, sets the deadline, counts, encodes. The services ([`kv`], [`range_answer`], [`range_stream`], [`lease`], [`watch`],
//! [`cluster`], [`maintenance`], [`auth`], [`health`], [`plugin`]) know nothing of that: they are functions from a request to an
//! answer or a [`Refusal`], so another transport can call them as they are.
//!
//! Framing is hand-written over hyper; of tonic only the status type is used. What a client is told of a refusal is
//! decided in [`status`] alone. Nothing here keeps state of its own between two requests but open streams.
//!
//! Bounds: connections (from the limit on open files), streams of a connection (flag), bytes of a message (flag), bytes
//! in flight to this process on a connection, sockets waiting for their shard.

mod auth;
mod call;
mod cluster;
mod connection;
pub(crate) mod errands;
mod frame;
mod grpc;
mod health;
mod judged;
mod kv;
pub(crate) mod leader;
mod lease;
mod listen;
mod maintenance;
pub(crate) mod method;
mod plugin;
pub(crate) mod range_answer;
mod range_stream;
mod reply;
mod shards;
pub(crate) mod status;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kuorum_proto::etcdserverpb::{AlarmRequest, AlarmType, ResponseHeader, alarm_request};
use tokio::sync::Semaphore;

use crate::admission::{Admitted, Gate, Limits};
use crate::alarm::Alarms;
use crate::apply::Reply;
use crate::cluster::{Facts, Members};
use crate::config::Config;
use crate::consensus;
use crate::lease::Leases;
use crate::maintenance::Upkeep;
use crate::mvcc::{CurrentStore, ReadError, Sizes};
use crate::policy::plugins::{Registry, TrustedKeys};
use crate::refusal::Refusal;
use crate::roster::Roster;
use crate::transport::Peers;
use crate::watch::Hub;

pub(crate) use self::cluster::ChangeRules;
use self::judged::SlowLane;
pub(crate) use self::listen::bind;
pub(crate) use self::shards::{serve, shards};

/// The version the cluster works at, and that of the storage format: what etcd 3.7 reports.
pub(crate) const CLUSTER_VERSION: &str = "3.7.0";

/// etcd's overhead over --max-request-bytes: what a gRPC message may be larger than the request in it.
pub(crate) const MESSAGE_OVERHEAD_BYTES: usize = 512 << 10;

/// What the handlers reach: one for the process.
pub(crate) struct Node {
    pub(crate) limits: Limits,
    pub(crate) rules: ChangeRules,
    pub(crate) facts: Arc<Facts>,
    pub(crate) consensus: consensus::Handle,
    pub(crate) store: CurrentStore,
    pub(crate) leases: Leases,
    pub(crate) alarms: Alarms,
    pub(crate) members: Members,
    pub(crate) watch: Hub,
    pub(crate) upkeep: Upkeep,
    pub(crate) gate: Gate,
    pub(crate) peers: Peers,
    pub(crate) questions: leader::Questions,
    pub(crate) errands: errands::Errands,
    pub(crate) plugins: Registry,
    /// What this member asks of them.
    pub(crate) roster: Roster,
    /// Uploads that may be under way, each of which holds a piece of its component.
    pub(crate) uploads: Arc<Semaphore>,
    /// Where requests are judged that may take long.
    pub(crate) slow_lane: SlowLane,
    /// Whose signatures this member takes.
    pub(crate) trusted_keys: TrustedKeys,
    /// Tells of each change of the plugins, and of each that became ready here.
    pub(crate) plugins_changed: tokio::sync::watch::Receiver<()>,
    /// How long a request may take that waits for other members.
    pub(crate) patience: Duration,
    /// Where this process' monotonic time starts.
    pub(crate) started: Instant,
}

/// Uploads of plugins under way at a time, each with a piece or two in memory.
const UPLOADS_MAX: usize = 16;

/// Room for uploads.
pub(crate) fn uploads() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(UPLOADS_MAX))
}

/// As many requests at a time are judged that may take long as there are cores.
pub(crate) fn slow_lane() -> SlowLane {
    SlowLane::new(shards().into())
}

impl Node {
    /// Of the store, with all that is in it.
    pub(crate) fn sizes(&self) -> Sizes {
        self.store.get().sizes().and(self.plugins.pieces_bytes())
    }

    /// A header at the current revision.
    fn header(&self) -> ResponseHeader {
        self.facts.header(self.store.get().revision().0)
    }

    /// Fills in what every header says beside the revision, and the revision if apply named none.
    fn complete(&self, header: &mut Option<ResponseHeader>) {
        let revision = header.as_ref().map_or(0, |header| header.revision);
        *header = Some(if revision == 0 { self.header() } else { self.facts.header(revision) });
    }

    /// Passes on what admission says. A refusal for want of space raises the alarm first, as etcd does, so that whoever
    /// looks after being refused finds it raised.
    async fn admitted(&self, admission: Result<Admitted, Refusal>) -> Result<Admitted, Refusal> {
        if matches!(admission, Err(Refusal::NoSpace)) && !self.alarms.no_space() && self.gate.can_raise_alarms() {
            let request = AlarmRequest {
                action: alarm_request::AlarmAction::Activate.into(),
                member_id: self.facts.member_id.0,
                alarm: AlarmType::Nospace.into(),
            };
            self.consensus.propose(self.gate.alarm(request)?).await?;
        }
        admission
    }

    pub(crate) fn is_learner(&self) -> bool {
        self.members.is_learner(self.facts.member_id)
    }

    /// The quota as Status and metrics show it; zero when it is off.
    pub(crate) fn quota_bytes(&self) -> i64 {
        self.limits.quota_bytes.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
    }
}

pub(crate) fn refusal_of(error: ReadError) -> Refusal {
    match error {
        ReadError::Refused(refusal) => refusal.into(),
        error @ (ReadError::Large | ReadError::Storage(_)) => Refusal::Internal(error.to_string()),
    }
}

fn unexpected(request: &str, reply: &Reply) -> Refusal {
    Refusal::Internal(format!("{request} was answered as something else: {reply:?}"))
}

/// What the flags say of client connections.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    concurrent_streams_max: u32,
    keepalive_interval: Option<Duration>,
    keepalive_timeout: Duration,
    message_bytes_max: usize,
    /// Calls of one message each way that take longer are logged.
    slow_unary: Duration,
    /// How often the standing of the leader is looked at for streams that require one.
    election_timeout: Duration,
    pub(crate) origins: BTreeSet<String>,
    pub(crate) hosts: BTreeSet<String>,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Options {
        Options {
            concurrent_streams_max: config.grpc.concurrent_streams_max,
            keepalive_interval: config.grpc.keepalive_interval,
            keepalive_timeout: config.grpc.keepalive_timeout,
            message_bytes_max: config.limits.request_bytes_max + MESSAGE_OVERHEAD_BYTES,
            slow_unary: config.upkeep.slow_unary_request,
            election_timeout: config.raft.election_timeout,
            origins: config.http.cors.clone(),
            hosts: config.http.host_whitelist.clone(),
        }
    }
}

#[cfg(test)]
impl Options {
    pub(crate) fn for_tests(election_timeout: Duration, origins: BTreeSet<String>, hosts: BTreeSet<String>) -> Options {
        Options {
            concurrent_streams_max: 100,
            keepalive_interval: None,
            keepalive_timeout: Duration::from_secs(20),
            message_bytes_max: 1 << 20,
            slow_unary: Duration::from_secs(1),
            election_timeout,
            origins,
            hosts,
        }
    }
}
