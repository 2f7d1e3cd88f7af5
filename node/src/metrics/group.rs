//! The handles, one struct for each part of the node that moves them.

use ::metrics::{Counter, Gauge, Histogram};

use super::registrar::Registrar;

/// Moved by consensus, apply and the front door. Gauges marked "scrape" are set when somebody asks.
pub(crate) struct Server {
    /// Scrape.
    pub(crate) has_leader: Gauge,
    /// Scrape.
    pub(crate) is_leader: Gauge,
    /// Scrape.
    pub(crate) is_learner: Gauge,
    pub(crate) leader_changes_seen: Counter,
    /// Scrape.
    pub(crate) proposals_committed: Gauge,
    /// Scrape.
    pub(crate) proposals_applied: Gauge,
    pub(crate) proposals_pending: Gauge,
    pub(crate) proposals_failed: Counter,
    pub(crate) slow_applies: Counter,
    pub(crate) slow_read_indexes: Counter,
    pub(crate) read_indexes_failed: Counter,
    pub(crate) learner_promotions: Counter,
    pub(crate) quota_backend_bytes: Gauge,
    pub(crate) range_seconds: Histogram,
}

impl Server {
    pub(super) fn register(r: &Registrar) -> Server {
        Server {
            has_leader: r.gauge("etcd_server_has_leader", "1 if this member knows a leader, else 0."),
            is_leader: r.gauge("etcd_server_is_leader", "1 if this member leads, else 0."),
            is_learner: r.gauge("etcd_server_is_learner", "1 if this member is a learner, else 0."),
            leader_changes_seen: r
                .counter("etcd_server_leader_changes_seen_total", "How often this member saw the leader change."),
            proposals_committed: r
                .gauge("etcd_server_proposals_committed_total", "The index of the last entry known to be committed."),
            proposals_applied: r.gauge("etcd_server_proposals_applied_total", "The index of the last entry applied."),
            proposals_pending: r.gauge("etcd_server_proposals_pending", "Proposals waiting for their answer."),
            proposals_failed: r.counter("etcd_server_proposals_failed_total", "Proposals that were refused or lost."),
            slow_applies: r.counter("etcd_server_slow_apply_total", "Applies that took longer than the warning limit."),
            slow_read_indexes: r.counter(
                "etcd_server_slow_read_indexes_total",
                "Read barriers that took longer than the request timeout.",
            ),
            read_indexes_failed: r.counter("etcd_server_read_indexes_failed_total", "Read barriers that failed."),
            learner_promotions: r
                .counter("etcd_server_learner_promote_successes", "Learners that this member made voters."),
            quota_backend_bytes: r.gauge("etcd_server_quota_backend_bytes", "The space quota in bytes."),
            range_seconds: r.labelled_histogram(
                "etcd_server_range_duration_seconds",
                "Time a range read took in the store.",
                [("success", "true")],
            ),
        }
    }
}

/// Moved by the store.
pub(crate) struct Mvcc {
    pub(crate) ranges: Counter,
    pub(crate) puts: Counter,
    pub(crate) deletes: Counter,
    pub(crate) txns: Counter,
    /// Bytes of keys and values put since the start.
    pub(crate) put_bytes: Gauge,
    /// Scrape.
    pub(crate) keys: Gauge,
    /// Scrape.
    pub(crate) current_revision: Gauge,
    /// Scrape; -1 until something is compacted, as etcd shows it.
    pub(crate) compact_revision: Gauge,
    /// Scrape.
    pub(crate) db_bytes: Gauge,
    /// Scrape.
    pub(crate) db_in_use_bytes: Gauge,
    pub(crate) compacted_keys: Counter,
    /// Unix time of the last compaction in seconds.
    pub(crate) compaction_last_seconds: Gauge,
    pub(crate) compaction_pause_ms: Histogram,
    pub(crate) compaction_total_ms: Histogram,
    pub(crate) hash_seconds: Histogram,
    pub(crate) hash_revision_seconds: Histogram,
}

impl Mvcc {
    pub(super) fn register(r: &Registrar) -> Mvcc {
        Mvcc {
            ranges: r.counter("etcd_mvcc_range_total", "Range reads done by this member."),
            puts: r.counter("etcd_mvcc_put_total", "Puts applied by this member."),
            deletes: r.counter("etcd_mvcc_delete_total", "Keys deleted by requests that this member applied."),
            txns: r.counter("etcd_mvcc_txn_total", "Txns applied by this member."),
            put_bytes: r.gauge(
                "etcd_debugging_mvcc_total_put_size_in_bytes",
                "Bytes of the keys and values that this member put.",
            ),
            keys: r.gauge("etcd_debugging_mvcc_keys_total", "Keys that exist at the current revision."),
            current_revision: r.gauge("etcd_debugging_mvcc_current_revision", "The current revision."),
            compact_revision: r.gauge("etcd_debugging_mvcc_compact_revision", "The compacted revision, -1 if none."),
            db_bytes: r.gauge("etcd_mvcc_db_total_size_in_bytes", "Bytes that the database occupies on disk."),
            db_in_use_bytes: r
                .gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Bytes of the database that hold live rows."),
            compacted_keys: r.counter("etcd_debugging_mvcc_db_compaction_keys_total", "Rows removed by compactions."),
            compaction_last_seconds: r
                .gauge("etcd_debugging_mvcc_db_compaction_last", "Unix time of the last compaction in seconds."),
            compaction_pause_ms: r.histogram(
                "etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds",
                "Time of one batch of a compaction.",
            ),
            compaction_total_ms: r.histogram(
                "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
                "Time of a whole compaction.",
            ),
            hash_seconds: r.histogram("etcd_mvcc_hash_duration_seconds", "Time to hash the whole store."),
            hash_revision_seconds: r
                .histogram("etcd_mvcc_hash_rev_duration_seconds", "Time to hash the store at a revision."),
        }
    }
}

