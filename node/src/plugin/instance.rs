//! Instances of a plugin: how one is made, what it carries, how a call of it is bounded, and what its end means.
//!
//! An instance is a store with the component in it, configured. Each call gets its fuel and its deadline anew. A call that
//! traps leaves the plugin's memory in any state, so its store is dropped; the next call gets a new one.

use std::sync::Arc;
use std::time::Duration;

use ::metrics::Histogram;
use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use wasmtime::component::{Instance, InstancePre};
use wasmtime::{Store, Trap, UpdateDeadline};

use super::Kind;
use super::admission::ReadKey;
use super::bindings::exports::kuorum::policy::{
    admission, backup_schedule, backup_target, compaction, lifecycle, quota,
};
use super::bindings::kuorum::policy::types;
use super::compile::one_line;
use super::engine::{self, Clock};
use super::host_calls::{LineListener, LogBudget, UserMetrics};
use super::kv::KvReader;
use super::limits::{Budget, Ceiling, Limits, SETUP};
use super::rules::Prefixes;
use crate::metrics;

/// Bytes that one call of the host may bring over from the plugin.
const HOST_CALL_BYTES_MAX: usize = 1 << 20;
/// Pieces of time beyond the deadline, and how long each is at most: two seconds in all.
const GRACE_PIECES: u32 = 20;
const GRACE_PIECE_MS_MAX: u32 = 100;

/// What all instances of a plugin share.
pub(super) struct Plugin {
    pub(super) name: String,
    /// Of the revision.
    pub(super) number: u64,
    pub(super) grants: Prefixes,
    pub(super) limits: Limits,
    pub(super) reader: Arc<dyn KvReader>,
    pub(super) lines: LogBudget,
    /// Who hears of its lines.
    pub(super) listener: Option<Arc<dyn LineListener>>,
    pub(super) user_metrics: UserMetrics,
    pub(super) counts: metrics::Plugin,
}

/// What a call is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Start functions, `validate-config`, `configure`.
    #[default]
    Setup,
    Admission,
    Compaction,
}

/// What host calls know of the call that they are made in.
#[derive(Default)]
pub(super) struct CallState {
    pub(super) kind: CallKind,
    /// Reads are as of this one.
    pub(super) revision: i64,
    pub(super) reads: Vec<ReadKey>,
    /// Of the puts in the request by their number, empty for other operations.
    pub(super) values: Vec<Bytes>,
    pub(super) host_calls: u32,
    pub(super) handed_bytes: usize,
    pub(super) read_bytes: usize,
}

impl CallState {
    fn begin(&mut self, kind: CallKind, revision: i64) {
        (self.kind, self.revision) = (kind, revision);
        (self.host_calls, self.handed_bytes, self.read_bytes) = (0, 0, 0);
        self.reads.clear();
        self.values.clear();
    }
}

/// What a store holds beside the plugin's own memory.
pub(super) struct State {
    pub(super) plugin: Arc<Plugin>,
    pub(super) call: CallState,
    ceiling: Ceiling,
    grace: Grace,
}

/// What a call gets beyond its deadline. The deadline goes by the wall clock: on a machine that has its processors elsewhere it
/// can be over before the plugin has run for a moment. Such a call goes on for a while; one that was running is stopped.
#[derive(Default)]
struct Grace {
    piece_ms: u32,
    pieces_left: u32,
    /// What the thread had used of its processor when the piece began.
    cpu: Option<Duration>,
}

impl Grace {
    fn of(deadline_ms: u32) -> Grace {
        Grace { piece_ms: deadline_ms.min(GRACE_PIECE_MS_MAX), pieces_left: GRACE_PIECES, cpu: None }
    }

    /// The time is over, after this much on a processor. Returns for how long to go on.
    fn more(&mut self, cpu: Duration) -> UpdateDeadline {
        let half = Duration::from_millis(u64::from(self.piece_ms)) / 2;
        let was_running = self.cpu.is_some_and(|began| cpu.saturating_sub(began) >= half);
        if was_running || self.pieces_left == 0 {
            return UpdateDeadline::Interrupt;
        }
        (self.cpu, self.pieces_left) = (Some(cpu), self.pieces_left - 1);
        UpdateDeadline::Continue(u64::from(self.piece_ms))
    }
}

