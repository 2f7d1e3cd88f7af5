//! The plan thread: asks the plugins of compaction what to compact and whom to defragment, and has it done.
//!
//! On the leader alone. Of the enforced plugins the first by name decides; the others of this kind are not asked, since two
//! who compact without knowing of each other make no policy. Those in shadow are asked too, and what they plan is logged and
//! counted. A thread of its own, since a call may take seconds and a defragmentation minutes; nothing waits for it.
//!
//! ```text
//!   enforced plugin answers ----> its plan, within the rails (`policy::plan`)
//!   fails, rests, is broken ----> the native schedule, as without any
//!   is being prepared ----------> nothing, for a while
//! ```
//!
//! What is compacted becomes a proposal in the leader's term, so a leader that was deposed meanwhile compacts nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use kuorum_proto::etcdserverpb::CompactionRequest;
use kuorum_proto::kuorum::v1::{SpaceResponse, TimelineMark};

use super::Upkeep;
use super::clock::{now_ms, unix_ms};
use crate::admission::Gate;
use crate::cluster::{MemberId, Members};
use crate::consensus::Handle;
use crate::consensus::handle::RaftStatus;
use crate::metrics;
use crate::mvcc::revision::Revision;
use crate::mvcc::{CurrentStore, Store};
use crate::plugin::{Ctx, Failure, Input, LastRun, Mark, MemberSpace, Plan, Planned, Prepared};
use crate::policy::plan::{self, Rails, StandIn, Within};
use crate::policy::plugins::Registry;
use crate::policy::timeline;
use crate::refusal::Refusal;
use crate::roster::{self, Asked, Roster, Standing, Weight};

/// How often the thread looks whom it has to ask: as soon as a plugin may have itself asked again.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long something that holds on is not said again.
const SAY_AGAIN_MS: u64 = 600_000;

/// What the leader has members do, itself among them.
pub(crate) trait Neighbours: Send {
    /// How members are off; those that don't answer in time are left out.
    fn spaces(&self, members: Vec<MemberId>) -> Vec<(MemberId, SpaceResponse)>;

    /// Has a member defragment its store, and waits for that, but not for ever.
    fn defragment(&self, member: MemberId) -> Result<(), Refusal>;
}

pub(crate) struct Parts {
    pub(crate) store: CurrentStore,
    pub(crate) consensus: Handle,
    pub(crate) gate: Gate,
    pub(crate) member: MemberId,
    pub(crate) members: Members,
    pub(crate) registry: Registry,
    pub(crate) roster: Roster,
    pub(crate) upkeep: Upkeep,
    pub(crate) neighbours: Box<dyn Neighbours>,
    pub(crate) stand_in: StandIn,
    /// Where monotonic time starts for this process.
    pub(crate) started: Instant,
    /// Closed when the node stops.
    pub(crate) stop: Receiver<()>,
}

/// Starts the thread. It ends when the stop channel closes, after what it waits for.
pub(crate) fn start(parts: Parts) -> std::io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("plan".into());
    thread.spawn(move || {
        Planning {
            parts,
            term: 0,
            due_ms: BTreeMap::new(),
            last: None,
            said: Said::default(),
            said_of_plans: Said::default(),
        }
        .run()
    })
}

struct Planning {
    parts: Parts,
    /// That this member last led in.
    term: u64,
    /// When to ask those again that are asked; missing before the first time, and again in another mode.
    due_ms: BTreeMap<Key, u64>,
    /// The compaction before, in this term.
    last: Option<Last>,
    /// Why plugins that should have a plan have none, and what plans came to that change nothing.
    said: Said,
    said_of_plans: Said,
}

/// Name, revision, and whether it is enforced.
type Key = (String, u64, bool);

struct Last {
    run: LastRun,
    begun_ms: u64,
    freed_before: u64,
    is_done: bool,
}

/// What the members are asked with, put together once for all plugins that are due.
struct Question {
    ctx: Ctx,
    marks: Vec<TimelineMark>,
    timeline: Vec<Mark>,
    members: Vec<MemberSpace>,
    slowest_watcher: Option<i64>,
    p99_write_us: u32,
}

