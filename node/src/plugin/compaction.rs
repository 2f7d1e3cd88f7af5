//! Asking a plugin what to compact and which members to defragment, each time in a new instance: it is asked seldom, and so
//! keeps nothing from one answer to the next.

use super::Prepared;
use super::engine;
use super::instance::{self, CallKind, Failure, Spent, Started};

pub(crate) use super::bindings::exports::kuorum::policy::compaction::{Input, LastRun, Mark, MemberSpace, Plan};

/// What a plugin planned.
#[derive(Debug)]
pub(crate) struct Planned {
    /// As the plugin made it: the guard rails are the caller's.
    pub(crate) plan: Plan,
    pub(crate) spent: Spent,
}

/// Members that a plan may name.
const DEFRAGMENT_MAX: usize = 64;

impl Prepared {
    /// Asks the plugin.
    pub(crate) fn compaction(&self, input: &Input<'_>) -> Result<Planned, Failure> {
        let inner = &*self.0;
        if inner.template.compaction.is_none() {
            return Err(Failure::NotAsked);
        }
        if !inner.breaker.permits(engine::now) {
            return Err(Failure::Quarantined);
        }
        let outcome = self.plan(input);
        self.settle(outcome.as_ref().err());
        inner.template.plugin.counts.compactions.increment(1);
        outcome
    }

    fn plan(&self, input: &Input<'_>) -> Result<Planned, Failure> {
        self.plan_in(&mut self.0.template.start()?, input)
    }

    /// Asks this instance.
    pub(super) fn plan_in(&self, started: &mut Started, input: &Input<'_>) -> Result<Planned, Failure> {
        let template = &self.0.template;
        let indices = template.compaction.as_ref().ok_or(Failure::NotAsked)?;
        let Started { store, instance, .. } = started;
        instance::begin(store, CallKind::Compaction, input.ctx.revision);
        let mut input = input.clone();
        input.ctx.deadline_ms = template.plugin.limits.deadline_ms;
        let seconds = &template.plugin.counts.compaction_seconds;
        let (mut plan, spent) = template.ask(store, seconds, |store| {
            let guest = indices.load(&mut *store, instance)?;
            guest.call_plan_compaction(store, input)
        })?;
        plan.defragment.truncate(DEFRAGMENT_MAX);
        plan.reason = super::compile::one_line(&plan.reason);
        Ok(Planned { plan, spent })
    }
}
