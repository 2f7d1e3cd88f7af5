//! Plugins made by hand, good ones and hostile ones, against the whole host. Their core modules are text; the host makes
//! components of them, as it does of what authors upload.

pub(super) mod guest;
mod hostile;

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::admission::ReadKey;
use super::*;
use guest::Guest;

/// A host with a directory of its own.
pub(super) struct TestHost {
    pub(super) host: Host,
    pub(super) dir: tempfile::TempDir,
}

impl TestHost {
    pub(super) fn new() -> TestHost {
        TestHost::with(Keys::default())
    }

    pub(super) fn with(keys: Keys) -> TestHost {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::start(&dir.path().join("plugins"), Compiler::InProcess, Arc::new(keys)).unwrap();
        TestHost { host, dir }
    }

    pub(super) fn prepare(&self, guest: &Guest) -> Result<Prepared, PrepareError> {
        self.host.prepare(&guest.revision())
    }

    /// The text of the refusal.
    pub(super) fn refusal(&self, guest: &Guest) -> String {
        let text = self.prepare(guest).err().expect("the plugin was taken").to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    }
}

pub(super) fn ctx() -> Ctx {
    Ctx {
        now_ms: 1,
        seed: 2,
        revision: 100,
        compact_revision: 3,
        raft_term: 4,
        raft_index: 5,
        member: 6,
        leader: true,
        policy_epoch: 7,
        deadline_ms: 0,
    }
}

pub(super) fn question<'a>(ops: &'a [Op<'a>]) -> Question<'a> {
    Question {
        ctx: ctx(),
        user: Some("alice"),
        roles: &["reader", "writer"],
        cert_cn: None,
        peer: "127.0.0.1:4711",
        conditional: false,
        space: Space { db_bytes: 1, in_use_bytes: 1, quota_bytes: 2 << 30 },
        ops,
    }
}

pub(super) fn put<'a>(key: &'a str, value: &'a Bytes) -> Op<'a> {
    Op::Put { key: key.as_bytes(), value, lease: 0, prev_kv: false }
}

pub(super) fn ask(prepared: &Prepared) -> Result<Judged, Failure> {
    let value = Bytes::from_static(b"v");
    prepared.admission(&question(&[put("/a/key", &value)]))
}

/// A compaction input with nothing in it.
pub(super) fn input() -> Input<'static> {
    Input {
        ctx: ctx(),
        timeline: &[Mark { revision: 10, at_ms: 1 }],
        live_keys: 1,
        versions: 1,
        db_bytes: 1,
        in_use_bytes: 1,
        quota_bytes: 1 << 30,
        writes_per_s: 0,
        slowest_watcher: None,
        backup_floor: None,
        members: &[],
        p99_write_us: 1,
        p99_fsync_us: 1,
        last: None,
    }
}

#[test]
fn a_plugin_is_prepared_and_asked() {
    let test = TestHost::new();
    let prepared = test.prepare(&Guest::new("asked")).unwrap();
    assert_eq!(prepared.kinds(), [Kind::Admission]);
    assert_eq!(prepared.activation_refusal(), None);
    let judged = ask(&prepared).unwrap();
    assert_eq!(judged.verdict, Verdict::Allow);
    assert!(judged.spent.fuel > 0 && judged.spent.fuel < 10_000, "{judged:?}");
    assert_eq!(prepared.compaction(&input()).unwrap_err(), Failure::NotAsked);
    let (key, other) = (Bytes::from_static(b"v"), Bytes::new());
    assert!(prepared.matches(&put("/a/key", &key)) && !prepared.matches(&put("/b/key", &other)));
}

#[test]
fn a_denial_carries_code_and_message() {
    let test = TestHost::new();
    let guest = Guest::new("denies").check(&guest::deny("not here"));
    let judged = ask(&test.prepare(&guest).unwrap()).unwrap();
    assert_eq!(judged.verdict, Verdict::Deny { code: Code::FailedPrecondition, message: "not here".to_owned() });
}

