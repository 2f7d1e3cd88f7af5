//! Registers metrics with the recorder: name, help, buckets, and a handle back. The only file that knows the exporter.

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

/// Upper bounds of histogram buckets by metric: `first`, doubled `count - 1` times. All from a running etcd 3.7.3.
struct Buckets {
    first: f64,
    count: i32,
    names: &'static [&'static str],
}

const DOUBLING: &[Buckets] = &[
    Buckets {
        first: 0.001,
        count: 14,
        names: &["etcd_disk_backend_commit_duration_seconds", "etcd_disk_wal_fsync_duration_seconds"],
    },
    Buckets {
        first: 0.0001,
        count: 20,
        names: &["etcd_server_apply_duration_seconds", "etcd_server_range_duration_seconds"],
    },
    Buckets { first: 0.0001, count: 16, names: &["etcd_network_peer_round_trip_time_seconds"] },
    Buckets {
        first: 0.01,
        count: 15,
        names: &["etcd_mvcc_hash_duration_seconds", "etcd_mvcc_hash_rev_duration_seconds"],
    },
    Buckets { first: 0.1, count: 13, names: &["etcd_disk_backend_defrag_duration_seconds"] },
    Buckets { first: 1.0, count: 13, names: &["etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds"] },
    Buckets { first: 100.0, count: 14, names: &["etcd_debugging_mvcc_db_compaction_total_duration_milliseconds"] },
    Buckets { first: 1.0, count: 24, names: &["etcd_debugging_lease_ttl_total"] },
];

/// Prometheus' default bounds, which etcd's per-method latency uses.
const HANDLING_SECONDS: (&str, [f64; 11]) =
    ("grpc_server_handling_seconds", [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]);

/// Ours: from one microsecond, which a warm plugin takes, to half a second.
const PLUGIN_SECONDS: Buckets = Buckets { first: 0.000_001, count: 20, names: &["plugin_call_duration_seconds"] };
/// Of the histograms that plugins make, which count microseconds.
const PLUGIN_USER: (&str, f64, i32) = ("plugin_user_", 1.0, 24);

/// The recorder with every histogram's buckets set.
pub(super) fn recorder() -> PrometheusRecorder {
    let set = |builder: PrometheusBuilder, name: &str, bounds: &[f64]| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds).expect("the bounds are not empty")
    };
    let mut builder = set(PrometheusBuilder::new(), HANDLING_SECONDS.0, &HANDLING_SECONDS.1);
    for group in DOUBLING {
        let bounds: Vec<f64> = (0..group.count).map(|step| doubled(group.first, step)).collect();
        for name in group.names {
            builder = set(builder, name, &bounds);
        }
    }
    let bounds: Vec<f64> = (0..PLUGIN_SECONDS.count).map(|step| PLUGIN_SECONDS.first * 2_f64.powi(step)).collect();
    for name in PLUGIN_SECONDS.names {
        builder = set(builder, name, &bounds);
    }
    let (prefix, first, count) = PLUGIN_USER;
    let bounds: Vec<f64> = (0..count).map(|step| first * 2_f64.powi(step)).collect();
    builder =
        builder.set_buckets_for_metric(Matcher::Prefix(prefix.to_owned()), &bounds).expect("the bounds are not empty");
    builder.build_recorder()
}

/// `first * 2^step`, freed of the noise behind the decimals that `first` has, so that 0.0001 doubles to 0.0008.
fn doubled(first: f64, step: i32) -> f64 {
    format!("{:.4}", first * 2_f64.powi(step)).parse().expect("a formatted float is a float")
}

const METADATA: Metadata<'static> = Metadata::new("kuorum", Level::INFO, None);

pub(super) struct Registrar {
    recorder: PrometheusRecorder,
}

impl Registrar {
    pub(super) fn new(recorder: PrometheusRecorder) -> Registrar {
        Registrar { recorder }
    }

    pub(super) fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.describe_counter(name, help);
        self.recorder.register_counter(&Key::from_static_name(name), &METADATA)
    }

    pub(super) fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.recorder.describe_gauge(name.into(), None, help.into());
        let gauge = self.recorder.register_gauge(&Key::from_static_name(name), &METADATA);
        gauge.set(0.0);
        gauge
    }

    pub(super) fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        self.labelled_histogram(name, help, [("", ""); 0])
    }

    pub(super) fn describe_counter(&self, name: &'static str, help: &'static str) {
        self.recorder.describe_counter(name.into(), None, help.into());
    }

    pub(super) fn labelled_counter<const N: usize>(&self, name: &'static str, labels: [(&str, &str); N]) -> Counter {
        self.recorder.register_counter(&key(name, labels), &METADATA)
    }

    pub(super) fn labelled_gauge<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [(&str, &str); N],
    ) -> Gauge {
        self.recorder.describe_gauge(name.into(), None, help.into());
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    pub(super) fn labelled_histogram<const N: usize>(
        &self,
        name: &'static str,
        help: &'static str,
        labels: [(&str, &str); N],
    ) -> Histogram {
        self.recorder.describe_histogram(name.into(), None, help.into());
        self.recorder.register_histogram(&key(name, labels), &METADATA)
    }

    pub(super) fn user_counter(&self, name: String, labels: Vec<(String, String)>) -> Counter {
        self.recorder.register_counter(&user_key(name, labels), &METADATA)
    }

    pub(super) fn user_gauge(&self, name: String, labels: Vec<(String, String)>) -> Gauge {
        self.recorder.register_gauge(&user_key(name, labels), &METADATA)
    }

    pub(super) fn user_histogram(&self, name: String, labels: Vec<(String, String)>) -> Histogram {
        self.recorder.register_histogram(&user_key(name, labels), &METADATA)
    }

    /// A gauge that says something by its label and is always 1.
    pub(super) fn fact(&self, name: &'static str, help: &'static str, [label, value]: [&str; 2]) {
        self.labelled_gauge(name, help, [(label, value)]).set(1.0);
    }
}

fn key<const N: usize>(name: &'static str, labels: [(&str, &str); N]) -> Key {
    let labels: Vec<Label> =
        labels.into_iter().map(|(label, value)| Label::new(label.to_owned(), value.to_owned())).collect();
    Key::from_parts(name, labels)
}

fn user_key(name: String, labels: Vec<(String, String)>) -> Key {
    let labels: Vec<Label> = labels.into_iter().map(|(label, value)| Label::new(label, value)).collect();
    Key::from_parts(name, labels)
}
