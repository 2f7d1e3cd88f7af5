//! The configuration as the operator meets it: arguments, variables and files in, `Config` or words out.
//!
//! Texts marked as etcd's were printed by etcd 3.7.3 for the same input.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use super::flags::{self, Tier};
use super::*;

fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Command, ConfigError> {
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    parse(arguments.iter().map(OsString::from), environment)
}

/// Config and the messages of its warnings.
fn served(arguments: &[&str], environment: &[(&str, &str)]) -> (Config, Vec<String>) {
    match run(arguments, environment) {
        Ok(Command::Serve(config, warnings)) => {
            (*config, warnings.into_iter().map(|warning| warning.message).collect())
        }
        other => panic!("{arguments:?} gave {other:?}"),
    }
}

fn config(arguments: &[&str]) -> Config {
    served(arguments, &[]).0
}

fn refused(arguments: &[&str], environment: &[(&str, &str)]) -> (u8, String) {
    let error = run(arguments, environment).expect_err("a refusal");
    (error.exit_code(), error.to_string())
}

fn in_file(yaml: &str) -> Result<Command, ConfigError> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(yaml.as_bytes()).expect("written");
    let path = file.path().to_str().expect("UTF-8").to_owned();
    run(&["--config-file", &path], &[])
}

fn served_from_file(yaml: &str) -> (Config, Vec<Warning>) {
    match in_file(yaml) {
        Ok(Command::Serve(config, warnings)) => (*config, warnings),
        other => panic!("{yaml:?} gave {other:?}"),
    }
}

#[test]
fn no_flag_at_all_is_etcds_defaults() {
    let config = config(&[]);
    let url = |text| vec![Url::parse(text).expect("a URL")];
    assert_eq!(config.member.name, "default");
    assert_eq!(config.member.data_dir, PathBuf::from("default.etcd"));
    assert_eq!(config.member.wal_dir(), PathBuf::from("default.etcd/member/wal"));
    assert!(config.member.fsync);
    assert_eq!(config.listen.client, url("http://localhost:2379"));
    assert_eq!(config.listen.peer, url("http://localhost:2380"));
    assert_eq!(socket_addresses(&config.listen.client)[0].to_string(), "127.0.0.1:2379");
    assert_eq!(config.cluster.initial["default"], url("http://localhost:2380"));
    assert_eq!(config.cluster.token, "etcd-cluster");
    assert_eq!(config.cluster.learners_max, 1);
    assert_eq!((config.raft.election_ticks, config.raft.snapshot_entries), (10, 10_000));
    assert_eq!(config.limits.quota_bytes, Some(2 << 30));
    assert_eq!((config.limits.request_bytes_max, config.limits.txn_ops_max), (1_572_864, 128));
    assert_eq!(config.grpc.concurrent_streams_max, u32::MAX);
    assert_eq!(config.grpc.keepalive_interval, Some(Duration::from_hours(2)));
    assert_eq!(config.compaction.auto, AutoCompaction::Off);
    assert_eq!(config.compaction.batch_revisions_max, 1_000);
    assert_eq!(config.upkeep.watch_progress_interval, Duration::from_mins(10));
    assert_eq!(config.upkeep.corrupt_check_interval, None);
    assert_eq!(config.gates, FeatureGates::default());
    assert_eq!(config.log.level, crate::trace::Level::Info);
}

#[test]
fn flags_are_written_as_in_go() {
    for arguments in [&["-name=a"][..], &["--name=a"], &["-name", "a"], &["--name", "a"], &["--name=b", "--name=a"]] {
        assert_eq!(config(arguments).member.name, "a", "{arguments:?}");
    }
    assert!(!config(&["--pre-vote=false"]).raft.pre_vote);
    assert!(!config(&["--pre-vote=F"]).raft.pre_vote);
    assert!(config(&["--force-new-cluster"]).cluster.force_new);
    assert_eq!(config(&["--initial-cluster-token=a=b"]).cluster.token, "a=b");
    assert_eq!(config(&["--max-txn-ops=0x10", "--"]).limits.txn_ops_max, 16);
    assert_eq!(config(&["--snapshot-count=3", "--snapshot-count=5"]).raft.snapshot_entries, 5);
}

