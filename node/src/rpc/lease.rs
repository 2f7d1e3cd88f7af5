//! The Lease service. Grants and revocations go through the log; renewals and remaining time are the leader's to know.

use std::sync::Arc;

use kuorum_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};

use super::{Node, unexpected};
use crate::apply::Reply;
use crate::lease::LeaseId;
use crate::maintenance::clock::now_ms;
use crate::metrics;
use crate::refusal::Refusal;

pub(crate) async fn grant(node: Arc<Node>, mut request: LeaseGrantRequest) -> Result<LeaseGrantResponse, Refusal> {
    while request.id == 0 {
        // A positive number, as etcd chooses; every member then uses the same.
        request.id = rand::random::<i64>() & i64::MAX;
    }
    let command = node.admitted(node.gate.lease_grant(request)).await?;
    match node.consensus.propose(command).await? {
        Reply::LeaseGrant(mut response) => {
            node.complete(&mut response.header);
            Ok(response)
        }
        other => Err(unexpected("a grant", &other)),
    }
}

pub(crate) async fn revoke(node: Arc<Node>, request: LeaseRevokeRequest) -> Result<LeaseRevokeResponse, Refusal> {
    let command = node.gate.lease_revoke(request)?;
    match node.consensus.propose(command).await? {
        Reply::LeaseRevoke(mut response) => {
            node.complete(&mut response.header);
            Ok(response)
        }
        other => Err(unexpected("a revocation", &other)),
    }
}

/// Renews a lease; an unknown one is answered with a TTL of zero.
pub(crate) async fn keep_alive(node: &Node, request: LeaseKeepAliveRequest) -> Result<LeaseKeepAliveResponse, Refusal> {
    // The header is taken before the renewal: a client must not see a renewal at a revision later than a revocation.
    let header = Some(node.header());
    let id = LeaseId(request.id);
    let mut ttl = renew(node, id)?;
    if ttl.is_none() {
        // The grant may be committed and not applied here yet.
        node.consensus.read_barrier().await?;
        ttl = renew(node, id)?;
    }
    Ok(LeaseKeepAliveResponse { header, id: request.id, ttl: ttl.unwrap_or(0) })
}

fn renew(node: &Node, id: LeaseId) -> Result<Option<i64>, Refusal> {
    check_leads(node)?;
    let ttl = node.leases.keep_alive(id, now_ms(node.started));
    if ttl.is_some() {
        metrics::get().lease.renewed.increment(1);
    }
    Ok(ttl)
}

/// Only the leader's clock counts.
fn check_leads(node: &Node) -> Result<(), Refusal> {
    let status = node.consensus.status();
    match status.leader {
        None => Err(Refusal::NoLeader),
        Some(_) if !status.is_leader => {
            Err(Refusal::Unimplemented("asking the leader about a lease from another member is not in this release"))
        }
        Some(_) => Ok(()),
    }
}

pub(crate) async fn time_to_live(
    node: Arc<Node>,
    request: LeaseTimeToLiveRequest,
) -> Result<LeaseTimeToLiveResponse, Refusal> {
    node.consensus.read_barrier().await?;
    check_leads(&node)?;
    let header = Some(node.header());
    let Some(lease) = node.leases.time_to_live(LeaseId(request.id), now_ms(node.started)) else {
        return Ok(LeaseTimeToLiveResponse { header, id: request.id, ttl: -1, ..LeaseTimeToLiveResponse::default() });
    };
    Ok(LeaseTimeToLiveResponse {
        header,
        id: request.id,
        ttl: lease.remaining_ttl_seconds,
        granted_ttl: lease.granted_ttl_seconds,
        keys: if request.keys { lease.keys } else { Vec::new() },
    })
}

/// The leases this member knows of; not linearizable, in etcd as here.
pub(crate) async fn leases(node: Arc<Node>, _request: LeaseLeasesRequest) -> Result<LeaseLeasesResponse, Refusal> {
    let leases = node.leases.list().into_iter().map(|id| LeaseStatus { id: id.0 }).collect();
    Ok(LeaseLeasesResponse { header: Some(node.header()), leases })
}
