//! What the command line says to people, and of mistakes.

use std::net::TcpListener;
use std::process::Command;

use bytes::Bytes;
use kuorum_proto::kuorum::v1::PluginLoadRequest;
use kuorum_proto::kuorum::v1::plugins_client::PluginsClient;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::{ask, plugin};
use kuorum_tests::plugin_file::{PluginFile, golden_path};
use kuorum_tests::ports::free_ports;
use kuorum_tests::subject::Subject;
use serde_json::json;

use crate::{block_on, component, inspected, load, uploaded, written};

#[test]
fn mistakes_are_told_in_a_line_each() {
    let help = plugin(&["--help"]);
    assert_eq!(help.code, 0);
    assert!(help.out.starts_with("Usage: kuorum plugin COMMAND"), "{help:?}");
    for words in [&["burn"][..], &["load"], &["inspect"], &["list", "--nope", "1"]] {
        let mistake = plugin(words);
        assert_eq!((mistake.code, mistake.out.as_str(), mistake.err.lines().count()), (2, "", 1), "{mistake:?}");
    }
    let nobody = format!("127.0.0.1:{}", free_ports().0);
    let unanswered = plugin(&["list", "--endpoints", &nobody]);
    assert!(unanswered.refusal().contains("takes no connection"), "{unanswered:?}");
    let no_file = plugin(&["load", "/nowhere/x.wasm", "--endpoints", &nobody]);
    assert_eq!(no_file.code, 1, "{no_file:?}");
}

#[test]
fn people_get_tables_and_refusals_in_words() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let (member, endpoint) = (&cluster.members[0], cluster.members[0].endpoint());
        let one = component(&cluster, "one", 10);
        let one = one.to_str().unwrap();
        let people = |words: &[&str]| plugin(&[words, &["--endpoints", &endpoint]].concat());

        let loaded = people(&["load", one, "--kv-read", "/a/"]);
        assert_eq!(
            (loaded.code, loaded.out.as_str()),
            (0, "guard: revision 1 is ready on every member\n"),
            "{loaded:?}"
        );
        let told: Vec<&str> = loaded.err.lines().collect();
        assert_eq!(
            told,
            [
                "guard asks to read what it is not granted (--kv-read): /b/",
                "uploaded 0.0 MiB",
                "revision 1 of guard",
                "  n1 is ready",
            ]
        );
        assert_eq!(people(&["activate", "guard"]).out, "guard: revision 1 enforce (policy epoch 1)\n");
        let table = "NAME   CURRENT    CANDIDATE  PREVIOUS  HEALTH\nguard  1 enforce  -          -         ok\npolicy epoch 1\n";
        assert_eq!(people(&["list"]).out, table);
        let inspected = people(&["inspect", "guard"]).out;
        assert!(inspected.starts_with("guard (policy epoch 1)\ncurrent revision 1  enforce\n"), "{inspected}");
        assert!(inspected.contains("  configuration     {}\n"), "{inspected}");
        assert!(inspected.ends_with("  n1                ready\n"), "{inspected}");

        // The second endpoint is asked when the first is not there.
        let nobody = format!("127.0.0.1:{}", free_ports().0);
        let list = plugin(&["list", "--output", "json", "--endpoints", &format!("{nobody},{endpoint}")]);
        assert_eq!(list.json()["policy_epoch"], 1);

        // Or takes connections and answers nothing, as a process that stands still. Nobody waits for that for ever.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silence = silent.local_addr().unwrap().to_string();
        let words = ["list", "--output", "json", "--timeout", "1", "--endpoints"];
        let list = plugin(&[&words[..], &[&format!("{silence},{endpoint}")]].concat());
        assert_eq!(list.json()["policy_epoch"], 1);
        let unanswered = plugin(&["load", one, "--output", "json", "--timeout", "1", "--endpoints", &silence]);
        assert!(unanswered.refusal().contains("broke before all of the answer came"), "{unanswered:?}");

        let refusals = [
            (&["rollback", "guard"][..], "kuorum plugin rollback: plugin guard has no revision to go back to"),
            (&["shadow", "q"], "kuorum plugin shadow: there is no plugin q"),
            (&["activate", "guard", "--revision", "7"], "kuorum plugin activate: plugin guard has no revision 7"),
            (&["tail", "q"], "kuorum plugin tail: there is no plugin q"),
        ];
        for (words, refusal) in refusals {
            assert_eq!(ask(member, words).refusal(), refusal);
        }
        let bad_config = ask(member, &["load", one, "--config-json", "{"]);
        assert!(bad_config.refusal().contains("the configuration is no JSON"), "{bad_config:?}");
    });
}

#[test]
fn output_that_can_not_be_written_is_told() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let words = ["plugin", "list", "--output", "json", "--endpoints", &cluster.members[0].endpoint()];
        let output = Command::new(Subject::kuorum().binary).args(words).stdout(full).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("standard output can't be written: No space left on device"), "{told}");
    });
}