#[test]
fn a_plugin_plans_compactions() {
    let test = TestHost::new();
    let prepared = test.prepare(&Guest::compaction("plans")).unwrap();
    assert_eq!(prepared.kinds(), [Kind::Compaction]);
    let planned = prepared.compaction(&input()).unwrap();
    assert_eq!(planned.plan.compact_to, None);
    assert_eq!(ask(&prepared).unwrap_err(), Failure::NotAsked);
}

#[test]
fn what_a_file_is_made_for_is_known_before_it_is_compiled() {
    let golden = |name: &str| {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden");
        Scope::of(&std::fs::read(format!("{directory}/{name}.wasm")).unwrap()).unwrap()
    };
    for (name, kind) in [
        ("admission-guard", Kind::Admission),
        ("c-guard", Kind::Admission),
        ("compaction-load-aware", Kind::Compaction),
        ("tiny-quota", Kind::Quota),
        ("tiny-backup-schedule", Kind::BackupSchedule),
        ("tiny-backup-target", Kind::BackupTarget),
    ] {
        let scope = golden(name);
        let answered: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| scope.may_answer(*kind)).collect();
        assert_eq!(answered, [kind], "{name}");
    }
}

#[test]
fn keys_that_a_check_reads_are_its_read_set() {
    let test = TestHost::with(Keys::of([(&b"/quota/a"[..], &b"1"[..], 42)]));
    // "/quota/a" is there, "/quota/b" is not, and "/secret" was not granted.
    let reads = ["/quota/a", "/quota/b", "/quota/a", "/secret"].map(guest::get);
    let guest = Guest::new("reads").check(&reads.join("\n")).kv_read(&["/quota/"]);
    let read = |key: &str, mod_revision| ReadKey { key: key.as_bytes().to_vec(), mod_revision };
    let expected = [read("/quota/a", 42), read("/quota/b", 0)];
    let prepared = test.prepare(&guest).unwrap();
    assert_eq!(ask(&prepared).unwrap().read_set, expected);
    // The instance is warm now, and the second call begins with an empty set.
    assert_eq!(ask(&prepared).unwrap().read_set, expected);
    // What is too long for a key, and what is too much together: the reads that remain are the read set.
    let long = "k".repeat(30 << 10);
    let reads: Vec<String> = ["/quota/a".to_owned(), format!("/quota/{long}")]
        .into_iter()
        .chain((0..9).map(|number| format!("/quota/{number}{}", &long[..20 << 10])))
        .collect();
    let guest = Guest::new("reads-much").check(&reads.iter().map(|key| guest::get(key)).collect::<Vec<_>>().join("\n"));
    let read_set = ask(&test.prepare(&guest.kv_read(&["/quota/"])).unwrap()).unwrap().read_set;
    assert_eq!(read_set.iter().map(|read| read.key.len()).collect::<Vec<_>>(), [&[8][..], &[20_488; 6]].concat());
}

#[test]
fn what_is_read_in_vain_is_bounded_too() {
    let names = ["/quota/a", "/quota/b", "/quota/c", "/quota/d"];
    let value = vec![b'v'; 3 << 19];
    let test = TestHost::with(Keys::of(names.map(|name| (name.as_bytes(), &value[..], 42))));
    // Each is too long to be handed over, and read all the same. The fourth is not.
    let guest = Guest::new("reads-long").check(&names.map(guest::get).join("\n")).kv_read(&["/quota/"]);
    let read_set = ask(&test.prepare(&guest).unwrap()).unwrap().read_set;
    assert_eq!(read_set.iter().map(|read| &read.key[..]).collect::<Vec<_>>(), [b"/quota/a", b"/quota/b", b"/quota/c"]);
}

#[test]
fn nothing_is_read_without_a_grant() {
    let test = TestHost::with(Keys::of([(&b"/quota/a"[..], &b"1"[..], 42)]));
    let guest = Guest::new("reads").check(&guest::get("/quota/a")).kv_read(&["/quota/"]);
    let mut revision = guest.revision();
    revision.grants.clear();
    assert_eq!(ask(&test.host.prepare(&revision).unwrap()).unwrap().read_set, []);
}

