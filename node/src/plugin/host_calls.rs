//! What a plugin can ask of the host, a file for each interface, as in the SDK.
//!
//! Every call is counted, and ends the plugin's call when there are too many: what the host does costs no fuel. None of
//! them waits for anything but a read of the store.

pub(super) mod denied;
mod kv_read;
mod log;
mod metrics;
mod request_values;

pub(crate) use log::LineListener;
pub(super) use log::LogBudget;
pub(super) use metrics::UserMetrics;

use super::bindings::kuorum::policy::types;
use super::instance::State;

/// Calls of the host in one call of a plugin. Each costs a microsecond at least.
const HOST_CALLS_MAX: u32 = 10_000;

impl types::Host for State {}

impl State {
    /// To be said first in each host call.
    fn count_host_call(&mut self) -> wasmtime::Result<()> {
        self.call.host_calls += 1;
        if self.call.host_calls > HOST_CALLS_MAX {
            return Err(wasmtime::Error::msg(format!("it called the host more than {HOST_CALLS_MAX} times")));
        }
        Ok(())
    }
}
