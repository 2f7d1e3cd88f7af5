//! The runner of the golden scripts: a member's core without threads, sockets and clocks.
//!
//! The members of its cluster are the voters a (1) and b (2) and the learner c (3).
//!
//! It stands under `watch` since that is the last of the core modules and reaches all others. One script, one
//! behaviour; the file's name is the claim. `UPDATE_GOLDENFILES=1 cargo test golden` writes the answers anew, to be
//! read before they are committed.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use goldenscript::{Argument, Command, Context, Runner};
use kuorum_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, Compare, DeleteRangeRequest, LeaseCheckpoint, LeaseCheckpointRequest,
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
    WatchResponse, alarm_request, compare, request_op, response_op,
};
use kuorum_proto::kuorum::v1::{
    Plugin, PluginAck, PluginAcknowledge, PluginChunk, PluginCommand, PluginLoad, PluginMode, PluginRemove,
    PluginRevision, PluginRollback, PluginSetMode, plugin_command,
};
use kuorum_proto::mvccpb::{KeyValue, event};
use prost::Message as _;
use tempfile::TempDir;

use crate::admission::space::{Room, Sizes};
use crate::admission::{Gate, Limits};
use crate::alarm::Alarms;
use crate::apply::{self, Applier, Reply};
use crate::cluster::{Change, ClusterId, Facts, Member, MemberId, Members};
use crate::command::{self, TXN_DEPTH_MAX, TXN_STACK_BYTES};
use crate::lease::{LeaseId, Leases, Renewal};
use crate::log::{EntryKind, LogEntry};
use crate::mvcc::filter::Floor;
use crate::mvcc::query::{RangeAnswer, RangeQuery, SortOrder, SortTarget};
use crate::mvcc::{self, AppliedMark, MvccOptions, ReadError, Store};
use crate::policy::epoch::Epoch;
use crate::policy::plugins::{self, Registry};
use crate::refusal::Refusal;
use crate::storage::{Space, Storage};
use crate::watch::Options;
use crate::watch::core::{Core, Counts, Event};
use crate::watch::outbox::Outbox;

type Outcome = Result<String, Box<dyn Error>>;

const DUMP: &str = "index";

struct World {
    dir: TempDir,
    /// `None` only while the store is being opened again.
    core: Option<Parts>,
    applied: AppliedMark,
    now_ms: u64,
    /// Requests are applied in one batch until it is closed.
    batch_open: bool,
    stream_bytes_max: usize,
}

struct Parts {
    storage: Storage,
    store: Store,
    applier: Applier,
    leases: Leases,
    alarms: Alarms,
    registry: Registry,
    watch: Core,
    streams: BTreeMap<String, (u64, Outbox)>,
}

impl World {
    fn new() -> World {
        let mut world = World {
            dir: TempDir::new().unwrap(),
            core: None,
            applied: AppliedMark::default(),
            now_ms: 0,
            batch_open: false,
            stream_bytes_max: 1 << 20,
        };
        world.open();
        world
    }

    fn open(&mut self) {
        self.core = None;
        let floor = Floor::new();
        let storage = Storage::open(&self.dir.path().join("store"), floor.filters()).unwrap();
        let options = MvccOptions::new(self.dir.path().join(DUMP), 3);
        let (store, writer, applied) = mvcc::open(storage.clone(), floor, options).unwrap();
        self.applied = applied;
        let leases = Leases::new(2);
        let (alarms, registry) = (Alarms::default(), Registry::default());
        apply::recover(&store, &leases, &alarms, &registry).unwrap();
        let facts = Arc::new(Facts::new(ClusterId(1), MemberId(2)));
        let options = Options {
            fragment_bytes: 200,
            progress_interval_ms: 1_000,
            feed_bytes_max: 1 << 20,
            recent_bytes_max: 1 << 12,
            stream_bytes_max: self.stream_bytes_max,
        };
        let watch = Core::new(store.clone(), facts, options);
        let applier = Applier::new(writer, leases.clone(), alarms.clone(), members(), registry.clone());
        let streams = BTreeMap::new();
        self.core = Some(Parts { storage, store, applier, leases, alarms, registry, watch, streams });
    }

