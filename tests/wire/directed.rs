//! What a script cannot say: pings, fences in a loop, watchers beside writers, real etcdctl, answers of which only a
//! part is fixed.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::client::{CALL_TIMEOUT, Client};
use kuorum_tests::clock::Deadline;
use kuorum_tests::etcdctl::etcdctl;
use kuorum_tests::member::Member;
use kuorum_tests::random::{Random, seed};
use kuorum_tests::side::Side;
use kuorum_tests::subject::Subject;
use tonic::transport::Endpoint;

use crate::block_on;

/// Progress requests of the fence test, as many as the case it comes from.
const FENCES: usize = 200;

/// Case 32 (jetcd#1041, etcd-client#42, go-zero#3212): clients that ping.
#[test]
fn clients_that_ping_are_served() {
    block_on(async {
        let member = Member::started(&Subject::kuorum(), &[]).await;
        tokio::join!(polite_watch(&member), impolite_idle(&member));
    });
}

fn pinging(member: &Member, every: Duration, while_idle: bool) -> Client {
    let channel = Endpoint::from_shared(member.client_url())
        .unwrap()
        .http2_keep_alive_interval(every)
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(while_idle)
        .connect_lazy();
    Client::over(channel)
}

/// kube-apiserver pings every 10 s beside its watches.
async fn polite_watch(member: &Member) {
    let mut client = pinging(member, Duration::from_secs(6), false);
    let create = pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(pb::WatchCreateRequest {
            key: Bytes::from_static(b"p"),
            ..pb::WatchCreateRequest::default()
        })),
    };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
    let mut stream = client.watch.watch(requests).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().unwrap().created);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let put = pb::PutRequest { key: Bytes::from_static(b"p"), ..pb::PutRequest::default() };
    client.kv.put(put).await.unwrap();
    let event = tokio::time::timeout(CALL_TIMEOUT, stream.message()).await.expect("the watch is alive");
    assert_eq!(event.unwrap().unwrap().events.len(), 1);
}

/// A client may be told to calm down, but must be able to come back at once.
async fn impolite_idle(member: &Member) {
    let client = pinging(member, Duration::from_secs(1), true);
    let range = pb::RangeRequest { key: Bytes::from_static(b"p"), ..pb::RangeRequest::default() };
    client.kv.clone().range(range.clone()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    // The first call may find the connection closed under it.
    let mut answer = client.kv.clone().range(range.clone()).await;
    if answer.is_err() {
        answer = client.kv.clone().range(range).await;
    }
    answer.unwrap();
}

/// Case 12 (etcd#15220, #17507): the answer to a progress request never overtakes an event.
#[test]
fn progress_never_overtakes_an_event() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        assert_eq!(side.answer("watch S1 k").await, "watch 0 rev=r0 created");
        for number in 1..=FENCES {
            assert_eq!(side.answer(&format!("put k {number}")).await, format!("put rev=r{number}"));
            assert_eq!(side.answer("progress S1").await, format!("watch -1 rev=r{number}"));
            let seen = side.events_before_answer("S1");
            assert_eq!(seen, format!("watch 0 PUT k={number} c=r1 m=r{number} v={number}"));
            side.clear_events("S1");
        }
    });
}

/// After `Compact(0)` etcd answers HashKV(0) from the hash it cached for revision 0 for ever.
#[test]
fn a_hash_of_the_head_follows_the_head_after_a_compaction_at_0() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        for line in ["put a 1", "compact 0 physical", "put a 2"] {
            side.answer(line).await;
        }
        let newest = side.answer("hashkv").await;
        let named = side.answer("hashkv h").await;
        match side.member.subject.is_etcd {
            true => assert_ne!(newest, named, "etcd has stopped answering from revision 0"),
            false => assert_eq!(newest, named),
        }
    });
}

/// A streamed range with a sort target but no order repeats keys in etcd: 88 for 60.
#[test]
fn a_streamed_range_with_a_target_but_no_order_repeats_nothing() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        for number in 0..60 {
            side.answer(&format!("put k{number:02} {}", number * 37 % 60)).await;
        }
        let answer = side.answer("stream k..l sort=value/none").await;
        if side.member.subject.is_etcd {
            assert!(answer.matches(" m=").count() > 60, "etcd has stopped repeating keys: {answer}");
            return;
        }
        let is_refused = answer.starts_with("error Unimplemented");
        let each_once = (0..60).all(|number| answer.matches(&format!("k{number:02}=")).count() == 1);
        assert!(is_refused || each_once, "{answer}");
    });
}

