//! The Maintenance service: standing, alarms, hashes, defragmentation.

use std::sync::Arc;

use kuorum_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse, DowngradeInfo,
    HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest, MoveLeaderResponse, StatusRequest,
    StatusResponse, alarm_request,
};

use super::{CLUSTER_VERSION, Node, refusal_of, status, unexpected};
use crate::apply::Reply;
use crate::cluster::{self, MemberId};
use crate::config::ETCD_VERSION;
use crate::metrics;
use crate::mvcc;
use crate::refusal::Refusal;

/// This member as it is now. Not linearizable: it must be answered when nothing else is.
pub(crate) async fn status(node: Arc<Node>, _request: StatusRequest) -> Result<StatusResponse, Refusal> {
    let raft = node.consensus.status();
    let sizes = node.sizes();
    let mut errors = Vec::new();
    if raft.leader.is_none() {
        errors.push(status::text(&Refusal::NoLeader).into_owned());
    }
    errors.extend(node.alarms.list(AlarmType::None.into()).iter().map(alarm_text));
    // etcd's clients know no alarm for this, and print what stands here.
    errors.extend(node.roster.quarantined().into_iter().map(|plugin| format!("plugin {plugin} is quarantined")));
    errors
        .extend(node.roster.unready().into_iter().map(|plugin| format!("plugin {plugin} is not ready on this member")));
    Ok(StatusResponse {
        header: Some(node.header()),
        version: ETCD_VERSION.to_owned(),
        db_size: i64::try_from(sizes.allocated_bytes).unwrap_or(i64::MAX),
        leader: raft.leader.map_or(0, |leader| leader.0),
        raft_index: raft.committed,
        raft_term: raft.term,
        raft_applied_index: raft.applied,
        errors,
        db_size_in_use: i64::try_from(sizes.allocated_in_use_bytes()).unwrap_or(i64::MAX),
        is_learner: node.is_learner(),
        storage_version: CLUSTER_VERSION.to_owned(),
        db_size_quota: node.quota_bytes(),
        downgrade_info: Some(DowngradeInfo::default()),
    })
}

/// An alarm as Go prints the message, which is what `etcdctl endpoint status` shows.
fn alarm_text(alarm: &AlarmMember) -> String {
    let member = match alarm.member_id {
        0 => String::new(),
        id => format!("memberID:{id}  "),
    };
    match AlarmType::try_from(alarm.alarm) {
        Ok(kind) => format!("{member}alarm:{}", kind.as_str_name()),
        Err(_) => format!("{member}alarm:{}", alarm.alarm),
    }
}

pub(crate) async fn alarm(node: Arc<Node>, request: AlarmRequest) -> Result<AlarmResponse, Refusal> {
    if request.action == i32::from(alarm_request::AlarmAction::Get) {
        // etcd sends even this through the log, so that it fails where nothing can be agreed on; a barrier does the same.
        node.consensus.read_barrier().await?;
        let alarms = node.alarms.list(request.alarm);
        return Ok(AlarmResponse { header: Some(node.header()), alarms });
    }
    let command = node.gate.alarm(request)?;
    match node.consensus.propose(command).await? {
        Reply::Alarm(mut response) => {
            node.complete(&mut response.header);
            Ok(response)
        }
        other => Err(unexpected("an alarm", &other)),
    }
}

pub(crate) async fn defragment(node: Arc<Node>, _request: DefragmentRequest) -> Result<DefragmentResponse, Refusal> {
    node.upkeep.defragment().await?;
    Ok(DefragmentResponse::default())
}

pub(crate) async fn hash(node: Arc<Node>, _request: HashRequest) -> Result<HashResponse, Refusal> {
    let store = node.store.get();
    let (revision, hash) = off_shard(move || {
        let started = tokio::time::Instant::now();
        let hash = store.hash_all(&[cluster::IDENTITY_ROW]).map_err(|error| Refusal::Internal(error.to_string()))?;
        metrics::get().mvcc.hash_seconds.record(started.elapsed().as_secs_f64());
        Ok((store.revision(), hash))
    })
    .await?;
    Ok(HashResponse { header: Some(node.facts.header(revision.0)), hash })
}

pub(crate) async fn hash_kv(node: Arc<Node>, request: HashKvRequest) -> Result<HashKvResponse, Refusal> {
    let store = node.store.get();
    let hash: mvcc::KvHash = off_shard(move || {
        let started = tokio::time::Instant::now();
        let hash = store.hash(request.revision).map_err(refusal_of)?;
        metrics::get().mvcc.hash_revision_seconds.record(started.elapsed().as_secs_f64());
        Ok(hash)
    })
    .await?;
    Ok(HashKvResponse {
        header: Some(node.facts.header(hash.revision.0)),
        hash: hash.hash,
        compact_revision: hash.compact_revision,
        hash_revision: hash.hash_revision,
    })
}

/// Hands leadership over, and answers once another member leads. Handing it to the leader itself changes nothing.
pub(crate) async fn move_leader(node: Arc<Node>, request: MoveLeaderRequest) -> Result<MoveLeaderResponse, Refusal> {
    if !node.consensus.status().is_leader {
        return Err(Refusal::NotLeader);
    }
    let target = MemberId(request.target_id);
    match node.members.get(target) {
        None => Err(Refusal::BadLeaderTransferee),
        Some(member) if member.is_learner => Err(Refusal::BadLeaderTransferee),
        Some(_) => node.consensus.transfer(target).await.map(|()| MoveLeaderResponse::default()),
    }
}

/// Runs what reads the whole store where no other request waits for it.
pub(super) async fn off_shard<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Refusal::Internal(format!("the work was given up: {error}")))?
}
