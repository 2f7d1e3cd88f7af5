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
        let full = u128::from(fullest) * 100 >= u128::from(input.quota_bytes) * u128::from(self.percent);
        let alarm = if full { Alarm::Nospace } else { Alarm::None };
        Ok(Decision::alarm(alarm, 10_000, format!("the fullest member has {fullest} bytes")))
    }
}

kuorum_plugin_sdk::export!(Full: quota);
