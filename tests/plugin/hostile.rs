//! Plugins that break, or never were any: each gets its error or does what its manifest says of failures, in bounded time,
//! and the member serves on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_proto::kuorum::v1::plugin_upload_request::Part;
use kuorum_proto::kuorum::v1::plugins_client::PluginsClient;
use kuorum_proto::kuorum::v1::{PluginLoadRequest, PluginUploadBegin, PluginUploadRequest};
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::{ask, metrics};
use kuorum_tests::plugin_file::{PluginFile, golden_path};
use kuorum_tests::subject::Subject;
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::{block_on, inspected, load, prepared, put, uploaded, written};

/// Far more than any call may take, on a machine that does other things too.
const BOUND: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

fn manifest(on_failure: &str) -> Value {
    json!({
        "name": "probe", "version": "0.1.0", "kv_read": [""],
        "admission": {"match": [{"ops": ["put"], "prefix": "/"}], "on_failure": on_failure},
    })
}

/// What a client is told of a plugin that misbehaves so, once.
async fn misbehaves(act: &str, on_failure: &str) -> Result<i64, Status> {
    let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
    let file = written(&cluster, "probe", &PluginFile::golden("probe").with_manifest(&manifest(on_failure)));
    let config = json!({"trigger": "/bad/", "act": act}).to_string();
    let words = ["--name", "probe", "--config-json", &config, "--kv-read", ""];
    load(&cluster, 0, &file, &words).json();
    ask(&cluster.members[0], &["activate", "probe"]).json();

    put(&cluster, 0, "/good/before", "v").await.unwrap();
    let deadline = Deadline::after(BOUND);
    let told = put(&cluster, 0, "/bad/k", "v").await;
    assert!(!deadline.has_passed(), "{act} took {:?}", deadline.elapsed());
    // What it is asked about, and what it is not.
    put(&cluster, 0, "/good/after", "v").await.unwrap();
    put(&cluster, 0, "elsewhere", "v").await.unwrap();
    told
}

#[test]
fn a_call_that_breaks_is_refused_alone() {
    block_on(async {
        let (fuel, time, trap) = ("it used up its fuel of ", "it took longer than ", "it trapped: ");
        for (act, reasons) in [
            ("trap", &[trap][..]),
            ("loop", &[fuel, time]),
            // Whichever limit it meets first.
            ("memory", &[fuel, time, trap]),
            ("recursion", &[trap]),
            ("host-calls", &[fuel, time, trap]),
            ("transient", &["it says that it can't answer now: not now"]),
        ] {
            let refused = misbehaves(act, "closed").await.expect_err(act);
            let head = "kuorum: plugin probe, which has to be asked, did not answer: ";
            assert_eq!(refused.code(), Code::Unavailable, "{act}: {refused}");
            let why = refused.message().strip_prefix(head).unwrap_or_else(|| panic!("{act}: {refused}"));
            assert!(reasons.iter().any(|reason| why.starts_with(reason)), "{act}: {refused}");
            assert!(!refused.message().contains('\n'), "{act}: {refused}");
        }
        misbehaves("trap", "open").await.expect("its manifest lets pass what it can't judge");
        misbehaves("log-flood", "closed").await.expect("lines beyond the limit are dropped");
    });
}

/// A plugin that goes on breaking is not asked for a while, and asked again once it has rested.
#[test]
fn a_plugin_that_goes_on_breaking_is_left_alone_for_a_while() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let config = json!({"trigger": "/bad/", "act": "trap"}).to_string();
        load(&cluster, 0, &golden_path("probe"), &["--name", "probe", "--config-json", &config]).json();
        ask(&cluster.members[0], &["activate", "probe"]).json();
        let mut last = String::new();
        for _ in 0..20 {
            last = put(&cluster, 0, "/bad/k", "v").await.unwrap_err().message().to_owned();
        }
        assert!(last.ends_with("it failed too often and is not asked for a while"), "{last}");
        let refused = put(&cluster, 0, "/good/k", "v").await.unwrap_err();
        assert!(refused.message().ends_with("it failed too often and is not asked for a while"), "{refused}");
        let metrics = crate::metrics(&cluster.members[0]);
        assert!(metrics.contains("plugin_quarantined{plugin=\"probe\"} 1"), "{metrics}");

        let deadline = Deadline::after(3 * BOUND);
        while put(&cluster, 0, "/good/k", "v").await.is_err() {
            assert!(!deadline.has_passed(), "it is never asked again");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let metrics = crate::metrics(&cluster.members[0]);
        assert!(metrics.contains("plugin_quarantined{plugin=\"probe\"} 0"), "{metrics}");
    });
}