impl Planning {
    fn run(mut self) {
        while self.parts.stop.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            self.look();
        }
    }

    fn now_ms(&self) -> u64 {
        now_ms(self.parts.started)
    }

    fn look(&mut self) {
        let status = self.parts.consensus.status();
        if !status.is_settled {
            self.parts.stand_in.end();
            return;
        }
        if status.term != self.term {
            (self.term, self.last) = (status.term, None);
            self.due_ms.clear();
            (self.said, self.said_of_plans) = (Said::default(), Said::default());
        }
        self.follow_last_run();
        let table = self.parts.roster.table();
        let of_weight = |weight| table.compaction().iter().filter(move |asked| asked.weight == weight);
        let mut enforced = of_weight(Weight::Enforced);
        let decider = enforced.next();
        if decider.is_none() {
            self.parts.stand_in.end();
        }
        for other in enforced {
            self.say(&other.name, "another plugin of compaction comes before it and decides alone");
        }
        // What is followed may take minutes: those in shadow are not to wait for it.
        let now: Vec<&Arc<Asked>> = of_weight(Weight::Shadow).chain(decider).collect();
        self.due_ms.retain(|key, _| now.iter().any(|asked| key_of(asked) == *key));
        let mut question = None;
        for asked in now {
            self.attend(asked, &status, &mut question);
        }
    }

    /// Asks a plugin if it is due, and does what is to be done then.
    fn attend(&mut self, asked: &Arc<Asked>, status: &RaftStatus, question: &mut Option<Question>) {
        let prepared = match asked.standing() {
            Standing::Ready(prepared) => prepared,
            Standing::Failed(failure) | Standing::Hindered(failure) => {
                if self.without(asked, failure) {
                    count_failed(asked);
                }
                return;
            }
            // It is soon known what becomes of it. What stood in for one before it does not go on meanwhile.
            Standing::Preparing => {
                if asked.weight == Weight::Enforced {
                    self.parts.stand_in.end();
                }
                return;
            }
        };
        let key = key_of(asked);
        if self.due_ms.get(&key).is_some_and(|due_ms| self.now_ms() < *due_ms) {
            return;
        }
        let question = question.get_or_insert_with(|| self.question(status));
        let next_ms = match self.ask(prepared, question) {
            Ok(planned) => {
                self.answered(asked, prepared, question, &planned, status.term);
                plan::next_call_ms(planned.plan.next_call_in_ms)
            }
            Err(failure) => {
                let why = failure.to_string();
                self.parts.roster.tail().plan(asked, Err(&why));
                self.without(asked, &why);
                count_failed(asked);
                match failure {
                    Failure::Transient { retry_ms, .. } => plan::next_call_ms(retry_ms),
                    _ => plan::RETRY_MS,
                }
            }
        };
        self.due_ms.insert(key, self.now_ms() + next_ms);
    }

    /// There is no plan: where it would have decided, the native schedule does. Returns whether that was news.
    fn without(&mut self, asked: &Asked, why: &str) -> bool {
        if asked.weight == Weight::Enforced {
            self.parts.stand_in.begin(self.term);
        }
        self.say(&asked.name, why)
    }

    fn answered(&mut self, asked: &Asked, prepared: &Prepared, question: &Question, planned: &Planned, term: u64) {
        let Planned { plan, spent } = planned;
        self.said.forget(&asked.name);
        let store = self.parts.store.get();
        let within = rails(&store, question).hold(plan.compact_to.map(Revision));
        let plans = metrics::get().plans(&asked.name);
        let is_enforced = asked.weight == Weight::Enforced;
        let outcomes = if is_enforced { &plans.enforced } else { &plans.shadow };
        match (within.clamped_by, within.to) {
            (Some(_), _) => outcomes.clamped.increment(1),
            (None, Some(_)) => outcomes.compacted.increment(1),
            (None, None) => outcomes.nothing.increment(1),
        }
        let tail = self.parts.roster.tail();
        if tail.is_heard() {
            tail.plan(asked, Ok((&plan_text(plan, within.to, within.clamped_by), *spent)));
        }
        self.tell(asked, prepared, plan, within);
        if !is_enforced {
            return;
        }
        self.parts.stand_in.end();
        if let Some(to) = within.to {
            self.compact(&store, to, term);
        }
        self.defragment(asked, question, plan, term);
    }

    /// Logs what a plan comes to: each that is followed, and others where they say something new.
    fn tell(&mut self, asked: &Asked, prepared: &Prepared, plan: &Plan, within: Within) {
        let is_enforced = asked.weight == Weight::Enforced;
        if plan.compact_to.is_none() && plan.defragment.is_empty() {
            return;
        }
        let what = match (is_enforced, within) {
            (true, Within { to: None, clamped_by: Some(by) }) if plan.defragment.is_empty() => by.to_owned(),
            (true, _) => String::new(),
            (false, Within { to, .. }) => format!("{:?} {to:?} {:?}", plan.compact_to, plan.defragment),
        };
        let is_news = what.is_empty() || self.said_of_plans.is_news(self.now_ms(), &asked.name, &what);
        if !is_news || !prepared.may_log() {
            return;
        }
        crate::info!(
            if is_enforced { "a plugin plans" } else { "a plugin in shadow would plan" },
            plugin = asked.name.as_str(),
            revision = asked.revision,
            "compact-to" = plan.compact_to.unwrap_or(0),
            "may-compact-to" = within.to.map_or(0, |to| to.0),
            "clamped-by" = within.clamped_by.unwrap_or(""),
            defragment = plan.defragment.len(),
            reason = plan.reason.as_str()
        );
    }

    /// Says why a plugin does not decide, if that is news; returns whether it was.
    fn say(&mut self, plugin: &str, why: &str) -> bool {
        let is_news = self.said.is_news(self.now_ms(), plugin, why);
        if is_news {
            crate::warn!("a plugin does not decide what is compacted", plugin = plugin, reason = why);
        }
        is_news
    }

    fn ask(&self, prepared: &Prepared, question: &Question) -> Result<Planned, Failure> {
        let store = self.parts.store.get();
        let sizes = store.sizes().and(self.parts.registry.pieces_bytes());
        let recent = &metrics::get().recent;
        let (_, quota_bytes) = self.parts.gate.space();
        let live_keys = store.key_count();
        let input = Input {
            ctx: question.ctx,
            timeline: &question.timeline,
            live_keys,
            // Each revision since the compacted one left a version at least.
            versions: live_keys + since(question.ctx.revision, question.ctx.compact_revision),
            db_bytes: sizes.allocated_bytes,
            in_use_bytes: sizes.allocated_in_use_bytes(),
            quota_bytes,
            writes_per_s: recent.writes_per_s(),
            slowest_watcher: question.slowest_watcher,
            backup_floor: None,
            members: &question.members,
            p99_write_us: question.p99_write_us,
            p99_fsync_us: recent.fsyncs.p99_us(),
            last: self.last.as_ref().map(|last| last.run),
        };
        prepared.compaction(&input)
    }

    fn question(&self, status: &RaftStatus) -> Question {
        let members: Vec<MemberId> = self.parts.members.list().into_iter().map(|member| member.id).collect();
        let spaces: BTreeMap<MemberId, SpaceResponse> =
            self.parts.neighbours.spaces(members.clone()).into_iter().collect();
        let store = self.parts.store.get();
        let ctx = roster::context(&store, status, self.parts.member, &self.parts.registry, rand::random());
        let marks = self.parts.registry.timeline().marks();
        let timeline = marks.iter().map(|mark| Mark { revision: mark.revision, at_ms: mark.at_ms }).collect();
        let slowest_watcher = spaces.values().map(|space| space.slowest_watcher).filter(|needed| *needed > 0).min();
        let p99_write_us = spaces.values().map(|space| space.p99_write_us).max().unwrap_or(0);
        let members = members.into_iter().map(|member| self.space_of(member, spaces.get(&member))).collect();
        Question { ctx, marks, timeline, members, slowest_watcher, p99_write_us }
    }

    fn space_of(&self, member: MemberId, space: Option<&SpaceResponse>) -> MemberSpace {
        let healthy = space.is_some();
        let SpaceResponse { db_bytes, in_use_bytes, disk_free_bytes, .. } = space.copied().unwrap_or_default();
        MemberSpace {
            member: member.0,
            leader: member == self.parts.member,
            healthy,
            db_bytes,
            in_use_bytes,
            disk_free_bytes,
        }
    }

    fn compact(&mut self, store: &Store, to: Revision, term: u64) {
        let request = CompactionRequest { revision: to.0, physical: false };
        let command = self.parts.gate.compact(request);
        if let Err(refusal) = command.and_then(|command| self.parts.consensus.propose_in_term(command, term)) {
            crate::warn!("a planned compaction is put off", revision = to.0, error = refusal.to_string());
            return;
        }
        let run = LastRun { to: to.0, at_ms: unix_ms(), took_ms: 0, freed_bytes: 0 };
        self.last = Some(Last { run, begun_ms: self.now_ms(), freed_before: store.freed_bytes(), is_done: false });
    }

    /// Notes how long the compaction took and what it freed here, once it is carried out.
    fn follow_last_run(&mut self) {
        let now_ms = self.now_ms();
        let freed = self.parts.store.get().freed_bytes();
        let Some(last) = self.last.as_mut().filter(|last| !last.is_done) else { return };
        if self.parts.upkeep.compacted_to() >= Revision(last.run.to) {
            last.is_done = true;
            last.run.took_ms = u32::try_from(now_ms - last.begun_ms).unwrap_or(u32::MAX);
            last.run.freed_bytes = freed.saturating_sub(last.freed_before);
        }
    }

    fn defragment(&self, asked: &Asked, question: &Question, plan: &Plan, term: u64) {
        let known = |member: MemberId| question.members.iter().find(|space| space.member == member.0);
        let named = plan.defragment.iter().map(|member| MemberId(*member));
        let round = plan::round(named, self.parts.member, |member| known(member).map(|space| space.healthy));
        for (member, why) in round.skipped {
            crate::info!("a member is not defragmented", member = member.to_string(), reason = why);
        }
        let leads = || {
            let status = self.parts.consensus.status();
            status.is_settled && status.term == term
        };
        let is_stopping = || self.parts.stop.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected);
        let goes_on = || leads() && !is_stopping();
        let all = question.members.iter().map(|space| MemberId(space.member)).collect();
        let (done, failed) = defragment_round(&*self.parts.neighbours, all, &round.members, goes_on);
        if done + failed > 0 {
            let plans = metrics::get().plans(&asked.name);
            plans.defragmented.increment(done);
            plans.not_defragmented.increment(failed);
        }
    }
}

