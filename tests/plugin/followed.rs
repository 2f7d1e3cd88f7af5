//! What an operator sees of plugins that work, and of those that do not.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::etcdctl::etcdctl;
use kuorum_tests::plugin_command::{Tail, ask};
use kuorum_tests::subject::Subject;
use serde_json::Value;

use crate::{block_on, component, inspected, load, metrics, put};

const COMES_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// The first line that is told, of puts that go on until somebody hears of them.
async fn first_line(cluster: &Cluster, tail: &Tail) -> Value {
    let deadline = Deadline::after(COMES_WITHIN);
    loop {
        put(cluster, 0, "/guarded/first", vec![b'v'; 1]).await.unwrap();
        if let Some(line) = tail.next_within(POLL) {
            return line;
        }
        assert!(!deadline.has_passed(), "nothing was told");
    }
}

/// The next line about this key.
fn line_about(tail: &Tail, key: &str) -> Value {
    let deadline = Deadline::after(COMES_WITHIN);
    loop {
        match tail.next_within(POLL) {
            Some(line) if line["key"] == key => return line,
            Some(_) | None => assert!(!deadline.has_passed(), "nothing was told of {key}"),
        }
    }
}

#[test]
fn verdicts_are_told_as_they_happen() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let path = component(&cluster, "one", 0);
        load(&cluster, 0, &path, &[]).json();
        ask(&cluster.members[0], &["shadow", "guard"]).json();
        let tail = Tail::of(&cluster.members[0], "guard");
        let allowed = first_line(&cluster, &tail).await;
        assert_eq!(allowed["plugin"], "guard");
        assert_eq!((&allowed["what"], &allowed["verdict"]), (&"verdict".into(), &"allow".into()), "{allowed}");
        assert_eq!((&allowed["kind"], &allowed["mode"]), (&"admission".into(), &"shadow".into()), "{allowed}");
        assert!(allowed["unix_ms"].as_i64().unwrap() > 0 && allowed["fuel"].as_u64().unwrap() > 0, "{allowed}");

        put(&cluster, 0, "/guarded/long", vec![b'v'; 2_000]).await.unwrap();
        let denied = line_about(&tail, "/guarded/long");
        assert_eq!((&denied["verdict"], &denied["code"]), (&"deny".into(), &"invalid-argument".into()), "{denied}");
        assert_eq!(
            (&denied["operation"], &denied["text"]),
            (&"put".into(), &"a value is longer than 1024 bytes".into())
        );

        ask(&cluster.members[0], &["activate", "guard"]).json();
        put(&cluster, 0, "/elsewhere/long", vec![b'v'; 2_000]).await.unwrap();
        put(&cluster, 0, "/guarded/enforced", vec![b'v'; 2_000]).await.unwrap_err();
        let denied = line_about(&tail, "/guarded/enforced");
        assert_eq!((&denied["mode"], &denied["revision"]), (&"enforce".into(), &1.into()), "{denied}");

        // Many that say no more than yes are told in part, and how many were not.
        for some in (0..1_000).collect::<Vec<_>>().chunks(50) {
            let puts = some.iter().map(|number| {
                let cluster = &cluster;
                async move { put(cluster, 0, &format!("/guarded/{number}"), vec![b'v'; 1]).await }
            });
            futures::future::join_all(puts).await.into_iter().for_each(|told| assert!(told.is_ok(), "{told:?}"));
        }
        put(&cluster, 0, "/guarded/last", vec![b'v'; 2_000]).await.unwrap_err();
        let (mut told, mut left_out) = (0, 0);
        loop {
            let line = tail.next_within(COMES_WITHIN).expect("the last is told");
            left_out += line["left_out"].as_u64().unwrap();
            if line["key"] == "/guarded/last" {
                break;
            }
            told += 1;
        }
        assert_eq!(told + left_out, 1_000);
        assert!(left_out > 0, "all were told");
        cluster.members[0].signal("TERM");
        assert!(cluster.members[0].exited_within(COMES_WITHIN).is_some(), "it waits for whoever follows a plugin");
    });
}

#[test]
fn a_quarantined_plugin_is_seen_wherever_an_operator_looks() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let path = component(&cluster, "one", 0);
        let member = &cluster.members[0];
        let endpoint = member.endpoint();
        // Not enough for a single call.
        load(&cluster, 0, &path, &["--fuel", "1"]).json();
        ask(member, &["activate", "guard"]).json();
        let standing = || inspected(&cluster, 0, "guard")["current"]["here"].clone();
        assert_eq!((&standing()["health"], &standing()["limits"]["fuel"]), (&"ok".into(), &1.into()));
        assert_eq!(standing()["kinds"], serde_json::json!(["admission"]));
        assert_eq!(standing()["description"], "Refuses values longer than 1 KiB.");
        let errors = async || {
            let status = cluster.client(0).maintenance.status(pb::StatusRequest {}).await;
            status.unwrap().into_inner().errors
        };
        assert_eq!(errors().await, [""; 0]);
        for _ in 0..5 {
            let refused = put(&cluster, 0, "/guarded/a", vec![b'v'; 1]).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
        }
        assert_eq!(errors().await, ["plugin guard is quarantined"]);
        let shown = etcdctl(&endpoint, &["endpoint", "status", "-w", "table"]);
        assert!(shown.stdout.contains("plugin guard is quarantined"), "{shown:?}");
        assert_eq!(standing()["health"], "quarantined");
        assert!(cluster.members[0].log().contains("a plugin failed too often, and is not asked for a while"));
        let shown = metrics(member);
        for series in [
            "plugin_quarantined{plugin=\"guard\"} 1",
            "plugin_timeouts_total{plugin=\"guard\",budget=\"fuel\"} 5",
            "plugin_traps_total{plugin=\"guard\"} 5",
            "plugin_unjudged_requests_total{plugin=\"guard\",outcome=\"refused\"} 5",
        ] {
            assert!(shown.contains(series), "{series}: {shown}");
        }
        put(&cluster, 0, "/elsewhere/a", vec![b'v'; 1]).await.unwrap();

        // Others of the plugin's revisions are not blamed for it, and neither is a plugin that nobody asks.
        load(&cluster, 0, &path, &[]).json();
        assert_eq!(errors().await, ["plugin guard is quarantined"]);
        assert!(metrics(member).contains("plugin_quarantined{plugin=\"guard\"} 1"));
        ask(member, &["activate", "guard"]).json();
        put(&cluster, 0, "/guarded/a", vec![b'v'; 1]).await.unwrap();
        assert_eq!(errors().await, [""; 0]);
        assert!(metrics(member).contains("plugin_quarantined{plugin=\"guard\"} 0"));

        let log = cluster.members[0].log();
        for change in ["load", "activate"] {
            let line = log.lines().find(|line| {
                line.contains("an operator changed a plugin") && line.contains(&format!("\"change\":\"{change}\""))
            });
            let line: Value = serde_json::from_str(line.expect("changes are logged")).unwrap();
            assert_eq!((&line["plugin"], &line["revision"]), (&"guard".into(), &1.into()), "{line}");
            assert!(line["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        }
    });
}
