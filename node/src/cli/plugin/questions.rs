//! What `test` asks a plugin: a file of the author's, or what its manifest suggests.
//!
//! ```json
//! { "keys": [{ "key": "/limits/a", "value": "12" }],
//!   "admission": [{ "name": "a long value", "user": "alice", "expect": "deny invalid-argument",
//!                   "ops": [{ "put": { "key": "/a", "value_bytes": 5000 } },
//!                           { "delete": { "key": "/a", "range_end": "/b" } },
//!                           { "lease_grant": { "ttl_s": 60 } }] }],
//!   "compaction": [{ "ctx": { "revision": 500 }, "timeline": [{ "revision": 1, "at_ms": 0 }], "db_bytes": 4096 }] }
//! ```
//!
//! Names are those of the interface with `_` for `-`; what is left out is as in the SDK's defaults for tests: member 1 of an
//! idle, empty store of 2 GiB. Keys are text, or `hex:00ff`. What a question expects is how the answer begins, as it is
//! shown.

use bytes::Bytes;
use serde::Deserialize;

use super::output::key_text;
use crate::plugin::{
    Ctx, Input, Key, Keys, Kind, LastRun, Manifest, Mark, MemberSpace, Op, OpKind, Question, Space, end_of,
};

const QUOTA_BYTES: u64 = 2 << 30;
const MINUTE_MS: u64 = 60_000;
/// Longer than what travels with a request.
const LONG_VALUE_BYTES: usize = 64 << 10;
/// The default of etcd's clients.
const LEASE_TTL_S: i64 = 60;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Questions {
    /// What the store holds, for plugins that read it.
    keys: Vec<Row>,
    pub(super) admission: Vec<AdmissionCase>,
    pub(super) compaction: Vec<CompactionCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    key: Key,
    #[serde(default)]
    value: String,
    #[serde(default = "one")]
    mod_revision: i64,
}