/// One watcher of the whole keyspace is the history; every other watcher must have received its part of it, whole and
/// in order.
#[test]
fn watchers_beside_writers_receive_the_history() {
    block_on(async {
        let mut random = Random::new(seed("watchers_beside_writers_receive_the_history"));
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        side.answer("watch ALL \\x00..").await;
        let writers: Vec<_> = (0..3)
            .map(|writer| tokio::spawn(write(Client::new(&side.member.endpoint()), random.number() ^ writer)))
            .collect();
        // Watchers come while the writes go on: from now, from the past, and on one key.
        let mut watchers: BTreeMap<String, (String, String)> = BTreeMap::new();
        for number in 0..12 {
            let low = random.below(6);
            let keys = (format!("k{low}"), format!("k{}", low + 1 + random.below(4)));
            let answer = side.answer(&format!("watch W{number} {}..{} rev=r1", keys.0, keys.1)).await;
            assert!(answer.ends_with("created"), "{answer}");
            watchers.insert(format!("W{number}"), keys);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for writer in writers {
            writer.await.unwrap();
        }
        side.answer("put last 1").await;
        let deadline = Deadline::after(Duration::from_secs(30));
        let history = loop {
            let text = side.events("ALL");
            if text.contains("PUT last=1") {
                break text;
            }
            assert!(!deadline.has_passed(), "the history never ends");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(!history.contains("broken promise"), "{history}");
        for (stream, (low, high)) in watchers {
            let is_watched = |line: &&str| {
                let key = line.split([' ', '=']).nth(3).unwrap_or_default();
                key >= low.as_str() && key < high.as_str()
            };
            let wanted: Vec<&str> = history.lines().filter(is_watched).collect();
            let mut text = side.events(&stream);
            while text.lines().count() < wanted.len() && !deadline.has_passed() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                text = side.events(&stream);
            }
            assert_eq!(text.lines().collect::<Vec<_>>(), wanted, "{stream} {low}..{high}");
        }
    });
}

async fn write(mut client: Client, seed: u64) {
    let mut random = Random::new(seed);
    for number in 0..300 {
        let key = Bytes::from(format!("k{}", random.below(10)));
        let done = match random.below(4) {
            0 => {
                let delete = pb::DeleteRangeRequest { key, ..pb::DeleteRangeRequest::default() };
                client.kv.delete_range(delete).await.map(drop)
            }
            _ => {
                let value = Bytes::from(number.to_string());
                client.kv.put(pb::PutRequest { key, value, ..pb::PutRequest::default() }).await.map(drop)
            }
        };
        done.unwrap();
    }
}

/// Unmodified etcdctl prints the same about both.
#[test]
fn etcdctl_prints_the_same() {
    let commands: [&[&str]; 15] = [
        &["put", "a", "1"],
        &["put", "b", "2"],
        &["get", "a"],
        &["get", "", "--prefix", "--keys-only"],
        &["get", "a", "z", "--count-only", "--write-out=fields"],
        &["get", "a", "--rev=99"],
        &["put", "a", "2", "--prev-kv"],
        &["get", "a", "--hex"],
        &["del", "b", "--prev-kv"],
        &["lease", "grant", "0"],
        &["lease", "revoke", "77"],
        &["compaction", "2"],
        &["compaction", "2"],
        &["defrag"],
        &["alarm", "list"],
    ];
    block_on(async {
        let kuorum = Member::started(&Subject::kuorum(), &[]).await;
        let etcd = Member::started(&Subject::etcd(), &[]).await;
        for command in commands {
            let printed = |member: &Member| {
                let printed = etcdctl(&member.endpoint(), command);
                let text = printed.stdout.replace(&member.endpoint(), "ENDPOINT");
                // Ids of members, clusters and leases differ, and so may the first term.
                let lines: Vec<&str> = text
                    .lines()
                    .filter(|line| !["MemberID", "ClusterID", "RaftTerm"].iter().any(|id| line.contains(id)))
                    .collect();
                let text = match command[0] {
                    "lease" => lines.join("\n").split(' ').filter(|word| word.len() < 14).collect::<Vec<_>>().join(" "),
                    "defrag" => String::new(),
                    _ => lines.join("\n"),
                };
                let error = printed.stderr.lines().last().unwrap_or_default();
                let error = error.split_once("\"error\":").map_or("", |(_, error)| error);
                (printed.success, text, error.split("\"}").next().unwrap_or_default().to_owned())
            };
            assert_eq!(printed(&kuorum), printed(&etcd), "etcdctl {command:?}");
        }
    });
}

/// Compactions that come faster than they are carried out are not merged: the hash of each covers what changed since the
/// one before. etcd waits for each here, since it keeps no hash of one that meets another under way.
#[test]
fn compactions_in_a_row_each_have_their_hash() {
    let revisions = [100, 101, 300, 450, 700, 999];
    block_on(async {
        let mut hashes = Vec::new();
        for (subject, physical) in [(Subject::kuorum(), false), (Subject::etcd(), true)] {
            let member = Member::started(&subject, &[]).await;
            let mut client = Client::new(&member.endpoint());
            for number in 0..1_000 {
                let key = Bytes::from(format!("k{}", number % 7));
                if number % 5 == 4 {
                    let delete = pb::DeleteRangeRequest { key, ..pb::DeleteRangeRequest::default() };
                    client.kv.delete_range(delete).await.unwrap();
                } else {
                    let put = pb::PutRequest { key, value: number.to_string().into(), ..pb::PutRequest::default() };
                    client.kv.put(put).await.unwrap();
                }
            }
            let (last, before) = revisions.split_last().unwrap();
            for revision in before {
                let compact = pb::CompactionRequest { revision: *revision, physical };
                client.kv.compact(compact).await.unwrap();
            }
            client.kv.compact(pb::CompactionRequest { revision: *last, physical: true }).await.unwrap();
            let mut answers = Vec::new();
            for revision in revisions {
                let answer = client.maintenance.hash_kv(pb::HashKvRequest { revision }).await.unwrap().into_inner();
                answers.push((revision, answer.hash, answer.compact_revision));
            }
            hashes.push(answers);
        }
        assert_eq!(hashes[0], hashes[1]);
    });
}
