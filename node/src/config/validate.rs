//! From what was set to a [`Config`], or the reason why not.
//!
//! The checks run in etcd's order and answer in etcd's words wherever etcd has the check, because people search
//! for those words. What only this release refuses comes first and says so.

use std::path::PathBuf;
use std::time::Duration;

use super::bootstrap;
use super::flags::{self, Tier};
use super::gates::FeatureGates;
use super::number;
use super::settings::{self, Settings};
use super::url::{self, Scheme, Url};
use super::{
    AuthConfig, AutoCompaction, ClusterConfig, CompactionConfig, Config, ConfigError, GrpcConfig, HttpConfig,
    LimitConfig, ListenConfig, MemberConfig, MetricsDetail, PluginConfig, RaftConfig, UpkeepConfig,
};
use crate::trace::{Level, LogConfig, LogFormat, LogOutput};

/// etcd's `maxElectionMs`.
const ELECTION_TIMEOUT_MS_MAX: u64 = 50_000;
/// etcd's default quota, which 0 stands for.
const QUOTA_BYTES_DEFAULT: u64 = 2 * 1024 * 1024 * 1024;
/// etcd warns above this (`recommendedMaxRequestBytes`).
const REQUEST_BYTES_RECOMMENDED: u64 = 10 * 1024 * 1024;
/// grpc-go's own rule when etcd sets none: clients may ping every five minutes.
const KEEPALIVE_TIME_MIN_UNSET: Duration = Duration::from_mins(5);
/// The range of the bcrypt algorithm and etcd's default in it.
const BCRYPT_COSTS: std::ops::RangeInclusive<u64> = 4..=31;
const BCRYPT_COST_DEFAULT: u32 = 10;

pub(super) fn validate(settings: &mut Settings) -> Result<Config, ConfigError> {
    refuse_what_is_missing(settings)?;
    warn_of_no_effect(settings);
    let log = log(settings)?;
    let listen = listen(settings)?;
    let cluster = cluster(settings)?;
    let raft = raft(settings)?;
    if settings.is_set("listen-client-urls") && !settings.is_set("advertise-client-urls") && !settings.from_file {
        return Err(refused("--advertise-client-urls is required when --listen-client-urls is set explicitly"));
    }
    let compaction = compaction(settings)?;
    let gates = gates(settings)?;
    let upkeep = upkeep(settings)?;
    let auth = auth(settings)?;
    let name = settings.text("name").to_owned();
    Ok(Config {
        member: member(settings, name),
        cluster,
        listen,
        raft,
        limits: limits(settings),
        grpc: grpc(settings),
        http: http(settings),
        compaction,
        upkeep,
        auth,
        plugins: plugins(settings),
        gates,
        log,
    })
}

fn plugins(settings: &Settings) -> PluginConfig {
    let files = settings.list("plugin-trusted-keys");
    PluginConfig { trusted_keys: files.into_iter().filter(|file| !file.is_empty()).map(PathBuf::from).collect() }
}

pub(super) fn refused(words: impl Into<String>) -> ConfigError {
    ConfigError::Refused(words.into())
}

fn refuse_what_is_missing(settings: &Settings) -> Result<(), ConfigError> {
    for name in ["tls-min-version", "tls-max-version"] {
        let version = settings.text(name);
        if !matches!(version, "" | "TLS1.2" | "TLS1.3") {
            return Err(refused(format!("unexpected TLS version {version:?} (must be one of: TLS1.2, TLS1.3)")));
        }
    }
    for (flag, value) in settings.set() {
        if let Tier::Refused(missing) = flag.tier
            && *value != settings::default(flag)
        {
            return Err(refused(format!("--{} is set, but {missing}; leave it out", flag.name)));
        }
    }
    if settings.text("discovery-fallback") == "proxy" {
        return Err(refused("v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\""));
    }
    Ok(())
}

/// The words of the first two are etcd's.
fn warn_of_no_effect(settings: &mut Settings) {
    let mut warnings = Vec::new();
    for (flag, _) in settings.set() {
        let message = match (flag.name, flag.tier) {
            ("max-snapshots", _) => "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8.",
            ("v2-deprecation", _) => {
                "--v2-deprecation is deprecated and scheduled for removal in v3.8. \
                 The default value is enforced, ignoring user input."
            }
            (_, Tier::NoEffect(_)) => "flag has no effect",
            (_, Tier::Works | Tier::Refused(_)) => continue,
        };
        let mut fields = vec![("flag-name", flag.name.to_owned())];
        if let Tier::NoEffect(why) = flag.tier {
            fields.push(("reason", why.to_owned()));
        }
        warnings.push((message, fields));
    }
    for (message, fields) in warnings {
        settings.warn(message, fields);
    }
}

