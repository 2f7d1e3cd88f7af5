//! The Cluster service: who the members are, and changing that.
//!
//! What may not be done for the quorum's sake is looked at here, by the member that was asked, as etcd does; what the
//! members' own list forbids is decided in apply ([`crate::cluster::Change`]).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kuorum_proto::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse, MemberPromoteRequest,
    MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse, MemberUpdateRequest, MemberUpdateResponse,
};

use super::leader::{self, What};
use super::{Node, unexpected};
use crate::admission::Gate;
use crate::apply::Reply;
use crate::cluster::{self, Change, MemberId};
use crate::config::{Scheme, Url};
use crate::metrics;
use crate::refusal::Refusal;

/// How long a member must have been connected to count as healthy (etcd: HealthInterval).
const HEALTHY_AFTER: Duration = Duration::from_secs(5);

/// What the flags say of changes of the members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeRules {
    /// Refuse what would cost the quorum (etcd: --strict-reconfig-check).
    pub(crate) strict: bool,
    /// Learners that may be members at a time (etcd: --max-learners).
    pub(crate) learners_max: usize,
}

pub(crate) async fn member_list(node: Arc<Node>, request: MemberListRequest) -> Result<MemberListResponse, Refusal> {
    if request.linearizable {
        node.consensus.read_barrier().await?;
    }
    let members = to_wire(node.members.list());
    // Headers of this service carry no revision, in etcd as here.
    Ok(MemberListResponse { header: Some(node.facts.header(0)), members })
}

pub(crate) async fn member_add(node: Arc<Node>, request: MemberAddRequest) -> Result<MemberAddResponse, Refusal> {
    let peer_urls = checked_urls(&request.peer_ur_ls)?;
    check_add(&node, request.is_learner)?;
    let id = MemberId::when_added(&peer_urls, unix_seconds());
    let learners_max = node.rules.learners_max;
    let is_learner = request.is_learner;
    let change = Change::Add { id, peer_urls: peer_urls.clone(), is_learner, learners_max };
    let members = carry_out(&node, change).await?;
    Ok(MemberAddResponse {
        header: Some(node.facts.header(0)),
        member: Some(Member { id: id.0, peer_ur_ls: peer_urls, is_learner, ..Member::default() }),
        members,
    })
}

pub(crate) async fn member_remove(
    node: Arc<Node>,
    request: MemberRemoveRequest,
) -> Result<MemberRemoveResponse, Refusal> {
    let id = MemberId(request.id);
    check_remove(&node, id)?;
    let members = carry_out(&node, Change::Remove(id)).await?;
    Ok(MemberRemoveResponse { header: Some(node.facts.header(0)), members })
}

pub(crate) async fn member_update(
    node: Arc<Node>,
    request: MemberUpdateRequest,
) -> Result<MemberUpdateResponse, Refusal> {
    let peer_urls = checked_urls(&request.peer_ur_ls)?;
    let members = carry_out(&node, Change::Update { id: MemberId(request.id), peer_urls }).await?;
    Ok(MemberUpdateResponse { header: Some(node.facts.header(0)), members })
}

/// Makes a learner a voter. Only the leader knows how far a learner has come, so another member asks it.
pub(crate) async fn member_promote(
    node: Arc<Node>,
    request: MemberPromoteRequest,
) -> Result<MemberPromoteResponse, Refusal> {
    let mut response: MemberPromoteResponse = leader::ask(&node, What::Promote, &request, promote_here).await?;
    metrics::get().server.learner_promotions.increment(1);
    response.header = Some(node.facts.header(0));
    Ok(response)
}

/// As [`member_promote`], on the leader.
pub(super) async fn promote_here(
    node: &Node,
    request: &MemberPromoteRequest,
) -> Result<MemberPromoteResponse, Refusal> {
    let id = MemberId(request.id);
    node.consensus.check_caught_up(id).await?;
    // The learner counts as one that has started: it has come as far as the leader.
    if node.rules.strict && !leaves_quorum(&node.members.list(), None, 1, 1) {
        return Err(Refusal::NotEnoughStarted);
    }
    let members = carry_out(node, Change::Promote(id)).await?;
    Ok(MemberPromoteResponse { header: Some(node.facts.header(0)), members })
}

/// Has the change agreed on, and returns the members after it.
async fn carry_out(node: &Node, change: Change) -> Result<Vec<Member>, Refusal> {
    match node.consensus.propose(Gate::membership(change)).await? {
        Reply::Members(members) => Ok(to_wire(members)),
        other => Err(unexpected("a change of the members", &other)),
    }
}

fn check_add(node: &Node, is_learner: bool) -> Result<(), Refusal> {
    if !node.rules.strict {
        return Ok(());
    }
    let members = node.members.list();
    let voters: Vec<_> = members.iter().filter(|member| !member.is_learner).collect();
    // One member may always be joined by a second: there is no other way to grow.
    let is_first = voters.len() == 1 && voters[0].has_started();
    if !is_learner && !is_first && !leaves_quorum(&members, None, 1, 0) {
        return Err(Refusal::NotEnoughStarted);
    }
    // The new one counts as down until it has shown itself.
    if voters.len() > 1 && connected(node, &members) < quorum(voters.len() + 1) {
        return Err(Refusal::Unhealthy);
    }
    Ok(())
}