#[test]
fn values_are_shown_as_the_manifest_asks() {
    let test = TestHost::new();
    let value = Bytes::from_static(b"0123456789");
    // What the plugin was handed of the value comes back as the message of its denial.
    for (asked, expected) in [("\"none\"", ""), ("\"all\"", "0123456789"), ("{\"first\":4}", "0123")] {
        let guest = Guest::new("values").value(asked).check(guest::DENY_WITH_VALUE);
        let judged = test.prepare(&guest).unwrap().admission(&question(&[put("/a/key", &value)])).unwrap();
        assert_eq!(judged.verdict, Verdict::Deny { code: Code::PermissionDenied, message: expected.to_owned() });
    }
    // The rest can be read. The operation that does not match is not counted.
    let guest = Guest::new("values").check(&guest::deny_with_read(0, 3, 4));
    let ops = [put("/unmatched", &value), put("/a/key", &value)];
    let judged = test.prepare(&guest).unwrap().admission(&question(&ops)).unwrap();
    assert_eq!(judged.verdict, Verdict::Deny { code: Code::PermissionDenied, message: "3456".to_owned() });
}

#[test]
fn kinds_that_nobody_asks_yet_are_reported_and_refused() {
    let test = TestHost::new();
    let prepared = test.prepare(&Guest::quota("measures")).unwrap();
    assert_eq!(prepared.kinds(), [Kind::Quota]);
    let refusal = prepared.activation_refusal().unwrap();
    assert!(refusal.contains("answers quota, which this release does not ask plugins yet"), "{refusal}");
}

#[test]
fn a_second_preparation_takes_the_compiled_code_from_the_cache() {
    let test = TestHost::new();
    let guest = Guest::new("cached");
    test.prepare(&guest).unwrap();
    let entries: Vec<PathBuf> =
        std::fs::read_dir(test.dir.path().join("plugins")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1);
    // An entry that is written anew is another file. Kept open, so that its number is not given to that one.
    let kept = std::fs::File::open(&entries[0]).unwrap();
    test.prepare(&guest).unwrap();
    assert_eq!(std::fs::metadata(&entries[0]).unwrap().ino(), kept.metadata().unwrap().ino());
}

#[test]
fn a_plugin_that_rests_keeps_one_instance() {
    let test = TestHost::new();
    let prepared = test.prepare(&Guest::new("rests")).unwrap();
    let asking: Vec<_> = std::iter::repeat_with(|| prepared.0.pool.take()).take(3).collect();
    assert_eq!(asking.iter().flatten().count(), 1);
    for _ in 0..3 {
        let started = prepared.0.template.start().unwrap();
        prepared.0.pool.add(&prepared.0.template, started).unwrap();
    }
    prepared.rest();
    assert!(prepared.0.pool.take().is_some());
    assert!(prepared.0.pool.take().is_none());
}

/// Prints what a call costs. Not held to anything: the programs of the unit tests are not optimized.
#[test]
fn a_warm_instance_is_asked_many_times() {
    let test = TestHost::new();
    let prepared = test.prepare(&Guest::new("warm")).unwrap();
    let value = Bytes::from(vec![7; 256]);
    let ops = [put("/a/registry/pods/default/some-pod-name", &value)];
    let calls = 20_000_u32;
    let began = engine::now();
    for _ in 0..calls {
        assert_eq!(prepared.admission(&question(&ops)).unwrap().verdict, Verdict::Allow);
    }
    println!("a warm admission call: {:?}", began.elapsed() / calls);
    let began = engine::now();
    for _ in 0..calls {
        assert!(!prepared.matches(&put("/b/registry/pods/default/some-pod-name", &value)));
    }
    println!("a key that no rule matches: {:?}", began.elapsed() / calls);
}
