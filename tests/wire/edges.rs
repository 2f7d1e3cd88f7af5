//! The hand-picked scripts under `edges/`: one behaviour a file, the file name its claim.

use std::collections::BTreeMap;
use std::time::Duration;

use kuorum_tests::lockstep::Pair;
use kuorum_tests::script::{Script, scripts_in};
use kuorum_tests::subject::Subject;

use crate::{block_on, own_directory};

/// Silence after which a script's watchers are taken to have nothing more.
const QUIET: Duration = Duration::from_millis(150);

/// Runs every script of a directory; those without flags of their own share one pair of servers.
async fn replay(directory: &str) {
    let subject = Subject::kuorum();
    let mut shared: BTreeMap<Vec<String>, Vec<Script>> = BTreeMap::new();
    let mut failures = Vec::new();
    for script in scripts_in(&own_directory(directory)) {
        if script.subject_only {
            failures.extend(alone(&subject, &script).await);
        } else {
            shared.entry(script.flags.clone()).or_default().push(script);
        }
    }
    for (flags, scripts) in shared {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut pair = Pair::started(&subject, &flags).await;
        pair.quiet = QUIET;
        for script in &scripts {
            if let Err(difference) = pair.run(script).await {
                failures.push(difference.to_string());
                // What a difference left behind must not fail the next script too.
                pair = Pair::started(&subject, &flags).await;
                pair.quiet = QUIET;
            }
        }
    }
    assert!(failures.is_empty(), "{} scripts of {directory} fail:\n{}", failures.len(), failures.join("\n"));
}

/// A script that no etcd survives: Kuorum must, and must answer as the script says.
async fn alone(subject: &Subject, script: &Script) -> Option<String> {
    if subject.is_etcd {
        eprintln!("{}: not run, it kills etcd", script.name);
        return None;
    }
    let flags: Vec<&str> = script.flags.iter().map(String::as_str).collect();
    let mut pair = Pair::subject_only(subject, &flags).await;
    let difference = pair.run(script).await.err()?;
    Some(difference.to_string())
}

#[test]
fn key_value_edges_are_answered_as_by_etcd() {
    block_on(replay("edges/kv"));
}

#[test]
fn txn_edges_are_answered_as_by_etcd() {
    block_on(replay("edges/txn"));
}

#[test]
fn watch_edges_are_answered_as_by_etcd() {
    block_on(replay("edges/watch"));
}

#[test]
fn lease_edges_are_answered_as_by_etcd() {
    block_on(replay("edges/lease"));
}

#[test]
fn maintenance_edges_are_answered_as_by_etcd() {
    block_on(replay("edges/maintenance"));
}

#[test]
fn cluster_edges_are_answered_as_by_etcd() {
    block_on(replay("edges/cluster"));
}

#[test]
fn shrunk_cases_of_earlier_differences_stay_fixed() {
    block_on(replay("cases"));
}