/// Has members defragmented, one after the other. Goes on after one that says that it can't; not after one that was not
/// heard of again, since it may be at it still; nor before one that is at it, for whomever. Returns how many did, and how many
/// did not.
fn defragment_round(
    neighbours: &dyn Neighbours,
    all: Vec<MemberId>,
    members: &[MemberId],
    goes_on: impl Fn() -> bool,
) -> (u64, u64) {
    let (mut done, mut failed) = (0, 0);
    if members.is_empty() {
        return (done, failed);
    }
    if let Some((busy, _)) = neighbours.spaces(all).into_iter().find(|(_, space)| space.is_defragmenting) {
        crate::info!("no member is defragmented while another one is", member = busy.to_string());
        return (done, failed);
    }
    for member in members {
        if !goes_on() {
            break;
        }
        let Err(refusal) = neighbours.defragment(*member) else {
            done += 1;
            continue;
        };
        failed += 1;
        crate::warn!("a member was not defragmented", member = member.to_string(), error = refusal.to_string());
        if refusal != Refusal::TooManyRequests {
            break;
        }
    }
    (done, failed)
}

fn count_failed(asked: &Asked) {
    let plans = metrics::get().plans(&asked.name);
    let outcomes = if asked.weight == Weight::Enforced { plans.enforced } else { plans.shadow };
    outcomes.failed.increment(1);
}