fn check_remove(node: &Node, id: MemberId) -> Result<(), Refusal> {
    let members = node.members.list();
    let is_learner = members.iter().any(|member| member.id == id && member.is_learner);
    if !node.rules.strict || is_learner {
        return Ok(());
    }
    if !leaves_quorum(&members, Some(id), 0, 0) {
        return Err(Refusal::NotEnoughStarted);
    }
    // One that is down is no part of the active quorum.
    if id != node.facts.member_id && node.peers.connected_for(id).is_none() {
        return Ok(());
    }
    let voters = members.iter().filter(|member| !member.is_learner).count();
    if connected(node, &members).saturating_sub(1) < quorum(voters.saturating_sub(1)) {
        return Err(Refusal::Unhealthy);
    }
    Ok(())
}

/// Whether the voters that have started would be a quorum, without `without` and with so many more voters and started ones.
fn leaves_quorum(members: &[cluster::Member], without: Option<MemberId>, more: usize, more_started: usize) -> bool {
    let voters = members.iter().filter(|member| !member.is_learner && Some(member.id) != without);
    let (mut count, mut started) = (more, more_started);
    for voter in voters {
        count += 1;
        started += usize::from(voter.has_started());
    }
    started >= quorum(count)
}

fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

/// Voters that this member has had a connection to for a while, itself included.
fn connected(node: &Node, members: &[cluster::Member]) -> usize {
    let is_connected = |member: &&cluster::Member| {
        !member.is_learner
            && (member.id == node.facts.member_id
                || node.peers.connected_for(member.id).is_some_and(|connected| connected > HEALTHY_AFTER))
    };
    members.iter().filter(is_connected).count()
}

/// The URLs, sorted, if other members can dial them.
fn checked_urls(texts: &[String]) -> Result<Vec<String>, Refusal> {
    let urls = texts.iter().map(|text| Url::parse(text)).collect::<Result<Vec<Url>, String>>();
    let Ok(mut urls) = urls else { return Err(Refusal::BadMemberUrls) };
    if urls.is_empty() {
        return Err(Refusal::BadMemberUrls);
    }
    if let Some(url) = urls.iter().find(|url| url.scheme() != Scheme::Http) {
        return Err(Refusal::Invalid(format!("peer URL {url}: only http:// is available in this release")));
    }
    urls.sort();
    Ok(urls.into_iter().map(|url| url.text().to_owned()).collect())
}

#[expect(clippy::disallowed_methods, reason = "a member's id comes from the time at which it was added, as in etcd")]
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn to_wire(members: Vec<cluster::Member>) -> Vec<Member> {
    let member = |member: cluster::Member| Member {
        id: member.id.0,
        name: member.name,
        peer_ur_ls: member.peer_urls,
        client_ur_ls: member.client_urls,
        is_learner: member.is_learner,
    };
    members.into_iter().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Voters, named if they have started; ids count from 1.
    fn voters(started: &[bool]) -> Vec<cluster::Member> {
        let member = |(id, started): (u64, &bool)| {
            let mut member = cluster::Member::unstarted(MemberId(id), Vec::new(), false);
            member.name = if *started { "n".to_owned() } else { String::new() };
            member
        };
        (1..).zip(started).map(member).collect()
    }

    #[test]
    fn a_quorum_of_started_voters_must_be_left() {
        let add = |started: &[bool]| leaves_quorum(&voters(started), None, 1, 0);
        assert!(add(&[true, true, true]));
        assert!(!add(&[true]), "but for the first to be added, which the caller lets pass");
        assert!(!add(&[true, true, false]));
        let remove = |started: &[bool]| leaves_quorum(&voters(started), Some(MemberId(1)), 0, 0);
        assert!(remove(&[true, true, true]));
        assert!(!remove(&[true]));
        assert!(!remove(&[true, true, false]));
        assert!(remove(&[false, true]));
        let promote = |started: &[bool]| leaves_quorum(&voters(started), None, 1, 1);
        assert!(promote(&[true]));
        assert!(!promote(&[true, false, false]));
    }

    #[test]
    fn urls_are_sorted_and_such_as_can_be_dialed() {
        let checked = |urls: &[&str]| checked_urls(&urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>());
        assert_eq!(checked(&["http://b:1", "http://a:1"]).unwrap(), ["http://a:1", "http://b:1"]);
        for urls in [&[][..], &["nonsense"], &["http://a"], &["http://a:1", "ftp://a:1"]] {
            assert_eq!(checked(urls), Err(Refusal::BadMemberUrls), "{urls:?}");
        }
        assert!(matches!(checked(&["https://a:1"]), Err(Refusal::Invalid(_))));
    }
}
