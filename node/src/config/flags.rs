//! The one table of flags: what etcd 3.7.3 takes, what becomes of it here, and what is ours alone.
//!
//! The command line, the `ETCD_*` variables, the config file, the usage text and the list of refusals all come from
//! these rows. A row's tier is a promise: `Works` is honoured, `Refused` stops the start unless the value is the
//! default, `NoEffect` is accepted with a warning because it asks for something this server does not need.
//!
//! Not in the table: `--discovery` and `--discovery-proxy`, which etcd's own usage lists and its parser refuses.

/// A flag, its variable and its key in the config file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// In the form the command line takes.
    pub(super) default: &'static str,
    pub(super) tier: Tier,
    pub(super) about: &'static str,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bool,
    Unsigned,
    Unsigned32,
    Signed,
    Duration,
    Urls,
    /// `*` or URLs.
    Origins,
    /// Comma separated.
    List,
    OneOf(&'static [&'static str]),
    /// A comma separated choice.
    SomeOf(&'static [&'static str]),
    Gates,
}

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    Works,
    /// With the sentence that names what is missing.
    Refused(&'static str),
    /// With the reason why nothing follows from it.
    NoEffect(&'static str),
}

/// The flags of one heading of the usage text.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) flags: &'static [Flag],
}

/// Flags of releases long gone, which etcd still swallows with a warning.
pub(super) const HISTORIC: [&str; 15] = [
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "config",
    "force",
    "max-result-buffer",
    "max-retry-attempts",
    "peer-heartbeat-interval",
    "peer-election-timeout",
    "retry-interval",
    "snapshot",
    "v",
    "vv",
    "test.coverprofile",
    "test.outputdir",
];

pub(super) fn is_historic(name: &str) -> bool {
    HISTORIC.contains(&name)
}

pub(super) fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags)
}

pub(super) fn find(name: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.name == name)
}

/// What etcd offers and this release refuses: (flag, what is missing), for the README.
pub fn refused_flags() -> Vec<(&'static str, &'static str)> {
    let whole = all().filter_map(|flag| match flag.tier {
        Tier::Refused(missing) => Some((flag.name, missing)),
        Tier::Works | Tier::NoEffect(_) => None,
    });
    let values = REFUSED_VALUES.iter().map(|(value, missing)| (*value, *missing));
    whole.chain(values).collect()
}

pub(super) const NO_TLS: &str = "TLS is not available in this release";
pub(super) const NO_DISCOVERY: &str = "discovery is not available in this release";
const NO_JOIN: &str = "joining a running cluster is not available in this release";
pub(super) const NO_UNIX: &str = "listening on a unix socket is not available in this release";
pub(super) const NO_JWT: &str = "JWT tokens are not available in this release";
pub(super) const NO_JOURNAL: &str = "logging to the journal is not available in this release";
const NO_PROFILES: &str = "profiling over HTTP is not available in this release";

/// Single values of flags that work otherwise; `validate` holds the checks.
const REFUSED_VALUES: [(&str, &str); 5] = [
    ("https:// and unixs:// URLs", NO_TLS),
    ("unix:// in listen URLs", NO_UNIX),
    ("initial-cluster-state=existing without data", NO_JOIN),
    ("auth-token=jwt,...", NO_JWT),
    ("log-outputs=systemd/journal", NO_JOURNAL),
];

const NO_BBOLT: &str = "the storage engine has no bbolt backend";
const NO_SNAPSHOT_FILES: &str = "old snapshot and log files are removed as soon as they are not needed";
const NO_PEERS: &str = "one member has no peer connections";
const NO_AUTH: &str = "authentication is not available in this release";
const NO_TRACING: &str = "tracing over OpenTelemetry is not available in this release";
const NO_ROTATION: &str = "log files are not rotated in this release";
const NO_SOCKET_OPTIONS: &str = "listeners always set SO_REUSEADDR and never SO_REUSEPORT";