    fn parts(&mut self) -> &mut Parts {
        self.core.as_mut().expect("the store is open")
    }

    fn apply(&mut self, command: command::Command) -> Outcome {
        self.apply_bytes(command.encode(0, crate::command::Judgement::default()))
    }

    fn apply_bytes(&mut self, data: Bytes) -> Outcome {
        self.apply_entry(EntryKind::Normal, data)
    }

    fn apply_entry(&mut self, kind: EntryKind, data: Bytes) -> Outcome {
        self.applied = AppliedMark { index: self.applied.index + 1, term: 1 };
        let entry = LogEntry { term: 1, index: self.applied.index, kind, data };
        let answer = self.parts().applier.apply(entry).unwrap();
        if !self.batch_open {
            self.commit(true);
        }
        Ok(match answer {
            Ok(reply) => show_reply(&reply),
            Err(Refusal::Plugin(refused)) => format!("refused: {refused}"),
            Err(refusal) => format!("refused: {refusal:?}"),
        })
    }

    /// A change of plugins. A component has a word for its SHA-256, and as many pieces as `bytes=` asks for.
    fn plugin(&mut self, name: &str, args: &Args<'_>) -> Outcome {
        let plugin = args.word(0).unwrap_or_default().to_owned();
        let number = |key: &str| args.key(key).map_or(Ok(0), str::parse::<u64>);
        let (revision, expected_policy_epoch) = (number("rev")?, args.key("epoch").map(str::parse).transpose()?);
        let allow_missing_members = args.has("anyway");
        let change = match name {
            "piece" => plugin_command::Change::Chunk(piece(args)?),
            "load" => plugin_command::Change::Load(PluginLoad {
                name: plugin,
                sha256: sha256(args.word(1).unwrap_or_default()),
                config: args.key("config").unwrap_or_default().to_owned(),
                ..PluginLoad::default()
            }),
            "ack" => {
                let known = self.parts().registry.get(&plugin).unwrap_or_default();
                let slots = [known.current, known.candidate, known.previous];
                let meant = slots.into_iter().flatten().find(|kept| kept.number == revision);
                let failure = args.key("failure").unwrap_or_default().to_owned();
                plugin_command::Change::Acknowledge(PluginAcknowledge {
                    name: plugin,
                    revision,
                    identity: meant.unwrap_or_default().identity,
                    ack: Some(PluginAck { member_id: number("member")?, failure, ..PluginAck::default() }),
                })
            }
            "shadow" | "enforce" | "off" => {
                let mode = match name {
                    "shadow" => PluginMode::Shadow,
                    "enforce" => PluginMode::Enforce,
                    _ => PluginMode::Off,
                };
                let (name, mode) = (plugin, mode.into());
                let set_mode = PluginSetMode { name, mode, revision, expected_policy_epoch, allow_missing_members };
                plugin_command::Change::SetMode(set_mode)
            }
            "rollback" => {
                let rollback = PluginRollback { name: plugin, expected_policy_epoch, allow_missing_members };
                plugin_command::Change::Rollback(rollback)
            }
            _ => plugin_command::Change::Remove(PluginRemove { name: plugin }),
        };
        self.apply(command::Command::Plugin(Box::new(PluginCommand { change: Some(change) })))
    }

    /// Every plugin, what is in force, and how many pieces of components the store holds.
    fn show_plugins(&mut self) -> Outcome {
        let parts = self.parts();
        let mut out = format!("epoch {}", parts.registry.epoch().get());
        for plugin in parts.registry.list() {
            write!(out, "\n{}", show_plugin(&plugin))?;
        }
        for plugins::InForce { name, revision } in parts.registry.in_force() {
            write!(out, "\nin force: {name} {}", revision.number)?;
        }
        let pieces = parts.store.sys_scan(b"plugin-chunk/")?.len();
        write!(out, "\n{pieces} pieces")?;
        Ok(out)
    }

    /// Commits what was applied. The watch core is told of the changes, or only that there were some.
    fn commit(&mut self, pass_on: bool) {
        let applied = self.applied;
        let parts = self.parts();
        let mvcc::Committed { revision, compacted, changes } = parts.applier.commit(applied).unwrap();
        parts.watch.handle(match pass_on {
            true => Event::Published { revision, compacted, changes },
            false => Event::Skipped { revision, compacted },
        });
    }

