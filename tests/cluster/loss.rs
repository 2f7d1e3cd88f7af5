//! What clients see of a cluster that has lost members.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::subject::Subject;
use tonic::Code;

use crate::{block_on, get, put};

/// Far more than the ten seconds after which a member that waits for others gives up a request.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(60);

/// Case 53: a minority serves what it has to those who ask for no more, and nothing to those who do.
#[test]
fn a_minority_refuses_writes_and_serves_serializable_reads_until_the_others_are_back() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let leader = cluster.leader().await;
        put(&mut cluster.client(leader), "k", "before").await.unwrap();
        cluster.aligned().await;
        cluster.members[leader].kill();
        let left = cluster.follower().await;
        let mut client = cluster.client(left);
        put(&mut client, "k", "with two").await.unwrap();
        cluster.aligned().await;

        let other = 3 - leader - left;
        cluster.members[other].kill();
        assert_eq!(get(&mut client, "k", true).await.unwrap(), "with two");
        let deadline = Deadline::after(GIVES_UP_WITHIN);
        let refused = put(&mut client, "k", "alone").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        let refused = get(&mut client, "k", false).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(!deadline.has_passed());
        assert_eq!(get(&mut client, "k", true).await.unwrap(), "with two");
        let mut demanding = tonic::Request::new(pb::PutRequest::default());
        demanding.metadata_mut().insert("hasleader", "true".parse().unwrap());
        assert_eq!(client.kv.put(demanding).await.unwrap_err().message(), "etcdserver: no leader");

        for number in [leader, other] {
            cluster.members[number].start();
        }
        for number in [leader, other] {
            cluster.members[number].ready().await;
        }
        put(&mut client, "k", "together").await.unwrap();
        cluster.aligned().await;
        assert_eq!(get(&mut cluster.client(leader), "k", false).await.unwrap(), "together");
    });
}

/// A write that was on its way when its leader died is either done or refused, and those that follow are taken.
#[test]
fn writes_go_on_after_the_leader_is_killed() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        for round in 0..3 {
            let leader = cluster.leader().await;
            let follower = cluster.follower().await;
            let mut client = cluster.client(follower);
            let revision = put(&mut client, "k", &format!("{round} before")).await.unwrap();
            cluster.members[leader].kill();
            // The follower may not know yet that its leader is gone; what it could not send waits for the next.
            let next = put(&mut client, "k", &format!("{round} after")).await.unwrap();
            assert_eq!(next, revision + 1);
            cluster.members[leader].start();
            cluster.members[leader].ready().await;
            assert_eq!(get(&mut cluster.client(leader), "k", false).await.unwrap(), format!("{round} after"));
        }
        cluster.aligned().await;
    });
}

#[test]
fn a_leader_that_is_told_to_stop_hands_over_first() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let leader = cluster.leader().await;
        let follower = cluster.follower().await;
        let mut client = cluster.client(follower);
        let status = client.maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        cluster.members[leader].signal("TERM");
        let exit = cluster.members[leader].exited_within(Duration::from_secs(60)).expect("it stops");
        assert!(exit.success());
        let log = cluster.members[leader].log();
        assert!(log.contains("leadership transfer succeeded"), "{log}");
        put(&mut client, "k", "v").await.unwrap();
        let after = client.maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(after.raft_term, status.raft_term + 1);
    });
}

/// Killed all at once, with writes that one or two of them alone have.
#[test]
fn a_cluster_comes_back_after_all_its_members_are_killed() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        for round in 0..3 {
            let revision = put(&mut cluster.client(round), "k", &round.to_string()).await.unwrap();
            for member in &mut cluster.members {
                member.kill();
            }
            for member in &mut cluster.members {
                member.start();
            }
            for member in &mut cluster.members {
                member.ready().await;
            }
            assert_eq!(get(&mut cluster.client(2 - round), "k", false).await.unwrap(), round.to_string());
            assert_eq!(cluster.aligned().await.0, revision);
        }
    });
}

/// A lease that is renewed lives on under the next leader; one that is not ends, no earlier than promised.
#[test]
fn leases_survive_their_leader() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let leader = cluster.leader().await;
        let follower = cluster.follower().await;
        let mut client = cluster.client(follower);
        let id = client.lease.lease_grant(pb::LeaseGrantRequest { ttl: 4, id: 0 }).await.unwrap().into_inner().id;
        let attached = pb::PutRequest { key: "leased".into(), lease: id, ..pb::PutRequest::default() };
        client.kv.put(attached).await.unwrap();
        cluster.members[leader].kill();
        let promised = Deadline::after(Duration::from_secs(4));
        let mut keep_alive =
            client.lease.lease_keep_alive(tokio_stream::iter([pb::LeaseKeepAliveRequest { id }])).await.unwrap();
        assert_eq!(keep_alive.get_mut().message().await.unwrap().unwrap().ttl, 4);
        let range = || pb::RangeRequest { key: "leased".into(), ..pb::RangeRequest::default() };
        let gone_by = Deadline::after(GIVES_UP_WITHIN);
        while client.kv.range(range()).await.unwrap().into_inner().count == 1 {
            assert!(!gone_by.has_passed(), "the lease never runs out");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(promised.has_passed(), "the lease ran out early");
    });
}
