//! What plugins of admission decide, as clients of three members meet it.

use std::path::PathBuf;

use kuorum_proto::etcdserverpb as pb;
use kuorum_proto::etcdserverpb::request_op::Request;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::{PluginFile, golden_path};
use kuorum_tests::subject::Subject;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::{block_on, load, put, written};

/// Rounds in which two writers each try to break what two policies keep.
const SKEW_ROUNDS: usize = 150;

/// The probe under another name, asked about puts of keys that begin so.
fn probe(cluster: &Cluster, name: &str, prefix: &str) -> PathBuf {
    let manifest = json!({
        "name": name, "version": "0.1.0", "kv_read": [""],
        "admission": {"match": [{"ops": ["put", "delete"], "prefix": prefix}]},
    });
    written(cluster, name, &PluginFile::golden("probe").with_manifest(&manifest))
}

/// Loads a plugin and enforces it.
fn enforce(cluster: &Cluster, file: &std::path::Path, name: &str, config: &Value, words: &[&str]) {
    let config = config.to_string();
    load(cluster, 0, file, &[&["--name", name, "--config-json", &config], words].concat()).json();
    // By way of another member, if there is one.
    ask(cluster.members.last().unwrap(), &["activate", name]).json();
}

fn op(request: Request) -> pb::RequestOp {
    pb::RequestOp { request: Some(request) }
}

fn put_op(key: &str, value: &str) -> pb::RequestOp {
    let request = pb::PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    op(Request::RequestPut(request))
}

fn delete(key: &str, range_end: &str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key.to_owned().into(), range_end: range_end.to_owned().into(), prev_kv: false }
}

fn told(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

/// A put that leaves the value as it is writes it again: the plugin judges what will be there.
#[test]
fn a_value_that_is_kept_is_judged_as_one_that_is_written() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        put(&cluster, 0, "long", "12345").await.unwrap();
        put(&cluster, 0, "short", "1234").await.unwrap();
        enforce(&cluster, &golden_path("probe"), "probe", &json!({"value_bytes_max": 4}), &[]);
        let keep = |key: &str| pb::PutRequest {
            key: key.to_owned().into(),
            ignore_value: true,
            ignore_lease: true,
            ..Default::default()
        };
        for asked in 0..3 {
            let mut client = cluster.client(asked);
            let refused = client.kv.put(keep("long")).await.unwrap_err();
            assert_eq!(told(&refused), (Code::InvalidArgument, "the value is too long"));
            let nested = pb::TxnRequest { failure: vec![op(Request::RequestPut(keep("long")))], ..Default::default() };
            let txn = pb::TxnRequest { success: vec![op(Request::RequestTxn(nested))], ..Default::default() };
            let refused = client.kv.txn(txn).await.unwrap_err();
            assert_eq!(told(&refused), (Code::InvalidArgument, "the value is too long"));
            client.kv.put(keep("short")).await.unwrap();
            let missing = client.kv.put(keep("missing")).await.unwrap_err();
            assert_eq!(told(&missing), (Code::InvalidArgument, "etcdserver: key not found"));
        }
    });
}

#[test]
fn what_a_policy_refuses_is_refused_through_every_member_and_at_any_depth() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        enforce(&cluster, &golden_path("probe"), "probe", &json!({"value_bytes_max": 4}), &[]);
        for asked in 0..3 {
            put(&cluster, asked, "k", "1234").await.unwrap();
            let refused = put(&cluster, asked, "k", "12345").await.unwrap_err();
            assert_eq!(told(&refused), (Code::InvalidArgument, "the value is too long"));

            let mut txn = pb::TxnRequest { success: vec![put_op("k", "12345")], ..Default::default() };
            for _ in 0..3 {
                // In the branch that is not taken, too: nobody knows which one will be.
                txn = pb::TxnRequest { failure: vec![op(Request::RequestTxn(txn))], ..Default::default() };
            }
            let refused = cluster.client(asked).kv.txn(txn).await.unwrap_err();
            assert_eq!(told(&refused), (Code::InvalidArgument, "the value is too long"));
            let txn = pb::TxnRequest { success: vec![put_op("k", "1234")], ..Default::default() };
            cluster.client(asked).kv.txn(txn).await.unwrap();
        }
        // A member that was away judges by what is in force before it serves again.
        let follower = cluster.follower().await;
        cluster.members[follower].kill();
        cluster.members[follower].start();
        cluster.members[follower].ready().await;
        let refused = put(&cluster, follower, "k", "12345").await.unwrap_err();
        assert_eq!(told(&refused), (Code::InvalidArgument, "the value is too long"));

        ask(&cluster.members[0], &["off", "probe"]).json();
        for asked in 0..3 {
            put(&cluster, asked, "k", "12345").await.unwrap();
        }
    });
}

