//! Plugins where members start again, slept past the log, or join.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::subject::Subject;
use serde_json::Value;

use crate::{block_on, component, inspected, load, prepared, slot, stands};

/// The log is cut every hundred entries and keeps ten: whoever misses a few hundred needs more than the log.
const SHORT_LOG: [&str; 3] = ["--snapshot-count=100", "--snapshot-catchup-entries=10", "--strict-reconfig-check=false"];
const DONE_WITHIN: Duration = Duration::from_secs(60);
/// Two election timeouts and some.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(2_500);
const POLL: Duration = Duration::from_millis(50);

async fn fill(cluster: &Cluster, asked: usize, count: usize) {
    let client = cluster.client(asked);
    for number in 0..count {
        let request = pb::PutRequest { key: format!("k{number}").into(), ..pb::PutRequest::default() };
        client.kv.clone().put(request).await.expect("two members of three take writes");
    }
}

async fn hash(cluster: &Cluster, number: usize) -> u32 {
    let hash = cluster.client(number).maintenance.hash(pb::HashRequest {}).await;
    hash.expect("a running member has a hash").into_inner().hash
}

#[test]
fn members_that_start_again_or_slept_past_the_log_have_the_plugins_too() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &SHORT_LOG).await;
        let leader = cluster.leader().await;
        let sleeper = cluster.follower().await;
        let (one, two) = (component(&cluster, "one", 300_000), component(&cluster, "two", 300_000));
        load(&cluster, leader, &one, &[]).json();
        ask(&cluster.members[leader], &["activate", "guard"]).json();

        for stop in ["TERM", "KILL"] {
            cluster.members[sleeper].signal(stop);
            cluster.members[sleeper].exited_within(DONE_WITHIN).expect("it ends");
            cluster.members[sleeper].start();
            cluster.members[sleeper].ready().await;
            assert_eq!(slot(&inspected(&cluster, sleeper, "guard"), "current"), stands(1, "enforce"));
        }

        cluster.members[sleeper].kill();
        tokio::time::sleep(FORGOTTEN_AFTER).await;
        load(&cluster, leader, &two, &["--wait", "1"]);
        prepared(&cluster, leader, ("guard", "candidate"), 2).await;
        ask(&cluster.members[leader], &["activate", "guard", "--allow-missing-members"]).json();
        fill(&cluster, leader, 400).await;
        cluster.members[sleeper].start();
        cluster.members[sleeper].ready().await;
        let plugin = prepared(&cluster, sleeper, ("guard", "current"), 3).await;
        assert!(cluster.members[sleeper].log().contains("applied snapshot"), "it had enough in its log");
        assert_eq!((slot(&plugin, "current"), slot(&plugin, "previous")), (stands(2, "enforce"), stands(1, "off")));
        let list = ask(&cluster.members[sleeper], &["list"]).json();
        assert_eq!(list["policy_epoch"], 2);
        // Whoever was given the rows has all of them, components too.
        cluster.aligned().await;
        // A mark of the timeline may come between the two, which the one has applied and the other not yet.
        let deadline = Deadline::after(Duration::from_secs(30));
        while hash(&cluster, sleeper).await != hash(&cluster, leader).await {
            assert!(!deadline.has_passed(), "the members differ");
        }

        cluster.members[sleeper].kill();
        cluster.members[sleeper].start();
        cluster.members[sleeper].ready().await;
        let back = ask(&cluster.members[sleeper], &["rollback", "guard"]).json();
        assert_eq!((slot(&back["plugin"], "current"), &back["policy_epoch"]), (stands(1, "enforce"), &Value::from(3)));
    });
}

#[test]
fn a_learner_prepares_what_is_in_force_and_then_may_vote() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &SHORT_LOG).await;
        let one = component(&cluster, "one", 300_000);
        load(&cluster, 0, &one, &[]).json();
        ask(&cluster.members[0], &["activate", "guard"]).json();
        fill(&cluster, 0, 300).await;
        let joins = cluster.joining(&Subject::kuorum(), &SHORT_LOG);
        let request = pb::MemberAddRequest { peer_ur_ls: vec![cluster.members[joins].peer_url()], is_learner: true };
        let added = cluster.client(0).cluster.member_add(request).await.unwrap().into_inner().member.unwrap();
        cluster.members[joins].start();
        cluster.members[joins].ready().await;
        prepared(&cluster, 0, ("guard", "current"), 2).await;
        let deadline = Deadline::after(DONE_WITHIN);
        loop {
            match cluster.client(0).cluster.member_promote(pb::MemberPromoteRequest { id: added.id }).await {
                Ok(_) => break,
                Err(status) => assert!(!deadline.has_passed(), "{status}"),
            }
            tokio::time::sleep(POLL).await;
        }
        // It serves writes once it has applied that it votes.
        fill(&cluster, 0, 1).await;
        cluster.aligned_by_status().await;
        fill(&cluster, joins, 1).await;
        assert_eq!(slot(&inspected(&cluster, joins, "guard"), "current"), stands(1, "enforce"));
    });
}
