//! The Auth service: says that authentication is off. Switching it on is not in this release.

use std::sync::Arc;

use kuorum_proto::etcdserverpb::{AuthStatusRequest, AuthStatusResponse};

use super::Node;
use crate::refusal::Refusal;

/// The revision that etcd's auth store has before anything was done to it.
const AUTH_REVISION_INITIAL: u64 = 1;

pub(crate) async fn status(node: Arc<Node>, _request: AuthStatusRequest) -> Result<AuthStatusResponse, Refusal> {
    Ok(AuthStatusResponse { header: Some(node.header()), enabled: false, auth_revision: AUTH_REVISION_INITIAL })
}
