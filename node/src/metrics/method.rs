//! Counts by gRPC method. Every method and code exists from the start with its zero, since dashboards subtract one
//! series from another (open streams are started minus handled).

use ::metrics::{Counter, Histogram};

use super::registrar::Registrar;
use crate::rpc::method::{Kind, Method};

/// The names that grpc-go gives the codes, in the order of their numbers.
pub(super) const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

pub(crate) struct MethodCounts(Vec<Counts>);

struct Counts {
    started: Counter,
    received: Counter,
    sent: Counter,
    handled: [Counter; CODES.len()],
    /// Only with `--metrics=extensive`.
    seconds: Option<Histogram>,
}

impl MethodCounts {
    pub(super) fn register(r: &Registrar, extensive: bool) -> MethodCounts {
        r.describe_counter("grpc_server_started_total", "Calls started.");
        r.describe_counter("grpc_server_msg_received_total", "Messages received from clients.");
        r.describe_counter("grpc_server_msg_sent_total", "Messages sent to clients.");
        r.describe_counter("grpc_server_handled_total", "Calls ended, by code.");
        MethodCounts(Method::ALL.iter().map(|method| Counts::register(r, *method, extensive)).collect())
    }

    pub(crate) fn started(&self, method: Method) {
        self.0[method.number()].started.increment(1);
    }

    pub(crate) fn received(&self, method: Method) {
        self.0[method.number()].received.increment(1);
    }

    pub(crate) fn sent(&self, method: Method) {
        self.0[method.number()].sent.increment(1);
    }

    /// Whether latencies are wanted, so that others need not read the clock.
    pub(crate) fn is_extensive(&self) -> bool {
        self.0[0].seconds.is_some()
    }

    /// `code` is the gRPC code's number.
    pub(crate) fn handled(&self, method: Method, code: usize, seconds: Option<f64>) {
        let counts = &self.0[method.number()];
        counts.handled[code].increment(1);
        if let (Some(histogram), Some(seconds)) = (&counts.seconds, seconds) {
            histogram.record(seconds);
        }
    }
}

impl Counts {
    fn register(r: &Registrar, method: Method, extensive: bool) -> Counts {
        let kind = match method.kind() {
            Kind::Unary => "unary",
            Kind::ClientStream => "client_stream",
            Kind::ServerStream => "server_stream",
            Kind::BothStream => "bidi_stream",
        };
        let labels = [("grpc_type", kind), ("grpc_service", method.service()), ("grpc_method", method.name())];
        let [kind, service, name] = labels;
        Counts {
            started: r.labelled_counter("grpc_server_started_total", labels),
            received: r.labelled_counter("grpc_server_msg_received_total", labels),
            sent: r.labelled_counter("grpc_server_msg_sent_total", labels),
            handled: CODES.map(|code| {
                r.labelled_counter("grpc_server_handled_total", [kind, service, name, ("grpc_code", code)])
            }),
            seconds: extensive.then(|| {
                r.labelled_histogram("grpc_server_handling_seconds", "Time from a call's start to its end.", labels)
            }),
        }
    }
}