/// Whoever has locked everybody out gets in again.
#[test]
fn a_plugin_that_denies_everything_does_not_lock_the_operator_out() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &["--strict-reconfig-check=false"]).await;
        for key in ["a", "b", "c"] {
            put(&cluster, 0, key, "v").await.unwrap();
        }
        let mut client = cluster.client(1);
        let grant = pb::LeaseGrantRequest { ttl: 60, id: 7 };
        client.lease.lease_grant(grant).await.unwrap();
        client.lease.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 8 }).await.unwrap();
        enforce(&cluster, &golden_path("probe"), "probe", &json!({"deny_all": true}), &[]);

        let denied = (Code::PermissionDenied, "nothing is allowed");
        assert_eq!(told(&put(&cluster, 2, "a", "w").await.unwrap_err()), denied);
        let refused = client.lease.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 9 }).await.unwrap_err();
        assert_eq!(told(&refused), denied);
        let range =
            pb::TxnRequest { success: vec![op(Request::RequestDeleteRange(delete("a", "z")))], ..Default::default() };
        assert_eq!(told(&client.kv.txn(range).await.unwrap_err()), denied);

        // Deletes, alone and in a transaction; compactions; leases that are there; alarms; members; plugins.
        client.kv.delete_range(delete("a", "")).await.unwrap();
        let single =
            pb::TxnRequest { success: vec![op(Request::RequestDeleteRange(delete("b", "")))], ..Default::default() };
        client.kv.txn(single).await.unwrap();
        let revision = client.kv.delete_range(delete("c", "z")).await.unwrap().into_inner().header.unwrap().revision;
        client.kv.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
        let renewal = tokio_stream::once(pb::LeaseKeepAliveRequest { id: 7 });
        let renewed = client.lease.lease_keep_alive(renewal).await.unwrap().into_inner().message().await.unwrap();
        assert_eq!(renewed.unwrap().ttl, 60);
        client.lease.lease_revoke(pb::LeaseRevokeRequest { id: 8 }).await.unwrap();
        let alarm = |action| pb::AlarmRequest { action, member_id: 1, alarm: pb::AlarmType::Nospace.into() };
        client.maintenance.alarm(alarm(pb::alarm_request::AlarmAction::Activate.into())).await.unwrap();
        client.maintenance.alarm(alarm(pb::alarm_request::AlarmAction::Deactivate.into())).await.unwrap();
        client.maintenance.status(pb::StatusRequest {}).await.unwrap();
        client.maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
        let learner = pb::MemberAddRequest { peer_ur_ls: vec!["http://127.0.0.1:9".to_owned()], is_learner: true };
        let added = client.cluster.member_add(learner).await.unwrap().into_inner().member.unwrap();
        client.cluster.member_remove(pb::MemberRemoveRequest { id: added.id }).await.unwrap();
        let leader = cluster.leader().await;
        let other = cluster.ids().await[(leader + 1) % 3];
        let request = pb::MoveLeaderRequest { target_id: other };
        let mut leading = cluster.client(leader).maintenance;
        // A member that has not applied the change of the members yet declines.
        if leading.move_leader(request).await.is_err() {
            leading.move_leader(request).await.unwrap();
        }

        load(&cluster, 2, &golden_path("probe"), &["--name", "probe"]).json();
        ask(&cluster.members[2], &["activate", "probe"]).json();
        put(&cluster, 0, "a", "w").await.unwrap();
        ask(&cluster.members[0], &["rollback", "probe"]).json();
        assert_eq!(told(&put(&cluster, 1, "a", "w").await.unwrap_err()), denied);
        ask(&cluster.members[1], &["off", "probe"]).json();
        put(&cluster, 2, "a", "w").await.unwrap();
        ask(&cluster.members[1], &["remove", "probe"]).json();
    });
}