fn key_of(asked: &Asked) -> Key {
    (asked.name.clone(), asked.revision, asked.weight == Weight::Enforced)
}

fn rails(store: &Store, question: &Question) -> Rails {
    Rails {
        compacted: store.compacted(),
        applied: store.revision(),
        old: timeline::revision_at(&question.marks, question.ctx.now_ms.saturating_sub(plan::HISTORY_MS_MIN)),
        backup_floor: None,
    }
}

/// A plan as whoever follows the plugin reads it.
fn plan_text(plan: &Plan, may: Option<Revision>, clamped_by: Option<&str>) -> String {
    let compact = match (plan.compact_to, clamped_by) {
        (None, _) => "compact nothing".to_owned(),
        (Some(to), None) => format!("compact to {to}"),
        (Some(to), Some(by)) => {
            let may = may.map_or_else(|| "nothing".to_owned(), |may| may.0.to_string());
            format!("compact to {to}, of which {by} leaves {may}")
        }
    };
    format!("{compact}; defragment {} members; {}", plan.defragment.len(), plan.reason)
}

/// Revisions after the compacted one, which is -1 before the first compaction.
fn since(revision: i64, compacted: i64) -> u64 {
    u64::try_from(revision - compacted.max(0)).unwrap_or(0)
}

/// What was said of plugins, so that it is not said at every look. At most one sentence for each plugin that was in force
/// since this member leads.
#[derive(Default)]
struct Said(BTreeMap<String, (String, u64)>);

