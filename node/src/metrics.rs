//! What the process counts, under etcd's names, so that dashboards and alerts written for etcd work as they stand.
//!
//! Owns every metric's name, help text and buckets (buckets and names are those seen on a running etcd 3.7.3). All of
//! them are registered once, before the first request, so that each is shown with its zero; whoever counts holds a
//! handle and pays an atomic addition. Values that another module owns (revision, sizes, leader) are not kept twice:
//! the scrape sets them, see [`crate::http`]. A metric is listed here only if something real moves it.
//!
//! Counters are process-wide: a process is one member. Only this module and its children name the metrics crates.

mod group;
mod method;
mod peer;
mod plugin;
mod process;
mod registrar;
mod window;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use group::{Client, Disk, Health, Lease, Mvcc, Server, Watch};
pub(crate) use method::MethodCounts;
use metrics_exporter_prometheus::PrometheusHandle;
pub(crate) use peer::Peer;
pub(crate) use plugin::{Plans, Plugin, Policies, UserKind, UserSeries};
pub(crate) use process::descriptors_max;
pub(crate) use window::{SLICE, Window};

use self::registrar::Registrar;

/// Every handle, grouped by who moves it.
pub(crate) struct Metrics {
    pub(crate) server: Server,
    pub(crate) mvcc: Mvcc,
    pub(crate) lease: Lease,
    pub(crate) watch: Watch,
    pub(crate) disk: Disk,
    pub(crate) client: Client,
    pub(crate) health: Health,
    pub(crate) methods: MethodCounts,
    policies: OnceLock<Policies>,
    plugin_names: plugin::Names,
    pub(crate) recent: Recent,
    user_names: plugin::UserNames,
    registrar: Registrar,
    handle: PrometheusHandle,
}

/// Facts of this process that are shown as labels of a gauge that is always 1, or as a value that never changes.
pub(crate) struct Identity<'a> {
    /// The version reported to clients.
    pub(crate) server_version: &'a str,
    pub(crate) cluster_version: &'a str,
    /// The member's id in hexadecimal.
    pub(crate) server_id: &'a str,
    pub(crate) quota_bytes: i64,
}

/// What policies are told of the last minute.
#[derive(Default)]
pub(crate) struct Recent {
    /// Writes of this member's clients, from being proposed to being answered.
    pub(crate) writes: Window,
    pub(crate) fsyncs: Window,
    writes_per_s: AtomicU32,
}

impl Recent {
    pub(crate) fn set_writes_per_s(&self, mean: u32) {
        self.writes_per_s.store(mean, Ordering::Relaxed);
    }

    /// Of the cluster, as this member applied them.
    pub(crate) fn writes_per_s(&self) -> u32 {
        self.writes_per_s.load(Ordering::Relaxed)
    }

    /// To be called every [`SLICE`], by one thread.
    pub(crate) fn turn(&self) {
        self.writes.turn();
        self.fsyncs.turn();
    }
}

static METRICS: OnceLock<Metrics> = OnceLock::new();

/// The metrics of this process; registers the basic set if [`start`] was not called.
pub(crate) fn get() -> &'static Metrics {
    METRICS.get_or_init(|| Metrics::new(false))
}

/// Registers everything and states who this process is. `extensive` adds a latency histogram per method, as etcd does
/// with `--metrics=extensive`. To be called once, before anything counts.
pub(crate) fn start(extensive: bool, identity: &Identity<'_>) {
    let metrics = METRICS.get_or_init(|| Metrics::new(extensive));
    metrics.registrar.fact(
        "etcd_server_version",
        "The version this member runs; always 1.",
        ["server_version", identity.server_version],
    );
    metrics.registrar.fact(
        "etcd_cluster_version",
        "The version the cluster works at; always 1.",
        ["cluster_version", identity.cluster_version],
    );
    metrics.registrar.fact(
        "etcd_server_id",
        "The id of this member in hexadecimal; always 1.",
        ["server_id", identity.server_id],
    );
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; quotas beyond 2^53 bytes don't occur")]
    metrics.server.quota_backend_bytes.set(identity.quota_bytes as f64);
}

impl Metrics {
    fn new(extensive: bool) -> Metrics {
        let recorder = registrar::recorder();
        let handle = recorder.handle();
        let registrar = Registrar::new(recorder);
        Peer::describe(&registrar);
        Plugin::describe(&registrar);
        Metrics {
            server: Server::register(&registrar),
            mvcc: Mvcc::register(&registrar),
            lease: Lease::register(&registrar),
            watch: Watch::register(&registrar),
            disk: Disk::register(&registrar),
            client: Client::register(&registrar),
            health: Health::register(&registrar),
            methods: MethodCounts::register(&registrar, extensive),
            policies: OnceLock::new(),
            plugin_names: plugin::Names::default(),
            recent: Recent::default(),
            user_names: plugin::UserNames::default(),
            registrar,
            handle,
        }
    }

    /// A series of a metric whose label values only requests bring. The caller bounds how many it asks for.
    pub(crate) fn client_requests(&self, kind: &'static str, version: &str) -> ::metrics::Counter {
        self.registrar
            .labelled_counter("etcd_server_client_requests_total", [("type", kind), ("client_api_version", version)])
    }

