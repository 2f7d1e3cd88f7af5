//! grpc.health.v1: the whole server, named by the empty service, is serving as long as it answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message;

use super::Node;
use super::status::Fault;

/// `ServingStatus.SERVING`.
const SERVING: i32 = 1;
/// `ServingStatus.SERVICE_UNKNOWN`.
const SERVICE_UNKNOWN: i32 = 3;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HealthListRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthListResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    statuses: BTreeMap<String, HealthCheckResponse>,
}

/// # Errors
/// For a service whose health nobody keeps.
pub(crate) async fn check(_node: Arc<Node>, request: HealthCheckRequest) -> Result<HealthCheckResponse, Fault> {
    serving(&request).ok_or(Fault::UnknownHealthService)
}

pub(crate) async fn list(_node: Arc<Node>, _request: HealthListRequest) -> Result<HealthListResponse, Fault> {
    Ok(HealthListResponse { statuses: [(String::new(), HealthCheckResponse { status: SERVING })].into() })
}

/// The first message of a watch; no other follows, since the status does not change while the server runs.
pub(crate) fn first(request: &HealthCheckRequest) -> HealthCheckResponse {
    serving(request).unwrap_or(HealthCheckResponse { status: SERVICE_UNKNOWN })
}

fn serving(request: &HealthCheckRequest) -> Option<HealthCheckResponse> {
    request.service.is_empty().then_some(HealthCheckResponse { status: SERVING })
}