/// The texts are etcd's; it leaves with 2 after each.
const MISTAKES: &[(&[&str], &str)] = &[
    (&["--foo"], "flag provided but not defined: -foo"),
    (&["-foo=3"], "flag provided but not defined: -foo"),
    (&["--cluster-active-size=3", "--foo"], "flag provided but not defined: -foo"),
    (&["--discovery=http://x"], "flag provided but not defined: -discovery"),
    (&["--discovery-proxy=http://x"], "flag provided but not defined: -discovery-proxy"),
    (&["--name"], "flag needs an argument: -name"),
    (&["--pre-vote=maybe"], "invalid boolean value \"maybe\" for -pre-vote: parse error"),
    (&["--snapshot-count=abc"], "invalid value \"abc\" for flag -snapshot-count: parse error"),
    (&["--snapshot-count=-1"], "invalid value \"-1\" for flag -snapshot-count: parse error"),
    (
        &["--snapshot-count=99999999999999999999999"],
        "invalid value \"99999999999999999999999\" for flag -snapshot-count: value out of range",
    ),
    (&["--max-learners=x"], "invalid value \"x\" for flag -max-learners: parse error"),
    (
        &["--max-concurrent-streams=99999999999"],
        "invalid value \"99999999999\" for flag -max-concurrent-streams: \
         strconv.ParseUint: parsing \"99999999999\": value out of range",
    ),
    (
        &["--max-concurrent-streams=abc"],
        "invalid value \"abc\" for flag -max-concurrent-streams: \
         strconv.ParseUint: parsing \"abc\": invalid syntax",
    ),
    (&["--corrupt-check-time=5"], "invalid value \"5\" for flag -corrupt-check-time: parse error"),
    (&["--quota-backend-bytes=1e9"], "invalid value \"1e9\" for flag -quota-backend-bytes: parse error"),
    (&["---x"], "bad flag syntax: ---x"),
    (&["--=x"], "bad flag syntax: --=x"),
    (&["--initial-cluster-state=foo"], "invalid value \"foo\" for flag -initial-cluster-state: invalid value"),
    (&["--v2-deprecation=not-yet"], "invalid value \"not-yet\" for flag -v2-deprecation: invalid value \"not-yet\""),
    (&["--discovery-fallback=x"], "invalid value \"x\" for flag -discovery-fallback: invalid value"),
    (
        &["--listen-client-urls=foo"],
        "invalid value \"foo\" for flag -listen-client-urls: \
         URL scheme must be http, https, unix, or unixs: foo",
    ),
    (
        &["--feature-gates=Foo=true"],
        "invalid value \"Foo=true\" for flag -feature-gates: unrecognized feature gate: Foo",
    ),
];

#[test]
fn mistakes_on_the_command_line_are_told_in_gos_words() {
    for (arguments, words) in MISTAKES {
        assert_eq!(refused(arguments, &[]), (2, (*words).to_owned()), "{arguments:?}");
    }
    let lines = run(&["--foo"], &[]).expect_err("a refusal").lines();
    assert_eq!(lines[1], "Usage:");
}

const PEERS: &str = "--initial-advertise-peer-urls=http://127.0.0.1:2398";

