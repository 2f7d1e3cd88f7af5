//! Backup schedule: is it time for a backup, full or incremental, and which old ones may go?
//!
//! The host never deletes the newest backup that was verified, whatever a plan says.
//!
//! ```
#![doc = include_str!("../examples/tiny_backup_schedule.rs")]
//! ```

pub use crate::bindings::backup_schedule::exports::kuorum::policy::backup_schedule::{Action, Backup, Input, Plan};
use crate::{
    Ctx, Failure, Plugin,
    bindings::backup_schedule::exports::kuorum::policy::backup_schedule::Guest,
    export::{Adapter, Exported},
};

/// A plugin that plans backups.
pub trait BackupSchedule: Plugin {
    /// What to back up and what to delete now, and when to ask again.
    fn plan_backup(&mut self, input: &Input) -> Result<Plan, Failure>;
}

impl<T: Exported + BackupSchedule> Guest for Adapter<T> {
    fn plan_backup(input: Input) -> Result<Plan, Failure> {
        Self::ask(|plugin| plugin.plan_backup(&input))
    }
}

impl Plan {
    /// Backs up and deletes nothing, and asks for another call.
    pub fn wait(next_call_in_ms: u32, reason: impl Into<String>) -> Self {
        Self { action: Action::None, delete: Vec::new(), next_call_in_ms, reason: reason.into() }
    }
}

impl Default for Input {
    /// An empty store without a backup, for tests.
    fn default() -> Self {
        Self { ctx: Ctx::default(), db_bytes: 0, writes_since_last: 0, existing: Vec::new() }
    }
}
