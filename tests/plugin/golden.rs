//! Components built once, which every host has to load: tests/golden/README.md says why.

use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::golden_path;
use kuorum_tests::subject::{Subject, workspace};
use serde_json::json;

use crate::{block_on, load, put};

/// Every component, with a configuration that it takes.
const COMPONENTS: [(&str, &str); 10] = [
    ("admission-guard", r#"{"range_deletes":{"allowed_within":["/tmp/"]}}"#),
    ("c-guard", "{}"),
    ("compaction-load-aware", r#"{"keep":{"minutes":10,"revisions":1000}}"#),
    ("core-admission", r#"{"value_bytes_max":1000}"#),
    ("probe", "{}"),
    ("tiny-admission", r#"{"value_bytes_max":1000}"#),
    ("tiny-backup-schedule", r#"{"hours":1,"keep":3}"#),
    ("tiny-backup-target", "{}"),
    ("tiny-compaction", r#"{"revisions":1000}"#),
    ("tiny-quota", r#"{"percent":90}"#),
];

#[test]
fn every_golden_component_is_made_ready() {
    let directory = std::fs::read_dir(workspace().join("tests/golden")).unwrap();
    let names = directory.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut there: Vec<String> = names.filter_map(|name| name.strip_suffix(".wasm").map(ToOwned::to_owned)).collect();
    there.sort();
    assert_eq!(there, COMPONENTS.map(|(name, _)| name), "a component has come or gone");
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        for (name, config) in COMPONENTS {
            let loaded = load(&cluster, 0, &golden_path(name), &["--name", name, "--config-json", config]).json();
            assert_eq!((&loaded["ready"], &loaded["members"][0]["state"]), (&json!(true), &json!("ready")), "{loaded}");
        }

        // A core module is asked as a component is.
        ask(&cluster.members[0], &["activate", "core-admission"]).json();
        put(&cluster, 0, "k", vec![b'v'; 1_000]).await.unwrap();
        let refused = put(&cluster, 0, "k", vec![b'v'; 1_001]).await.unwrap_err();
        assert_eq!(refused.message(), "a value is longer than 1000 bytes");
    });
}
