//! What is counted of each other member. The series appear with the member, as in etcd.

use ::metrics::{Counter, Gauge, Histogram};

use super::registrar::Registrar;

const SENT: &str = "etcd_network_peer_sent_bytes_total";
const SENT_FAILURES: &str = "etcd_network_peer_sent_failures_total";
const RECEIVED: &str = "etcd_network_peer_received_bytes_total";
const DISCONNECTED: &str = "etcd_network_disconnected_peers_total";

/// Moved by the connections to one member.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) sent_bytes: Counter,
    pub(crate) sent_failures: Counter,
    pub(crate) received_bytes: Counter,
    /// From a heartbeat to its answer.
    pub(crate) round_trip_seconds: Histogram,
    pub(crate) active: Gauge,
    pub(crate) disconnected: Counter,
    pub(crate) known: Gauge,
}

impl Peer {
    pub(super) fn describe(r: &Registrar) {
        r.describe_counter(SENT, "Bytes sent to the member.");
        r.describe_counter(SENT_FAILURES, "Messages to the member that were lost before they were sent.");
        r.describe_counter(RECEIVED, "Bytes received from the member.");
        r.describe_counter(DISCONNECTED, "How often the connection to the member was lost.");
    }

    /// The series of one member; `local` and `remote` are ids in hexadecimal.
    pub(super) fn register(r: &Registrar, local: &str, remote: &str) -> Peer {
        let (to, both) = ([("To", remote)], [("Local", local), ("Remote", remote)]);
        Peer {
            sent_bytes: r.labelled_counter(SENT, to),
            sent_failures: r.labelled_counter(SENT_FAILURES, to),
            received_bytes: r.labelled_counter(RECEIVED, [("From", remote)]),
            round_trip_seconds: r.labelled_histogram(
                "etcd_network_peer_round_trip_time_seconds",
                "Time from a heartbeat to the member's answer.",
                to,
            ),
            active: r.labelled_gauge("etcd_network_active_peers", "1 while there is a connection, else 0.", both),
            disconnected: r.labelled_counter(DISCONNECTED, both),
            known: r.labelled_gauge("etcd_network_known_peers", "1 for each other member.", both),
        }
    }
}