fn one() -> i64 {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdmissionCase {
    #[serde(default)]
    name: String,
    /// How the answer begins.
    #[serde(default)]
    pub(super) expect: Option<String>,
    #[serde(default)]
    ctx: CtxCase,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    roles: Vec<String>,
    #[serde(default)]
    cert_cn: Option<String>,
    #[serde(default = "loopback")]
    peer: String,
    #[serde(default)]
    conditional: bool,
    #[serde(default)]
    space: SpaceCase,
    ops: Vec<OpCase>,
}

fn loopback() -> String {
    "127.0.0.1:2379".to_owned()
}

/// One field of these says which operation it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum OpCase {
    Put(PutCase),
    Delete(DeleteCase),
    LeaseGrant(LeaseGrantCase),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PutCase {
    key: Key,
    #[serde(default)]
    value: String,
    /// Instead of a value: so many letters.
    #[serde(default)]
    value_bytes: Option<usize>,
    #[serde(default)]
    lease: i64,
    #[serde(default)]
    prev_kv: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteCase {
    key: Key,
    #[serde(default)]
    range_end: Option<Key>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseGrantCase {
    #[serde(default)]
    id: i64,
    ttl_s: i64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SpaceCase {
    db_bytes: u64,
    in_use_bytes: u64,
    quota_bytes: u64,
}

impl Default for SpaceCase {
    fn default() -> SpaceCase {
        SpaceCase { db_bytes: 1, in_use_bytes: 1, quota_bytes: QUOTA_BYTES }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CtxCase {
    now_ms: u64,
    seed: u64,
    revision: i64,
    compact_revision: i64,
    raft_term: u64,
    raft_index: u64,
    member: u64,
    leader: bool,
    policy_epoch: u64,
}

impl Default for CtxCase {
    fn default() -> CtxCase {
        CtxCase {
            now_ms: 1_700_000_000_000,
            seed: 0,
            revision: 1,
            compact_revision: 0,
            raft_term: 1,
            raft_index: 1,
            member: 1,
            leader: true,
            policy_epoch: 1,
        }
    }
}

impl CtxCase {
    fn ctx(self) -> Ctx {
        let CtxCase { now_ms, seed, revision, compact_revision, raft_term, raft_index, member, leader, policy_epoch } =
            self;
        // The host sets the deadline.
        let deadline_ms = 0;
        Ctx {
            now_ms,
            seed,
            revision,
            compact_revision,
            raft_term,
            raft_index,
            member,
            leader,
            policy_epoch,
            deadline_ms,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CompactionCase {
    name: String,
    pub(super) expect: Option<String>,
    ctx: CtxCase,
    timeline: Vec<MarkCase>,
    live_keys: u64,
    versions: u64,
    db_bytes: u64,
    in_use_bytes: u64,
    quota_bytes: u64,
    writes_per_s: u32,
    slowest_watcher: Option<i64>,
    backup_floor: Option<i64>,
    members: Vec<MemberCase>,
    p99_write_us: u32,
    p99_fsync_us: u32,
    last: Option<LastCase>,
}

impl Default for CompactionCase {
    fn default() -> CompactionCase {
        CompactionCase {
            name: String::new(),
            expect: None,
            ctx: CtxCase::default(),
            timeline: Vec::new(),
            live_keys: 0,
            versions: 0,
            db_bytes: 0,
            in_use_bytes: 0,
            quota_bytes: QUOTA_BYTES,
            writes_per_s: 0,
            slowest_watcher: None,
            backup_floor: None,
            members: Vec::new(),
            p99_write_us: 0,
            p99_fsync_us: 0,
            last: None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkCase {
    revision: i64,
    at_ms: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberCase {
    member: u64,
    #[serde(default)]
    leader: bool,
    #[serde(default = "yes")]
    healthy: bool,
    db_bytes: u64,
    in_use_bytes: u64,
    disk_free_bytes: u64,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastCase {
    to: i64,
    at_ms: u64,
    took_ms: u32,
    freed_bytes: u64,
}

impl AdmissionCase {
    fn of(ops: Vec<OpCase>) -> AdmissionCase {
        AdmissionCase {
            name: String::new(),
            expect: None,
            ctx: CtxCase::default(),
            user: None,
            roles: Vec::new(),
            cert_cn: None,
            peer: loopback(),
            conditional: false,
            space: SpaceCase::default(),
            ops,
        }
    }

    pub(super) fn title(&self) -> String {
        if self.name.is_empty() {
            return self.ops.iter().map(OpCase::title).collect::<Vec<_>>().join("; ");
        }
        self.name.clone()
    }

    /// Hands the question to `ask`, since it borrows.
    pub(super) fn with<R>(&self, ask: impl FnOnce(&Question<'_>) -> R) -> R {
        let values: Vec<Bytes> = self.ops.iter().map(OpCase::value).collect();
        let ops: Vec<Op<'_>> = self.ops.iter().zip(&values).map(|(op, value)| op.op(value)).collect();
        let roles: Vec<&str> = self.roles.iter().map(String::as_str).collect();
        let SpaceCase { db_bytes, in_use_bytes, quota_bytes } = self.space;
        ask(&Question {
            ctx: self.ctx.ctx(),
            user: self.user.as_deref(),
            roles: &roles,
            cert_cn: self.cert_cn.as_deref(),
            peer: &self.peer,
            conditional: self.conditional,
            space: Space { db_bytes, in_use_bytes, quota_bytes },
            ops: &ops,
        })
    }
}

impl OpCase {
    fn value(&self) -> Bytes {
        match self {
            OpCase::Put(PutCase { value_bytes: Some(bytes), .. }) => vec![b'x'; *bytes].into(),
            OpCase::Put(put) => Bytes::copy_from_slice(put.value.as_bytes()),
            OpCase::Delete(_) | OpCase::LeaseGrant(_) => Bytes::new(),
        }
    }

    fn op<'a>(&'a self, value: &'a Bytes) -> Op<'a> {
        match self {
            OpCase::Put(put) => Op::Put { key: &put.key.0, value, lease: put.lease, prev_kv: put.prev_kv },
            OpCase::Delete(delete) => {
                Op::Delete { key: &delete.key.0, range_end: delete.range_end.as_ref().map(|end| &end.0[..]) }
            }
            OpCase::LeaseGrant(grant) => Op::LeaseGrant { id: grant.id, ttl_s: grant.ttl_s },
        }
    }

    fn title(&self) -> String {
        match self {
            OpCase::Put(put) => format!("put {}, {} bytes", key_text(&put.key.0), self.value().len()),
            OpCase::Delete(DeleteCase { key, range_end: Some(end) }) if key.0 == [0] && end.0 == [0] => {
                "delete all keys".to_owned()
            }
            OpCase::Delete(DeleteCase { key, range_end: None }) => format!("delete {}", key_text(&key.0)),
            OpCase::Delete(DeleteCase { key, range_end: Some(end) }) => {
                format!("delete {} up to {}", key_text(&key.0), key_text(&end.0))
            }
            OpCase::LeaseGrant(grant) => format!("grant a lease of {} s", grant.ttl_s),
        }
    }
}

impl CompactionCase {
    pub(super) fn title(&self) -> String {
        if self.name.is_empty() {
            return format!("revision {}, {} of {} bytes", self.ctx.revision, self.db_bytes, self.quota_bytes);
        }
        self.name.clone()
    }

    /// Hands the question to `ask`, since it borrows.
    pub(super) fn with<R>(&self, ask: impl FnOnce(&Input<'_>) -> R) -> R {
        let timeline = self.timeline.iter().map(|&MarkCase { revision, at_ms }| Mark { revision, at_ms });
        let timeline: Vec<Mark> = timeline.collect();
        let members = self.members.iter().map(|case| MemberSpace {
            member: case.member,
            leader: case.leader,
            healthy: case.healthy,
            db_bytes: case.db_bytes,
            in_use_bytes: case.in_use_bytes,
            disk_free_bytes: case.disk_free_bytes,
        });
        let members: Vec<MemberSpace> = members.collect();
        let last = self.last.as_ref();
        ask(&Input {
            ctx: self.ctx.ctx(),
            timeline: &timeline,
            live_keys: self.live_keys,
            versions: self.versions,
            db_bytes: self.db_bytes,
            in_use_bytes: self.in_use_bytes,
            quota_bytes: self.quota_bytes,
            writes_per_s: self.writes_per_s,
            slowest_watcher: self.slowest_watcher,
            backup_floor: self.backup_floor,
            members: &members,
            p99_write_us: self.p99_write_us,
            p99_fsync_us: self.p99_fsync_us,
            last: last.map(|&LastCase { to, at_ms, took_ms, freed_bytes }| LastRun { to, at_ms, took_ms, freed_bytes }),
        })
    }
}

impl Questions {
    /// What plugins read.
    pub(super) fn stored(&self) -> Keys {
        Keys::of(self.keys.iter().map(|row| (&row.key.0[..], row.value.as_bytes(), row.mod_revision)))
    }

    /// A few questions of each kind that the plugin answers.
    pub(super) fn suggested(manifest: &Manifest, kinds: &[Kind]) -> Questions {
        let rules = manifest.admission.iter().flat_map(|admission| &admission.rules);
        let admission = rules.flat_map(|rule| rule.ops.iter().flat_map(|op| suggested_of(*op, rule.prefix.as_ref())));
        let compaction =
            if kinds.contains(&Kind::Compaction) { CompactionCase::suggested().into() } else { Vec::new() };
        Questions { keys: Vec::new(), admission: admission.map(|op| AdmissionCase::of(vec![op])).collect(), compaction }
    }
}

/// Operations of a kind at a key below the prefix.
fn suggested_of(kind: OpKind, prefix: Option<&Key>) -> Vec<OpCase> {
    let prefix = prefix.map_or(&[][..], |prefix| &prefix.0);
    let key = || Key([prefix, b"example"].concat());
    let put = |bytes| {
        let value_bytes = Some(bytes);
        OpCase::Put(PutCase { key: key(), value: String::new(), value_bytes, lease: 0, prev_kv: false })
    };
    match kind {
        OpKind::Put => vec![put(16), put(LONG_VALUE_BYTES)],
        // Nobody is asked about single deletes alone.
        OpKind::Delete => {
            // No key is empty; the least one is a zero byte.
            let first = if prefix.is_empty() { &[0][..] } else { prefix };
            vec![OpCase::Delete(DeleteCase { key: Key(first.to_vec()), range_end: Some(Key(end_of(prefix))) })]
        }
        OpKind::LeaseGrant => vec![OpCase::LeaseGrant(LeaseGrantCase { id: 0, ttl_s: LEASE_TTL_S })],
    }
}

impl CompactionCase {
    /// A store of two hours and a hundred thousand revisions: idle, busy, and nearly full.
    fn suggested() -> [CompactionCase; 3] {
        let now_ms = CtxCase::default().now_ms;
        let revision = 100_000;
        let case = |name: &str, db_bytes: u64, writes_per_s: u32| {
            let mark = |minute: u32| MarkCase {
                revision: 1 + i64::from(minute) * (revision / 120),
                at_ms: now_ms - u64::from(120 - minute) * MINUTE_MS,
            };
            let member = |member: u64| MemberCase {
                member,
                leader: member == 1,
                healthy: true,
                db_bytes,
                in_use_bytes: db_bytes / 2,
                disk_free_bytes: 4 * QUOTA_BYTES,
            };
            CompactionCase {
                name: name.to_owned(),
                ctx: CtxCase { revision, ..CtxCase::default() },
                timeline: (0..120).map(mark).collect(),
                live_keys: 20_000,
                versions: 100_000,
                db_bytes,
                in_use_bytes: db_bytes / 2,
                writes_per_s,
                members: (1..=3).map(member).collect(),
                p99_write_us: 5_000,
                p99_fsync_us: 2_000,
                ..CompactionCase::default()
            }
        };
        [
            case("an idle store", QUOTA_BYTES / 10, 0),
            case("a busy store", QUOTA_BYTES / 10, 20_000),
            case("a store near its quota", QUOTA_BYTES / 100 * 95, 2_000),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::KvReader as _;

    #[test]
    fn a_file_of_questions_is_read() {
        let text = r#"{ "keys": [{ "key": "/limits/a", "value": "12" }],
            "admission": [{ "user": "alice", "expect": "deny",
                "ops": [{ "put": { "key": "/a", "value_bytes": 5000 } }, { "delete": { "key": "/a", "range_end": "/b" } },
                        { "lease_grant": { "ttl_s": 60 } }] }],
            "compaction": [{ "ctx": { "revision": 500 }, "timeline": [{ "revision": 1, "at_ms": 0 }] }] }"#;
        let questions: Questions = serde_json::from_str(text).unwrap();
        let title = "put /a, 5000 bytes; delete /a up to /b; grant a lease of 60 s";
        assert_eq!(questions.admission[0].title(), title);
        questions.admission[0].with(|question| {
            assert_eq!((question.user, question.ops.len(), question.ctx.member), (Some("alice"), 3, 1));
        });
        questions.compaction[0].with(|input| assert_eq!((input.ctx.revision, input.timeline.len()), (500, 1)));
        let keys = questions.stored();
        assert_eq!(keys.get(b"/limits/a", 7).unwrap().unwrap().value, "12");
        assert_eq!(keys.scan(b"/limits/", Some(b"/limits/a"), 9, false, 7).unwrap(), []);
        assert!(serde_json::from_str::<Questions>(r#"{"admision":[]}"#).is_err());
    }

    #[test]
    fn rules_suggest_questions_that_they_match() {
        let toml = "name = \"a\"\nversion = \"1\"\n[admission]\n\
            match = [{ ops = [\"put\", \"delete\"], prefix = \"/a/\" }, { ops = [\"lease-grant\"] }]\n";
        let (manifest, _) = crate::plugin::Manifest::parse_toml(toml).unwrap();
        let questions = Questions::suggested(&manifest, &[Kind::Admission]);
        let titles: Vec<String> = questions.admission.iter().map(AdmissionCase::title).collect();
        let expected = [
            "put /a/example, 16 bytes",
            "put /a/example, 65536 bytes",
            "delete /a/ up to /a0",
            "grant a lease of 60 s",
        ];
        assert_eq!(titles, expected);
        assert!(questions.compaction.is_empty());
    }
}
