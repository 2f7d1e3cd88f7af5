//! What is compacted and defragmented while plugins decide it, and while they don't.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::member::Member;
use kuorum_tests::plugin_command::{Tail, ask};
use kuorum_tests::plugin_file::golden_path;
use kuorum_tests::random::Random;
use kuorum_tests::subject::Subject;

use crate::{block_on, load, put};

const KEEPS: &str = "compaction-load-aware";
/// The native schedule would leave next to nothing.
const NATIVE: [&str; 2] = ["--auto-compaction-mode=periodic", "--auto-compaction-retention=1s"];
/// No plugin can have the last minute compacted; the marks of the timeline are some seconds apart.
const OLD_WITHIN: Duration = Duration::from_secs(100);
const DONE_WITHIN: Duration = Duration::from_secs(30);
/// A few looks of the native schedule, and of the thread that asks plugins.
const A_WHILE: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(100);
const VALUE_BYTES: usize = 100_000;
const VALUES: usize = 200;

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
        load(&cluster, leader, &golden_path(KEEPS), &["--name", KEEPS, "--config-json", keeps_20]).json();
        ask(&cluster.members[leader], &["activate", KEEPS]).json();
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
        ask(&cluster.members[next], &["off", KEEPS]).json();
        // It asks for more than is a minute old where a mark fell among the writes, and then again a minute later.
        is_compacted_to(&cluster, next, revision - 5, OLD_WITHIN).await;
        stays_compacted_to(&cluster, next, revision - 5).await;

        ask(&cluster.members[next], &["off", "tiny-compaction"]).json();
        is_compacted_to(&cluster, next, revision, DONE_WITHIN).await;
        cluster.aligned().await;
    });
}

/// Values of a size that counts, which no compression makes smaller: all but the last are history.
async fn fill(cluster: &Cluster, asked: usize) -> i64 {
    let mut random = Random::new(1);
    let mut revision = 0;
    for _ in 0..VALUES {
        let value: Vec<u8> = (0..VALUE_BYTES / 8).flat_map(|_| random.number().to_be_bytes()).collect();
        revision = put(cluster, asked, "large", value).await.unwrap();
    }
    revision
}

/// Bytes that a member's store takes, and those of them that are in use.
async fn sizes(cluster: &Cluster, asked: usize) -> (i64, i64) {
    let status = cluster.client(asked).maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    (status.db_size, status.db_size_in_use)
}

/// When members were done with defragmenting, as each has logged it; `None` for one that has not done it.
fn defragmented_at(cluster: &Cluster) -> Vec<Option<String>> {
    let done = |member: &Member| {
        let log = member.log();
        let line = log.lines().find(|line| line.contains("finished defragmenting"))?;
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        Some(line["ts"].as_str().unwrap().to_owned())
    };
    cluster.members.iter().map(done).collect()
}

#[test]
fn members_are_defragmented_one_after_the_other_and_the_leader_last() {
    block_on(async {
        // Whoever leads is to go on leading, on a busy machine too.
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &["--election-timeout=3000"]).await;
        let revision = fill(&cluster, 0).await;
        let compact = pb::CompactionRequest { revision, physical: true };
        cluster.client(0).kv.compact(compact).await.unwrap();
        for asked in 0..3 {
            let deadline = Deadline::after(DONE_WITHIN);
            loop {
                let (allocated, in_use) = sizes(&cluster, asked).await;
                if in_use < allocated / 2 {
                    break;
                }
                assert!(!deadline.has_passed(), "{in_use} bytes of {allocated} stay in use");
                tokio::time::sleep(POLL).await;
            }
        }

        let leader = cluster.leader().await;
        let config = r#"{"keep":{"minutes":60,"revisions":1000},"defragment_free_percent":50,"check_seconds":1}"#;
        let member = &cluster.members[leader];
        load(&cluster, leader, &golden_path(KEEPS), &["--name", KEEPS, "--config-json", config]).json();
        let tail = Tail::of(member, KEEPS);
        let plans = |what: &str| {
            let deadline = Deadline::after(DONE_WITHIN);
            let mut last = serde_json::Value::Null;
            loop {
                assert!(!deadline.has_passed(), "no plan to {what}: {last}");
                let Some(line) = tail.next_within(DONE_WITHIN) else { continue };
                last = line.clone();
                assert_eq!((&line["what"], &line["kind"]), (&"plan".into(), &"compaction".into()), "{line}");
                if line["text"].as_str().unwrap().starts_with(&format!("compact nothing; {what}")) {
                    return line;
                }
            }
        };
        ask(member, &["shadow", KEEPS]).json();
        assert_eq!(plans("defragment 3 members")["mode"], "shadow");
        assert_eq!(plans("defragment 3 members")["mode"], "shadow");
        assert_eq!(defragmented_at(&cluster), [None, None, None], "a plugin in shadow has nothing done");

        ask(member, &["activate", KEEPS]).json();
        assert_eq!(plans("defragment 0 members")["mode"], "enforce");
        let done = defragmented_at(&cluster);
        assert!(done.iter().all(Option::is_some) && done.iter().max() == Some(&done[leader]), "{leader}: {done:?}");
        for asked in 0..3 {
            let (allocated, _) = sizes(&cluster, asked).await;
            assert!(allocated < (VALUES * VALUE_BYTES / 2) as i64, "{allocated} bytes");
        }
        cluster.aligned().await;
    });
}
