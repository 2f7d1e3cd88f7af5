//! The Cluster service: who the members are. Changing them is not in this release.

use std::sync::Arc;

use kuorum_proto::etcdserverpb::{Member, MemberListRequest, MemberListResponse};

use super::Node;
use crate::cluster;
use crate::refusal::Refusal;

pub(crate) async fn member_list(node: Arc<Node>, request: MemberListRequest) -> Result<MemberListResponse, Refusal> {
    if request.linearizable {
        node.consensus.read_barrier().await?;
    }
    let members = node.members.list().into_iter().map(to_wire).collect();
    // Headers of this service carry no revision, in etcd as here.
    Ok(MemberListResponse { header: Some(node.facts.header(0)), members })
}

fn to_wire(member: cluster::Member) -> Member {
    Member {
        id: member.id.0,
        name: member.name,
        peer_ur_ls: member.peer_urls,
        client_ur_ls: member.client_urls,
        is_learner: member.is_learner,
    }
}