/// What the calling thread has used of its processor.
fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It failed too often, and rests.
    Quarantined,
    OutOfFuel {
        fuel: u64,
    },
    OutOfTime {
        deadline_ms: u32,
    },
    /// It trapped, or could not be started.
    Trapped {
        cause: String,
        /// Where in the plugin, as far as that is known: for its author.
        place: String,
    },
    /// It says that something in it is broken.
    Internal(String),
    /// It says that it can't answer now.
    Transient {
        text: String,
        retry_ms: u32,
    },
    /// It says that it can't answer.
    Permanent(String),
    /// It has no answer to this kind of question.
    NotAsked,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Quarantined => f.write_str("it failed too often and is not asked for a while"),
            Failure::OutOfFuel { fuel } => write!(f, "it used up its fuel of {fuel}"),
            Failure::OutOfTime { deadline_ms } => write!(f, "it took longer than {deadline_ms} ms"),
            Failure::Trapped { place, .. } if place.is_empty() => f.write_str(&self.brief()),
            Failure::Trapped { place, .. } => write!(f, "{} ({place})", self.brief()),
            Failure::Internal(text) => write!(f, "it says that it is broken: {text}"),
            Failure::Transient { text, .. } => write!(f, "it says that it can't answer now: {text}"),
            Failure::Permanent(text) => write!(f, "it says that it can't answer: {text}"),
            Failure::NotAsked => f.write_str("it has no answer to this kind of question"),
        }
    }
}

impl Failure {
    fn of_plugin(failure: types::Failure) -> Failure {
        match failure {
            types::Failure::Transient((text, retry_ms)) => Failure::Transient { text: one_line(&text), retry_ms },
            types::Failure::Permanent(text) => Failure::Permanent(one_line(&text)),
            types::Failure::Internal(text) => Failure::Internal(one_line(&text)),
        }
    }

    /// Without what only its author understands.
    pub(crate) fn brief(&self) -> String {
        match self {
            Failure::Trapped { cause, .. } => format!("it trapped: {cause}"),
            other => other.to_string(),
        }
    }

    /// Whether the plugin broke rather than answered: its store is dropped, and the breaker counts it.
    pub(super) fn is_breakage(&self) -> bool {
        match self {
            Failure::OutOfFuel { .. } | Failure::OutOfTime { .. } | Failure::Trapped { .. } | Failure::Internal(_) => {
                true
            }
            Failure::Quarantined | Failure::Transient { .. } | Failure::Permanent(_) | Failure::NotAsked => false,
        }
    }

    /// Adds it to the plugin's counts.
    pub(super) fn count(&self, counts: &metrics::Plugin) {
        match self {
            Failure::OutOfFuel { .. } => counts.out_of_fuel.increment(1),
            Failure::OutOfTime { .. } => counts.out_of_time.increment(1),
            Failure::Internal(_) | Failure::Transient { .. } | Failure::Permanent(_) => counts.failures.increment(1),
            Failure::Trapped { .. } | Failure::Quarantined | Failure::NotAsked => {}
        }
        if self.is_breakage() {
            counts.traps.increment(1);
        }
    }
}

/// What a call cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) elapsed: Duration,
    pub(crate) fuel: u64,
}

/// A field of the configuration that the plugin does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldProblem {
    pub(crate) path: String,
    pub(crate) message: String,
}

/// Field problems of one configuration that are told.
const FIELD_PROBLEMS_MAX: usize = 16;

/// How instances of a plugin are made.
pub(super) struct Template {
    pub(super) plugin: Arc<Plugin>,
    pub(super) before: InstancePre<State>,
    pub(super) lifecycle: lifecycle::GuestIndices,
    pub(super) admission: Option<admission::GuestIndices>,
    pub(super) compaction: Option<compaction::GuestIndices>,
    pub(super) config: String,
    pub(super) clock: Arc<Clock>,
}

/// A component in a store of its own.
pub(super) struct Started {
    pub(super) store: Store<State>,
    pub(super) instance: Instance,
    /// What it took so far.
    pub(super) fuel: u64,
}

impl Template {
    /// A configured instance.
    pub(super) fn start(&self) -> Result<Started, Failure> {
        let mut started = self.instantiate()?;
        self.configure(&mut started)?;
        Ok(started)
    }

