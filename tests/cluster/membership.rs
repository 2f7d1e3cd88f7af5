//! Members that are added, promoted, moved and removed while the cluster serves.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::subject::Subject;
use tonic::{Code, Status};

use crate::{block_on, get, put};

/// What a member does within a second or two hangs when it is not done by then.
const DONE_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Changes that need a healthy cluster are taken five seconds after its members have met, as in etcd.
const STRICT_OFF: &str = "--strict-reconfig-check=false";

async fn add(cluster: &Cluster, asked: usize, joins: usize, is_learner: bool) -> Result<pb::Member, Status> {
    let peer_ur_ls = vec![cluster.members[joins].peer_url()];
    let request = pb::MemberAddRequest { peer_ur_ls, is_learner };
    let response = cluster.client(asked).cluster.member_add(request).await?.into_inner();
    Ok(response.member.expect("the answer names the member"))
}

async fn remove(cluster: &Cluster, asked: usize, id: u64) -> Result<Vec<pb::Member>, Status> {
    let request = pb::MemberRemoveRequest { id };
    Ok(cluster.client(asked).cluster.member_remove(request).await?.into_inner().members)
}

async fn id_of(cluster: &Cluster, number: usize) -> u64 {
    let status = cluster.client(number).maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    status.header.unwrap().member_id
}

/// Promotes a learner, as often as it takes until the learner has come far enough.
async fn promote(cluster: &Cluster, asked: usize, id: u64) -> Result<(), Status> {
    let deadline = Deadline::after(DONE_WITHIN);
    loop {
        let promoted = cluster.client(asked).cluster.member_promote(pb::MemberPromoteRequest { id }).await;
        match promoted {
            Err(status) if status.message().contains("in sync with leader") && !deadline.has_passed() => {
                tokio::time::sleep(POLL).await;
            }
            other => return other.map(|_| ()),
        }
    }
}

#[test]
fn a_cluster_grows_from_one_member_to_three_and_all_have_the_same() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[STRICT_OFF]).await;
        put(&mut cluster.client(0), "k", "alone").await.unwrap();
        let second = cluster.joining(&Subject::kuorum(), &[STRICT_OFF]);
        let added = add(&cluster, 0, second, false).await.unwrap();
        assert_eq!((added.name.as_str(), added.is_learner), ("", false));
        cluster.members[second].start();
        cluster.members[second].ready().await;
        assert_eq!(id_of(&cluster, second).await, added.id);
        assert_eq!(get(&mut cluster.client(second), "k", false).await.unwrap(), "alone");

        // A learner has everything and no vote: writes need the other two, not it.
        let third = cluster.joining(&Subject::kuorum(), &[STRICT_OFF]);
        let learner = add(&cluster, second, third, true).await.unwrap();
        put(&mut cluster.client(0), "k", "without the learner").await.unwrap();
        let unready = cluster.client(0).cluster.member_promote(pb::MemberPromoteRequest { id: learner.id }).await;
        assert_eq!(unready.unwrap_err().code(), Code::FailedPrecondition);
        cluster.members[third].start();
        cluster.members[third].ready().await;
        let mut client = cluster.client(third);
        let refused = get(&mut client, "k", false).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: rpc not supported for learner");
        assert!(put(&mut client, "k", "through a learner").await.is_err());
        cluster.aligned_by_status().await;
        assert_eq!(get(&mut client, "k", true).await.unwrap(), "without the learner");

        let follower = 1 - cluster.leader().await;
        promote(&cluster, follower, learner.id).await.unwrap();
        let again = promote(&cluster, follower, learner.id).await.unwrap_err();
        assert_eq!(again.message(), "etcdserver: can only promote a learner member");
        put(&mut client, "k", "three votes").await.unwrap();
        cluster.aligned().await;
        cluster.members[0].kill();
        put(&mut client, "k", "two of three").await.unwrap();
        cluster.members[0].start();
        cluster.members[0].ready().await;
        cluster.aligned().await;
    });
}

#[test]
fn a_removed_leader_hands_over_ends_and_stays_out() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[STRICT_OFF]).await;
        let leader = cluster.leader().await;
        let (id, other) = (id_of(&cluster, leader).await, (leader + 1) % 3);
        put(&mut cluster.client(leader), "k", "before").await.unwrap();
        let left = remove(&cluster, leader, id).await.unwrap();
        assert_eq!(left.len(), 2);
        let status = cluster.members[leader].exited_within(DONE_WITHIN).expect("a removed member ends");
        assert!(status.success(), "{status}");
        put(&mut cluster.client(other), "k", "after").await.unwrap();
        let missing = remove(&cluster, other, id).await.unwrap_err();
        assert_eq!((missing.code(), missing.message()), (Code::NotFound, "etcdserver: member not found"));

        cluster.members[leader].start();
        let status = cluster.members[leader].exited_within(DONE_WITHIN).expect("a removed member is refused");
        assert!(!status.success());
        let log = cluster.members[leader].log();
        assert!(log.contains("has been permanently removed from the cluster"), "{log}");
        put(&mut cluster.client(other), "k", "still").await.unwrap();
    });
}