impl Said {
    fn is_news(&mut self, now_ms: u64, plugin: &str, what: &str) -> bool {
        let is_known = |(said, at_ms): &(String, u64)| said == what && now_ms < at_ms + SAY_AGAIN_MS;
        if self.0.get(plugin).is_some_and(is_known) {
            return false;
        }
        self.0.insert(plugin.to_owned(), (what.to_owned(), now_ms));
        true
    }

    fn forget(&mut self, plugin: &str) {
        self.0.remove(plugin);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use parking_lot::Mutex;

    use super::*;

    /// Members that answer as told, and remember who was asked.
    struct Told {
        answers: BTreeMap<u64, Refusal>,
        /// Is being defragmented already.
        busy: Option<u64>,
        asked: Mutex<Vec<u64>>,
    }

    impl Neighbours for Told {
        fn spaces(&self, members: Vec<MemberId>) -> Vec<(MemberId, SpaceResponse)> {
            let space = |member: MemberId| {
                let is_defragmenting = self.busy == Some(member.0);
                (member, SpaceResponse { is_defragmenting, ..SpaceResponse::default() })
            };
            members.into_iter().map(space).collect()
        }

        fn defragment(&self, member: MemberId) -> Result<(), Refusal> {
            self.asked.lock().push(member.0);
            self.answers.get(&member.0).map_or(Ok(()), |refusal| Err(refusal.clone()))
        }
    }

    #[track_caller]
    fn check(answers: &[(u64, Refusal)], rounds: usize, asked: &[u64], expected: (u64, u64)) {
        let told = Told { answers: answers.iter().cloned().collect(), busy: None, asked: Mutex::default() };
        let left = Cell::new(rounds);
        let goes_on = || {
            left.set(left.get().saturating_sub(1));
            left.get() > 0
        };
        assert_eq!(defragment_round(&told, Vec::new(), &[1, 2, 3].map(MemberId), goes_on), expected);
        assert_eq!(*told.asked.lock(), asked);
    }

    #[test]
    fn members_are_defragmented_one_by_one_until_one_is_not_heard_of() {
        check(&[], 9, &[1, 2, 3], (3, 0));
        check(&[(2, Refusal::TooManyRequests)], 9, &[1, 2, 3], (2, 1));
        check(&[(2, Refusal::Timeout)], 9, &[1, 2], (1, 1));
        // Another leads meanwhile.
        check(&[], 2, &[1], (1, 0));
    }

    #[test]
    fn nobody_is_defragmented_while_another_is() {
        let told = Told { answers: BTreeMap::new(), busy: Some(3), asked: Mutex::default() };
        let all = || [1, 2, 3].map(MemberId).to_vec();
        assert_eq!(defragment_round(&told, all(), &[1, 2].map(MemberId), || true), (0, 0));
        assert!(told.asked.lock().is_empty());
        let told = Told { busy: None, ..told };
        assert_eq!(defragment_round(&told, all(), &[1, 2].map(MemberId), || true), (2, 0));
    }

    #[test]
    fn what_holds_on_is_said_once() {
        let mut said = Said::default();
        assert!(said.is_news(0, "p", "it rests"));
        assert!(!said.is_news(1_000, "p", "it rests"));
        assert!(said.is_news(2_000, "q", "it rests"));
        assert!(said.is_news(2_000, "p", "it trapped"));
        assert!(said.is_news(2_000 + SAY_AGAIN_MS, "p", "it trapped"));
        said.forget("p");
        assert!(said.is_news(2_001 + SAY_AGAIN_MS, "p", "it trapped"));
    }
}