/// The texts are etcd's; it leaves with 1 after each.
const NONSENSE: &[(&[&str], &str)] = &[
    (&["extra"], "\"extra\" is not a valid flag"),
    (&["--", "foo"], "\"foo\" is not a valid flag"),
    (&["--pre-vote", "false"], "\"false\" is not a valid flag"),
    (&["--listen-client-urls=http://example.com:2379"], "expected IP in URL for binding (http://example.com:2379)"),
    (
        &["--listen-client-urls=http://127.0.0.1:2399"],
        "--advertise-client-urls is required when --listen-client-urls is set explicitly",
    ),
    (&["--listen-client-urls="], "--advertise-client-urls is required when --listen-client-urls is set explicitly"),
    (
        &["--advertise-client-urls=http://:2379"],
        "--advertise-client-urls \"http://:2379\" must be in the format \"host:port\", \
         \"unix:/path/to/socket\" or \"unixs:/path/to/socket\" (unexpected empty host (http://:2379))",
    ),
    (
        &["--initial-advertise-peer-urls=http://:2380"],
        "--initial-advertise-peer-urls \"http://:2380\" must be \"host:port\" (unexpected empty host (http://:2380))",
    ),
    (&["--heartbeat-interval=0"], "--heartbeat-interval must be >0 (set to 0ms)"),
    (&["--election-timeout=0"], "--election-timeout must be >0 (set to 0ms)"),
    (
        &["--election-timeout=400"],
        "--election-timeout[400ms] should be at least as 5 times as --heartbeat-interval[100ms]",
    ),
    (&["--election-timeout=60000"], "--election-timeout[60000ms] is too long, and should be set less than 50000ms"),
    (&["--auto-compaction-mode=foo"], "unknown auto-compaction-mode \"foo\""),
    (&["--auto-compaction-mode="], "undefined auto-compaction-mode"),
    (&["--auto-compaction-retention=foo"], "error parsing CompactionRetention: time: invalid duration \"foo\""),
    (&["--auto-compaction-retention=-1"], "error parsing CompactionRetention: time: missing unit in duration \"-1\""),
    (&["--compact-hash-check-time=0s"], "--compact-hash-check-time must be >0 (set to 0s)"),
    (&["--logger=capnslog"], "--logger=capnslog is removed in v3.5"),
    (&["--logger=foo"], "unknown logger option \"foo\""),
    (&["--log-outputs=default,stderr"], "multi logoutput for \"default\" is not supported yet"),
    (&["--log-format=xml"], "unknown log format: xml, supported values json, console"),
    (&["--log-level=foo"], "unrecognized level: \"foo\""),
    (&["--enable-log-rotation"], "--log-outputs requires a single file path when --log-rotate-config-json is defined"),
    (
        &["--feature-gates=LeaseCheckpointPersist=true"],
        "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint",
    ),
    (&["--tls-min-version=foo"], "unexpected TLS version \"foo\" (must be one of: TLS1.2, TLS1.3)"),
    (
        &["--discovery-fallback=proxy"],
        "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"",
    ),
    (&["--auth-token=foo"], "--auth-token is \"foo\": auth: invalid auth options"),
    (
        &["--name=abc", "--initial-cluster=default=http://127.0.0.1:2398", PEERS],
        "couldn't find local name \"abc\" in the initial cluster configuration",
    ),
    (&["--name="], "couldn't find local name \"\" in the initial cluster configuration"),
    (&["--initial-cluster="], "couldn't find local name \"default\" in the initial cluster configuration"),
    (&["--initial-cluster=foo"], "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: "),
    (
        &["--initial-cluster=default=http://127.0.0.1:2397", PEERS],
        "--initial-cluster has default=http://127.0.0.1:2397 but missing from \
         --initial-advertise-peer-urls=http://127.0.0.1:2398 \
         (resolved urls: \"http://127.0.0.1:2398\" != \"http://127.0.0.1:2397\")",
    ),
    (
        &["--initial-cluster=default=http://127.0.0.1:2398,default=http://127.0.0.1:2396", PEERS],
        "--initial-cluster has default=http://127.0.0.1:2396 but missing from \
         --initial-advertise-peer-urls=http://127.0.0.1:2398 \
         (len([\"http://127.0.0.1:2398\"]) != len([\"http://127.0.0.1:2396\" \"http://127.0.0.1:2398\"]))",
    ),
    (
        &["--initial-cluster=default=http://127.0.0.1:2398,b=http://127.0.0.1:2398", PEERS],
        "initial cluster b=http://127.0.0.1:2398,default=http://127.0.0.1:2398 has duplicate url",
    ),
];

#[test]
fn values_that_make_no_sense_are_refused_in_etcds_words() {
    for (arguments, words) in NONSENSE {
        assert_eq!(refused(arguments, &[]), (1, (*words).to_owned()), "{arguments:?}");
    }
}

#[test]
fn every_refused_flag_is_refused_by_name_and_takes_its_default() {
    for flag in flags::all() {
        let Tier::Refused(missing) = flag.tier else {
            continue;
        };
        let value = match flag.kind {
            flags::Kind::Bool => (flag.default != "true").to_string(),
            flags::Kind::Duration => "7s".to_owned(),
            flags::Kind::Unsigned => "7".to_owned(),
            _ if flag.name.starts_with("tls-") => "TLS1.3".to_owned(),
            _ => "something".to_owned(),
        };
        let words = format!("--{} is set, but {missing}; leave it out", flag.name);
        assert_eq!(refused(&[&format!("--{}={value}", flag.name)], &[]), (1, words));
        config(&[&format!("--{}={}", flag.name, flag.default)]);
    }
}

