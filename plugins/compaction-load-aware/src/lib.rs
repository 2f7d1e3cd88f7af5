//! Compacts and defragments when the cluster is quiet. README.md has the configuration.

mod config;

use std::cmp::Reverse;

use kuorum_plugin_sdk::{
    Failure, FieldError, MemberId, Plugin, Revision,
    compaction::{Compaction, Input, MemberSpace, Plan},
};

use config::{Config, Keep};

/// The rules; nothing is remembered from call to call.
pub struct LoadAware(Config);

impl Plugin for LoadAware {
    type Config = Config;

    fn validate(config: &Config) -> Vec<FieldError> {
        config.errors()
    }

    fn new(config: Config) -> Result<Self, Failure> {
        Ok(Self(config))
    }
}

impl Compaction for LoadAware {
    fn plan_compaction(&mut self, input: &Input) -> Result<Plan, Failure> {
        let next_call_in_ms = self.0.check_seconds * 1000;
        let emergency = self.emergency(input);
        if emergency.is_none()
            && let Some(reason) = self.waits_for(input)
        {
            return Ok(Plan::wait(next_call_in_ms, reason));
        }

        let compact_to = match emergency {
            Some(keep) => target(input, keep, None),
            None => target(input, self.0.keep, self.0.watcher_lag_revisions_max),
        };
        let defragment = self.defragment(input);
        let mut reason = match compact_to {
            Some(to) => format!("revisions up to {to} are not needed"),
            None => "all history is kept".into(),
        };
        if emergency.is_some() {
            reason.push_str(", and the quota is near");
        }
        if !defragment.is_empty() {
            reason.push_str(&format!("; members to defragment: {}", defragment.len()));
        }
        Ok(Plan { compact_to, defragment, next_call_in_ms, reason })
    }
}

impl LoadAware {
    /// What is kept while the quota is near.
    fn emergency(&self, input: &Input) -> Option<Keep> {
        let emergency = self.0.emergency.as_ref()?;
        let fullest = input.members.iter().map(|member| member.db_bytes).chain([input.db_bytes]).max()?;
        let near = input.quota_bytes > 0 && is_percent(fullest, input.quota_bytes, emergency.quota_percent);
        near.then_some(emergency.keep)
    }

    /// Why nothing is done now, where nothing is.
    fn waits_for(&self, input: &Input) -> Option<String> {
        let windows = &self.0.windows;
        if !windows.is_empty() && !windows.iter().any(|window| window.contains(input.ctx.now_ms)) {
            return Some("it is outside the windows".into());
        }
        let quiet = &self.0.quiet;
        if quiet.writes_per_s_max.is_some_and(|max| input.writes_per_s > max) {
            return Some(format!("{} writes a second are not quiet", input.writes_per_s));
        }
        if quiet.p99_write_us_max.is_some_and(|max| input.p99_write_us > max) {
            return Some(format!("writes take {} us, which is not quiet", input.p99_write_us));
        }
        None
    }

    /// The members whose database is worth writing anew, the one with the most to free first.
    fn defragment(&self, input: &Input) -> Vec<MemberId> {
        let Some(percent) = self.0.defragment_free_percent else { return Vec::new() };
        let free = |member: &MemberSpace| member.db_bytes.saturating_sub(member.in_use_bytes);
        let is_worth_it = |member: &&MemberSpace| {
            let has_room = member.disk_free_bytes > member.in_use_bytes;
            member.healthy && has_room && free(member) > 0 && is_percent(free(member), member.db_bytes, percent)
        };
        let mut members: Vec<&MemberSpace> = input.members.iter().filter(is_worth_it).collect();
        members.sort_by_key(|member| Reverse(free(member)));
        members.iter().map(|member| member.member).collect()
    }
}

/// The revision to compact to, where that frees anything.
fn target(input: &Input, keep: Keep, watcher_lag_max: Option<u32>) -> Option<Revision> {
    let revision = input.ctx.revision;
    let before_ms = input.ctx.now_ms.saturating_sub(u64::from(keep.minutes) * 60_000);
    let old = input.timeline.iter().rev().find(|mark| mark.at_ms <= before_ms)?;
    let mut to = old.revision.min(revision - Revision::from(keep.revisions));

    if let (Some(lag_max), Some(needed)) = (watcher_lag_max, input.slowest_watcher)
        && revision - needed <= Revision::from(lag_max)
    {
        // A compaction takes the revision itself too, as far as it was overwritten: the watcher needs it.
        to = to.min(needed - 1);
    }
    if let Some(floor) = input.backup_floor {
        to = to.min(floor - 1);
    }
    (to > input.ctx.compact_revision).then_some(to)
}

fn is_percent(part: u64, whole: u64, percent: u8) -> bool {
    u128::from(part) * 100 >= u128::from(whole) * u128::from(percent)
}

kuorum_plugin_sdk::export!(LoadAware: compaction);