/// Files that are no plugin, or too much of one: refused with one line, and nothing is left of them that matters.
#[test]
fn files_that_are_no_plugins_are_refused() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let whole = PluginFile::golden("probe");
        let bytes = whole.bytes();
        let of = |text: &str| PluginFile::of(wat::parse_str(text).unwrap()).with_manifest(&manifest("closed"));
        let bomb = of(&compile_bomb());
        assert!(bomb.bytes().len() < 25_000, "{} bytes", bomb.bytes().len());
        let foreign = "(component (import \"wasi:cli/run@0.2.0\" (func)))";
        for (name, file, why) in [
            ("empty", PluginFile::of(Vec::new()), "is empty"),
            ("text", PluginFile::of(b"not a plugin".to_vec()), "the file is no wasm component"),
            ("truncated", PluginFile::of(bytes[..bytes.len() / 2].to_vec()), "the file is damaged or cut short"),
            ("no-manifest", PluginFile::of(bytes[..8].to_vec()), "the file has no section \"kuorum-manifest\""),
            ("foreign", of(foreign), "it is no plugin of this interface"),
            ("bomb", bomb, "use locals 2500500 times"),
            ("table", of("(module (table 4000000000 funcref))"), "4000000000 table elements from the start"),
        ] {
            let path = written(&cluster, name, &file);
            let deadline = Deadline::after(BOUND);
            let refused = load(&cluster, 0, &path, &["--name", "probe"]);
            assert!(refused.refusal().contains(why), "{name}: {refused:?}");
            let refused = brought(&cluster, &file).await;
            let why = if name == "empty" { "this one has 0" } else { why };
            assert!(refused.contains(why), "{name}: {refused}");
            assert!(!deadline.has_passed(), "{name} took {:?}", deadline.elapsed());
            put(&cluster, 0, "/k", "v").await.unwrap();
        }
        let refused =
            load(&cluster, 0, &golden_path("probe"), &["--name", "probe", "--config-json", "{\"invalid\":true}"]);
        assert!(refused.refusal().contains("invalid: it was asked to find fault"), "{refused:?}");
        let refused = load(&cluster, 0, &golden_path("probe"), &["--name", "probe", "--config-json", "{\"colour\":1}"]);
        assert!(refused.refusal().contains("unknown field `colour`"), "{refused:?}");
    });
}

/// What a member says of a file that no command line has looked at: at once, or when it has tried to prepare it.
async fn brought(cluster: &Cluster, file: &PluginFile) -> String {
    let mut plugins = PluginsClient::new(cluster.client(0).channel);
    let load = async {
        let sha256 = uploaded(&mut plugins, &Bytes::copy_from_slice(file.bytes())).await?;
        let name = "probe".to_owned();
        plugins.load(PluginLoadRequest { name, sha256, ..PluginLoadRequest::default() }).await
    };
    if let Err(refused) = load.await {
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        return refused.message().to_owned();
    }
    let deadline = Deadline::after(BOUND);
    loop {
        let answered = inspected(cluster, 0, "probe")["candidate"]["acks"][0].take();
        if let Some(failure) = answered["failure"].as_str() {
            assert_eq!(answered["ready"], false, "{answered}");
            return failure.to_owned();
        }
        assert!(!deadline.has_passed(), "the member does not say whether it is ready: {answered}");
        tokio::time::sleep(POLL).await;
    }
}