/// An instance that trapped is dropped, in a trial as in a member: what it would say next is nobody's concern.
#[test]
fn a_trial_of_a_plugin_that_traps_says_that_it_traps() {
    let path = golden_path("probe");
    let trial = plugin(&["test", path.to_str().unwrap(), "--config-json", r#"{"trigger":"","act":"trap"}"#]);
    let printed = format!("{}{}", trial.out, trial.err);
    assert!(printed.contains("no answer: it trapped"), "{printed}");
    assert!(!printed.contains("it depends on what was asked before"), "{printed}");
}

#[test]
fn files_that_are_no_plugins_are_refused_before_they_are_uploaded() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let golden = PluginFile::golden("tiny-admission");
        let bytes = golden.bytes();
        let asks = json!({"name": "guard", "version": "1", "limits": {"fuel": 0}, "admission": {"match": [{"ops": ["put"], "prefix": ""}]}});
        let unknown = json!({"name": "guard", "version": "1", "colour": "red"});
        let files: [(&str, Vec<u8>, &[&str], &str); 9] = [
            ("text", b"a plugin".to_vec(), &[], "no wasm component"),
            ("empty", Vec::new(), &[], "is empty"),
            ("head", bytes[..5].to_vec(), &[], "no wasm component"),
            ("cut", bytes[..bytes.len() / 2].to_vec(), &[], "damaged or cut short"),
            ("module", b"\0asm\x01\0\0\0".to_vec(), &[], "no section \"kuorum-manifest\""),
            ("unknown", golden.clone().with_manifest(&unknown).bytes().to_vec(), &[], "unknown field `colour`"),
            ("fuel", golden.clone().with_manifest(&asks).bytes().to_vec(), &[], "limits.fuel is 0"),
            ("named", bytes.to_vec(), &["--name", "guard"], "the manifest names the plugin tiny-admission"),
            ("grant", bytes.to_vec(), &["--kv-read", "/a/"], "the grant \"/a/\" is not among what kv_read asks for"),
        ];
        for (name, bytes, words, why) in files {
            let path = cluster.members[0].home().join(name);
            std::fs::write(&path, bytes).unwrap();
            let refused = ask(&cluster.members[0], &[&["load", path.to_str().unwrap()], words].concat());
            assert!(refused.refusal().contains(why), "{name}: {refused:?}");
            assert!(refused.out.is_empty(), "{refused:?}");
        }
        assert!(!cluster.members[0].log().contains("plugin"), "something was brought to the member");
    });
}

/// Whoever speaks to the member without the command line hears the same.
#[test]
fn a_member_looks_at_what_it_is_to_load() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let mut plugins = PluginsClient::new(cluster.client(0).channel);
        let module = Bytes::from_static(b"\0asm\x01\0\0\0");
        let guard = Bytes::copy_from_slice(PluginFile::golden("c-guard").bytes());
        for (file, name, kv_read, why) in [
            (&module, "guard", "", "kuorum: the file has no section"),
            (&guard, "guard", "", "kuorum: the manifest names the plugin c-guard, and it was loaded as guard"),
            (&guard, "c-guard", "/a/", "kuorum: the grant \"/a/\" is not among what kv_read asks for"),
        ] {
            let sha256 = uploaded(&mut plugins, file).await.unwrap();
            let kv_read = if kv_read.is_empty() { Vec::new() } else { vec![Bytes::from(kv_read)] };
            let request = PluginLoadRequest { name: name.to_owned(), sha256, kv_read, ..PluginLoadRequest::default() };
            let refused = plugins.load(request).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
            assert!(refused.message().starts_with(why), "{refused:?}");
        }
        let none =
            PluginLoadRequest { name: "n".to_owned(), sha256: vec![0; 32].into(), ..PluginLoadRequest::default() };
        assert_eq!(plugins.load(none).await.unwrap_err().code(), tonic::Code::FailedPrecondition);
    });
}

/// What can't be a plugin's name gets nowhere, whatever is asked about it, and is shown so that it harms no terminal.
#[test]
fn words_that_are_no_name_are_refused_in_one_line() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let long = "n".repeat(100_000);
        for name in ["a\nb", "\u{1b}[2J", "..", "", "Upper", long.as_str()] {
            for command in ["off", "activate", "shadow", "rollback", "remove", "inspect", "tail"] {
                let refused = ask(&cluster.members[0], &[command, name]);
                let said = refused.refusal();
                assert!(said.contains("is no name of a plugin"), "{command}: {said}");
                assert!(said.len() < 400 && !said.contains(char::is_control), "{command}: {said:?}");
            }
        }
        assert!(cluster.members[0].log().len() < 50_000, "names are written out");
    });
}

/// A member that goes away while it is followed is named.
#[test]
fn a_connection_that_breaks_is_told_as_one() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        load(&cluster, 0, &component(&cluster, "one", 10), &[]).json();
        let endpoint = cluster.members[0].endpoint();
        let tail = std::process::Command::new(Subject::kuorum().binary)
            .args(["plugin", "tail", "guard", "--endpoints", &endpoint])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // One that was not begun yet says that nothing takes a connection, which is as true.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        cluster.members[0].kill();
        let output = tail.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains(&endpoint), "{said}");
    });
}

/// What a plugin says of itself keeps to its line where people read it, and is told as it is where programs do.
#[test]
fn texts_of_plugins_break_no_table_and_are_whole_in_json() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let description = "one\ntwo\u{1b}[31m \u{7f}\u{85} three";
        let manifest = json!({
            "name": "guard", "version": "1", "description": description,
            "admission": {"match": [{"ops": ["put"], "prefix": "/"}]},
        });
        let file = written(&cluster, "texts", &PluginFile::golden("c-guard").with_manifest(&manifest));
        load(&cluster, 0, &file, &["--config-json", "{\n  \"a\":\n 1}"]).json();
        assert_eq!(inspected(&cluster, 0, "guard")["candidate"]["here"]["description"], description);
        let shown = plugin(&["inspect", "guard", "--endpoints", &cluster.members[0].endpoint()]);
        assert_eq!((shown.code, shown.out.replace('\n', "").contains(char::is_control)), (0, false), "{shown:?}");
        assert!(shown.out.lines().any(|line| line.ends_with(" one two [31m    three")), "{shown:?}");
        assert!(shown.out.lines().any(|line| line.ends_with(" {\"a\":1}")), "{shown:?}");
    });
}