    fn read(&mut self, query: &RangeQuery) -> Outcome {
        Ok(match self.parts().store.range(query) {
            Ok(answer) => show_range(&answer),
            Err(error) => show_error(&error),
        })
    }

    fn upkeep(&mut self, name: &str, args: &Args<'_>) -> Outcome {
        match name {
            // A put judged under an epoch.
            "put-under" => {
                let epoch = args.number(0).unwrap_or(0);
                self.apply_bytes(
                    command::Command::Put(args.put(1))
                        .encode(0, crate::command::Judgement::under(u64::try_from(epoch)?)),
                )
            }
            "restart" | "restart-without-dump" => {
                if name == "restart-without-dump" {
                    // There may be none; then there is nothing to take away.
                    std::fs::remove_file(self.dir.path().join(DUMP)).ok();
                }
                self.open();
                Ok(format!("revision {}", self.parts().store.revision()))
            }
            "dump" => self.parts().store.dump_index().map(|()| "dumped".to_owned()).map_err(Into::into),
            "compact-disk" => {
                let to = self.parts().store.compacted();
                let done = self.parts().store.compact_physically(to, &mut || {})?;
                Ok(format!("removed {} rows, freed {} bytes", done.rows_removed, done.bytes_freed))
            }
            "rewrite" => self.parts().store.defragment().map(|()| "rewritten".to_owned()).map_err(Into::into),
            "hash" => Ok(match self.parts().store.hash(args.number(0).unwrap_or(0)) {
                Ok(hash) => format!("{} compacted={} at={}", hash.hash, hash.compact_revision, hash.hash_revision),
                Err(error) => show_error(&error),
            }),
            // A row that can't be read among the changes from this revision on.
            "damage" | "mend" => {
                let row_key = args.number(0).unwrap_or(0).to_be_bytes().to_vec();
                let mut batch = self.parts().storage.batch();
                match name {
                    "damage" => batch.put(Space::Rev, row_key, "damage"),
                    _ => batch.remove(Space::Rev, row_key),
                }
                batch.commit()?;
                Ok(String::new())
            }
            "in-use" => Ok(format!("{} bytes", self.parts().store.sizes().in_use_bytes)),
            "begin" => {
                self.batch_open = true;
                Ok(String::new())
            }
            "commit" | "commit-unseen" => {
                self.batch_open = false;
                self.commit(name == "commit");
                Ok(format!("revision {}", self.parts().store.revision()))
            }
            "counts" => {
                let Counts { streams, watchers, slow_watchers } = self.parts().watch.counts();
                Ok(format!("{streams} streams, {watchers} watchers, {slow_watchers} behind"))
            }
            "garbage" => self.apply_bytes(Bytes::from_static(b"\xff\xff\xff")),
            "applied" => Ok(self.applied.index.to_string()),
            other => Err(format!("unknown command {other}").into()),
        }
    }

    fn lease(&mut self, name: &str, args: &Args<'_>) -> Outcome {
        let id = args.number(0).unwrap_or(0);
        let now_ms = self.now_ms;
        match name {
            "grant" => {
                let ttl = args.number(1).unwrap_or(0);
                self.apply(command::Command::LeaseGrant(LeaseGrantRequest { id, ttl }))
            }
            "revoke" => self.apply(command::Command::LeaseRevoke(LeaseRevokeRequest { id })),
            "checkpoint" => {
                let remaining_ttl = args.number(1).unwrap_or(0);
                let checkpoints = vec![LeaseCheckpoint { id, remaining_ttl }];
                self.apply(command::Command::LeaseCheckpoint(LeaseCheckpointRequest { checkpoints }))
            }
            "keepalive" => Ok(match self.parts().leases.keep_alive(LeaseId(id), now_ms, 1) {
                Renewal::Renewed(ttl) => format!("ttl {ttl}"),
                Renewal::TakeBackFirst => "a checkpoint is in force".to_owned(),
                Renewal::Gone => "gone".to_owned(),
            }),
            "ttl" => Ok(match self.parts().leases.time_to_live(LeaseId(id), now_ms, 1) {
                Some(lease) => format!(
                    "{} of {}, keys {}",
                    lease.remaining_ttl_seconds,
                    lease.granted_ttl_seconds,
                    lease.keys.iter().map(|key| text(key)).collect::<Vec<_>>().join(" ")
                ),
                None => "unknown".to_owned(),
            }),
            // Moves the clock on and looks what has run out.
            "clock" => {
                self.now_ms = u64::try_from(id)?;
                let now_ms = self.now_ms;
                let expired = self.parts().leases.expire(now_ms, 1);
                Ok(format!("expired {:?}", expired.iter().map(|id| id.0).collect::<Vec<_>>()))
            }
            other => Err(format!("unknown command {other}").into()),
        }
    }