fn log(settings: &Settings) -> Result<LogConfig, ConfigError> {
    match settings.text("logger") {
        "zap" => {}
        "capnslog" => return Err(refused("--logger=capnslog is removed in v3.5")),
        other => return Err(refused(format!("unknown logger option {other:?}"))),
    }
    let outputs = log_outputs(settings)?;
    let format = match settings.text("log-format") {
        "json" | "" => LogFormat::Json,
        "console" => LogFormat::Console,
        other => {
            return Err(refused(format!("unknown log format: {other}, supported values json, console")));
        }
    };
    let level = settings.text("log-level");
    let level = Level::parse(level).ok_or_else(|| refused(format!("unrecognized level: {level:?}")))?;
    Ok(LogConfig { level, format, outputs })
}

fn log_outputs(settings: &Settings) -> Result<Vec<LogOutput>, ConfigError> {
    let mut names = settings.list("log-outputs");
    if names.is_empty() {
        names.push("default".to_owned());
    }
    names.sort();
    names.dedup();
    if names.len() > 1 && names.iter().any(|name| name == "default") {
        return Err(refused("multi logoutput for \"default\" is not supported yet"));
    }
    if names.iter().any(|name| name == "systemd/journal") {
        return Err(refused(format!("--log-outputs is \"systemd/journal\", but {}; use stderr", flags::NO_JOURNAL)));
    }
    let outputs: Vec<LogOutput> = names.iter().map(|name| log_output(name)).collect();
    let files = outputs.iter().filter(|output| matches!(output, LogOutput::File(_))).count();
    if settings.bool("enable-log-rotation") && ((outputs.len() == 1 && files == 0) || files > 1) {
        return Err(refused("--log-outputs requires a single file path when --log-rotate-config-json is defined"));
    }
    // zap's rule: one /dev/null among the outputs silences them all.
    match names.iter().any(|name| name == "/dev/null") {
        true => Ok(Vec::new()),
        false => Ok(outputs),
    }
}

fn log_output(name: &str) -> LogOutput {
    match name {
        "default" | "stderr" => LogOutput::Stderr,
        "stdout" => LogOutput::Stdout,
        path => LogOutput::File(PathBuf::from(path.strip_prefix("file://").unwrap_or(path))),
    }
}

fn listen(settings: &Settings) -> Result<ListenConfig, ConfigError> {
    let urls = |name: &str| -> Result<Vec<Url>, ConfigError> {
        let urls = settings.urls(name);
        refuse_tls(name, &urls)?;
        for url in &urls {
            if url.scheme() == Scheme::Unix {
                let words = format!("--{name} has {url}, but {}; use http://", flags::NO_UNIX);
                return Err(refused(words));
            }
            if url.socket_address().is_none() {
                return Err(refused(format!("expected IP in URL for binding ({url})")));
            }
        }
        Ok(urls)
    };
    Ok(ListenConfig {
        peer: urls("listen-peer-urls")?,
        client: urls("listen-client-urls")?,
        client_http: urls("listen-client-http-urls")?,
        metrics: urls("listen-metrics-urls")?,
    })
}

pub(super) fn refuse_tls(name: &str, urls: &[Url]) -> Result<(), ConfigError> {
    match urls.iter().find(|url| matches!(url.scheme(), Scheme::Https | Scheme::Unixs)) {
        Some(url) => Err(refused(format!("--{name} has {url}, but {}; use http://", flags::NO_TLS))),
        None => Ok(()),
    }
}

fn cluster(settings: &Settings) -> Result<ClusterConfig, ConfigError> {
    let advertise_peer_urls = settings.urls("initial-advertise-peer-urls");
    let advertise_client_urls = settings.urls("advertise-client-urls");
    if let Some(url) = without_host(&advertise_peer_urls) {
        return Err(refused(format!(
            "--initial-advertise-peer-urls {:?} must be \"host:port\" (unexpected empty host ({url}))",
            url::join(&advertise_peer_urls)
        )));
    }
    if let Some(url) = without_host(&advertise_client_urls) {
        return Err(refused(format!(
            "--advertise-client-urls {:?} must be in the format \"host:port\", \"unix:/path/to/socket\" or \
             \"unixs:/path/to/socket\" (unexpected empty host ({url}))",
            url::join(&advertise_client_urls)
        )));
    }
    refuse_tls("initial-advertise-peer-urls", &advertise_peer_urls)?;
    refuse_tls("advertise-client-urls", &advertise_client_urls)?;
    Ok(ClusterConfig {
        initial: bootstrap::initial_cluster(settings, &advertise_peer_urls)?,
        token: settings.text("initial-cluster-token").to_owned(),
        advertise_peer_urls,
        advertise_client_urls,
        joins_existing: settings.text("initial-cluster-state") == "existing",
        force_new: settings.bool("force-new-cluster"),
        strict_reconfig_check: settings.bool("strict-reconfig-check"),
        learners_max: usize::try_from(settings.signed("max-learners")).unwrap_or(0),
    })
}

