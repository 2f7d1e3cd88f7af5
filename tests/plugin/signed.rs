//! Plugins that members take only from those whom they trust.

use kuorum_tests::cluster::Cluster;
use kuorum_tests::member::Member;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::{KEY, OTHER_KEY, PluginFile};
use kuorum_tests::subject::Subject;
use serde_json::json;

use crate::{block_on, load, written};

/// A file beside the member's data, for it or for whoever speaks to it.
fn file_of(member: &Member, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = member.home().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_member_with_trusted_keys_takes_only_what_they_have_signed() {
    block_on(async {
        let mut cluster = Cluster::new(&Subject::kuorum(), 1, &[]);
        let file = file_of(&cluster.members[0], "keys.pem", KEY.public_pem);
        cluster.members[0].flags.push(format!("--plugin-trusted-keys={file}"));
        cluster.start().await;
        let plugin = PluginFile::golden("c-guard");
        let path = written(&cluster, "guard", &plugin);
        let signature = |name: &str, bytes: &[u8]| file_of(&cluster.members[0], name, bytes);
        let refused = |words: &[&str], why: &str| {
            let refused = load(&cluster, 0, &path, words);
            assert!(refused.refusal().contains(why), "{refused:?}");
        };
        let good = plugin.signed_by(&KEY);
        refused(&[], "the plugin is not signed");
        refused(&["--signature", &signature("other.sig", &plugin.signed_by(&OTHER_KEY))], "is by none of the 1 keys");
        let another = plugin.clone().with_ballast(1);
        refused(&["--signature", &signature("another.sig", &another.signed_by(&KEY))], "or of another file");
        refused(&["--signature", &signature("cut.sig", &good[..63])], "this one has 63");
        refused(&["--signature", &signature("nothing.sig", b"")], "this one has 0");
        assert_eq!(ask(&cluster.members[0], &["list"]).json()["plugins"], json!([]), "what was refused left something");
        let loaded = load(&cluster, 0, &path, &["--signature", &signature("good.sig", &good)]).json();
        assert_eq!(loaded["ready"], true);
    });
}

/// The signature goes with the revision: whoever asks a member that demands none gets nothing past those that do.
#[test]
fn a_plugin_is_not_smuggled_in_by_way_of_a_member_without_keys() {
    block_on(async {
        let mut cluster = Cluster::new(&Subject::kuorum(), 3, &[]);
        let file = file_of(&cluster.members[2], "keys.pem", format!("{}{}", OTHER_KEY.public_pem, KEY.public_pem));
        cluster.members[2].flags.push(format!("--plugin-trusted-keys={file}"));
        cluster.start().await;
        let plugin = PluginFile::golden("c-guard");
        let path = written(&cluster, "guard", &plugin);
        let unsigned = load(&cluster, 0, &path, &[]);
        let why = "n3 can't prepare it: the plugin is not signed";
        assert!(unsigned.refusal().contains(why) && !unsigned.refusal().contains("n1"), "{unsigned:?}");
        let refused = ask(&cluster.members[0], &["activate", "c-guard"]);
        assert!(refused.refusal().contains("the plugin is not signed"), "{refused:?}");

        let signature = file_of(&cluster.members[0], "guard.sig", plugin.signed_by(&KEY));
        let signed = load(&cluster, 0, &path, &["--signature", &signature]).json();
        assert_eq!(
            (&signed["revision"], &signed["was_there"], &signed["ready"]),
            (&json!(2), &json!(false), &json!(true))
        );
        ask(&cluster.members[1], &["activate", "c-guard"]).json();

        // A member trusts by its own keys whatever it prepared before.
        file_of(&cluster.members[2], "keys.pem", OTHER_KEY.public_pem);
        cluster.members[2].kill();
        cluster.members[2].start();
        cluster.members[2].ready().await;
        let deadline = kuorum_tests::clock::Deadline::after(std::time::Duration::from_secs(20));
        loop {
            let inspected = ask(&cluster.members[2], &["inspect", "c-guard"]).json();
            if inspected["plugin"]["current"]["here"]["health"] == "failed" {
                break;
            }
            assert!(!deadline.has_passed(), "{inspected}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn a_member_whose_keys_can_not_be_read_does_not_start() {
    let mut member = Member::new(&Subject::kuorum(), &[]);
    let file = file_of(&member, "keys.pem", "no key");
    member.flags.push(format!("--plugin-trusted-keys={file}"));
    member.start();
    let status = member.exited_within(std::time::Duration::from_secs(20)).expect("it ends");
    assert!(!status.success());
    assert!(
        member.log().contains("--plugin-trusted-keys names") && member.log().contains("BEGIN PUBLIC KEY"),
        "{}",
        member.log()
    );
}