    /// Makes the store and runs the component's start functions.
    pub(super) fn instantiate(&self) -> Result<Started, Failure> {
        let ceiling = Ceiling::new(&self.plugin.limits);
        let state =
            State { plugin: Arc::clone(&self.plugin), call: CallState::default(), ceiling, grace: Grace::default() };
        let mut store = Store::new(self.before.engine(), state);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().grace.more(thread_cpu_time())));
        store.limiter(|state| &mut state.ceiling);
        store.set_hostcall_fuel(HOST_CALL_BYTES_MAX);
        let (instance, spent) = self.run(&mut store, SETUP, |store| self.before.instantiate(store));
        Ok(Started { store, instance: instance?, fuel: spent.fuel })
    }

    /// Asks the plugin whether it takes its configuration; the outer error is that it could not say.
    pub(super) fn validate_config(&self, started: &mut Started) -> Result<Result<(), Vec<FieldProblem>>, Failure> {
        let (outcome, _) = self.run(&mut started.store, SETUP, |store| {
            let guest = self.lifecycle.load(&mut *store, &started.instance)?;
            guest.call_validate_config(store, &self.config)
        });
        Ok(outcome?.map_err(|problems| {
            let problems = problems.into_iter().take(FIELD_PROBLEMS_MAX);
            problems
                .map(|problem| FieldProblem { path: one_line(&problem.path), message: one_line(&problem.message) })
                .collect()
        }))
    }

    pub(super) fn configure(&self, started: &mut Started) -> Result<(), Failure> {
        let (outcome, spent) = self.run(&mut started.store, SETUP, |store| {
            let guest = self.lifecycle.load(&mut *store, &started.instance)?;
            guest.call_configure(store, &self.config)
        });
        started.fuel += spent.fuel;
        outcome?.map_err(Failure::of_plugin)
    }

    /// Looks that the functions of its kinds have the types of the interface.
    pub(super) fn check_exports(&self, kinds: &[Kind], started: &mut Started) -> Result<(), String> {
        let Started { store, instance, .. } = started;
        let before = &self.before;
        for kind in kinds {
            macro_rules! load {
                ($of:ident) => {
                    $of::GuestIndices::new(before).and_then(|calls| calls.load(&mut *store, instance).map(drop))
                };
            }
            let checked = match kind {
                Kind::Admission => load!(admission),
                Kind::Compaction => load!(compaction),
                Kind::Quota => load!(quota),
                Kind::BackupSchedule => load!(backup_schedule),
                Kind::BackupTarget => load!(backup_target),
            };
            checked.map_err(|error| one_line(&format!("{}: {error:#}", kind.as_str())))?;
        }
        Ok(())
    }

    /// Makes one call within its budget, and tells what it took. What the plugin answers is still to be looked at.
    pub(super) fn run<R>(
        &self,
        store: &mut Store<State>,
        budget: Budget,
        call: impl FnOnce(&mut Store<State>) -> wasmtime::Result<R>,
    ) -> (Result<R, Failure>, Spent) {
        if let Err(error) = store.set_fuel(budget.fuel) {
            return (Err(trapped(store, &error)), Spent::default());
        }
        // The tick under way is no whole one.
        store.set_epoch_deadline(u64::from(budget.deadline_ms) + 1);
        store.data_mut().grace = Grace::of(budget.deadline_ms);
        self.clock.wake();
        let began = engine::now();
        let outcome = call(store);
        let elapsed = engine::now().saturating_duration_since(began);
        let fuel = budget.fuel - store.get_fuel().unwrap_or(0).min(budget.fuel);
        let outcome = outcome.map_err(|error| match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => Failure::OutOfFuel { fuel: budget.fuel },
            Some(Trap::Interrupt) => Failure::OutOfTime { deadline_ms: budget.deadline_ms },
            _ => trapped(store, &error),
        });
        (outcome, Spent { elapsed, fuel })
    }

    /// Makes one call of a question, in a store whose state is made ready for it. Its time counts whatever becomes of it.
    pub(super) fn ask<R>(
        &self,
        store: &mut Store<State>,
        seconds: &Histogram,
        call: impl FnOnce(&mut Store<State>) -> wasmtime::Result<Result<R, types::Failure>>,
    ) -> Result<(R, Spent), Failure> {
        let (outcome, spent) = self.run(store, self.plugin.limits.budget(), call);
        seconds.record(spent.elapsed.as_secs_f64());
        outcome?.map(|answer| (answer, spent)).map_err(Failure::of_plugin)
    }
}

/// Makes the state ready for a call about `revision`.
pub(super) fn begin(store: &mut Store<State>, kind: CallKind, revision: i64) -> &mut CallState {
    let call = &mut store.data_mut().call;
    call.begin(kind, revision);
    call
}

fn trapped(store: &mut Store<State>, error: &wasmtime::Error) -> Failure {
    // The cause comes last in the chain, behind where in the plugin it happened.
    let cause = error.root_cause().to_string();
    let whole = format!("{error:#}");
    let place = whole.strip_suffix(&cause).unwrap_or_default().trim_end().trim_end_matches(':');
    let cause = store.data_mut().ceiling.take_refusal().map_or(cause.clone(), |refusal| format!("{refusal}: {cause}"));
    Failure::Trapped { cause: one_line(&cause), place: one_line(place) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_kept_waiting_goes_on_and_one_that_ran_does_not() {
        let ms = Duration::from_millis;
        let goes_on = |update: UpdateDeadline| matches!(update, UpdateDeadline::Continue(20));
        let mut ran = Grace::of(20);
        assert!(goes_on(ran.more(ms(100))));
        assert!(goes_on(ran.more(ms(105))));
        assert!(!goes_on(ran.more(ms(115))));
        let mut waits = Grace::of(20);
        assert!((0..GRACE_PIECES).all(|_| goes_on(waits.more(ms(100)))));
        assert!(!goes_on(waits.more(ms(100))));
    }
}