const fn works(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Flag {
    Flag { name, kind, default, tier: Tier::Works, about }
}

const fn tls(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Flag {
    Flag { name, kind, default, tier: Tier::Refused(NO_TLS), about }
}

const fn discovery(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Flag {
    Flag { name, kind, default, tier: Tier::Refused(NO_DISCOVERY), about }
}

/// A flag that changes nothing, with the reason in place of a description.
const fn idle(name: &'static str, kind: Kind, default: &'static str, why: &'static str) -> Flag {
    Flag { name, kind, default, tier: Tier::NoEffect(why), about: "Accepted for etcd's sake" }
}

use Kind::{Bool, Duration, Gates, List, OneOf, Origins, Signed, SomeOf, Text, Unsigned, Unsigned32, Urls};

#[rustfmt::skip]
const MEMBER: &[Flag] = &[
    works("name", Text, "default", "Name of this member."),
    works("data-dir", Text, "", "Directory of this member's data; ${name}.etcd when empty."),
    works("wal-dir", Text, "", "Directory of the Raft log, when it is to be apart from the data."),
    works("snapshot-count", Unsigned, "10000", "Applied entries after which the Raft log is cut."),
    works("heartbeat-interval", Unsigned, "100", "Milliseconds between heartbeats."),
    works("election-timeout", Unsigned, "1000", "Milliseconds without a leader before an election; at least 5 heartbeats, at most 50000."),
    works("initial-election-tick-advance", Bool, "true", "Let the first election come soon after the start, not a whole election timeout later."),
    works("listen-peer-urls", Urls, "http://localhost:2380", "URLs to listen on for other members, which also find /members and /version there."),
    works("listen-client-urls", Urls, "http://localhost:2379", "URLs to listen on for clients: gRPC, and HTTP unless --listen-client-http-urls is set."),
    works("listen-client-http-urls", Urls, "", "URLs to listen on for HTTP clients alone; gRPC URLs then serve no HTTP."),
    idle("max-snapshots", Unsigned, "5", NO_SNAPSHOT_FILES),
    idle("max-wals", Unsigned, "5", NO_SNAPSHOT_FILES),
    idle("memory-mlock", Bool, "false", "memory is not locked"),
    works("quota-backend-bytes", Signed, "0", "Size of the store at which writes are refused: 0 stands for 2 GiB, a negative number for none."),
    idle("backend-bbolt-freelist-type", Text, "map", NO_BBOLT),
    idle("backend-batch-interval", Duration, "0s", NO_BBOLT),
    idle("backend-batch-limit", Signed, "0", NO_BBOLT),
    works("max-txn-ops", Unsigned, "128", "Operations a transaction may hold."),
    works("max-request-bytes", Unsigned, "1572864", "Bytes a request may have."),
    works("max-concurrent-streams", Unsigned32, "4294967295", "Streams a client may have open at a time."),
    idle("grpc-keepalive-min-time", Duration, "5s", "every ping is answered, however often it comes"),
    works("grpc-keepalive-interval", Duration, "2h0m0s", "Time between pings to a client; 0 for none."),
    works("grpc-keepalive-timeout", Duration, "20s", "Time a client has to answer a ping."),
    idle("socket-reuse-port", Bool, "false", NO_SOCKET_OPTIONS),
    idle("socket-reuse-address", Bool, "false", NO_SOCKET_OPTIONS),
    idle("enable-grpc-gateway", Bool, "true", "the JSON gateway is not available in this release: /v3/* answers 404"),
    idle("raft-read-timeout", Duration, "5s", NO_PEERS),
    idle("raft-write-timeout", Duration, "5s", NO_PEERS),
    works("feature-gates", Gates, "", "Switches for alpha and beta behaviour, Name=true|false, comma separated:"),
];

#[rustfmt::skip]
const CLUSTERING: &[Flag] = &[
    works("initial-advertise-peer-urls", Urls, "http://localhost:2380", "This member's peer URLs as other members see them."),
    works("initial-cluster", Text, "default=http://localhost:2380", "Name and peer URLs of every member at the first start."),
    works("initial-cluster-state", OneOf(&["new", "existing"]), "new", "'new' at the first start of a cluster; 'existing' without data is refused in this release."),
    works("initial-cluster-token", Text, "etcd-cluster", "Keeps clusters apart that were started from the same description."),
    works("advertise-client-urls", Urls, "http://localhost:2379", "This member's client URLs as clients see them; required with --listen-client-urls."),
    discovery("discovery-token", Text, "", "Token of the cluster at the discovery service."),
    discovery("discovery-endpoints", List, "", "Endpoints of the discovery service."),
    discovery("discovery-dial-timeout", Duration, "2s", "Time to connect to the discovery service."),
    discovery("discovery-request-timeout", Duration, "5s", "Time for a request to the discovery service."),
    discovery("discovery-keepalive-time", Duration, "2s", "Time between pings to the discovery service."),
    discovery("discovery-keepalive-timeout", Duration, "6s", "Time the discovery service has to answer a ping."),
    discovery("discovery-insecure-transport", Bool, "true", "Talk to the discovery service without TLS."),
    discovery("discovery-insecure-skip-tls-verify", Bool, "false", "Do not check the discovery service's certificate."),
    discovery("discovery-cert", Text, "", "Client certificate for the discovery service."),
    discovery("discovery-key", Text, "", "Key of that certificate."),
    discovery("discovery-cacert", Text, "", "Authority that signed the discovery service's certificate."),
    discovery("discovery-user", Text, "", "User, or user:password, at the discovery service."),
    discovery("discovery-password", Text, "", "Password at the discovery service."),
    idle("discovery-fallback", OneOf(&["exit", "proxy"]), "exit", NO_DISCOVERY),
    discovery("discovery-srv", Text, "", "DNS domain whose SRV records name the members."),
    discovery("discovery-srv-name", Text, "", "Suffix of the SRV service name."),
    works("strict-reconfig-check", Bool, "true", "Refuse changes of the members that would cost the quorum."),
    works("pre-vote", Bool, "true", "Ask before disturbing a working leader with an election."),
    works("auto-compaction-retention", Text, "0", "History to keep: a duration, hours without a unit, or a number of revisions; 0 switches it off."),
    works("auto-compaction-mode", Text, "periodic", "How to read the retention: periodic or revision."),
    idle("v2-deprecation", SomeOf(&["write-only", "write-only-skip-check", "write-only-drop-data", "gone"]), "write-only", "there is no v2 store"),
];

#[rustfmt::skip]
const SECURITY: &[Flag] = &[
    tls("cert-file", Text, "", "Certificate for clients."),
    tls("key-file", Text, "", "Key of the certificate for clients."),
    tls("client-cert-auth", Bool, "false", "Demand a certificate of every client."),
    tls("client-cert-file", Text, "", "Certificate to present when acting as a client."),
    tls("client-key-file", Text, "", "Key of that certificate."),
    tls("client-crl-file", Text, "", "Revoked client certificates."),
    tls("client-cert-allowed-hostname", List, "", "Host names a client certificate may carry."),
    tls("trusted-ca-file", Text, "", "Authority that signs client certificates."),
    tls("auto-tls", Bool, "false", "Make up a certificate for clients."),
    tls("peer-cert-file", Text, "", "Certificate for peers."),
    tls("peer-key-file", Text, "", "Key of the certificate for peers."),
    tls("peer-client-cert-auth", Bool, "false", "Demand a certificate of every peer."),
    tls("peer-client-cert-file", Text, "", "Certificate to present to peers."),
    tls("peer-client-key-file", Text, "", "Key of that certificate."),
    tls("peer-trusted-ca-file", Text, "", "Authority that signs peer certificates."),
    tls("peer-cert-allowed-cn", List, "", "Common names a peer certificate may carry."),
    tls("peer-cert-allowed-hostname", List, "", "Host names a peer certificate may carry."),
    tls("peer-auto-tls", Bool, "false", "Make up a certificate for peers."),
    tls("self-signed-cert-validity", Unsigned, "1", "Years a made up certificate is valid."),
    tls("peer-crl-file", Text, "", "Revoked peer certificates."),
    tls("cipher-suites", List, "", "Cipher suites to offer."),
    works("cors", Origins, "*", "Origins allowed in cross-origin requests; * for all."),
    works("host-whitelist", List, "*", "Host names accepted in HTTP requests; * or nothing for all."),
    tls("tls-min-version", Text, "TLS1.2", "Oldest TLS version to speak."),
    tls("tls-max-version", Text, "", "Newest TLS version to speak."),
    tls("peer-skip-client-san-verification", Bool, "false", "Do not check the host names of peer certificates."),
];

#[rustfmt::skip]
const AUTH: &[Flag] = &[
    idle("auth-token", Text, "simple", NO_AUTH),
    idle("bcrypt-cost", Unsigned, "10", NO_AUTH),
    idle("auth-token-ttl", Unsigned, "300", NO_AUTH),
];

#[rustfmt::skip]
const MONITORING: &[Flag] = &[
    Flag { name: "enable-pprof", kind: Bool, default: "false", tier: Tier::Refused(NO_PROFILES), about: "Serve profiles below /debug/pprof/." },
    works("metrics", Text, "basic", "Detail of the metrics: basic, or extensive for histograms of gRPC handling time."),
    works("listen-metrics-urls", Urls, "", "URLs to listen on for /metrics and health endpoints."),
];

#[rustfmt::skip]
const LOGGING: &[Flag] = &[
    works("logger", Text, "zap", "Form of the log lines; zap is the only one."),
    works("log-outputs", List, "default", "Where the log goes: default, stderr, stdout or file paths, comma separated."),
    works("log-level", Text, "info", "Least level to log: debug, info, warn, error, panic or fatal."),
    works("log-format", Text, "json", "json or console."),
    idle("enable-log-rotation", Bool, "false", NO_ROTATION),
    idle("log-rotation-config-json", Text, r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#, NO_ROTATION),
    works("warning-unary-request-duration", Duration, "300ms", "Requests that take longer are logged."),
];

#[rustfmt::skip]
const TRACING: &[Flag] = &[
    idle("enable-distributed-tracing", Bool, "false", NO_TRACING),
    idle("distributed-tracing-address", Text, "localhost:4317", NO_TRACING),
    idle("distributed-tracing-service-name", Text, "etcd", NO_TRACING),
    idle("distributed-tracing-instance-id", Text, "", NO_TRACING),
    idle("distributed-tracing-sampling-rate", Signed, "0", NO_TRACING),
];

#[rustfmt::skip]
const FEATURES: &[Flag] = &[
    idle("corrupt-check-time", Duration, "0s", "one member has nobody to compare its data with"),
    idle("compact-hash-check-time", Duration, "1m0s", "one member has nobody to compare its hashes with"),
    works("compaction-batch-limit", Signed, "1000", "Revisions removed between two pauses of a compaction."),
    works("watch-progress-notify-interval", Duration, "10m0s", "Time between two progress notifications on a quiet watch."),
    works("warning-apply-duration", Duration, "100ms", "Entries that take longer to apply are logged."),
    idle("bootstrap-defrag-threshold-megabytes", Unsigned, "0", NO_BBOLT),
    works("max-learners", Signed, "1", "Learners that the cluster may have at a time."),
    works("compaction-sleep-interval", Duration, "10ms", "Pause between two batches of a compaction."),
    idle("downgrade-check-time", Duration, "5s", "one member has nobody to wait for in a downgrade"),
    works("snapshot-catchup-entries", Unsigned, "5000", "Entries kept in the Raft log for slow followers."),
];

#[rustfmt::skip]
const UNSAFE: &[Flag] = &[
    works("force-new-cluster", Bool, "false", "Forget all other members and go on as a cluster of one."),
    works("unsafe-no-fsync", Bool, "false", "Never flush to disk; a crash of the machine loses data."),
];

#[rustfmt::skip]
const GENERAL: &[Flag] = &[
    works("config-file", Text, "", "YAML file that replaces all flags and variables; durations in it are nanoseconds."),
    works("version", Bool, "false", "Print the version and exit."),
];

/// What etcd does not have.
#[rustfmt::skip]
const PLUGINS: &[Flag] = &[
    works("plugin-trusted-keys", List, "", "Files with Ed25519 public keys (PEM), comma separated. If any is named, this member takes only plugins that one of the keys has signed."),
];

/// In the order of etcd's usage text, and behind them our own.
pub(super) const GROUPS: [Group; 11] = [
    Group { title: "General", flags: GENERAL },
    Group { title: "Member", flags: MEMBER },
    Group { title: "Clustering", flags: CLUSTERING },
    Group { title: "Security", flags: SECURITY },
    Group { title: "Auth", flags: AUTH },
    Group { title: "Profiling and Monitoring", flags: MONITORING },
    Group { title: "Logging", flags: LOGGING },
    Group { title: "Distributed tracing", flags: TRACING },
    Group { title: "Features", flags: FEATURES },
    Group { title: "Unsafe feature", flags: UNSAFE },
    Group { title: "Plugins", flags: PLUGINS },
];
