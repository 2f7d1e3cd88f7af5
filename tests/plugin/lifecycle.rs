//! One plugin from its first upload to its removal, on three members.

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::PluginFile;
use kuorum_tests::subject::Subject;
use serde_json::json;

use crate::{block_on, component, inspected, load, prepared, slot, stands, written};

/// More than two entries hold.
const LARGE_BYTES: usize = 600_000;

#[test]
fn a_plugin_is_loaded_watched_enforced_replaced_taken_back_and_removed() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let before = cluster.aligned().await;
        let (one, two) = (component(&cluster, "one", LARGE_BYTES), component(&cluster, "two", 10));

        let words = ["--name", "guard", "--config-json", "{\"limit\":3}", "--kv-read", "/a/", "--fuel", "1000000"];
        let loaded = load(&cluster, 0, &one, &words).json();
        assert_eq!(
            (&loaded["revision"], &loaded["uploaded"], &loaded["ready"]),
            (&json!(1), &json!(true), &json!(true))
        );
        let members = loaded["members"].as_array().unwrap();
        assert_eq!(members.iter().filter(|member| member["state"] == "ready").count(), 3, "{loaded}");
        let again = load(&cluster, 1, &one, &words).json();
        assert_eq!(
            (&again["revision"], &again["uploaded"], &again["was_there"]),
            (&json!(1), &json!(false), &json!(true))
        );

        // Each by way of another member; whoever is asked next knows of it.
        let shadow = ask(&cluster.members[1], &["shadow", "guard"]).json();
        assert_eq!(shadow["policy_epoch"], 0);
        let enforced = ask(&cluster.members[2], &["activate", "guard", "--expected-epoch", "0"]).json();
        assert_eq!(enforced["policy_epoch"], 1);
        for asked in 0..3 {
            let guard = inspected(&cluster, asked, "guard");
            assert_eq!((slot(&guard, "current"), slot(&guard, "candidate")), (stands(1, "enforce"), None));
            assert_eq!(guard["current"]["config"], json!({"limit": 3}));
            assert_eq!(guard["current"]["kv_read"], json!(["/a/"]));
        }

        // Somebody who has not seen the change may make none.
        load(&cluster, 0, &two, &[]).json();
        let refused = ask(&cluster.members[0], &["activate", "guard", "--expected-epoch", "0"]);
        let words =
            "kuorum plugin activate: the policy epoch is 1, not 0: somebody changed the policies; look at them again";
        assert_eq!(refused.refusal(), words);
        ask(&cluster.members[0], &["shadow", "guard"]).json();
        let guard = inspected(&cluster, 1, "guard");
        assert_eq!((slot(&guard, "current"), slot(&guard, "candidate")), (stands(1, "enforce"), stands(2, "shadow")));
        let replaced = ask(&cluster.members[0], &["activate", "guard"]).json();
        assert_eq!(replaced["policy_epoch"], 2);

        let back = ask(&cluster.members[1], &["rollback", "guard"]).json();
        assert_eq!(back["policy_epoch"], 3);
        let guard = inspected(&cluster, 2, "guard");
        assert_eq!((slot(&guard, "current"), slot(&guard, "previous")), (stands(1, "enforce"), stands(2, "off")));

        let refused = ask(&cluster.members[2], &["remove", "guard"]);
        assert_eq!(refused.refusal(), "kuorum plugin remove: plugin guard is not off");
        assert_eq!(ask(&cluster.members[2], &["off", "guard"]).json()["policy_epoch"], 4);
        ask(&cluster.members[2], &["remove", "guard"]).json();
        assert_eq!(ask(&cluster.members[0], &["list"]).json()["plugins"], json!([]));
        assert_eq!(
            ask(&cluster.members[0], &["inspect", "guard"]).refusal(),
            "kuorum plugin inspect: there is no plugin guard"
        );
        assert_eq!(cluster.aligned().await, before, "plugins change neither revision nor hash of the keys");
    });
}

#[test]
fn what_can_not_be_prepared_is_not_put_in_force() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        // Only the plugin itself knows that it lacks a configuration.
        let path = written(&cluster, "tiny", &PluginFile::golden("tiny-admission"));
        let failed = load(&cluster, 0, &path, &[]);
        let why = "the plugin does not take its configuration";
        assert_eq!(failed.refusal().matches(why).count(), 3, "{failed:?}");
        let printed: serde_json::Value = serde_json::from_str(&failed.out).unwrap();
        assert_eq!((&printed["ready"], &printed["members"][0]["state"]), (&json!(false), &json!("failed")));
        let force = ["activate", "tiny-admission", "--allow-missing-members"];
        for words in [&["shadow", "tiny-admission"][..], &force[..2], &force] {
            let refused = ask(&cluster.members[1], words);
            assert!(refused.refusal().contains("is not ready on every voter"), "{refused:?}");
            assert!(refused.refusal().contains(why), "{refused:?}");
        }
        // Members that answer serve on, and writes go by.
        cluster.client(2).kv.put(pb::PutRequest { key: "k".into(), ..Default::default() }).await.unwrap();
    });
}

/// Without a member a revision can be put in force only by whoever says so.
/// Otherwise a policy that defragments what is not in use would do so for ever.
#[test]
fn components_are_in_use_as_long_as_they_are_kept() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let all_is_used = async |cluster: &Cluster| {
            let status = cluster.client(0).maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
            status.db_size_in_use == status.db_size
        };
        load(&cluster, 0, &component(&cluster, "large", 3 << 20), &[]).json();
        cluster.client(0).maintenance.defragment(pb::DefragmentRequest {}).await.unwrap();
        assert!(all_is_used(&cluster).await);
        cluster.members[0].kill();
        cluster.members[0].start();
        cluster.members[0].ready().await;
        assert!(all_is_used(&cluster).await);
        ask(&cluster.members[0], &["remove", "guard"]).json();
        assert!(!all_is_used(&cluster).await);
    });
}

#[test]
fn a_member_that_is_down_is_missed() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let follower = cluster.follower().await;
        let asked = cluster.leader().await;
        cluster.members[follower].kill();
        let one = component(&cluster, "one", 10);
        let waited = load(&cluster, asked, &one, &["--wait", "2"]);
        assert!(waited.refusal().ends_with("has not answered"), "{waited:?}");
        prepared(&cluster, asked, ("guard", "candidate"), 2).await;
        let refused = ask(&cluster.members[asked], &["activate", "guard"]);
        assert!(refused.refusal().contains("has not answered"), "{refused:?}");
        ask(&cluster.members[asked], &["activate", "guard", "--allow-missing-members"]).json();

        cluster.members[follower].start();
        cluster.members[follower].ready().await;
        let all = load(&cluster, follower, &one, &[]).json();
        assert_eq!((&all["was_there"], &all["ready"]), (&json!(true), &json!(true)));
    });
}
