//! What is compacted while plugins decide it, and while they don't.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::golden_path;
use kuorum_tests::subject::Subject;

use crate::{block_on, load};

/// The native schedule would leave next to nothing.
const NATIVE: [&str; 2] = ["--auto-compaction-mode=periodic", "--auto-compaction-retention=1s"];
/// No plugin can have the last minute compacted; the marks of the timeline are some seconds apart.
const OLD_WITHIN: Duration = Duration::from_secs(100);
const DONE_WITHIN: Duration = Duration::from_secs(30);
/// A few looks of the native schedule, and of the thread that asks plugins.
const A_WHILE: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(100);

async fn write(cluster: &Cluster, asked: usize, count: usize) -> i64 {
    let client = cluster.client(asked);
    let mut revision = 0;
    for number in 0..count {
        let put = pb::PutRequest { key: format!("k{}", number % 7).into(), ..pb::PutRequest::default() };
        let answer = client.kv.clone().put(put).await.expect("a cluster with a quorum takes writes");
        revision = answer.into_inner().header.expect("every answer has a header").revision;
    }
    revision
}

/// The compacted revision of a member; -1 before the first compaction.
async fn compacted(cluster: &Cluster, asked: usize) -> i64 {
    let hash = cluster.client(asked).maintenance.hash_kv(pb::HashKvRequest { revision: 0 }).await;
    hash.expect("a running member has a hash").into_inner().compact_revision
}

async fn is_compacted_to(cluster: &Cluster, asked: usize, revision: i64, patience: Duration) {
    let deadline = Deadline::after(patience);
    loop {
        let now = compacted(cluster, asked).await;
        if now == revision {
            return;
        }
        assert!(now < revision, "compacted to {now}, past {revision}");
        assert!(!deadline.has_passed(), "compacted to {now}, never to {revision}");
        tokio::time::sleep(POLL).await;
    }
}

async fn stays_compacted_to(cluster: &Cluster, asked: usize, revision: i64) {
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(compacted(cluster, asked).await, revision);
}

/// Revision 1 is that of a new store: the native schedule may have taken it before the plugin was there.
async fn keeps_everything(cluster: &Cluster, asked: usize) {
    tokio::time::sleep(A_WHILE).await;
    let now = compacted(cluster, asked).await;
    assert!(now <= 1, "compacted to {now}");
}

fn says(cluster: &Cluster, words: &str) -> bool {
    cluster.members.iter().any(|member| member.log().contains(words))
}

async fn reads_at(cluster: &Cluster, asked: usize, revision: i64) -> bool {
    let range = pb::RangeRequest { key: "k1".into(), revision, ..pb::RangeRequest::default() };
    cluster.client(asked).kv.range(range).await.is_ok()
}

#[test]
fn a_plugin_decides_what_is_compacted_under_one_leader_and_the_next() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &NATIVE).await;
        let leader = cluster.leader().await;
        let keeps_20 = r#"{"keep":{"minutes":0,"revisions":20},"check_seconds":1}"#;
        let keeps = "compaction-load-aware";
        load(&cluster, leader, &golden_path(keeps), &["--name", keeps, "--config-json", keeps_20]).json();
        ask(&cluster.members[leader], &["activate", keeps]).json();
        load(
            &cluster,
            leader,
            &golden_path("tiny-compaction"),
            &["--name", "tiny-compaction", "--config-json", r#"{"revisions":5}"#],
        )
        .json();
        ask(&cluster.members[leader], &["shadow", "tiny-compaction"]).json();

        // Neither the native schedule nor the plugin takes what was written just now.
        write(&cluster, leader, 100).await;
        keeps_everything(&cluster, leader).await;

        // Who leads next goes on, by the same timeline, and compacts nothing by the native schedule before it is asked.
        cluster.members[leader].kill();
        let next = cluster.leader().await;
        let revision = write(&cluster, next, 50).await;
        keeps_everything(&cluster, next).await;
        is_compacted_to(&cluster, next, revision - 20, OLD_WITHIN).await;
        assert!(reads_at(&cluster, next, revision - 20).await && !reads_at(&cluster, next, revision - 21).await);
        stays_compacted_to(&cluster, next, revision - 20).await;
        assert!(says(&cluster, "a plugin in shadow would plan"), "the plugin in shadow is asked too");
        assert!(says(&cluster, "the history of the last minute"), "the guard rail is told");

        // Of two that are enforced the first by name decides, and the other once that is off.
        cluster.members[leader].start();
        cluster.members[leader].ready().await;
        ask(&cluster.members[next], &["activate", "tiny-compaction"]).json();
        stays_compacted_to(&cluster, next, revision - 20).await;
        assert!(says(&cluster, "another plugin of compaction comes before it and decides alone"));
        ask(&cluster.members[next], &["off", keeps]).json();
        is_compacted_to(&cluster, next, revision - 5, DONE_WITHIN).await;
        stays_compacted_to(&cluster, next, revision - 5).await;

        ask(&cluster.members[next], &["off", "tiny-compaction"]).json();
        is_compacted_to(&cluster, next, revision, DONE_WITHIN).await;
        cluster.aligned().await;
    });
}
