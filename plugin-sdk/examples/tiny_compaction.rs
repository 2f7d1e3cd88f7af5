//! Keeps as many revisions as the operator asks for.

use kuorum_plugin_sdk::{
    Failure, Plugin, Revision,
    compaction::{Compaction, Input, Plan},
};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Keep {
    revisions: Revision,
}

impl Plugin for Keep {
    type Config = Self;

    fn new(config: Self) -> Result<Self, Failure> {
        Ok(config)
    }
}

impl Compaction for Keep {
    fn plan_compaction(&mut self, input: &Input) -> Result<Plan, Failure> {
        let to = input.ctx.revision - self.revisions;
        let compact_to = (to > input.ctx.compact_revision).then_some(to);
        Ok(Plan { compact_to, ..Plan::wait(60_000, format!("{} revisions are kept", self.revisions)) })
    }
}

kuorum_plugin_sdk::export!(Keep: compaction);

#[cfg(test)]
mod tests {
    use super::*;
    use kuorum_plugin_sdk::{Ctx, testing};

    #[test]
    fn what_is_older_is_compacted() {
        let mut keep: Keep = testing::plugin(r#"{"revisions": 100}"#);
        let mut plan = |revision| {
            let ctx = Ctx { revision, compact_revision: 50, ..Ctx::default() };
            keep.plan_compaction(&Input { ctx, ..Input::default() }).map(|plan| plan.compact_to)
        };
        assert_eq!(plan(150), Ok(None));
        assert_eq!(plan(151), Ok(Some(51)));
    }
}