    /// The series of another member; both ids in hexadecimal. The same for each call.
    pub(crate) fn peer(&self, local: &str, remote: &str) -> Peer {
        Peer::register(&self.registrar, local, remote)
    }

    /// The series of all plugins together, which appear with the first call: a cluster without plugins has none.
    pub(crate) fn policies(&self) -> &Policies {
        self.policies.get_or_init(|| Policies::register(&self.registrar))
    }

    /// The series of a plugin, which appear now and stay. The same for each call.
    pub(crate) fn plugin(&self, name: &str) -> Plugin {
        Plugin::register(&self.registrar, self.plugin_names.label(name))
    }

    /// The series of a plugin that is asked what to compact. The same for each call.
    pub(crate) fn plans(&self, plugin: &str) -> Plans {
        Plans::register(&self.registrar, self.plugin_names.label(plugin))
    }

    /// A series that a plugin makes, shown as `plugin_user_<name>`. `None` if it can't have it. The caller bounds how many
    /// one plugin asks for.
    pub(crate) fn plugin_user(&self, kind: UserKind, name: &str, labels: Vec<(String, String)>) -> Option<UserSeries> {
        self.user_names.series(&self.registrar, kind, name, labels)
    }

    /// Counts one run of a health check. Its series appear with the first run, as in etcd: a zero before that would
    /// read as a failed check.
    pub(crate) fn checked(&self, page: &str, check: &str, passed: bool) {
        let help = "1 if the check passed when it last ran, else 0.";
        let latest = self.registrar.labelled_gauge("etcd_server_healthcheck", help, [("type", page), ("name", check)]);
        latest.set(if passed { 1.0 } else { 0.0 });
        let labels = [("type", page), ("name", check), ("status", if passed { "success" } else { "error" })];
        self.registrar.labelled_counter("etcd_server_healthchecks_total", labels).increment(1);
    }

    /// Everything in Prometheus' text format, the process's own figures included.
    pub(crate) fn render(&self) -> String {
        let mut text = self.handle.render();
        process::append(&mut text);
        text
    }

    /// Folds recorded histogram samples into their buckets. Samples pile up until somebody scrapes or calls this, so
    /// one shard does every few seconds.
    pub(crate) fn fold_samples(&self) {
        self.handle.run_upkeep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metrics that etcd's own dashboards and alerts read, as series that must exist before anything happened.
    const ALWAYS_SHOWN: &[&str] = &[
        "etcd_server_has_leader 0",
        "etcd_server_leader_changes_seen_total 0",
        "etcd_server_proposals_failed_total 0",
        "etcd_server_proposals_pending 0",
        "etcd_server_proposals_committed_total 0",
        "etcd_server_proposals_applied_total 0",
        "etcd_server_quota_backend_bytes 0",
        "etcd_mvcc_db_total_size_in_bytes 0",
        "etcd_mvcc_db_total_size_in_use_in_bytes 0",
        "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"} 0",
        "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"8.192\"} 0",
        "etcd_disk_backend_commit_duration_seconds_bucket{le=\"+Inf\"} 0",
        "etcd_network_client_grpc_received_bytes_total 0",
        "etcd_network_client_grpc_sent_bytes_total 0",
        "etcd_mvcc_put_total 0",
        "etcd_mvcc_delete_total 0",
        "etcd_debugging_mvcc_keys_total 0",
        "etcd_server_is_learner 0",
    ];

    #[test]
    fn everything_is_shown_with_its_zero_before_the_first_request() {
        let text = Metrics::new(false).render();
        for line in ALWAYS_SHOWN {
            assert!(text.lines().any(|shown| shown == *line), "no line {line} in:\n{text}");
        }
        for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "os_fd_used", "os_fd_limit"] {
            assert!(text.lines().any(|shown| shown.starts_with(name)), "no {name} in:\n{text}");
        }
    }

    #[test]
    fn every_method_is_shown_with_every_code_and_latency_only_if_extensive() {
        let basic = Metrics::new(false).render();
        let watch = "grpc_server_handled_total{grpc_type=\"bidi_stream\",grpc_service=\"etcdserverpb.Watch\",\
                     grpc_method=\"Watch\",grpc_code=\"Canceled\"} 0";
        assert!(basic.lines().any(|line| line == watch), "no line {watch} in:\n{basic}");
        let handled = basic.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
        assert_eq!(handled.count(), crate::rpc::method::Method::ALL.len() * method::CODES.len());
        assert!(!basic.contains("grpc_server_handling_seconds"));
        assert!(Metrics::new(true).render().contains("grpc_server_handling_seconds_bucket"));
    }

    #[test]
    fn no_metric_carries_a_name_that_etcd_does_not_have() {
        const ETCD: &str = include_str!("metrics/etcd-3.7.3-names.txt");
        let text = Metrics::new(true).render();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for (name, kind) in types.filter_map(|line| line.split_once(' ')) {
            let expected = format!("{name} {kind}");
            assert!(ETCD.lines().any(|known| known == expected), "etcd has no {expected}");
        }
    }
}
