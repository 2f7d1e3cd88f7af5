//! Activations under load while leaders are killed: once `activate` has answered, nothing follows that the policy refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::client::Client;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::{Printed, ask, plugin};
use kuorum_tests::plugin_file::PluginFile;
use kuorum_tests::subject::Subject;
use serde_json::json;
use tonic::Code;

use crate::{block_on, load, written};

/// Set to 50 for what a release asks for; a round takes some three seconds.
const ROUNDS_VARIABLE: &str = "KUORUM_FAULT_ROUNDS";
const ROUNDS: usize = 2;
const WRITERS: usize = 6;
const PREFIX: &str = "/guarded/";
/// What the policy refuses.
const LONG: &str = "a value that is too long";
const SHORT: &str = "v";
const AGAIN_WITHIN: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// What writers did, over all of them.
#[derive(Default)]
struct Counts {
    long_taken: AtomicU64,
    long_denied: AtomicU64,
    short_taken: AtomicU64,
}

/// Writes long and short values in turn until told to stop. No answer but the policy's own, or none for a leader's death.
async fn write(client: Client, number: usize, stop: Arc<AtomicBool>, counts: Arc<Counts>) {
    let mut client = client;
    for turn in 0_u64.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let value = if turn % 2 == 0 { LONG } else { SHORT };
        let request = pb::PutRequest {
            key: format!("{PREFIX}{number}").into(),
            value: value.into(),
            ..pb::PutRequest::default()
        };
        match client.kv.put(request).await {
            Ok(_) if value == LONG => drop(counts.long_taken.fetch_add(1, Ordering::AcqRel)),
            Ok(_) => drop(counts.short_taken.fetch_add(1, Ordering::AcqRel)),
            Err(status) if status.message() == "the value is too long" => {
                assert_eq!(value, LONG, "a short value was denied");
                counts.long_denied.fetch_add(1, Ordering::AcqRel);
            }
            // The member died, or has no leader yet.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled) => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(status) => panic!("{value:?}: {status}"),
        }
    }
}

/// Asks all members for a change until one has made it. To ask again for what was done already changes nothing.
async fn changed(cluster: &Cluster, words: &'static [&'static str]) -> u64 {
    let endpoints: Vec<String> = cluster.members.iter().map(kuorum_tests::member::Member::endpoint).collect();
    let endpoints = endpoints.join(",");
    let deadline = Deadline::after(AGAIN_WITHIN);
    loop {
        let endpoints = endpoints.clone();
        // On a thread of its own, so that writers go on meanwhile.
        let printed: Printed = tokio::task::spawn_blocking(move || {
            plugin(&[words, &["--endpoints", &endpoints, "--output", "json"]].concat())
        })
        .await
        .unwrap();
        if printed.code == 0 {
            return printed.json()["policy_epoch"].as_u64().unwrap();
        }
        assert!(!deadline.has_passed(), "{words:?}: {printed:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// The revision of the store, known to be the newest.
async fn revision(cluster: &Cluster) -> i64 {
    let deadline = Deadline::after(AGAIN_WITHIN);
    loop {
        for asked in 0..cluster.members.len() {
            let request = pb::RangeRequest { key: "k".into(), ..pb::RangeRequest::default() };
            if let Ok(response) = cluster.client(asked).kv.range(request).await {
                return response.into_inner().header.unwrap().revision;
            }
        }
        assert!(!deadline.has_passed(), "no member answers");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Every put of a long value with a revision above one and up to another.
async fn long_between(cluster: &Cluster, asked: usize, above: i64, to: i64) -> usize {
    let create = pb::WatchCreateRequest {
        key: PREFIX.into(),
        range_end: "/guarded0".into(),
        start_revision: above + 1,
        progress_notify: true,
        ..pb::WatchCreateRequest::default()
    };
    let request = |union| pb::WatchRequest { request_union: Some(union) };
    let (send, requests) = tokio::sync::mpsc::channel(4);
    send.send(request(pb::watch_request::RequestUnion::CreateRequest(create))).await.unwrap();
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let mut responses = cluster.client(asked).watch.watch(requests).await.unwrap().into_inner();
    let mut long = 0;
    loop {
        send.send(request(pb::watch_request::RequestUnion::ProgressRequest(pb::WatchProgressRequest {})))
            .await
            .unwrap();
        let response = tokio::time::timeout(AGAIN_WITHIN, responses.message()).await.expect("the watch goes on");
        let response = response.unwrap().expect("the stream stays open");
        assert!(!response.canceled, "{response:?}");
        for event in &response.events {
            let kv = event.kv.as_ref().unwrap();
            if kv.mod_revision <= to && kv.value == LONG {
                long += 1;
            }
        }
        // An answer with events names the store's revision, however far behind the events are.
        let told = match response.events.last() {
            Some(event) => event.kv.as_ref().unwrap().mod_revision,
            None if response.created => above,
            None => response.header.unwrap().revision,
        };
        if told >= to {
            return long;
        }
    }
}

#[test]
fn nothing_follows_an_activation_that_the_policy_refuses_whoever_leads() {
    let rounds = std::env::var(ROUNDS_VARIABLE).map_or(ROUNDS, |text| text.parse().expect("a number of rounds"));
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let manifest = json!({
            "name": "guard", "version": "0.1.0",
            "admission": {"match": [{"ops": ["put"], "prefix": PREFIX}]},
        });
        let file = written(&cluster, "guard", &PluginFile::golden("probe").with_manifest(&manifest));
        load(&cluster, 0, &file, &["--config-json", "{\"value_bytes_max\":4}"]).json();

        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| tokio::spawn(write(cluster.client(number % 3), number, stop.clone(), counts.clone())))
            .collect();
        for round in 0..rounds {
            let leader = cluster.leader().await;
            // The leader dies somewhere between the request's arrival and its answer, or just before or after.
            let (epoch, ()) = tokio::join!(changed(&cluster, &["activate", "guard"]), async {
                // Spread over the time that the command takes.
                let killed_ms = (round * 60 + 30) / rounds;
                tokio::time::sleep(Duration::from_millis(killed_ms.try_into().unwrap())).await;
                cluster.members[leader].signal("KILL");
            });
            let above = revision(&cluster).await;
            cluster.members[leader].kill();
            cluster.members[leader].start();
            cluster.members[leader].ready().await;
            tokio::time::sleep(PAUSE * 10).await;
            let to = revision(&cluster).await;
            let long = long_between(&cluster, leader, above, to).await;
            assert_eq!(long, 0, "round {round}: long values between {above} and {to}, under policy epoch {epoch}");
            changed(&cluster, &["off", "guard"]).await;
            tokio::time::sleep(PAUSE * 5).await;
        }
        stop.store(true, Ordering::Release);
        for writer in writers {
            writer.await.unwrap();
        }
        let count = |of: &AtomicU64| of.load(Ordering::Acquire);
        let (taken, denied) = (count(&counts.long_taken), count(&counts.long_denied));
        println!("{rounds} rounds: {taken} long values taken, {denied} denied, {} short", count(&counts.short_taken));
        assert!(taken > 0 && denied > 0, "the policy was never off, or never on");
        cluster.aligned().await;
        let epoch = |member| ask(member, &["list"]).json()["policy_epoch"].as_u64().unwrap();
        let epochs: Vec<u64> = cluster.members.iter().map(epoch).collect();
        assert!(epochs.iter().all(|epoch| *epoch == epochs[0]), "{epochs:?}");
    });
}