/// Some 20 KB that a compiler is busy with for half a minute: locals that change inside many loops.
fn compile_bomb() -> String {
    let (locals, loops) = (1_000, 1_000);
    let body: String =
        (0..locals).map(|local| format!("(local.set {local} (i32.add (local.get {local}) (i32.const 1)))")).collect();
    let (begin, end) = ("(loop ".repeat(loops), "(br_if 0 (local.get 0)))".repeat(loops));
    format!("(module (func {} {begin}{body}{end}))", "(local i32)".repeat(locals))
}

const ATTEMPTS: usize = 8;

/// A plugin that may take seconds, in shadow at that, keeps nobody waiting but those whom it is asked about.
#[test]
fn a_slow_plugin_holds_up_nobody_else() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let config = json!({"trigger": "/bad/", "act": "loop"}).to_string();
        let limits = ["--fuel", "5000000000", "--deadline-ms", "10000"];
        let words = [&["--name", "probe", "--config-json", &config][..], &limits].concat();
        load(&cluster, 0, &golden_path("probe"), &words).json();
        ask(&cluster.members[0], &["shadow", "probe"]).json();
        // Where others wait for it, no attempt succeeds; where the machine is busy, some may not.
        let mut is_overtaken = false;
        for _ in 0..ATTEMPTS {
            let mut bad = std::pin::pin!(put(&cluster, 0, "/bad/k", "v"));
            // Each by a connection of its own: those of the same thread of the member are among them.
            let mut good = std::pin::pin!(async {
                for _ in 0..16 {
                    put(&cluster, 0, "/good/k", "v").await.unwrap();
                }
            });
            tokio::select! {
                biased;
                told = &mut bad => assert!(told.is_ok(), "{told:?}"),
                () = &mut good => {
                    is_overtaken = true;
                    bad.await.unwrap();
                    break;
                }
            }
        }
        assert!(is_overtaken, "the plugin was not asked, or others waited for it");
        // While all threads for the slow are busy, a plugin in shadow is left out. Reads have threads of their own.
        let mut many: futures::stream::FuturesUnordered<_> = (0..16).map(|_| put(&cluster, 0, "/bad/k", "v")).collect();
        while let Some(told) = futures::StreamExt::next(&mut many).await {
            told.unwrap();
        }
        let counted = metrics(&cluster.members[0]);
        let spared = "plugin_unjudged_requests_total{plugin=\"probe\",outcome=\"spared\"} ";
        let line = counted.lines().find(|line| line.starts_with(spared)).expect("the series is there");
        assert!(line[spared.len()..].parse::<u32>().unwrap() > 0, "{line}");
    });
}

/// Compiled code that has rotted on the disk is made again, and said so.
#[test]
fn a_damaged_cache_is_made_again() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        load(&cluster, 0, &golden_path("probe"), &["--name", "probe", "--config-json", "{\"value_bytes_max\":0}"])
            .json();
        ask(&cluster.members[0], &["activate", "probe"]).json();
        cluster.members[0].kill();
        let cache = cluster.members[0].data_dir().join("member/plugins");
        let mut damaged = 0;
        for entry in std::fs::read_dir(&cache).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
        assert!(damaged > 0, "{} holds nothing", cache.display());
        cluster.members[0].start();
        cluster.members[0].ready().await;
        let refused = put(&cluster, 0, "/k", "v").await.unwrap_err();
        assert_eq!(refused.message(), "the value is too long");
        let log = cluster.members[0].log();
        assert!(log.contains("compiled code was damaged on disk, and is made again"), "{log}");
    });
}

