//! Configuration: what the operator said, checked once, as plain data.
//!
//! [`parse`] reads etcd's three sources in etcd's order: command line flags, `ETCD_*` variables for what
//! the command line left open, or one YAML file that replaces both. All of them fill the same [`Settings`], keyed
//! by the rows of the one table in `flags`; `validate` turns those into a [`Config`] or a [`ConfigError`].
//!
//! Invariant: a `Config` that exists is one this release can serve. What etcd has and this release has not (TLS,
//! several members, discovery) is refused by name and never silently accepted; what is accepted without effect is
//! reported as a [`Warning`].
//!
//! Called by `main` alone. Nothing here binds a port, resolves a name or writes a file; only `file` reads one.

mod arguments;
mod bootstrap;
mod environment;
mod error;
mod file;
mod flags;
mod gates;
mod number;
mod settings;
mod url;
mod usage;
mod validate;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use error::ConfigError;
pub use flags::refused_flags;
pub use gates::FeatureGates;
pub use url::{Scheme, Url};

use crate::trace::LogConfig;

/// The etcd release whose surface this server offers. `--version`, `/version` and snapshots name it.
pub const ETCD_VERSION: &str = "3.7.3";

/// What the command line asked for.
#[derive(Debug)]
pub enum Command {
    Serve(Box<Config>, Vec<Warning>),
    /// Print [`version_text`] and leave with exit code 0.
    PrintVersion,
    /// Print the text and leave with exit code 0.
    PrintHelp(String),
}

/// Something accepted that the operator should know about: logged once at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub message: String,
    pub fields: Vec<(&'static str, String)>,
}

/// Everything the server needs to know to start, grouped by who reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub member: MemberConfig,
    pub cluster: ClusterConfig,
    pub listen: ListenConfig,
    pub raft: RaftConfig,
    pub limits: LimitConfig,
    pub grpc: GrpcConfig,
    pub http: HttpConfig,
    pub compaction: CompactionConfig,
    pub upkeep: UpkeepConfig,
    pub auth: AuthConfig,
    pub plugins: PluginConfig,
    pub gates: FeatureGates,
    pub log: LogConfig,
}

/// Who this member is and where it keeps its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    pub name: String,
    /// `${name}.etcd` when the operator named none.
    pub data_dir: PathBuf,
    /// The directory of the Raft log, when it is not `<data_dir>/member/wal`.
    pub wal_dir: Option<PathBuf>,
    /// Without it a kill of the machine loses acknowledged writes.
    pub fsync: bool,
}

impl MemberConfig {
    /// The directory of the Raft log.
    pub fn wal_dir(&self) -> PathBuf {
        match &self.wal_dir {
            Some(dir) => dir.clone(),
            None => self.data_dir.join("member").join("wal"),
        }
    }
}

/// The cluster at its first start, and the rules of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Member name -> sorted peer URLs. Holds exactly this member in this release.
    pub initial: BTreeMap<String, Vec<Url>>,
    pub token: String,
    /// Sorted and without duplicates, as every list of URLs here.
    pub advertise_peer_urls: Vec<Url>,
    pub advertise_client_urls: Vec<Url>,
    /// Whether a member without data is to join a running cluster, which this release refuses; of no meaning to one that
    /// has data.
    pub joins_existing: bool,
    /// Forget every other member of an existing data directory and go on alone.
    pub force_new: bool,
    pub strict_reconfig_check: bool,
    pub learners_max: usize,
}

/// Where the server listens. No URL here is https or a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    pub peer: Vec<Url>,
    /// gRPC, and HTTP too unless `client_http` names its own.
    pub client: Vec<Url>,
    pub client_http: Vec<Url>,
    /// `/metrics` and health endpoints only.
    pub metrics: Vec<Url>,
}

/// Timing of elections and the length of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftConfig {
    pub heartbeat_interval: Duration,
    pub election_timeout: Duration,
    /// `election_timeout / heartbeat_interval`, at least 5.
    pub election_ticks: usize,
    pub initial_election_tick_advance: bool,
    pub pre_vote: bool,
    /// Applied entries between two truncations of the log.
    pub snapshot_entries: u64,
    /// Entries kept behind a truncation for slow followers.
    pub catch_up_entries: u64,
}