#[test]
fn single_values_this_release_lacks_are_refused() {
    let advertise = "--advertise-client-urls=http://127.0.0.1:2379";
    for (arguments, words) in [
        (
            &["--listen-client-urls=https://127.0.0.1:2379", advertise][..],
            "--listen-client-urls has https://127.0.0.1:2379, but TLS is not available in this release; use http://",
        ),
        (
            &["--advertise-client-urls=https://a:2379"],
            "--advertise-client-urls has https://a:2379, but TLS is not available in this release; use http://",
        ),
        (
            &["--listen-client-urls=unix://a:1", advertise],
            "--listen-client-urls has unix://a:1, but listening on a unix socket is not available in this release; use http://",
        ),
        (
            &["--auth-token=jwt,pub-key=a"],
            "--auth-token is \"jwt,pub-key=a\", but JWT tokens are not available in this release; use simple",
        ),
        (
            &["--log-outputs=systemd/journal"],
            "--log-outputs is \"systemd/journal\", but logging to the journal is not available in this release; use stderr",
        ),
        (
            &["--auto-compaction-mode=revision", "--auto-compaction-retention=1h"],
            "error parsing CompactionRetention: \"1h\" is not a number of revisions",
        ),
        (&["gateway"], "etcd's gateway is not available in this release; run the one that comes with etcd"),
    ] {
        assert_eq!(refused(arguments, &[]), (1, words.to_owned()), "{arguments:?}");
    }
}

#[test]
fn flags_without_effect_are_accepted_with_a_warning() {
    for flag in flags::all().filter(|flag| matches!(flag.tier, Tier::NoEffect(_))) {
        let (_, warnings) = served(&[&format!("--{}={}", flag.name, flag.default)], &[]);
        assert_eq!(warnings.len(), 1, "--{}: {warnings:?}", flag.name);
    }
    let (_, warnings) = served(&["--vv", "--max-snapshots=3"], &[]);
    assert_eq!(
        warnings,
        [
            "flag is no longer supported - ignoring",
            "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."
        ]
    );
}

#[test]
fn variables_fill_what_the_command_line_leaves_open() {
    let (config, warnings) = served(
        &["--snapshot-count=7"],
        &[("ETCD_NAME", "n1"), ("ETCD_PRE_VOTE", "false"), ("ETCD_WAL_DIR", ""), ("PATH", "/bin")],
    );
    assert_eq!((config.member.name.as_str(), config.raft.pre_vote), ("n1", false));
    assert_eq!(config.raft.snapshot_entries, 7);
    assert_eq!(config.member.data_dir, PathBuf::from("n1.etcd"));
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn the_command_line_wins_over_variables() {
    let (config, warnings) = served(&["--name=cmd"], &[("ETCD_NAME", "env")]);
    assert_eq!(config.member.name, "cmd");
    assert_eq!(warnings, ["environment variable is shadowed by corresponding command-line flag"]);
}

#[test]
fn unknown_variables_only_warn() {
    let known = [("ETCD_VERSION", "3"), ("ETCD_UNSUPPORTED_ARCH", "arm64"), ("ETCD_VERIFY", "all"), ("ETCD_FOO", "1")];
    match run(&[], &known) {
        Ok(Command::Serve(_, warnings)) => {
            assert_eq!(warnings.len(), 1);
            assert_eq!(warnings[0].message, "unrecognized environment variable");
            assert_eq!(warnings[0].fields, [("environment-variable", "ETCD_FOO=1".to_owned())]);
        }
        other => panic!("{other:?}"),
    }
}

/// The texts are etcd's; it leaves with 1, not 2, when a variable is at fault.
#[test]
fn wrong_variables_are_refused_in_etcds_words() {
    assert_eq!(
        refused(&[], &[("ETCD_SNAPSHOT_COUNT", "x")]),
        (1, "invalid value \"x\" for ETCD_SNAPSHOT_COUNT: parse error".to_owned())
    );
    assert_eq!(
        refused(&[], &[("ETCD_LISTEN_CLIENT_URLS", "foo")]),
        (
            1,
            "invalid value \"foo\" for ETCD_LISTEN_CLIENT_URLS: URL scheme must be http, https, unix, or unixs: foo"
                .to_owned()
        )
    );
}

#[test]
fn a_file_replaces_flags_and_variables() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(b"data-dir: from-file\nwatch-progress-notify-interval: 5000000000\n").expect("written");
    let path = file.path().to_str().expect("UTF-8");
    let variables = [("ETCD_NAME", "env"), ("ETCD_FOO", "1"), ("ETCD_CONFIG_FILE", path)];
    for arguments in [&["--snapshot-count=3"][..], &["--snapshot-count=3", "--config-file", path]] {
        let (config, warnings) = served(arguments, &variables);
        assert_eq!(config.member.name, "default");
        assert_eq!(config.member.data_dir, PathBuf::from("from-file"));
        assert_eq!(config.raft.snapshot_entries, 10_000);
        assert_eq!(config.upkeep.watch_progress_interval, Duration::from_secs(5));
        assert!(warnings.is_empty(), "{warnings:?}");
    }
}