/// A member that was away while others came and went finds its way back.
#[test]
fn a_member_that_was_away_meets_those_who_came_meanwhile() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[STRICT_OFF]).await;
        put(&mut cluster.client(0), "k", "three").await.unwrap();
        cluster.aligned().await;
        cluster.members[2].kill();
        let fourth = cluster.joining(&Subject::kuorum(), &[STRICT_OFF]);
        add(&cluster, 0, fourth, false).await.unwrap();
        cluster.members[fourth].start();
        cluster.members[fourth].ready().await;
        put(&mut cluster.client(fourth), "k", "four").await.unwrap();
        // Only the newcomer leads when the other returns.
        let leader = cluster.leader().await;
        if leader != fourth {
            let target_id = id_of(&cluster, fourth).await;
            let request = pb::MoveLeaderRequest { target_id };
            cluster.client(leader).maintenance.move_leader(request).await.unwrap();
        }
        cluster.members[2].start();
        cluster.members[2].ready().await;
        put(&mut cluster.client(2), "k", "together").await.unwrap();
        cluster.aligned().await;
    });
}

#[test]
fn a_member_that_lost_its_data_is_refused_until_it_is_added_anew() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[STRICT_OFF]).await;
        put(&mut cluster.client(0), "k", "v").await.unwrap();
        cluster.aligned().await;
        let id = id_of(&cluster, 2).await;
        cluster.members[2].kill();
        std::fs::remove_dir_all(cluster.members[2].data_dir()).unwrap();
        cluster.members[2].start();
        let status = cluster.members[2].exited_within(DONE_WITHIN).expect("it is refused");
        assert!(!status.success());
        let log = cluster.members[2].log();
        assert!(log.contains("has already been bootstrapped"), "{log}");
        assert!(!cluster.members[2].data_dir().join("member/wal").read_dir().is_ok_and(|mut dir| dir.next().is_some()));

        remove(&cluster, 0, id).await.unwrap();
        add(&cluster, 0, 2, false).await.unwrap();
        cluster.members[2].flags.push("--initial-cluster-state=existing".to_owned());
        cluster.members[2].start();
        cluster.members[2].ready().await;
        put(&mut cluster.client(2), "k", "back").await.unwrap();
        cluster.aligned().await;
    });
}

#[test]
fn a_member_that_was_not_added_can_not_join() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let stranger = cluster.joining(&Subject::kuorum(), &[]);
        cluster.members[stranger].start();
        let status = cluster.members[stranger].exited_within(DONE_WITHIN).expect("it is refused");
        assert!(!status.success());
        let log = cluster.members[stranger].log();
        assert!(log.contains("member count is unequal") && log.contains("member add"), "{log}");
        // Nobody there to ask.
        cluster.members[0].kill();
        cluster.members[stranger].start();
        cluster.members[stranger].exited_within(DONE_WITHIN).expect("it is refused");
        let log = cluster.members[stranger].log();
        assert!(log.contains("no member of --initial-cluster says who the members are"), "{log}");
    });
}

#[test]
fn what_would_cost_the_quorum_is_refused() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let own = id_of(&cluster, 0).await;
        let last = remove(&cluster, 0, own).await.unwrap_err();
        let words = "etcdserver: re-configuration failed due to not enough started members";
        assert_eq!(last.message(), words);
        let (second, third) = (cluster.joining(&Subject::kuorum(), &[]), cluster.joining(&Subject::kuorum(), &[]));
        add(&cluster, 0, second, false).await.unwrap();
        // Two members of which one has not started: a third would make the quorum of the started ones smaller still.
        let refused = add(&cluster, 0, third, false).await.unwrap_err();
        assert_eq!(refused.message(), words);
        let unhealthy = add(&cluster, 0, third, true).await.unwrap_err();
        assert_eq!(unhealthy.message(), "etcdserver: unhealthy cluster");
    });
}

#[test]
fn one_member_goes_on_alone_when_it_is_told_to_and_can_grow_again() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[STRICT_OFF]).await;
        put(&mut cluster.client(0), "k", "three").await.unwrap();
        cluster.aligned().await;
        for member in &mut cluster.members {
            member.kill();
        }
        cluster.members.truncate(1);
        cluster.members[0].flags.push("--force-new-cluster".to_owned());
        for _ in 0..2 {
            cluster.members[0].start();
            cluster.members[0].ready().await;
            assert_eq!(get(&mut cluster.client(0), "k", false).await.unwrap(), "three");
            put(&mut cluster.client(0), "alone", "one").await.unwrap();
            cluster.members[0].kill();
            cluster.members[0].flags.retain(|flag| flag != "--force-new-cluster");
        }
        cluster.members[0].start();
        cluster.members[0].ready().await;
        let second = cluster.joining(&Subject::kuorum(), &[STRICT_OFF]);
        add(&cluster, 0, second, false).await.unwrap();
        cluster.members[second].start();
        cluster.members[second].ready().await;
        put(&mut cluster.client(second), "k", "two").await.unwrap();
        cluster.aligned().await;
    });
}
