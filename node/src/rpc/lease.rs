//! The Lease service. Grants and revocations go through the log; renewals and remaining time are the leader's to know.

use std::net::SocketAddr;
use std::sync::Arc;

use kuorum_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse,
};

use super::judged::{self, Judge};
use super::leader::{self, What};
use super::{Node, unexpected};
use crate::admission::Gate;
use crate::apply::Reply;
use crate::lease::{LeaseId, Renewal};
use crate::maintenance::clock::now_ms;
use crate::metrics;
use crate::refusal::Refusal;

pub(crate) async fn grant(
    node: Arc<Node>,
    mut request: LeaseGrantRequest,
    peer: SocketAddr,
) -> Result<LeaseGrantResponse, Refusal> {
    // What plugins are shown: 0 where the server chooses.
    let asked_id = request.id;
    while request.id == 0 {
        // A positive number, as etcd chooses; every member then uses the same.
        request.id = rand::random::<i64>() & i64::MAX;
    }
    let ask = move |judge: &Judge<'_>, grant: &LeaseGrantRequest| {
        let shown = LeaseGrantRequest { id: asked_id, ttl: grant.ttl };
        judge.ask_grant(&shown)
    };
    let admit = move |judge: &Judge<'_>| judge.node.gate.lease_grant(request, |grant| ask(judge, grant));
    match judged::agreed(&node, peer, admit).await? {
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
    let response = leader::ask(node, What::Renew, &request, keep_alive_here).await?;
    Ok(LeaseKeepAliveResponse { header, ..response })
}

/// The leader's part of a renewal, without a header.
pub(super) async fn keep_alive_here(
    node: &Node,
    request: &LeaseKeepAliveRequest,
) -> Result<LeaseKeepAliveResponse, Refusal> {
    let id = LeaseId(request.id);
    loop {
        let term = leads(node).await?;
        let ttl = match node.leases.keep_alive(id, now_ms(node.started), term) {
            Renewal::Renewed(ttl) => {
                metrics::get().lease.renewed.increment(1);
                ttl
            }
            Renewal::Gone => 0,
            Renewal::TakeBackFirst => {
                // On every member, or the next leader would give the lease less than the renewal promises.
                node.consensus.propose(Gate::lease_renewed(id)).await?;
                continue;
            }
        };
        return Ok(LeaseKeepAliveResponse { header: None, id: request.id, ttl });
    }
}

/// The term in which this member leads. Confirmed by a quorum, since a deposed leader must renew nothing, and with every
/// lease applied that was granted before the call.
async fn leads(node: &Node) -> Result<u64, Refusal> {
    let before = node.consensus.status();
    if !before.is_leader {
        return Err(Refusal::NotLeader);
    }
    node.consensus.read_barrier().await?;
    let after = node.consensus.status();
    if !after.is_leader || after.term != before.term {
        return Err(Refusal::NotLeader);
    }
    Ok(after.term)
}

pub(crate) async fn time_to_live(
    node: Arc<Node>,
    request: LeaseTimeToLiveRequest,
) -> Result<LeaseTimeToLiveResponse, Refusal> {
    let mut response = leader::ask(&node, What::TimeToLive, &request, time_to_live_here).await?;
    response.header = Some(node.header());
    Ok(response)
}

/// The leader's part of the answer, without a header.
pub(super) async fn time_to_live_here(
    node: &Node,
    request: &LeaseTimeToLiveRequest,
) -> Result<LeaseTimeToLiveResponse, Refusal> {
    let term = leads(node).await?;
    let Some(lease) = node.leases.time_to_live(LeaseId(request.id), now_ms(node.started), term) else {
        return Ok(LeaseTimeToLiveResponse { id: request.id, ttl: -1, ..LeaseTimeToLiveResponse::default() });
    };
    Ok(LeaseTimeToLiveResponse {
        header: None,
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