fn without_host(urls: &[Url]) -> Option<&Url> {
    urls.iter().find(|url| matches!(url.scheme(), Scheme::Http | Scheme::Https) && url.host().is_empty())
}

fn raft(settings: &Settings) -> Result<RaftConfig, ConfigError> {
    let heartbeat = settings.unsigned("heartbeat-interval");
    let election = settings.unsigned("election-timeout");
    let words = if heartbeat == 0 {
        format!("--heartbeat-interval must be >0 (set to {heartbeat}ms)")
    } else if election == 0 {
        format!("--election-timeout must be >0 (set to {election}ms)")
    } else if heartbeat.saturating_mul(5) > election {
        format!("--election-timeout[{election}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat}ms]")
    } else if election > ELECTION_TIMEOUT_MS_MAX {
        format!("--election-timeout[{election}ms] is too long, and should be set less than {ELECTION_TIMEOUT_MS_MAX}ms")
    } else {
        String::new()
    };
    if !words.is_empty() {
        return Err(refused(words));
    }
    let or_default = |name: &str, default: u64| match settings.unsigned(name) {
        0 => default,
        count => count,
    };
    Ok(RaftConfig {
        heartbeat_interval: Duration::from_millis(heartbeat),
        election_timeout: Duration::from_millis(election),
        election_ticks: usize::try_from(election / heartbeat).expect("an election has at most 50000 ticks"),
        initial_election_tick_advance: settings.bool("initial-election-tick-advance"),
        pre_vote: settings.bool("pre-vote"),
        // 0 stands for etcd's defaults, which the flags have too.
        snapshot_entries: or_default("snapshot-count", 10_000),
        catch_up_entries: or_default("snapshot-catchup-entries", 5_000),
    })
}

fn compaction(settings: &Settings) -> Result<CompactionConfig, ConfigError> {
    Ok(CompactionConfig {
        auto: auto_compaction(settings.text("auto-compaction-mode"), settings.text("auto-compaction-retention"))?,
        // etcd takes 0 and less for its defaults.
        batch_revisions_max: match usize::try_from(settings.signed("compaction-batch-limit")) {
            Ok(0) | Err(_) => 1_000,
            Ok(limit) => limit,
        },
        pause: positive(settings, "compaction-sleep-interval").unwrap_or(Duration::from_millis(10)),
    })
}

/// etcd's `parseCompactionRetention`, except that a duration is no number of revisions.
fn auto_compaction(mode: &str, retention: &str) -> Result<AutoCompaction, ConfigError> {
    let is_periodic = match mode {
        "periodic" => true,
        "revision" => false,
        "" => return Err(refused("undefined auto-compaction-mode")),
        _ => return Err(refused(format!("unknown auto-compaction-mode {mode:?}"))),
    };
    let retention = if retention.is_empty() { "0" } else { retention };
    let count = retention.parse::<i64>().ok().filter(|count| *count >= 0);
    let wrong = |words: String| refused(format!("error parsing CompactionRetention: {words}"));
    match (count, is_periodic) {
        (Some(0), _) => Ok(AutoCompaction::Off),
        (Some(count), false) => Ok(AutoCompaction::Revision(count)),
        (Some(hours), true) => match hours.checked_mul(3_600_000_000_000) {
            Some(nanoseconds) => Ok(AutoCompaction::Periodic(Duration::from_nanos(nanoseconds.unsigned_abs()))),
            None => Err(wrong(format!("{hours} hours are too many"))),
        },
        (None, _) => {
            let nanoseconds = number::duration(retention).map_err(|words| wrong(format!("time: {words}")))?;
            match (u64::try_from(nanoseconds), is_periodic) {
                (_, false) => Err(wrong(format!("{retention:?} is not a number of revisions"))),
                (Err(_), true) => Err(wrong(format!("{retention:?} is negative"))),
                (Ok(0), true) => Ok(AutoCompaction::Off),
                (Ok(nanoseconds), true) => Ok(AutoCompaction::Periodic(Duration::from_nanos(nanoseconds))),
            }
        }
    }
}

fn gates(settings: &mut Settings) -> Result<FeatureGates, ConfigError> {
    let gates = settings.gates();
    if gates.lease_checkpoint_persist && !gates.lease_checkpoint {
        return Err(refused(
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint",
        ));
    }
    Ok(gates)
}

