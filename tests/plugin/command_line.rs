//! What the command line says to people, and of mistakes.

use kuorum_tests::cluster::Cluster;
use kuorum_tests::member::free_ports;
use kuorum_tests::plugin_command::{ask, plugin};
use kuorum_tests::subject::Subject;

use crate::{block_on, component};

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
