//! Members that lack more than the others' logs hold are given the whole state.

use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::client::Client;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::subject::Subject;

use crate::{Watching, block_on, get, put};

/// The log is cut every hundred entries and keeps ten: whoever misses a few hundred needs more than the log.
const SHORT_LOG: [&str; 3] = ["--snapshot-count=100", "--snapshot-catchup-entries=10", "--strict-reconfig-check=false"];
const DONE_WITHIN: Duration = Duration::from_secs(60);
/// Two election timeouts and some.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(2_500);
const POLL: Duration = Duration::from_millis(20);

/// Writes keys `key/0` and so on, each with a value of so many bytes, many at a time.
async fn fill(client: &Client, key: &str, count: usize, value_bytes: usize) {
    let value = Bytes::from(vec![b'v'; value_bytes]);
    let numbers: Vec<usize> = (0..count).collect();
    for some in numbers.chunks(64) {
        let puts = some.iter().map(|number| {
            let mut kv = client.kv.clone();
            let request = pb::PutRequest {
                key: format!("{key}/{number}").into(),
                value: value.clone(),
                ..pb::PutRequest::default()
            };
            async move { kv.put(request).await }
        });
        for answer in futures::future::join_all(puts).await {
            answer.expect("two members of three take writes");
        }
    }
}

/// Waits for a line of a member's log.
async fn says(cluster: &Cluster, number: usize, words: &str, times: usize) {
    let deadline = Deadline::after(DONE_WITHIN);
    while cluster.members[number].log().matches(words).count() < times {
        assert!(!deadline.has_passed(), "never said {words:?}:\n{}", cluster.members[number].log_tail());
        tokio::time::sleep(POLL).await;
    }
}

#[test]
fn a_member_that_slept_past_the_log_has_everything_again_and_keeps_it() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &SHORT_LOG).await;
        fill(&cluster.client(0), "old", 200, 100).await;
        cluster.aligned().await;
        let leader = cluster.leader().await;
        let sleeper = cluster.follower().await;
        cluster.members[sleeper].kill();
        // Whoever was heard of within an election timeout is waited for: the log keeps what it lacks.
        tokio::time::sleep(FORGOTTEN_AFTER).await;

        let mut client = cluster.client(leader);
        fill(&client, "new", 1_000, 1_000).await;
        let delete = pb::DeleteRangeRequest { key: "old/".into(), range_end: "old0".into(), ..Default::default() };
        client.kv.delete_range(delete).await.unwrap();
        let grant = pb::LeaseGrantRequest { ttl: 600, id: 77 };
        client.lease.lease_grant(grant).await.unwrap();
        let leased = pb::PutRequest { key: "leased".into(), lease: 77, ..pb::PutRequest::default() };
        client.kv.put(leased).await.unwrap();
        let revision = put(&mut client, "last", "1").await.unwrap();
        client.kv.compact(pb::CompactionRequest { revision: revision - 5, physical: false }).await.unwrap();

        cluster.members[sleeper].start();
        cluster.members[sleeper].ready().await;
        says(&cluster, sleeper, "applied snapshot", 1).await;
        let aligned = cluster.aligned().await;
        let mut woken = cluster.client(sleeper);
        assert_eq!(get(&mut woken, "last", true).await.unwrap(), "1");
        let query = pb::LeaseTimeToLiveRequest { id: 77, keys: true };
        let lease = woken.lease.lease_time_to_live(query).await.unwrap().into_inner();
        assert_eq!((lease.granted_ttl, lease.keys), (600, vec![Bytes::from("leased")]));
        let old = pb::RangeRequest { key: "last".into(), revision: revision - 9, ..pb::RangeRequest::default() };
        let refused = woken.kv.range(old).await.unwrap_err();
        assert_eq!(refused.message(), "etcdserver: mvcc: required revision has been compacted");
        let mut watch = Watching::open(&mut woken, "last", revision).await;
        assert_eq!(watch.next_revision().await, revision);

        // Started again from what it was given, killed or not.
        for stop in ["TERM", "KILL"] {
            put(&mut client, "last", stop).await.unwrap();
            cluster.aligned().await;
            cluster.members[sleeper].signal(stop);
            cluster.members[sleeper].exited_within(DONE_WITHIN).expect("it ends");
            cluster.members[sleeper].start();
            cluster.members[sleeper].ready().await;
            assert!(cluster.aligned().await.0 > aligned.0);
        }
        assert_eq!(cluster.members[sleeper].log().matches("applied snapshot").count(), 1);
    });
}

#[test]
fn watchers_of_a_member_that_was_given_the_state_miss_nothing() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &SHORT_LOG).await;
        let leader = cluster.leader().await;
        let sleeper = cluster.follower().await;
        let first = put(&mut cluster.client(leader), "w", "0").await.unwrap();
        cluster.aligned().await;
        let mut watch = Watching::open(&mut cluster.client(sleeper), "w", first).await;
        assert_eq!(watch.next_revision().await, first);
        cluster.members[sleeper].signal("STOP");
        tokio::time::sleep(FORGOTTEN_AFTER).await;
        let mut expected = Vec::new();
        for number in 0..5 {
            fill(&cluster.client(leader), "other", 300, 10).await;
            expected.push(put(&mut cluster.client(leader), "w", &number.to_string()).await.unwrap());
        }
        cluster.members[sleeper].signal("CONT");
        for revision in expected {
            assert_eq!(watch.next_revision().await, revision);
        }
        cluster.aligned().await;
        // The connection may have held enough for Raft to go on from the log: then there was nothing to show here.
        let later = put(&mut cluster.client(leader), "w", "later").await.unwrap();
        assert_eq!(watch.next_revision().await, later);
    });
}

#[test]
fn a_member_that_joins_late_is_given_the_state() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &SHORT_LOG).await;
        fill(&cluster.client(0), "k", 500, 1_000).await;
        let joins = cluster.joining(&Subject::kuorum(), &SHORT_LOG);
        let request = pb::MemberAddRequest { peer_ur_ls: vec![cluster.members[joins].peer_url()], is_learner: false };
        cluster.client(0).cluster.member_add(request).await.unwrap();
        cluster.members[joins].start();
        cluster.members[joins].ready().await;
        says(&cluster, joins, "applied snapshot", 1).await;
        put(&mut cluster.client(joins), "k", "joined").await.unwrap();
        cluster.aligned().await;
    });
}

/// Killed at any moment of it, the member comes back with the old state or the new one, and is then given the rest.
#[test]
fn a_member_that_dies_while_it_is_given_the_state_is_given_it_again() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &SHORT_LOG).await;
        let leader = cluster.leader().await;
        let sleeper = cluster.follower().await;
        for round in 0..8_u64 {
            cluster.members[sleeper].kill();
            fill(&cluster.client(leader), &format!("round{round}"), 300, 10_000).await;
            cluster.members[sleeper].start();
            let before = cluster.members[sleeper].log().matches("established TCP streaming connection").count();
            says(&cluster, sleeper, "established TCP streaming connection", before + 1).await;
            tokio::time::sleep(Duration::from_millis(40 * round)).await;
        }
        cluster.members[sleeper].kill();
        cluster.members[sleeper].start();
        cluster.members[sleeper].ready().await;
        cluster.aligned().await;
        let stores = std::fs::read_dir(cluster.members[sleeper].data_dir().join("member")).unwrap();
        let stores: Vec<String> = stores.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let count = stores.iter().filter(|name| name.starts_with("store")).count();
        assert!(count <= 2, "{stores:?}");
    });
}
