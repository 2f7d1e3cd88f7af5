//! Every change of plugins, of both kinds that can be enforced, while etcd's own client works with all members.

use std::io::Write as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::etcdctl::etcdctl;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::{PluginFile, golden_path};
use kuorum_tests::subject::{Subject, oracle};
use serde::Deserialize;
use serde_json::json;

use crate::{block_on, put, written};

const KEEPER: &str = "compaction-load-aware";
/// Before the first change: what is usual.
const USUAL: Duration = Duration::from_secs(5);
/// How long the load goes on after a change, before the next.
const BETWEEN: Duration = Duration::from_millis(500);
const AGREED_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A `tests/oracle/mixedload` that runs; it ends when its input does.
struct Load {
    child: Child,
    phases: Option<ChildStdin>,
}

#[derive(Debug, Deserialize)]
struct Report {
    phases: Vec<Phase>,
    failures: Vec<String>,
    watched: Vec<u64>,
    written: u64,
}

#[derive(Debug, Deserialize)]
struct Phase {
    phase: String,
    requests: u64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    late: u64,
}

impl Load {
    fn on(cluster: &Cluster) -> Load {
        let mut child = Command::new(oracle("mixedload"))
            .args(cluster.members.iter().map(kuorum_tests::member::Member::endpoint))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the oracle's programs run on this machine");
        let phases = child.stdin.take();
        Load { child, phases }
    }

    fn enter(&mut self, phase: &str) {
        let mut phases = self.phases.as_ref().expect("the load's input is a pipe");
        writeln!(phases, "{phase}").expect("the load runs until its input ends");
    }

