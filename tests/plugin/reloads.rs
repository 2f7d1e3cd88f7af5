//! Plugins replaced again and again under load leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::client::Client;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::member::Member;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::golden_path;
use kuorum_tests::subject::Subject;

use crate::{block_on, load};

/// Set to 1000 for what a release asks for: some two minutes.
const RELOADS_VARIABLE: &str = "KUORUM_PLUGIN_RELOADS";
const RELOADS: usize = 60;
const WRITERS: usize = 8;
/// Between two puts of a writer: a store under full load grows for some minutes, plugins or not.
const PAUSE: Duration = Duration::from_millis(10);
/// What a process may grow by between a tenth of the reloads and all of them: for the store, which grows under load, and for
/// the entries of a reload. An instance that stays is several hundred KiB.
const GROWTH_BYTES_MAX: u64 = 16 << 20;
const GROWTH_BYTES_PER_RELOAD_MAX: u64 = 32 << 10;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    resident_bytes: u64,
    threads: usize,
    files: usize,
}

impl Held {
    fn by(member: &Member) -> Held {
        let id = member.id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kibibytes: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        let count = |of: &str| std::fs::read_dir(format!("/proc/{id}/{of}")).unwrap().count();
        Held { resident_bytes: kibibytes << 10, threads: count("task"), files: count("fd") }
    }
}

async fn write(client: Client, number: usize, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) {
    let mut client = client;
    while !stop.load(Ordering::Acquire) {
        let request =
            pb::PutRequest { key: format!("/guarded/{number}").into(), value: "v".into(), ..pb::PutRequest::default() };
        client.kv.put(request).await.expect("no write fails while plugins change");
        written.fetch_add(1, Ordering::AcqRel);
        tokio::time::sleep(PAUSE).await;
    }
}

#[test]
fn plugins_replaced_under_load_leave_nothing_behind() {
    let reloads = std::env::var(RELOADS_VARIABLE).map_or(RELOADS, |text| text.parse().expect("a number"));
    block_on(async {
        let cluster = Arc::new(Cluster::started(&Subject::kuorum(), 1, &[]).await);
        let (stop, puts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| tokio::spawn(write(cluster.client(0), number, stop.clone(), puts.clone())))
            .collect();
        let mut early = None;
        for reload in 1..=reloads {
            let held = Arc::clone(&cluster);
            let reloaded = tokio::task::spawn_blocking(move || {
                let config = format!("{{\"value_bytes_max\":{}}}", 100 + reload);
                load(&held, 0, &golden_path("probe"), &["--config-json", &config]).json();
                ask(&held.members[0], &["activate", "probe"]).json()["policy_epoch"].as_u64()
            });
            assert_eq!(reloaded.await.unwrap(), Some(u64::try_from(reload).unwrap()));
            if reload % reloads.div_ceil(10) == 0 {
                let held = Held::by(&cluster.members[0]);
                println!("after {reload}: {held:?}, {} puts", puts.load(Ordering::Acquire));
                early.get_or_insert(held);
            }
        }
        let (early, late) = (early.unwrap(), Held::by(&cluster.members[0]));
        stop.store(true, Ordering::Release);
        for writer in writers {
            writer.await.unwrap();
        }
        println!("after {reloads}: {late:?}, {} puts", puts.load(Ordering::Acquire));
        assert!(late.threads <= early.threads, "threads: {early:?}, then {late:?}");
        // A connection of the command may be closing still.
        assert!(late.files <= early.files + 2, "files: {early:?}, then {late:?}");
        let grown = late.resident_bytes.saturating_sub(early.resident_bytes);
        let grown_max = GROWTH_BYTES_MAX + GROWTH_BYTES_PER_RELOAD_MAX * u64::try_from(reloads).unwrap();
        assert!(grown < grown_max, "memory: {early:?}, then {late:?}");
    });
}