    fn watch(&mut self, name: &str, args: &Args<'_>) -> Outcome {
        let stream = args.word(0).unwrap_or("1").to_owned();
        let parts = self.core.as_mut().expect("the store is open");
        let next = parts.streams.len() as u64;
        let (number, outbox) = parts.streams.entry(stream).or_insert_with(|| {
            let outbox = Outbox::default();
            parts.watch.handle(Event::Open { stream: next, outbox: outbox.clone() });
            (next, outbox)
        });
        let stream = *number;
        match name {
            "watch" => {
                let request = WatchCreateRequest {
                    key: args.bytes(1),
                    range_end: args.key("end").map_or_else(Bytes::new, bytes_of),
                    start_revision: args.key("rev").map_or(Ok(0), str::parse)?,
                    watch_id: args.key("id").map_or(Ok(0), str::parse)?,
                    prev_kv: args.has("prev"),
                    fragment: args.has("fragment"),
                    progress_notify: args.has("notify"),
                    filters: [("noput", 0), ("nodelete", 1)]
                        .into_iter()
                        .filter(|(word, _)| args.has(word))
                        .map(|(_, filter)| filter)
                        .collect(),
                };
                parts.watch.handle(Event::Create { stream, request });
            }
            "cancel" => parts.watch.handle(Event::Cancel { stream, id: args.number(1).unwrap_or(0) }),
            "progress" => parts.watch.handle(Event::Progress { stream }),
            "tick" => parts.watch.handle(Event::Tick { now_ms: u64::try_from(args.number(1).unwrap_or(0))? }),
            "catch-up" => while parts.watch.catch_up() {},
            "catch-up-once" => return Ok(if parts.watch.catch_up() { "more is to do" } else { "rests" }.to_owned()),
            "close" => parts.watch.handle(Event::Close { stream }),
            "drained" => parts.watch.handle(Event::Drained { stream }),
            "events" => return Ok(drain(outbox)),
            // As `events`, where there are too many to show.
            "count" => return Ok(count(outbox)),
            other => return Err(format!("unknown command {other}").into()),
        }
        Ok(String::new())
    }
}

impl Runner for World {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Outcome {
        let args = Args(&command.args);
        match command.name.as_str() {
            "put" => self.apply(command::Command::Put(args.put(0))),
            "del" => self.apply(command::Command::DeleteRange(args.delete(0))),
            "txn" => {
                let txn = args.txn()?;
                self.apply(command::Command::Txn(txn))
            }
            "compact" => {
                let revision = args.number(0).unwrap_or(0);
                self.apply(command::Command::Compact(CompactionRequest { revision, physical: false }))
            }
            "alarm" => {
                let action = match args.word(0) {
                    Some("raise") => alarm_request::AlarmAction::Activate,
                    Some("clear") => alarm_request::AlarmAction::Deactivate,
                    _ => alarm_request::AlarmAction::Get,
                };
                let alarm = if args.has("corrupt") { AlarmType::Corrupt } else { AlarmType::Nospace };
                let request = AlarmRequest { action: action.into(), member_id: 2, alarm: alarm.into() };
                self.apply(command::Command::Alarm(request))
            }
            "alarms" => Ok(format!("{:?}", self.parts().alarms.list(0).iter().map(|a| a.alarm).collect::<Vec<_>>())),
            "range" => {
                let query = args.query(0)?;
                self.read(&query)
            }
            "grant" | "revoke" | "checkpoint" | "keepalive" | "ttl" | "clock" => self.lease(&command.name, &args),
            "piece" | "load" | "ack" | "shadow" | "enforce" | "off" | "rollback" | "remove" => {
                self.plugin(&command.name, &args)
            }
            "plugins" => self.show_plugins(),
            // Whether it is still a learner is not remembered by this member over a restart.
            "promote" => {
                let change = Change::Promote(MemberId(u64::try_from(args.number(0).unwrap_or(0))?));
                self.apply_entry(EntryKind::ConfChange, change.encode(0))
            }
            "watch" | "cancel" | "progress" | "tick" | "catch-up" | "catch-up-once" | "events" | "count" | "close"
            | "drained" => self.watch(&command.name, &args),
            "stream-bytes" => {
                self.stream_bytes_max = usize::try_from(args.number(0).unwrap_or(0))?;
                self.open();
                Ok(String::new())
            }
            name => self.upkeep(name, &args),
        }
    }
}

