//! Answers of the Maintenance and Cluster services as text.

use kuorum_proto::etcdserverpb as pb;

use super::header;
use crate::names::Names;

/// The hash is written: two servers with one history have one hash.
pub(crate) fn hash_kv(answer: &pb::HashKvResponse, names: &Names) -> String {
    let pb::HashKvResponse { header: head, hash, compact_revision, hash_revision } = answer;
    format!(
        "hashkv {} hash={hash:08x} compacted={} at={}",
        header(head.as_ref(), names),
        show_compaction(*compact_revision, names),
        names.show_revision(*hash_revision)
    )
}

/// A store that was never compacted says -1.
fn show_compaction(revision: i64, names: &Names) -> String {
    match revision {
        -1 => "never".to_owned(),
        revision => names.show_revision(revision),
    }
}

/// Sizes and indexes are only said to be there.
pub(crate) fn status(answer: &pb::StatusResponse, names: &Names) -> String {
    let pb::StatusResponse {
        header: head,
        version,
        db_size,
        leader,
        raft_index,
        raft_term,
        raft_applied_index,
        errors,
        db_size_in_use,
        is_learner,
        storage_version,
        db_size_quota,
        downgrade_info,
    } = answer;
    let downgrade = match downgrade_info {
        None => "no downgrade info".to_owned(),
        Some(pb::DowngradeInfo { enabled, target_version }) => {
            format!("downgrade enabled={enabled} target={target_version:?}")
        }
    };
    let shown: Vec<String> = errors.iter().map(|text| names.show_text(text)).collect();
    let facts = [
        (*db_size > 0, "size"),
        (*db_size_in_use > 0 && db_size_in_use <= db_size, "in use"),
        (*raft_index > 0, "index"),
        (*raft_applied_index > 0 && raft_applied_index <= raft_index, "applied"),
        (*raft_term == names.own.raft_term, "term"),
    ];
    let missing: Vec<&str> = facts.iter().filter(|(holds, _)| !holds).map(|(_, name)| *name).collect();
    format!(
        "status {} version={version} storage={storage_version} leader={} learner={is_learner} quota={db_size_quota} \
         errors={shown:?} {downgrade} wrong={missing:?}",
        header(head.as_ref(), names),
        names.show_member(*leader)
    )
}

pub(crate) fn alarms(answer: &pb::AlarmResponse, names: &Names) -> String {
    let pb::AlarmResponse { header: head, alarms } = answer;
    let mut shown: Vec<String> = alarms
        .iter()
        .map(|pb::AlarmMember { member_id, alarm }| {
            let kind = match *alarm {
                0 => "none".to_owned(),
                1 => "nospace".to_owned(),
                2 => "corrupt".to_owned(),
                other => other.to_string(),
            };
            format!("{kind} {}", names.show_member(*member_id))
        })
        .collect();
    shown.sort_unstable();
    format!("alarms {} [{}]", header(head.as_ref(), names), shown.join("; "))
}

pub(crate) fn downgrade(answer: &pb::DowngradeResponse, names: &Names) -> String {
    let pb::DowngradeResponse { header: head, version } = answer;
    format!("downgrade {} version={version:?}", header(head.as_ref(), names))
}

/// Members in the order in which they came, which is by id and so differs between servers: sorted here.
pub(crate) fn members(verb: &str, head: Option<&pb::ResponseHeader>, members: &[pb::Member], names: &Names) -> String {
    let ids: Vec<u64> = members.iter().map(|member| member.id).collect();
    let order = if ids.is_sorted() { "" } else { " (not by id)" };
    let mut shown: Vec<String> = members.iter().map(|one| member(one, names)).collect();
    shown.sort_unstable();
    format!("{verb} {}{order} [{}]", header(head, names), shown.join("; "))
}

fn member(member: &pb::Member, names: &Names) -> String {
    let pb::Member { id, name, peer_ur_ls, client_ur_ls, is_learner } = member;
    format!(
        "{} name={name:?} peer={} client={}{}",
        names.show_member(*id),
        names.show_text(&peer_ur_ls.join(",")),
        names.show_text(&client_ur_ls.join(",")),
        if *is_learner { " learner" } else { "" }
    )
}