#[test]
fn a_file_is_read_as_etcd_reads_it() {
    let (config, warnings) = served_from_file(
        "Name: n1\nlisten-client-urls: http://127.0.0.1:2399,http://127.0.0.1:2398\nlog-outputs: [stdout, stderr]\n\
         auto-compaction-retention: '10m'\ncorrupt-check-time: 0\nfeature-gates: CompactHashCheck=true\n\
         advertise-client-urls: ''\nclient-transport-security:\n  cert-file: ''\n  client-cert-auth: false\n\
         discovery:\nv2-deprecation: not-yet\nno-such-key: 1\n",
    );
    assert_eq!(config.member.name, "n1");
    assert_eq!(config.listen.client.len(), 2);
    assert_eq!(config.cluster.advertise_client_urls[0].text(), "http://localhost:2379");
    assert_eq!(config.cluster.initial["n1"][0].text(), "http://localhost:2380");
    assert_eq!(config.compaction.auto, AutoCompaction::Periodic(Duration::from_mins(10)));
    assert!(config.gates.compact_hash_check);
    assert_eq!(config.log.outputs.len(), 2);
    let unknown: Vec<_> = warnings.iter().filter(|warning| warning.message.contains("unknown key")).collect();
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0].fields[0], ("key", "no-such-key".to_owned()));
    served_from_file("");
}

#[test]
fn a_wrong_file_is_refused_with_its_key() {
    for (yaml, words) in [
        ("snapshot-count: abc", "snapshot-count is the string \"abc\", must be a number"),
        ("snapshot-count: -1", "snapshot-count is -1, must be a whole number that is not negative"),
        ("name: 5", "name is 5, must be a string; put it in quotes"),
        (
            "watch-progress-notify-interval: 10m",
            "watch-progress-notify-interval is the string \"10m\", must be whole nanoseconds, \
             for example 600000000000 for 10m",
        ),
        (
            "log-outputs: stderr",
            "log-outputs is the string \"stderr\", must be a YAML list of strings, for example [stderr]",
        ),
        ("pre-vote: 'true'", "pre-vote is the string \"true\", must be true or false"),
        ("[1, 2]", "holds a list instead of keys; write one `flag-name: value` a line"),
        ("a: b: c", "is not YAML: mapping values are not allowed in this context"),
        ("peer-transport-security: foo", "peer-transport-security is the string \"foo\", must be a section of keys"),
        // From here on the first words are etcd's.
        (
            "listen-client-urls: foo",
            "unexpected error setting up listen-client-urls: URL scheme must be http, https, unix, or unixs: foo",
        ),
        ("feature-gates: Foo=true", "unrecognized feature gate: Foo"),
        ("initial-cluster-state: foo", "unexpected clusterState \"foo\""),
        ("client-transport-security:\n  auto-tls: true", "--auto-tls is set, but TLS is not available in this release"),
        ("discovery-config:\n  token: x", "--discovery-token is set, but discovery is not available"),
    ] {
        let error = in_file(yaml).expect_err(yaml);
        assert_eq!(error.exit_code(), 1);
        assert!(error.to_string().contains(words), "{yaml:?} gave {error}");
        assert_eq!(error.lines().len(), 1, "{error}");
    }
    let (code, words) = refused(&["--config-file=/nonexistent"], &[]);
    assert_eq!(code, 1);
    assert_eq!(words, "config file /nonexistent cannot be read: no such file or directory; name a readable YAML file");
}

