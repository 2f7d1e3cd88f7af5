//! Compaction: how much history may go, and which member frees its space?
//!
//! The host asks from time to time. It never compacts past a running backup or above the applied revision, keeps a minimum
//! of history, and defragments one member at a time and the leader last, whatever a plan says.
//!
//! ```
#![doc = include_str!("../examples/tiny_compaction.rs")]
//! ```

pub use crate::bindings::compaction::exports::kuorum::policy::compaction::{Input, LastRun, Mark, MemberSpace, Plan};
use crate::{
    Ctx, Failure, Plugin,
    bindings::compaction::exports::kuorum::policy::compaction::Guest,
    export::{Adapter, Exported},
};

/// A plugin that plans compactions.
pub trait Compaction: Plugin {
    /// What to do now, and when to ask again. The host keeps its own bounds whatever the plan says.
    fn plan_compaction(&mut self, input: &Input) -> Result<Plan, Failure>;
}

impl<T: Exported + Compaction> Guest for Adapter<T> {
    fn plan_compaction(input: Input) -> Result<Plan, Failure> {
        Self::ask(|plugin| plugin.plan_compaction(&input))
    }
}

impl Plan {
    /// Leaves everything as it is, and asks for another call.
    pub fn wait(next_call_in_ms: u32, reason: impl Into<String>) -> Self {
        Self { compact_to: None, defragment: Vec::new(), next_call_in_ms, reason: reason.into() }
    }
}

impl Default for Input {
    /// An idle, empty store of one member for tests.
    fn default() -> Self {
        Self {
            ctx: Ctx::default(),
            timeline: Vec::new(),
            live_keys: 0,
            versions: 0,
            db_bytes: 0,
            in_use_bytes: 0,
            quota_bytes: 2 << 30,
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