/// Moved by apply, by lease expiry and by keep-alives.
pub(crate) struct Lease {
    pub(crate) granted: Counter,
    pub(crate) revoked: Counter,
    pub(crate) renewed: Counter,
    pub(crate) expired: Counter,
    pub(crate) ttl_seconds: Histogram,
}

impl Lease {
    pub(super) fn register(r: &Registrar) -> Lease {
        Lease {
            granted: r.counter("etcd_debugging_lease_granted_total", "Leases granted."),
            revoked: r.counter("etcd_debugging_lease_revoked_total", "Leases revoked, by request or by expiry."),
            renewed: r.counter("etcd_debugging_lease_renewed_total", "Keep-alives that renewed a lease here."),
            expired: r.counter("etcd_debugging_server_lease_expired_total", "Leases that this member let expire."),
            ttl_seconds: r.histogram("etcd_debugging_lease_ttl_total", "TTL of the leases granted, in seconds."),
        }
    }
}

/// Moved by the watch hub.
pub(crate) struct Watch {
    pub(crate) streams: Gauge,
    pub(crate) watchers: Gauge,
    /// Watchers that are catching up.
    pub(crate) slow_watchers: Gauge,
    /// Events sent to watchers.
    pub(crate) events: Counter,
}

impl Watch {
    pub(super) fn register(r: &Registrar) -> Watch {
        Watch {
            streams: r.gauge("etcd_debugging_mvcc_watch_stream_total", "Open watch streams."),
            watchers: r.gauge("etcd_debugging_mvcc_watcher_total", "Watchers."),
            slow_watchers: r.gauge("etcd_debugging_mvcc_slow_watcher_total", "Watchers that are catching up."),
            events: r.counter("etcd_debugging_mvcc_events_total", "Events sent to watchers."),
        }
    }
}

/// Moved by the log, the store and maintenance.
pub(crate) struct Disk {
    pub(crate) wal_fsync_seconds: Histogram,
    pub(crate) wal_written_bytes: Gauge,
    pub(crate) backend_commit_seconds: Histogram,
    pub(crate) defrag_seconds: Histogram,
    pub(crate) defrag_inflight: Gauge,
}

impl Disk {
    pub(super) fn register(r: &Registrar) -> Disk {
        Disk {
            wal_fsync_seconds: r.histogram("etcd_disk_wal_fsync_duration_seconds", "Time to make the log durable."),
            wal_written_bytes: r.gauge("etcd_disk_wal_write_bytes_total", "Bytes written to the log."),
            backend_commit_seconds: r
                .histogram("etcd_disk_backend_commit_duration_seconds", "Time to commit a batch to the store."),
            defrag_seconds: r.histogram("etcd_disk_backend_defrag_duration_seconds", "Time of a defragmentation."),
            defrag_inflight: r.gauge("etcd_disk_defrag_inflight", "1 while the store is being defragmented, else 0."),
        }
    }
}

/// Moved by the front door.
pub(crate) struct Client {
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
}

impl Client {
    pub(super) fn register(r: &Registrar) -> Client {
        r.describe_counter("etcd_server_client_requests_total", "Requests by the API version the client states.");
        Client {
            received_bytes: r.counter(
                "etcd_network_client_grpc_received_bytes_total",
                "Bytes of the messages received from gRPC clients.",
            ),
            sent_bytes: r
                .counter("etcd_network_client_grpc_sent_bytes_total", "Bytes of the messages sent to gRPC clients."),
        }
    }
}

/// Moved by the health pages, beside the series of each check, see [`super::Metrics::checked`].
pub(crate) struct Health {
    pub(crate) successes: Counter,
    pub(crate) failures: Counter,
}

impl Health {
    pub(super) fn register(r: &Registrar) -> Health {
        r.describe_counter("etcd_server_healthchecks_total", "Health checks by page, check and outcome.");
        Health {
            successes: r.counter("etcd_server_health_success", "Answers of /health that said healthy."),
            failures: r.counter("etcd_server_health_failures", "Answers of /health that said unhealthy."),
        }
    }
}