#[test]
fn retention_is_read_as_etcd_reads_it() {
    let auto = |mode, retention: &str| {
        config(&[&format!("--auto-compaction-mode={mode}"), &format!("--auto-compaction-retention={retention}")])
            .compaction
            .auto
    };
    assert_eq!(auto("periodic", "2"), AutoCompaction::Periodic(Duration::from_hours(2)));
    assert_eq!(auto("periodic", "10m"), AutoCompaction::Periodic(Duration::from_mins(10)));
    assert_eq!(auto("periodic", "0"), AutoCompaction::Off);
    assert_eq!(auto("periodic", ""), AutoCompaction::Off);
    assert_eq!(auto("revision", "1000"), AutoCompaction::Revision(1000));
}

#[test]
fn limits_follow_their_flags() {
    assert_eq!(config(&["--quota-backend-bytes=-1"]).limits.quota_bytes, None);
    assert_eq!(config(&["--quota-backend-bytes=4096"]).limits.quota_bytes, Some(4096));
    assert_eq!(config(&["--grpc-keepalive-interval=0s"]).grpc.keepalive_interval, None);
    assert_eq!(config(&["--compaction-batch-limit=0"]).compaction.batch_revisions_max, 1_000);
    assert!(!config(&["--unsafe-no-fsync"]).member.fsync);
    let (config, warnings) = served(&["--bcrypt-cost=100"], &[]);
    assert_eq!(config.auth.bcrypt_cost, 10);
    assert!(warnings.contains(&"use default bcrypt cost instead of the invalid given cost".to_owned()));
}

#[test]
fn a_name_alone_describes_its_own_cluster() {
    let config = config(&["--name=n1", "--initial-advertise-peer-urls=http://10.0.0.1:2380"]);
    assert_eq!(config.cluster.initial.len(), 1);
    assert_eq!(config.cluster.initial["n1"][0].text(), "http://10.0.0.1:2380");
    let same_host =
        ["--initial-cluster=default=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://localhost:2380"];
    assert_eq!(served(&same_host, &[]).0.cluster.initial.len(), 1);
}

#[test]
fn version_and_help_leave_with_their_texts() {
    assert!(matches!(run(&["--version"], &[]), Ok(Command::PrintVersion)));
    assert!(matches!(run(&["--version", "--listen-peer-urls=ftp://a:1"], &[]), Err(ConfigError::Usage(_))));
    assert!(version_text().starts_with("etcd Version: 3.7.3\nKuorum Version: "));
    for help in ["-h", "--help", "--help=false"] {
        assert!(matches!(run(&[help], &[]), Ok(Command::PrintHelp(_))));
    }
}

#[test]
fn keys_of_plugins_are_named_by_file() {
    let config = config(&["--plugin-trusted-keys=a.pem,b.pem"]);
    assert_eq!(config.plugins.trusted_keys, ["a.pem", "b.pem"].map(std::path::PathBuf::from));
    let (config, _) = served(&[], &[("ETCD_PLUGIN_TRUSTED_KEYS", "c.pem")]);
    assert_eq!(config.plugins.trusted_keys, [std::path::PathBuf::from("c.pem")]);
}

#[test]
fn every_flag_is_once_in_the_table_and_in_the_usage() {
    // etcd 3.7.3's usage lists 113; two of them its parser does not know. --config-file and --version come on top.
    // Of our own there is --plugin-trusted-keys.
    assert_eq!(flags::all().count(), 114);
    let names: BTreeSet<&str> = flags::all().map(|flag| flag.name).collect();
    assert_eq!(names.len(), 114);
    let usage = usage::full();
    for flag in flags::all() {
        assert!(usage.contains(&format!("\n  --{} '{}'\n    ", flag.name, flag.default)), "--{}", flag.name);
        settings::default(flag);
        let reason = match flag.tier {
            Tier::Works => flag.about,
            Tier::Refused(reason) | Tier::NoEffect(reason) => reason,
        };
        assert!(!reason.is_empty(), "--{}", flag.name);
    }
    assert!(usage.contains("StopGRPCServiceOnDefrag=true|false (ALPHA - default=false)"));
}

#[test]
fn the_list_of_refusals_names_each_with_what_is_missing() {
    let refusals = refused_flags();
    assert!(refusals.contains(&("cert-file", "TLS is not available in this release")));
    assert!(refusals.contains(&("auth-token=jwt,...", "JWT tokens are not available in this release")));
    assert!(refusals.iter().all(|(name, missing)| !name.is_empty() && !missing.is_empty()));
}
