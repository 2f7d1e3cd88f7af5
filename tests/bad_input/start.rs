//! What keeps a member from starting.

use std::ffi::OsString;
use std::net::TcpListener;

use kuorum_tests::member::Member;
use kuorum_tests::subject::Subject;

use crate::{block_on, refused};

/// Go's flag package, and so etcd, ends with this on a bad flag.
const USAGE_EXIT: i32 = 2;

fn member() -> Member {
    Member::new(&Subject::kuorum(), &[])
}

#[test]
fn an_unknown_flag_prints_the_usage_and_exits_2() {
    let member = member();
    let mut arguments = member.arguments();
    arguments.push("--no-such-flag".into());
    let refusal = refused(&member, &arguments);
    refusal.says(&["no-such-flag"]);
    assert_eq!(refusal.status.code(), Some(USAGE_EXIT));
    assert!(refusal.stderr.to_lowercase().contains("usage") || member.subject.is_etcd, "{}", refusal.stderr);
}

#[test]
fn a_flag_value_of_the_wrong_kind_is_named() {
    let member = member();
    let mut arguments = member.arguments();
    arguments.push("--snapshot-count=many".into());
    let refusal = refused(&member, &arguments);
    refusal.says(&["many", "snapshot-count"]);
    assert_eq!(refusal.status.code(), Some(USAGE_EXIT));
}

#[test]
fn an_unreadable_configuration_file_is_named() {
    let member = member();
    let missing = member.home().join("missing.yaml");
    let arguments = [OsString::from("--config-file"), missing.clone().into()];
    refused(&member, &arguments).says(&["missing.yaml"]);

    let broken = member.home().join("broken.yaml");
    std::fs::write(&broken, "name: [unclosed\n\tdata-dir: x\n").unwrap();
    let arguments = [OsString::from("--config-file"), broken.into()];
    refused(&member, &arguments).says(&["yaml"]);
}

#[test]
fn a_port_in_use_is_named() {
    let member = member();
    for port in [member.client_port, member.peer_port] {
        let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        refused(&member, &member.arguments()).says(&[&port.to_string(), "in use"]);
        drop(taken);
    }
}

/// A restarted member keeps its flags; only one without data would have to join others.
#[test]
fn joining_a_cluster_without_data_is_refused_and_a_restart_is_not() {
    block_on(async {
        let subject = Subject::kuorum();
        let mut member = Member::new(&subject, &["--initial-cluster-state=existing"]);
        if !subject.is_etcd {
            refused(&member, &member.arguments()).says(&["initial-cluster-state", "existing", "names no other member"]);
        }
        let flags = std::mem::take(&mut member.flags);
        member.start();
        member.ready().await;
        member.kill();
        member.flags = flags;
        member.start();
        member.ready().await;
    });
}

#[test]
fn a_data_directory_of_another_cluster_is_refused() {
    block_on(async {
        let subject = Subject::kuorum();
        let mut first = Member::started(&subject, &[]).await;
        first.kill();
        // The same directory, but the flags describe a member at other URLs: of that name this cluster knows another.
        let mut second = Member::new(&subject, &["--initial-cluster-token=another"]);
        second.set_data_dir(first.data_dir().to_path_buf());
        if second.subject.is_etcd {
            // etcd ignores the initial flags once there is a data directory; Kuorum may do the same.
            return;
        }
        second.start();
        match second.ready_within(crate::REFUSED_WITHIN).await {
            // As etcd: the data directory decides, and the member answers as what it was.
            Ok(_) => {
                let log = second.log();
                assert!(!log.contains("panicked"), "{log}");
            }
            Err(problem) => {
                assert!(problem.contains("ended with"), "{problem}");
                assert!(second.log().contains("cluster"), "{}", second.log());
            }
        }
    });
}

#[test]
fn foreign_files_in_the_data_directory_are_no_log() {
    let member = member();
    let wal = member.data_dir().join("member").join("wal");
    std::fs::create_dir_all(&wal).unwrap();
    std::fs::write(
        wal.join("0000000000000000-0000000000000000.wal"),
        b"this is no log segment, but it is long enough to look like one",
    )
    .unwrap();
    let refusal = refused(&member, &member.arguments());
    assert!(!refusal.status.success());
    assert!(!refusal.stderr.trim().is_empty());
    if !member.subject.is_etcd {
        refusal.says(&["wal"]);
    }
}

#[test]
fn foreign_files_beside_the_data_are_left_alone() {
    block_on(async {
        let mut member = Member::new(&Subject::kuorum(), &[]);
        std::fs::create_dir_all(member.data_dir()).unwrap();
        let note = member.data_dir().join("README");
        std::fs::write(&note, "not ours").unwrap();
        member.start();
        member.ready().await;
        member.kill();
        assert_eq!(std::fs::read_to_string(note).unwrap(), "not ours");
    });
}

#[test]
fn a_data_directory_that_cannot_be_written_is_named() {
    // Root ignores file modes, so the path leads through a file.
    let mut member = member();
    let file = member.home().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    member.set_data_dir(file.join("data"));
    refused(&member, &member.arguments()).says(&["file/data"]);
    // A file in place of the directory.
    member.set_data_dir(file);
    let refusal = refused(&member, &member.arguments());
    assert!(!refusal.status.success());
    assert!(!refusal.stderr.contains("panicked") || member.subject.is_etcd, "{}", refusal.stderr);
}

#[test]
fn a_name_missing_from_the_initial_cluster_is_named() {
    let mut member = member();
    member.flags = vec!["--initial-cluster=other=http://127.0.0.1:1".to_owned()];
    refused(&member, &member.arguments()).says(&["n1"]);
}

#[test]
fn an_unknown_feature_gate_is_refused() {
    let mut member = member();
    member.flags = vec!["--feature-gates=NoSuchGate=true".to_owned()];
    refused(&member, &member.arguments()).says(&["NoSuchGate"]);
}
