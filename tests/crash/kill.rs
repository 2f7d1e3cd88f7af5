//! kill -9 under load, again and again (etcd#14370, etcd#14424, fjall#257).
//!
//! Writers note what they were promised. After each kill the member must come back with all of it: each key at its
//! acknowledged revision or at a later write of the same writer that was on its way, both halves of every txn, the same
//! hash of the past.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_proto::mvccpb::KeyValue;
use kuorum_tests::client::Client;
use kuorum_tests::member::Member;
use kuorum_tests::random::{Random, seed};
use kuorum_tests::subject::Subject;
use pb::request_op::Request;

use crate::block_on;

const ROUNDS_VARIABLE: &str = "KUORUM_KILL_ROUNDS";
const ROUNDS: u64 = 20;
const WRITERS: u64 = 6;
/// Keys of one writer: few, so that a key is written many times a round.
const KEYS: u64 = 8;
/// A member that does not answer by then after a kill hangs (fjall#257 did so for ever).
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Load before the kill.
const LOAD_MILLISECONDS_MAX: u64 = 500;
/// Every so many rounds the past is compacted, so that kills meet compactions too.
const COMPACTION_ROUNDS: u64 = 4;

/// What a writer knows of one key.
#[derive(Clone, Copy, Default)]
struct Promise {
    /// The last acknowledged write: its number and revision.
    acknowledged: Option<(u64, i64)>,
    /// The last write sent, acknowledged or not.
    sent: u64,
}

type Promises = Arc<Mutex<BTreeMap<String, Promise>>>;

/// Writes until the member dies. Even writes put one key, odd ones two keys in one txn.
async fn write(mut client: Client, writer: u64, promises: Promises, mut number: u64) {
    loop {
        number += 1;
        let keys = match number % 2 {
            0 => vec![format!("w{writer}/{}", number % KEYS)],
            _ => vec![format!("w{writer}/left"), format!("w{writer}/right")],
        };
        {
            let mut promises = promises.lock().expect("no writer panics with the lock");
            for key in &keys {
                promises.entry(key.clone()).or_default().sent = number;
            }
        }
        let success = keys
            .iter()
            .map(|key| pb::RequestOp {
                request: Some(Request::RequestPut(pb::PutRequest {
                    key: Bytes::from(key.clone()),
                    value: Bytes::from(number.to_string()),
                    ..pb::PutRequest::default()
                })),
            })
            .collect();
        let txn = pb::TxnRequest { success, ..pb::TxnRequest::default() };
        let Ok(answer) = client.kv.txn(txn).await else {
            return;
        };
        let revision = answer.into_inner().header.map_or(0, |header| header.revision);
        let mut promises = promises.lock().expect("no writer panics with the lock");
        for key in keys {
            promises.entry(key).or_default().acknowledged = Some((number, revision));
        }
    }
}

async fn read_all(client: &mut Client) -> (i64, BTreeMap<String, KeyValue>) {
    let range = pb::RangeRequest {
        key: Bytes::from_static(b"w"),
        range_end: Bytes::from_static(b"x"),
        ..pb::RangeRequest::default()
    };
    let answer = client.kv.range(range).await.expect("a ready member reads").into_inner();
    let kvs = answer.kvs.into_iter().map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv)).collect();
    (answer.header.map_or(0, |header| header.revision), kvs)
}

async fn hash_at(client: &mut Client, revision: i64) -> u32 {
    let query = pb::HashKvRequest { revision };
    let answer = client.maintenance.hash_kv(query).await;
    answer.expect("a kept revision has a hash").into_inner().hash
}

/// Every promise that the state does not keep, in words.
fn broken(promises: &BTreeMap<String, Promise>, revision: i64, state: &BTreeMap<String, KeyValue>) -> Vec<String> {
    let mut problems = Vec::new();
    for (key, promise) in promises {
        let Some((number, acknowledged)) = promise.acknowledged else {
            continue;
        };
        if acknowledged > revision {
            problems.push(format!("{key}: acknowledged at {acknowledged}, the store is at {revision}"));
        }
        let Some(kv) = state.get(key) else {
            problems.push(format!("{key}: write {number} at {acknowledged} is gone"));
            continue;
        };
        let found: u64 = String::from_utf8_lossy(&kv.value).parse().unwrap_or(0);
        let is_kept = kv.mod_revision == acknowledged && found == number;
        let is_newer = kv.mod_revision > acknowledged && found > number && found <= promise.sent;
        if !is_kept && !is_newer {
            problems.push(format!(
                "{key}: write {number} at {acknowledged} was acknowledged and {} sent, found {found} at {}",
                promise.sent, kv.mod_revision
            ));
        }
    }
    for writer in 0..WRITERS {
        let half = |name: &str| state.get(&format!("w{writer}/{name}")).map(|kv| (kv.mod_revision, kv.value.clone()));
        if half("left") != half("right") {
            problems.push(format!("w{writer}: a txn was torn: {:?} and {:?}", half("left"), half("right")));
        }
    }
    problems
}