fn upkeep(settings: &Settings) -> Result<UpkeepConfig, ConfigError> {
    let hash_check = settings.duration("compact-hash-check-time");
    if hash_check <= 0 {
        let text = number::duration_text(hash_check);
        return Err(refused(format!("--compact-hash-check-time must be >0 (set to {text})")));
    }
    Ok(UpkeepConfig {
        // etcd takes 0 for its default here and for slow requests, but not for slow entries.
        watch_progress_interval: positive(settings, "watch-progress-notify-interval")
            .unwrap_or(Duration::from_mins(10)),
        corrupt_check_interval: positive(settings, "corrupt-check-time"),
        compact_hash_check_interval: Duration::from_nanos(hash_check.unsigned_abs()),
        slow_apply: positive(settings, "warning-apply-duration").unwrap_or(Duration::ZERO),
        slow_unary_request: positive(settings, "warning-unary-request-duration").unwrap_or(Duration::from_millis(300)),
    })
}

/// `None` for 0 and less.
fn positive(settings: &Settings, name: &str) -> Option<Duration> {
    match u64::try_from(settings.duration(name)) {
        Ok(0) | Err(_) => None,
        Ok(nanoseconds) => Some(Duration::from_nanos(nanoseconds)),
    }
}

fn auth(settings: &mut Settings) -> Result<AuthConfig, ConfigError> {
    let token = settings.text("auth-token");
    match token.split(',').next().unwrap_or_default() {
        "simple" | "" => {}
        "jwt" => {
            return Err(refused(format!("--auth-token is {token:?}, but {}; use simple", flags::NO_JWT)));
        }
        _ => {
            return Err(refused(format!("--auth-token is {token:?}: auth: invalid auth options")));
        }
    }
    let cost = settings.unsigned("bcrypt-cost");
    let bcrypt_cost = match u32::try_from(cost) {
        Ok(number) if BCRYPT_COSTS.contains(&cost) => number,
        _ => {
            settings.warn(
                "use default bcrypt cost instead of the invalid given cost",
                vec![("default-cost", BCRYPT_COST_DEFAULT.to_string()), ("given-cost", cost.to_string())],
            );
            BCRYPT_COST_DEFAULT
        }
    };
    Ok(AuthConfig { simple_token_ttl: Duration::from_secs(settings.unsigned("auth-token-ttl")), bcrypt_cost })
}

fn member(settings: &Settings, name: String) -> MemberConfig {
    let data_dir = match settings.text("data-dir") {
        "" => PathBuf::from(format!("{name}.etcd")),
        dir => PathBuf::from(dir),
    };
    let wal_dir = match settings.text("wal-dir") {
        "" => None,
        dir => Some(PathBuf::from(dir)),
    };
    MemberConfig { name, data_dir, wal_dir, fsync: !settings.bool("unsafe-no-fsync") }
}

fn limits(settings: &mut Settings) -> LimitConfig {
    let request_bytes = settings.unsigned("max-request-bytes");
    if request_bytes > REQUEST_BYTES_RECOMMENDED {
        settings.warn(
            "exceeded recommended request limit",
            vec![
                ("max-request-bytes", request_bytes.to_string()),
                ("recommended-request-bytes", REQUEST_BYTES_RECOMMENDED.to_string()),
            ],
        );
    }
    LimitConfig {
        quota_bytes: match u64::try_from(settings.signed("quota-backend-bytes")) {
            Ok(0) => Some(QUOTA_BYTES_DEFAULT),
            Ok(bytes) => Some(bytes),
            Err(_) => None,
        },
        request_bytes_max: usize::try_from(request_bytes).unwrap_or(usize::MAX),
        txn_ops_max: usize::try_from(settings.unsigned("max-txn-ops")).unwrap_or(usize::MAX),
    }
}

fn grpc(settings: &Settings) -> GrpcConfig {
    let timeout = positive(settings, "grpc-keepalive-timeout");
    GrpcConfig {
        concurrent_streams_max: u32::try_from(settings.unsigned("max-concurrent-streams"))
            .expect("the flag and the file take 32-bit numbers only"),
        keepalive_time_min: positive(settings, "grpc-keepalive-min-time").unwrap_or(KEEPALIVE_TIME_MIN_UNSET),
        // As in etcd, pings need both.
        keepalive_interval: timeout.and(positive(settings, "grpc-keepalive-interval")),
        keepalive_timeout: timeout.unwrap_or(Duration::from_secs(20)),
    }
}

fn http(settings: &mut Settings) -> HttpConfig {
    let metrics = match settings.text("metrics") {
        "extensive" => MetricsDetail::Extensive,
        "basic" => MetricsDetail::Basic,
        other => {
            let fields = vec![("metrics", other.to_owned())];
            settings.warn("unknown detail of metrics is taken for basic", fields);
            MetricsDetail::Basic
        }
    };
    HttpConfig {
        cors: settings.list("cors").into_iter().collect(),
        host_whitelist: settings.list("host-whitelist").into_iter().collect(),
        gateway: settings.bool("enable-grpc-gateway"),
        metrics,
    }
}