/// Bounds on what clients may ask for and store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitConfig {
    /// `None` when the operator switched the quota off with a negative number.
    pub quota_bytes: Option<u64>,
    pub request_bytes_max: usize,
    pub txn_ops_max: usize,
}

/// HTTP/2 settings of client connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcConfig {
    pub concurrent_streams_max: u32,
    /// A client that pings more often than this is sent away.
    pub keepalive_time_min: Duration,
    /// `None` when the operator switched server pings off with 0.
    pub keepalive_interval: Option<Duration>,
    pub keepalive_timeout: Duration,
}

/// The HTTP/1.1 side of client connections, and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Origins for cross-origin requests; `*` stands for all.
    pub cors: BTreeSet<String>,
    /// Acceptable `Host` headers; `*` or an empty name stands for all.
    pub host_whitelist: BTreeSet<String>,
    /// `/v3/*`. The gateway itself answers 404 in this release.
    pub gateway: bool,
    pub metrics: MetricsDetail,
}

/// `--metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsDetail {
    Basic,
    /// Adds the histograms of gRPC handling time.
    Extensive,
}

/// `--auto-compaction-*` and the pace of a compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    pub auto: AutoCompaction,
    /// Revisions removed between two pauses.
    pub batch_revisions_max: usize,
    pub pause: Duration,
}

/// What the history keeps when nobody compacts by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoCompaction {
    Off,
    /// Keep what is younger than this.
    Periodic(Duration),
    /// Keep this many revisions.
    Revision(i64),
}

/// Timers of the upkeep and the thresholds of its warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpkeepConfig {
    pub watch_progress_interval: Duration,
    /// `None` when members are not compared periodically (the default).
    pub corrupt_check_interval: Option<Duration>,
    pub compact_hash_check_interval: Duration,
    pub slow_apply: Duration,
    pub slow_unary_request: Duration,
}

/// Kept for the release that offers authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfig {
    pub simple_token_ttl: Duration,
    /// 4 to 31.
    pub bcrypt_cost: u32,
}

/// Which plugins this member takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// Files of public keys, of which one has to have signed a plugin. Empty: no signature is demanded.
    pub trusted_keys: Vec<PathBuf>,
}

/// Reads the command line (without the program's name), the environment and, if one is named, the config file.
pub fn parse(
    arguments: impl Iterator<Item = OsString>,
    environment: impl Iterator<Item = (String, String)>,
) -> Result<Command, ConfigError> {
    let mut settings = match arguments::read(arguments)? {
        arguments::Read::Version => return Ok(Command::PrintVersion),
        arguments::Read::Help => return Ok(Command::PrintHelp(usage::full())),
        arguments::Read::Settings(settings) => settings,
    };
    let environment: BTreeMap<String, String> = environment.collect();
    let file = match settings.text("config-file") {
        "" => environment.get("ETCD_CONFIG_FILE").cloned().unwrap_or_default(),
        path => path.to_owned(),
    };
    if file.is_empty() {
        environment::fill(&mut settings, &environment)?;
    } else {
        settings = file::read(&file)?;
    }
    let config = validate::validate(&mut settings)?;
    Ok(Command::Serve(Box::new(config), settings.warnings))
}

/// What `--version` prints. The first line is etcd's, because clients and test suites look for it.
pub fn version_text() -> String {
    format!(
        "etcd Version: {ETCD_VERSION}\nKuorum Version: {}\nGit SHA: {}\nGo Version: none (Rust)\nGo OS/Arch: {}/{}\n",
        env!("CARGO_PKG_VERSION"),
        option_env!("KUORUM_GIT_SHA").unwrap_or("Not provided"),
        std::env::consts::OS,
        go_architecture(),
    )
}

/// Go's name of the processor, which is what etcd prints.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The addresses to bind for a list of listen URLs, without asking a name server.
pub fn socket_addresses(urls: &[Url]) -> Vec<SocketAddr> {
    urls.iter().filter_map(Url::socket_address).collect()
}
