//! Takes a full backup every so many hours, and keeps the newest ones.

use kuorum_plugin_sdk::{
    Failure, Plugin,
    backup_schedule::{Action, BackupSchedule, Input, Plan},
};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Every {
    hours: u64,
    keep: usize,
}

impl Plugin for Every {
    type Config = Self;

    fn new(config: Self) -> Result<Self, Failure> {
        Ok(config)
    }
}

impl BackupSchedule for Every {
    fn plan_backup(&mut self, input: &Input) -> Result<Plan, Failure> {
        let mut existing: Vec<_> = input.existing.iter().collect();
        existing.sort_by_key(|backup| std::cmp::Reverse(backup.taken_ms));
        let due = existing.first().is_none_or(|last| last.taken_ms + self.hours * 3_600_000 <= input.ctx.now_ms);
        let action = if due { Action::Full } else { Action::None };
        let delete = existing.iter().skip(self.keep).map(|backup| backup.id.clone()).collect();
        Ok(Plan { action, delete, ..Plan::wait(60_000, format!("one every {} hours", self.hours)) })
    }
}

kuorum_plugin_sdk::export!(Every: backup_schedule);

#[cfg(test)]
mod tests {
    use super::*;
    use kuorum_plugin_sdk::{Ctx, backup_schedule::Backup, testing};

    fn backup(id: &str, taken_ms: u64) -> Backup {
        Backup { id: id.into(), base: None, revision: 1, taken_ms, bytes: 1, verified: true }
    }

    #[test]
    fn a_backup_is_due_by_its_age_and_the_oldest_go() {
        let mut every: Every = testing::plugin(r#"{"hours": 1, "keep": 2}"#);
        let mut plan = |now_ms| {
            let existing = vec![backup("old", 0), backup("new", 2_000), backup("older", 1_000)];
            let ctx = Ctx { now_ms, ..Ctx::default() };
            every.plan_backup(&Input { ctx, existing, ..Input::default() }).map(|plan| (plan.action, plan.delete))
        };
        assert_eq!(plan(3_601_999), Ok((Action::None, vec!["old".into()])));
        assert_eq!(plan(3_602_000), Ok((Action::Full, vec!["old".into()])));
    }
}
