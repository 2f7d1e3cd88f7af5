//! What clients see of a cluster that is whole.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::subject::Subject;
use tonic::Code;

use crate::{block_on, get, put};

const WRITES: usize = 50;

#[test]
fn every_member_takes_writes_and_reads_what_any_has_written() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        for number in 0..WRITES {
            let (writer, reader) = (number % 3, (number + 1) % 3);
            put(&mut cluster.client(writer), "k", &number.to_string()).await.unwrap();
            let read = get(&mut cluster.client(reader), "k", false).await.unwrap();
            assert_eq!(read, number.to_string(), "written by {writer}, read from {reader}");
        }
        let (revision, _) = cluster.aligned().await;
        assert_eq!(revision, 1 + i64::try_from(WRITES).unwrap());
    });
}

#[test]
fn members_have_the_ids_that_etcd_gives_them() {
    block_on(async {
        let ids = async |subject: &Subject, ports: Option<&Cluster>| {
            let mut cluster = Cluster::new(subject, 3, &[]);
            if let Some(other) = ports {
                // The ids come from the URLs, so both clusters need the same.
                for (member, other) in cluster.members.iter_mut().zip(&other.members) {
                    (member.peer_port, member.flags) = (other.peer_port, other.flags.clone());
                }
            }
            for member in &mut cluster.members {
                member.start();
            }
            for member in &mut cluster.members {
                member.ready().await;
            }
            // A name comes with the member's first own entry.
            let members = loop {
                let list = cluster.client(0).cluster.member_list(pb::MemberListRequest { linearizable: true }).await;
                let list = list.unwrap().into_inner();
                if list.members.iter().all(|member| !member.name.is_empty()) {
                    break (
                        list.header.unwrap().cluster_id,
                        list.members.into_iter().map(|member| (member.id, member.name)).collect::<Vec<_>>(),
                    );
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            for member in &mut cluster.members {
                member.kill();
            }
            (cluster, members)
        };
        let (ours, our_ids) = ids(&Subject::kuorum(), None).await;
        let (_, their_ids) = ids(&Subject::etcd(), Some(&ours)).await;
        assert_eq!(our_ids, their_ids);
    });
}

#[test]
fn leadership_moves_when_asked_and_no_write_fails_meanwhile() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        for round in 0..6 {
            let (leader, follower) = (cluster.leader().await, cluster.follower().await);
            let status = cluster.client(follower).maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
            let target_id = status.header.unwrap().member_id;
            let refused = cluster.client(follower).maintenance.move_leader(pb::MoveLeaderRequest { target_id }).await;
            assert_eq!(refused.unwrap_err().message(), "etcdserver: not leader");
            let writes: Vec<_> = (0..3)
                .map(|number| {
                    let mut client = cluster.client(number);
                    tokio::spawn(async move {
                        for write in 0..20 {
                            put(&mut client, &format!("{number}"), &format!("{round} {write}")).await.unwrap();
                        }
                    })
                })
                .collect();
            cluster.client(leader).maintenance.move_leader(pb::MoveLeaderRequest { target_id }).await.unwrap();
            for write in writes {
                write.await.unwrap();
            }
            assert_eq!(cluster.leader().await, follower);
        }
        let unknown = pb::MoveLeaderRequest { target_id: 1 };
        let leader = cluster.leader().await;
        let refused = cluster.client(leader).maintenance.move_leader(unknown).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::FailedPrecondition, "etcdserver: bad leader transferee")
        );
        cluster.aligned().await;
    });
}

#[test]
fn a_lease_is_renewed_and_looked_at_through_any_member() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let follower = cluster.follower().await;
        let mut client = cluster.client(follower);
        let id = client.lease.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 0 }).await.unwrap().into_inner().id;
        for number in 0..3 {
            let mut client = cluster.client(number);
            let requests = tokio_stream::iter([pb::LeaseKeepAliveRequest { id }, pb::LeaseKeepAliveRequest { id: 9 }]);
            let mut answers = client.lease.lease_keep_alive(requests).await.unwrap().into_inner();
            assert_eq!(answers.message().await.unwrap().unwrap().ttl, 60);
            assert_eq!(answers.message().await.unwrap().unwrap().ttl, 0, "of a lease that nobody knows");
            let request = pb::LeaseTimeToLiveRequest { id, keys: true };
            let lease = client.lease.lease_time_to_live(request).await.unwrap().into_inner();
            assert!(lease.ttl >= 50 && lease.granted_ttl == 60, "{lease:?}");
        }
    });
}