fn members() -> Members {
    let member = |(id, name, is_learner): (u64, &str, bool)| Member {
        name: name.to_owned(),
        ..Member::unstarted(MemberId(id), Vec::new(), is_learner)
    };
    Members::new([(1, "a", false), (2, "b", false), (3, "c", true)].map(member).to_vec())
}

fn sha256(word: &str) -> Bytes {
    let mut hash = word.as_bytes().to_vec();
    hash.resize(32, b'.');
    hash.into()
}

/// `piece WORD NUMBER bytes=ALL upload=NUMBER`, with as many bytes as that piece of that component has, or `short`.
fn piece(args: &Args<'_>) -> Result<PluginChunk, Box<dyn Error>> {
    let number = u32::try_from(args.number(1).unwrap_or(0))?;
    let component_bytes = args.key("bytes").map_or(Ok(1), str::parse::<u64>)?;
    let before = u64::from(number) * plugins::CHUNK_BYTES as u64;
    let due = usize::try_from(component_bytes.saturating_sub(before))?.min(plugins::CHUNK_BYTES);
    let data = vec![0; if args.has("short") { due.saturating_sub(1) } else { due }];
    Ok(PluginChunk {
        sha256: sha256(args.word(0).unwrap_or_default()),
        upload: args.key("upload").map_or(Ok(1), str::parse)?,
        component_bytes,
        number,
        data: data.into(),
    })
}

fn show_plugin(plugin: &Plugin) -> String {
    let slots = [("current", &plugin.current), ("candidate", &plugin.candidate), ("previous", &plugin.previous)];
    let shown = slots.into_iter().filter_map(|(what, revision)| {
        let revision: &PluginRevision = revision.as_ref()?;
        let acks = revision.acks.iter().map(|ack| match ack.failure.as_str() {
            "" => format!(" {}", ack.member_id),
            failure => format!(" {}:{failure}", ack.member_id),
        });
        let (number, mode) = (revision.number, revision.mode().as_str_name().trim_start_matches("PLUGIN_MODE_"));
        Some(format!(", {what} {number} {} ready{}", mode.to_lowercase(), acks.collect::<String>()))
    });
    format!("{}{}", plugin.name, shown.collect::<String>())
}

/// Arguments of a command: words in order, and `key=value` pairs.
struct Args<'a>(&'a [Argument]);

impl<'a> Args<'a> {
    fn words(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter_map(|arg| match arg {
            Argument::Positional(word) => Some(word.as_str()),
            _ => None,
        })
    }