/// Two policies that each read what the other's clients write: one key may be there while the other is not. Without the
/// comparison of what was read, both writers of a round would now and then find the other's key missing.
#[test]
fn policies_that_read_each_others_keys_stay_serializable() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        for (name, own, other) in [("left", "/left", "/right"), ("right", "/right", "/left")] {
            let config = json!({"while_absent": [[own, other]]});
            enforce(&cluster, &probe(&cluster, name, own), name, &config, &["--kv-read", "/"]);
        }
        let (mut one, mut none) = (0, 0);
        for round in 0..SKEW_ROUNDS {
            let mut client = cluster.client(round % 3);
            client.kv.delete_range(delete("/", "0")).await.unwrap();
            let (left, right) =
                tokio::join!(put(&cluster, round % 3, "/left", "v"), put(&cluster, (round + 1) % 3, "/right", "v"),);
            for (outcome, other) in [(&left, "/right"), (&right, "/left")] {
                let Err(refused) = outcome else { continue };
                assert_eq!(told(refused), (Code::FailedPrecondition, &*format!("{other} is there")));
            }
            match (left.is_ok(), right.is_ok()) {
                (true, true) => panic!("round {round}: both keys were put"),
                (false, false) => none += 1,
                _ => one += 1,
            }
        }
        assert_eq!((one, none), (SKEW_ROUNDS, 0), "of two writers one is first");
        let again: f64 = (0..3).map(|asked| judged_again(&cluster, asked)).sum();
        assert!(again > 0.0, "no write was ever judged again: the writers did not meet");
    });
}

/// How often a member had a write judged again since a key that was read had changed.
fn judged_again(cluster: &Cluster, asked: usize) -> f64 {
    let metrics = crate::metrics(&cluster.members[asked]);
    let line = metrics.lines().find(|line| line.starts_with("plugin_judged_again_total{cause=\"read-set\"}"));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("the series is always there")
}

/// A plugin that warns, one in shadow and one that lets pass what it can't judge keep nobody from writing.
#[test]
fn warnings_and_shadows_change_nothing() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let config = json!({"trigger": "/warn/", "act": "warn"});
        enforce(&cluster, &probe(&cluster, "warns", "/warn/"), "warns", &config, &[]);
        put(&cluster, 0, "/warn/k", "v").await.unwrap();
        let config = json!({"deny_all": true}).to_string();
        let words = ["--name", "shadow", "--config-json", &config];
        load(&cluster, 0, &probe(&cluster, "shadow", "/"), &words).json();
        ask(&cluster.members[0], &["shadow", "shadow"]).json();
        put(&cluster, 0, "/warn/k", "v").await.unwrap();
        let metrics = crate::metrics(&cluster.members[0]);
        for line in [
            "plugin_verdicts_total{plugin=\"warns\",mode=\"enforce\",verdict=\"warn\"} 2",
            "plugin_verdicts_total{plugin=\"shadow\",mode=\"shadow\",verdict=\"deny\"} 1",
            "plugin_shadow_differs_total{plugin=\"shadow\"} 1",
        ] {
            assert!(metrics.lines().any(|shown| shown == line), "{line} is not among\n{metrics}");
        }
        let log = cluster.members[0].log();
        assert!(log.contains("a plugin warns of a request that it lets pass"), "{log}");
        assert!(log.contains("a plugin in shadow would have decided otherwise"), "{log}");
    });
}
