//! Quota: is the space of the cluster running out, and what may each prefix hold?
//!
//! The host asks from time to time. Limits of prefixes become data that every member applies exactly; the plugin is not
//! asked about single writes.
//!
//! ```
#![doc = include_str!("../examples/tiny_quota.rs")]
//! ```

pub use crate::bindings::quota::exports::kuorum::policy::quota::{
    Alarm, Decision, Input, MemberUsage, PrefixLimit, PrefixUsage,
};
use crate::{
    Ctx, Failure, Plugin,
    bindings::quota::exports::kuorum::policy::quota::Guest,
    export::{Adapter, Exported},
};

/// A plugin that watches over the space of the cluster.
pub trait Quota: Plugin {
    /// Which alarm and which limits hold from now on, and when to ask again.
    fn evaluate(&mut self, input: &Input) -> Result<Decision, Failure>;
}

impl<T: Exported + Quota> Guest for Adapter<T> {
    fn evaluate(input: Input) -> Result<Decision, Failure> {
        Self::ask(|plugin| plugin.evaluate(&input))
    }
}

impl Decision {
    /// An alarm, or [`Alarm::None`], and no limits of prefixes.
    pub fn alarm(alarm: Alarm, next_call_in_ms: u32, reason: impl Into<String>) -> Self {
        Self { alarm, limits: Vec::new(), next_call_in_ms, reason: reason.into() }
    }
}

impl Default for Input {
    /// A cluster for tests that has no members, a quota of two gigabytes, and no alarm.
    fn default() -> Self {
        Self {
            ctx: Ctx::default(),
            quota_bytes: 2 << 30,
            members: Vec::new(),
            prefixes: Vec::new(),
            growth_bytes_per_s: 0,
            raised: Alarm::None,
        }
    }
}