    fn word(&self, at: usize) -> Option<&'a str> {
        self.words().nth(at)
    }

    fn has(&self, word: &str) -> bool {
        self.words().any(|known| known == word)
    }

    fn key(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find_map(|arg| match arg {
            Argument::KeyValue(known, value) if known == key => Some(value.as_str()),
            _ => None,
        })
    }

    fn number(&self, at: usize) -> Option<i64> {
        self.word(at)?.parse().ok()
    }

    /// `-` stands for nothing, `\0` for a zero byte.
    fn bytes(&self, at: usize) -> Bytes {
        bytes_of(self.word(at).unwrap_or("-"))
    }

    fn put(&self, at: usize) -> PutRequest {
        PutRequest {
            key: self.bytes(at),
            value: self.bytes(at + 1),
            lease: self.key("lease").and_then(|lease| lease.parse().ok()).unwrap_or(0),
            prev_kv: self.has("prev"),
            ignore_value: self.has("ignore_value"),
            ignore_lease: self.has("ignore_lease"),
        }
    }

    fn delete(&self, at: usize) -> DeleteRangeRequest {
        DeleteRangeRequest { key: self.bytes(at), range_end: self.bytes(at + 1), prev_kv: self.has("prev") }
    }

    fn query(&self, at: usize) -> Result<RangeQuery, Box<dyn Error>> {
        let number = |key: &str| self.key(key).map_or(Ok(0), str::parse::<i64>);
        Ok(RangeQuery {
            key: self.bytes(at),
            range_end: self.bytes(at + 1),
            limit: number("limit")?,
            revision: number("rev")?,
            order: match self.key("order") {
                Some("ascend") => SortOrder::Ascend,
                Some("descend") => SortOrder::Descend,
                _ => SortOrder::None,
            },
            target: match self.key("by") {
                Some("version") => SortTarget::Version,
                Some("create") => SortTarget::Create,
                Some("mod") => SortTarget::Mod,
                Some("value") => SortTarget::Value,
                _ => SortTarget::Key,
            },
            keys_only: self.has("keys_only"),
            count_only: self.has("count_only"),
            min_mod_revision: number("min_mod")?,
            max_mod_revision: number("max_mod")?,
            min_create_revision: number("min_create")?,
            max_create_revision: number("max_create")?,
        })
    }

    /// `if=KEY:VERSION` compares, then words `put:K:V`, `del:K`, `get:K`, and the same with `else-` before them; a word
    /// `txn(...)` nests operations without spaces, separated by commas.
    fn txn(&self) -> Result<TxnRequest, Box<dyn Error>> {
        let mut txn = TxnRequest::default();
        for arg in self.0 {
            match arg {
                Argument::KeyValue(key, compare) if key == "if" => txn.compare.push(compare_of(compare)?),
                Argument::Positional(word) => match word.strip_prefix("else-") {
                    Some(operation) => txn.failure.push(operation_of(operation)?),
                    None => txn.success.push(operation_of(word)?),
                },
                other => return Err(format!("unknown {other}").into()),
            }
        }
        Ok(txn)
    }
}

fn compare_of(text: &str) -> Result<Compare, Box<dyn Error>> {
    let (key, version) = text.split_once(':').ok_or("if=KEY:VERSION")?;
    Ok(Compare {
        result: compare::CompareResult::Equal.into(),
        target: compare::CompareTarget::Version.into(),
        key: bytes_of(key),
        target_union: Some(compare::TargetUnion::Version(version.parse()?)),
        range_end: Bytes::new(),
    })
}

fn operation_of(text: &str) -> Result<RequestOp, Box<dyn Error>> {
    if let Some(inner) = text.strip_prefix("txn(").and_then(|rest| rest.strip_suffix(')')) {
        let mut txn = TxnRequest::default();
        for part in inner.split(',') {
            match (part.strip_prefix("if-"), part.strip_prefix("else-")) {
                (Some(compare), _) => txn.compare.push(compare_of(compare)?),
                (None, Some(operation)) => txn.failure.push(operation_of(operation)?),
                (None, None) => txn.success.push(operation_of(part)?),
            }
        }
        return Ok(RequestOp { request: Some(request_op::Request::RequestTxn(txn)) });
    }
    let mut words = text.split(':');
    let mut next = || bytes_of(words.next().unwrap_or("-"));
    let name = next();
    let (key, second) = (next(), next());
    let request = match name.as_ref() {
        b"put" => request_op::Request::RequestPut(PutRequest { key, value: second, ..PutRequest::default() }),
        b"del" => request_op::Request::RequestDeleteRange(DeleteRangeRequest {
            key,
            range_end: second,
            ..DeleteRangeRequest::default()
        }),
        b"get" => {
            let revision = text.rsplit_once("@").map_or(Ok(0), |(_, revision)| revision.parse())?;
            let key = bytes_of(text.trim_start_matches("get:").split('@').next().unwrap_or_default());
            request_op::Request::RequestRange(RangeRequest { key, revision, ..RangeRequest::default() })
        }
        _ => return Err(format!("unknown operation {text}").into()),
    };
    Ok(RequestOp { request: Some(request) })
}

