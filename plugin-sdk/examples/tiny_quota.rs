//! Raises the alarm of space when a member's database is as full as the operator allows.

use kuorum_plugin_sdk::{
    Failure, Plugin,
    quota::{Alarm, Decision, Input, Quota},
};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Full {
    percent: u64,
}

impl Plugin for Full {
    type Config = Self;

    fn new(config: Self) -> Result<Self, Failure> {
        Ok(config)
    }
}

impl Quota for Full {
    fn evaluate(&mut self, input: &Input) -> Result<Decision, Failure> {
        let fullest = input.members.iter().map(|member| member.db_bytes).max().unwrap_or(0);
        // A quota of 0 is none.
        let full = input.quota_bytes > 0
            && u128::from(fullest) * 100 >= u128::from(input.quota_bytes) * u128::from(self.percent);
        let alarm = if full { Alarm::Nospace } else { Alarm::None };
        Ok(Decision::alarm(alarm, 10_000, format!("the fullest member has {fullest} bytes")))
    }
}

kuorum_plugin_sdk::export!(Full: quota);

#[cfg(test)]
mod tests {
    use super::*;
    use kuorum_plugin_sdk::{quota::MemberUsage, testing};

    #[test]
    fn the_fullest_member_decides() {
        let mut full: Full = testing::plugin(r#"{"percent": 90}"#);
        let member = |member, db_bytes| MemberUsage { member, db_bytes, in_use_bytes: 0, disk_free_bytes: 0 };
        let mut alarm = |db_bytes, quota_bytes| {
            let members = vec![member(1, 10), member(2, db_bytes)];
            full.evaluate(&Input { members, quota_bytes, ..Input::default() }).map(|decision| decision.alarm)
        };
        assert_eq!(alarm(89, 100), Ok(Alarm::None));
        assert_eq!(alarm(90, 100), Ok(Alarm::Nospace));
        assert_eq!(alarm(90, 0), Ok(Alarm::None));
    }
}