/// One round: load, kill, restart, look.
async fn round(member: &mut Member, client: &mut Client, promises: &Promises, random: &mut Random, round: u64) {
    let (before, _) = read_all(client).await;
    if round % COMPACTION_ROUNDS == COMPACTION_ROUNDS - 1 {
        // Half of them go on in the background, under the load and into the kill.
        let compaction = pb::CompactionRequest { revision: before - 1, physical: random.one_in(2) };
        client.kv.compact(compaction).await.unwrap();
    }
    let hash = hash_at(client, before).await;
    let highest = {
        let promises = promises.lock().unwrap();
        promises.values().map(|promise| promise.sent).max().unwrap_or(0)
    };
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(Client::new(&member.endpoint()), writer, promises.clone(), highest)))
        .collect();
    tokio::time::sleep(Duration::from_millis(random.between(5, LOAD_MILLISECONDS_MAX))).await;
    member.kill();
    for writer in writers {
        writer.await.unwrap();
    }
    member.start();
    *client = match member.ready_within(READY_WITHIN).await {
        Ok(client) => client,
        Err(problem) => panic!("round {round}: {problem} after kill -9"),
    };
    let (revision, state) = read_all(client).await;
    let problems = broken(&promises.lock().unwrap(), revision, &state);
    assert!(problems.is_empty(), "round {round}: {}", problems.join("\n"));
    assert_eq!(hash_at(client, before).await, hash, "round {round}: hash at {before}");
    // What was on its way is decided now: it either happened or never will.
    for (key, promise) in promises.lock().unwrap().iter_mut() {
        promise.acknowledged = state.get(key).map(|kv| {
            let number = String::from_utf8_lossy(&kv.value).parse().unwrap_or(0);
            (number, kv.mod_revision)
        });
    }
}

#[test]
fn acknowledged_writes_survive_kill_9_under_load() {
    let rounds = std::env::var(ROUNDS_VARIABLE)
        .map_or(ROUNDS, |text| text.parse().unwrap_or_else(|_| panic!("{ROUNDS_VARIABLE}={text} is not a number")));
    let mut random = Random::new(seed("acknowledged_writes_survive_kill_9_under_load"));
    block_on(async {
        let mut member = Member::started(&Subject::kuorum(), &[]).await;
        let mut client = member.ready().await;
        let promises = Promises::default();
        for number in 0..rounds {
            round(&mut member, &mut client, &promises, &mut random, number).await;
        }
        let written = promises.lock().unwrap().values().map(|promise| promise.sent).max();
        eprintln!("{rounds} kills, about {} writes by each of {WRITERS} writers", written.unwrap_or(0));
    });
}

/// Case 41: the kill comes right after the answer.
#[test]
fn a_write_survives_a_kill_right_after_its_answer() {
    block_on(async {
        let mut member = Member::started(&Subject::kuorum(), &[]).await;
        for number in 0..10_u64 {
            let mut client = member.ready().await;
            let put = pb::PutRequest {
                key: Bytes::from_static(b"w"),
                value: Bytes::from(number.to_string()),
                ..pb::PutRequest::default()
            };
            let answer = client.kv.put(put).await.unwrap().into_inner();
            member.kill();
            member.start();
            let mut client = member.ready_within(READY_WITHIN).await.unwrap();
            let (revision, state) = read_all(&mut client).await;
            assert_eq!(state["w"].value, number.to_string());
            assert!(revision >= answer.header.unwrap().revision);
        }
    });
}

#[test]
fn a_broken_promise_is_seen() {
    let promise = |number, revision, sent| Promise { acknowledged: Some((number, revision)), sent };
    let found = |value: &str, revision| KeyValue {
        value: Bytes::from(value.to_owned()),
        mod_revision: revision,
        ..KeyValue::default()
    };
    let promises = BTreeMap::from([("w0/1".to_owned(), promise(5, 50, 6))]);
    let judge = |kv: Option<KeyValue>, revision| {
        let state = kv.map(|kv| ("w0/1".to_owned(), kv)).into_iter().collect();
        broken(&promises, revision, &state).len()
    };
    assert_eq!(judge(Some(found("5", 50)), 60), 0, "kept");
    assert_eq!(judge(Some(found("6", 55)), 60), 0, "a write on its way");
    assert_eq!(judge(None, 60), 1, "lost");
    assert_eq!(judge(Some(found("4", 40)), 60), 1, "older");
    assert_eq!(judge(Some(found("7", 55)), 60), 1, "never sent");
    assert_eq!(judge(Some(found("5", 51)), 60), 1, "another revision");
    assert_eq!(judge(Some(found("5", 50)), 49), 1, "the store is behind");
    let torn = BTreeMap::from([("w0/left".to_owned(), found("1", 3)), ("w0/right".to_owned(), found("0", 2))]);
    assert_eq!(broken(&BTreeMap::new(), 9, &torn).len(), 1, "a torn txn");
}