fn bytes_of(text: &str) -> Bytes {
    match text {
        "-" => Bytes::new(),
        text => text.replace("\\0", "\0").into_bytes().into(),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "\\0")
}

fn show_kv(kv: &KeyValue) -> String {
    let lease = if kv.lease == 0 { String::new() } else { format!(" lease={}", kv.lease) };
    let (created, modified, version) = (kv.create_revision, kv.mod_revision, kv.version);
    format!("{}={} created={created} mod={modified} version={version}{lease}", text(&kv.key), text(&kv.value))
}

fn show_range(answer: &RangeAnswer) -> String {
    let mut out = format!("count {}{} at {}", answer.count, if answer.more { ", more" } else { "" }, answer.revision);
    for kv in &answer.kvs {
        write!(out, "\n{}", show_kv(kv)).unwrap();
    }
    out
}

fn show_error(error: &ReadError) -> String {
    match error {
        ReadError::Refused(refusal) => format!("refused: {refusal:?}"),
        error @ (ReadError::Large | ReadError::Storage(_)) => panic!("the store failed: {error}"),
    }
}

fn show_reply(reply: &Reply) -> String {
    let at = |header: &Option<kuorum_proto::etcdserverpb::ResponseHeader>| header.unwrap_or_default().revision;
    match reply {
        Reply::Empty => "applied".to_owned(),
        Reply::Put(put) => {
            let previous = put.prev_kv.as_ref().map(|kv| format!(", before: {}", show_kv(kv))).unwrap_or_default();
            format!("revision {}{previous}", at(&put.header))
        }
        Reply::DeleteRange(delete) => {
            let before: String = delete.prev_kvs.iter().map(|kv| format!("\nbefore: {}", show_kv(kv))).collect();
            format!("revision {}, deleted {}{before}", at(&delete.header), delete.deleted)
        }
        Reply::Txn(txn) => {
            let mut out = format!("revision {}, {}", at(&txn.header), if txn.succeeded { "then" } else { "else" });
            show_operations(txn, 1, &mut out);
            out
        }
        Reply::Compact(compaction) => format!("revision {}", at(&compaction.header)),
        Reply::LeaseGrant(grant) => format!("lease {} ttl {}", grant.id, grant.ttl),
        Reply::LeaseRevoke(revoke) => format!("revision {}", at(&revoke.header)),
        Reply::Members(members) => format!("{} members", members.len()),
        Reply::Plugin(plugins::Outcome::Revision { number, was_there }, epoch) => {
            format!("revision {number}{}, epoch {epoch}", if *was_there { ", was there" } else { "" })
        }
        Reply::Plugin(plugins::Outcome::Done, epoch) => format!("epoch {epoch}"),
        Reply::Alarm(alarm) => format!("alarms {:?}", alarm.alarms.iter().map(|a| a.alarm).collect::<Vec<_>>()),
    }
}

fn show_operations(txn: &kuorum_proto::etcdserverpb::TxnResponse, depth: usize, out: &mut String) {
    for response in &txn.responses {
        let line = match response.response.as_ref().unwrap() {
            response_op::Response::ResponsePut(_) => "put".to_owned(),
            response_op::Response::ResponseDeleteRange(delete) => format!("deleted {}", delete.deleted),
            response_op::Response::ResponseRange(range) => {
                let kvs: Vec<String> = range.kvs.iter().map(show_kv).collect();
                format!("read [{}]", kvs.join("; "))
            }
            response_op::Response::ResponseTxn(nested) => {
                write!(out, "\n{}{}", "  ".repeat(depth), if nested.succeeded { "then" } else { "else" }).unwrap();
                show_operations(nested, depth + 1, out);
                continue;
            }
        };
        write!(out, "\n{}{line}", "  ".repeat(depth)).unwrap();
    }
}

/// Everything that waits in an outbox, a response a line.
fn drain(outbox: &Outbox) -> String {
    let mut lines = Vec::new();
    while let Some(Some((response, _))) = outbox.next().now_or_never() {
        lines.push(show_response(&WatchResponse::decode(response).unwrap()));
    }
    if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") }
}