/// Uploads that begin and do not go on are bounded in number, and in the way of others only as long as they are there.
#[test]
fn uploads_that_do_not_go_on_are_bounded() {
    block_on(async {
        let cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        let client = PluginsClient::new(cluster.client(0).channel.clone());
        let begin = |number: u8| {
            let begin = PluginUploadBegin { sha256: vec![number; 32].into(), component_bytes: 300_000 };
            PluginUploadRequest { part: Some(Part::Begin(begin)) }
        };
        // Past the bound on uploads, and within that on streams of one connection.
        let mut held = Vec::new();
        let mut refused = None;
        for number in 0..40 {
            let (parts, stream) = tokio::sync::mpsc::channel(2);
            parts.send(begin(number)).await.unwrap();
            let mut client = client.clone();
            let mut upload = tokio::spawn(async move { client.upload(ReceiverStream::new(stream)).await });
            match tokio::time::timeout(Duration::from_millis(300), &mut upload).await {
                Ok(answer) => {
                    refused = Some((number, answer.unwrap().unwrap_err()));
                    break;
                }
                Err(_) => held.push((parts, upload)),
            }
        }
        let (number, status) = refused.expect("one was refused");
        assert_eq!((number, status.message()), (16, "etcdserver: too many requests"));
        held.into_iter().for_each(|(_, upload)| upload.abort());
        let deadline = Deadline::after(BOUND);
        loop {
            match uploaded(&mut client.clone(), &Bytes::from_static(b"no component")).await {
                Ok(_) => break,
                Err(status) => assert!(!deadline.has_passed(), "{status}"),
            }
        }
    });
}

/// The process that compiles for this member, if there is one.
fn compiler_of(member: u32) -> Option<String> {
    let tasks = std::fs::read_dir(format!("/proc/{member}/task")).ok()?;
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    children.flat_map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).find(|child| {
        std::fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.contains("plugin-compile"))
    })
}

/// Kills processes that compile for this member, as a system does that lacks memory, until enough of them are dead.
fn kill_compilers(
    member: u32,
    mut is_enough: impl FnMut(usize) -> bool + Send + 'static,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let deadline = Deadline::after(2 * BOUND);
        let mut killed = 0;
        while !is_enough(killed) {
            if let Some(compiler) = compiler_of(member) {
                // It may have ended just now.
                let status = std::process::Command::new("kill").args(["-KILL", &compiler]).status();
                killed += usize::from(status.is_ok_and(|status| status.success()));
            }
            assert!(!deadline.has_passed(), "{killed} compilers were seen");
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

/// What fails for a reason of the member's own is tried again, and nobody has to load it anew.
#[test]
fn a_member_that_could_not_prepare_a_plugin_tries_again() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 1, &[]).await;
        // Open, so that a member which took its own trouble for the plugin's would let everything pass.
        let file = written(&cluster, "probe", &PluginFile::golden("probe").with_manifest(&manifest("open")));
        let killing = kill_compilers(cluster.members[0].id(), |killed| killed > 0);
        let refused = load(&cluster, 0, &file, &["--name", "probe", "--config-json", "{\"value_bytes_max\":0}"]);
        killing.join().unwrap();
        assert!(refused.refusal().contains("the compiler was killed"), "{refused:?}");
        prepared(&cluster, 0, ("probe", "candidate"), 1).await;
        ask(&cluster.members[0], &["activate", "probe"]).json();

        restart_uncompiled(&mut cluster);
        let killing = kill_compilers(cluster.members[0].id(), |killed| killed > 0);
        cluster.members[0].ready().await;
        let refused = put(&cluster, 0, "/k", "v").await.unwrap_err();
        killing.join().unwrap();
        assert_eq!(refused.message(), "the value is too long");

        // It can't for longer than a request waits: what is open passes then, and the member says how it is.
        restart_uncompiled(&mut cluster);
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let killing = kill_compilers(cluster.members[0].id(), move |_| is_done.load(Ordering::Relaxed));
        cluster.members[0].ready().await;
        put(&cluster, 0, "/k", "v").await.unwrap();
        let status = cluster.client(0).maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(status.errors, ["plugin probe is not ready on this member"]);
        done.store(true, Ordering::Relaxed);
        killing.join().unwrap();
        let deadline = Deadline::after(3 * BOUND);
        while put(&cluster, 0, "/k", "v").await.is_ok() {
            assert!(!deadline.has_passed(), "it is not asked again");
        }
    });
}

/// Starts the only member again, without the code that it had compiled.
fn restart_uncompiled(cluster: &mut Cluster) {
    cluster.members[0].kill();
    std::fs::remove_dir_all(cluster.members[0].data_dir().join("member/plugins")).unwrap();
    cluster.members[0].start();
}