    fn ended(mut self) -> Report {
        self.phases = None;
        let out = self.child.stdout.take().expect("the load's output is a pipe");
        serde_json::from_reader(out).expect("the load ends with a report")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Report {
    /// Times are told and not judged: they are the machine's as well.
    fn table(&self) -> String {
        let mut table =
            format!("{:>8} {:>8} {:>8} {:>8} {:>5}  while\n", "requests", "p50 us", "p99 us", "max us", "late");
        for Phase { phase, requests, p50_us, p99_us, max_us, late } in &self.phases {
            table += &format!("{requests:>8} {p50_us:>8} {p99_us:>8} {max_us:>8} {late:>5}  {phase}\n");
        }
        let (usual, changes) = self.phases.split_at(1);
        table
            + &format!("later than twice the usual p99: {} before, {} through the changes", late(usual), late(changes))
    }
}

fn late(phases: &[Phase]) -> String {
    let of = |what: fn(&Phase) -> u64| phases.iter().map(what).sum::<u64>();
    format!("{} of {}", of(|phase| phase.late), of(|phase| phase.requests))
}

/// A revision that every member has, its hash and what is compacted below it, and the policy epoch: on all the same.
async fn agree(cluster: &Cluster, epoch: u64) {
    for member in &cluster.members {
        assert_eq!(ask(member, &["list"]).json()["policy_epoch"], epoch);
    }
    let deadline = Deadline::after(AGREED_WITHIN);
    loop {
        let revision = put(cluster, 0, "/elsewhere-too", "v").await.unwrap();
        let mut hashes = Vec::new();
        for asked in 0..cluster.members.len() {
            let request = pb::HashKvRequest { revision };
            // A member that has not applied the revision yet says so.
            if let Ok(hash) = cluster.client(asked).maintenance.hash_kv(request).await {
                let hash = hash.into_inner();
                hashes.push((hash.compact_revision, hash.hash));
            }
        }
        let comparable = hashes.len() == cluster.members.len() && hashes.iter().all(|hash| hash.0 == hashes[0].0);
        if comparable {
            assert!(hashes.iter().all(|hash| *hash == hashes[0]), "members diverged at {revision}: {hashes:?}");
            return;
        }
        assert!(!deadline.has_passed(), "members stay apart at {revision}: {hashes:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// Who changes plugins, by way of one member after the other.
struct Operator {
    load: Load,
    changes: usize,
    /// The policy epoch after the last change.
    epoch: u64,
}

impl Operator {
    /// Makes a change, sees that members agree on what it led to and that etcdctl is served, and leaves some time for the
    /// load.
    async fn changes(&mut self, cluster: &Cluster, words: &[&str]) {
        let what = words[1].rsplit('/').next().unwrap_or_default();
        self.load.enter(&format!("{} {what}", words[0]));
        let printed = ask(&cluster.members[self.changes % cluster.members.len()], words).json();
        self.changes += 1;
        if matches!(words[0], "activate" | "off" | "rollback") {
            assert_eq!(printed["policy_epoch"], self.epoch + 1, "{words:?}: {printed}");
            self.epoch += 1;
        }
        agree(cluster, self.epoch).await;
        let endpoint = cluster.members[self.changes % cluster.members.len()].endpoint();
        let shown = etcdctl(&endpoint, &["put", "/guarded/by-etcdctl", words[0]]);
        assert!(shown.success, "{shown:?}");
        assert_eq!(etcdctl(&endpoint, &["get", "/guarded/by-etcdctl", "--print-value-only"]).stdout.trim(), words[0]);
        tokio::time::sleep(BETWEEN).await;
    }
}

/// How long a value may be, by what one member after the other says to longer and longer ones.
async fn value_bytes_max(cluster: &Cluster) -> usize {
    let mut taken = 0;
    for (asked, bytes) in [100, 1_000, 10_000].into_iter().enumerate() {
        match put(cluster, asked, "/guarded/long", vec![b'v'; bytes]).await {
            Ok(_) => taken = bytes,
            Err(status) => {
                assert_eq!(status.message(), "the value is too long");
                break;
            }
        }
    }
    taken
}

#[test]
fn clients_of_etcd_do_not_notice_how_plugins_change() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let manifest = |version: &str| {
            json!({
                "name": "guard", "version": version,
                "admission": {"match": [{"ops": ["put"], "prefix": "/guarded/"}, {"ops": ["lease-grant"]}]},
            })
        };
        let guards = ["guard-1", "guard-2"]
            .map(|version| written(&cluster, version, &PluginFile::golden("probe").with_manifest(&manifest(version))));
        let guards = guards.each_ref().map(|path| path.to_str().unwrap());
        let keeper_path = golden_path(KEEPER);
        let keeper = keeper_path.to_str().unwrap();
        let other_path = written(&cluster, "keeper-2", &PluginFile::golden(KEEPER).with_ballast(10));
        let other = other_path.to_str().unwrap();
        let kept = |revisions: u32| format!(r#"{{"keep":{{"minutes":0,"revisions":{revisions}}},"check_seconds":1}}"#);

        let mut load = Load::on(&cluster);
        load.enter("nothing changes");
        tokio::time::sleep(USUAL).await;
        let mut operator = Operator { load, changes: 0, epoch: 0 };

        let with = |bytes: usize| format!("{{\"value_bytes_max\":{bytes}}}");
        let load_guard = async |operator: &mut Operator, path: &str, bytes: usize| {
            operator.changes(&cluster, &["load", path, "--config-json", &with(bytes)]).await;
        };
        load_guard(&mut operator, guards[0], 1_000).await;
        operator.changes(&cluster, &["shadow", "guard"]).await;
        assert_eq!(value_bytes_max(&cluster).await, 10_000);
        operator.changes(&cluster, &["activate", "guard"]).await;
        assert_eq!(value_bytes_max(&cluster).await, 1_000);
        load_guard(&mut operator, guards[0], 100).await;
        assert_eq!(value_bytes_max(&cluster).await, 1_000);
        operator.changes(&cluster, &["activate", "guard"]).await;
        assert_eq!(value_bytes_max(&cluster).await, 100);
        load_guard(&mut operator, guards[1], 1_000).await;
        operator.changes(&cluster, &["activate", "guard"]).await;
        assert_eq!(value_bytes_max(&cluster).await, 1_000);

        let name = ["--name", KEEPER, "--config-json"];
        operator.changes(&cluster, &[&["load", keeper], &name[..], &[&kept(500)]].concat()).await;
        operator.changes(&cluster, &["shadow", KEEPER]).await;
        operator.changes(&cluster, &["activate", KEEPER]).await;
        operator.changes(&cluster, &[&["load", keeper], &name[..], &[&kept(100)]].concat()).await;
        operator.changes(&cluster, &["activate", KEEPER]).await;
        operator.changes(&cluster, &[&["load", other], &name[..], &[&kept(200)]].concat()).await;
        operator.changes(&cluster, &["activate", KEEPER]).await;

        for (name, bytes) in [("guard", 100), (KEEPER, 100)] {
            operator.changes(&cluster, &["rollback", name]).await;
            assert_eq!(value_bytes_max(&cluster).await, bytes);
        }
        for name in [KEEPER, "guard"] {
            operator.changes(&cluster, &["off", name]).await;
            operator.changes(&cluster, &["remove", name]).await;
        }
        assert_eq!(value_bytes_max(&cluster).await, 10_000);

        let report = operator.load.ended();
        println!("{}", report.table());
        assert_eq!(report.failures, [""; 0]);
        assert_eq!(report.watched, [report.written; 3], "what watches told, against what was written");
    });
}