/// How many events wait in an outbox, and up to which revision.
fn count(outbox: &Outbox) -> String {
    let (mut events, mut last) = (0, 0);
    while let Some(Some((response, _))) = outbox.next().now_or_never() {
        let response = WatchResponse::decode(response).unwrap();
        events += response.events.len();
        last = response.events.last().map_or(last, |event| event.kv.as_ref().unwrap().mod_revision);
    }
    format!("{events} events up to {last}")
}

fn show_response(response: &WatchResponse) -> String {
    let mut out = format!("watch {} at {}", response.watch_id, response.header.unwrap().revision);
    for (flag, word) in
        [(response.created, " created"), (response.canceled, " canceled"), (response.fragment, " fragment")]
    {
        if flag {
            out.push_str(word);
        }
    }
    if response.compact_revision != 0 {
        write!(out, " compacted={}", response.compact_revision).unwrap();
    }
    if !response.cancel_reason.is_empty() {
        write!(out, " ({})", response.cancel_reason).unwrap();
    }
    for event in &response.events {
        let kv = event.kv.as_ref().unwrap();
        let shown = match event.r#type() {
            event::EventType::Put => format!("put {}={}@{}", text(&kv.key), short(&kv.value), kv.mod_revision),
            event::EventType::Delete => format!("delete {}@{}", text(&kv.key), kv.mod_revision),
        };
        let previous = event.prev_kv.as_ref().map(|kv| format!(" before {}", short(&kv.value))).unwrap_or_default();
        write!(out, "\n  {shown}{previous}").unwrap();
    }
    out
}

fn short(value: &[u8]) -> String {
    if value.len() > 20 { format!("<{} bytes>", value.len()) } else { text(value) }
}

fn scripts(folder: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testscripts").join(folder);
    let mut names: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(!names.is_empty(), "{} has no scripts", path.display());
    for name in names {
        println!("{}", name.display());
        goldenscript::run(&mut World::new(), &name).unwrap();
    }
}

#[test]
fn golden_mvcc() {
    scripts("mvcc");
}

#[test]
fn golden_apply() {
    scripts("apply");
}

#[test]
fn golden_lease() {
    scripts("lease");
}

#[test]
fn golden_watch() {
    scripts("watch");
}

/// A put at every level, under a key of its own.
fn nested_txn(depth: usize) -> TxnRequest {
    let mut txn = TxnRequest::default();
    for level in 0..depth {
        let put = PutRequest { key: level.to_string().into(), ..PutRequest::default() };
        let put = RequestOp { request: Some(request_op::Request::RequestPut(put)) };
        let nested = (level > 0).then(|| RequestOp { request: Some(request_op::Request::RequestTxn(txn)) });
        txn = TxnRequest { success: [put].into_iter().chain(nested).collect(), ..TxnRequest::default() };
    }
    txn
}

/// What a shard and the apply thread do to a transaction, on one stack of the size that each of them has.
#[test]
fn the_deepest_txn_is_admitted_and_carried_out() {
    let carry_out = || {
        let limits = Limits { request_bytes_max: 1 << 20, txn_operations_max: 2 * TXN_DEPTH_MAX, quota_bytes: None };
        let gate = Gate::new(limits, Sizes::default(), Room::default(), Epoch::default());
        let request = gate.decode_txn(nested_txn(TXN_DEPTH_MAX).encode_to_vec().into()).unwrap();
        let entry = gate.txn(request, crate::admission::unjudged).unwrap().into_entry(0).1;
        let mut world = World::new();
        let answer = world.apply_bytes(entry).unwrap();
        assert!(answer.starts_with("revision 2, then"), "{answer}");
        let everything = RangeQuery { key: "\0".into(), range_end: "\0".into(), ..RangeQuery::default() };
        assert_eq!(world.parts().store.range(&everything).unwrap().count, i64::try_from(TXN_DEPTH_MAX).unwrap());
        let deeper = gate.decode_txn(nested_txn(TXN_DEPTH_MAX + 1).encode_to_vec().into());
        assert_eq!(deeper, Err(Refusal::TooManyOperations));
    };
    std::thread::Builder::new().stack_size(TXN_STACK_BYTES).spawn(carry_out).unwrap().join().unwrap();
}
