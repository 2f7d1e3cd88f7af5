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
/// Bytes that these may hand over in all, either way, but for what is read of the store, which has a budget of its own. Some
/// milliseconds of copying.
const HANDED_BYTES_MAX: usize = 16 << 20;
/// What a text of a list costs beside its bytes.
const TEXT_BYTES: usize = 32;

impl types::Host for State {}

impl State {
    /// To be said first in each host call: so many bytes come or go with it.
    fn count_host_call(&mut self, handed_bytes: usize) -> wasmtime::Result<()> {
        self.call.host_calls += 1;
        if self.call.host_calls > HOST_CALLS_MAX {
            return Err(wasmtime::Error::msg(format!("it called the host more than {HOST_CALLS_MAX} times")));
        }
        self.call.handed_bytes = self.call.handed_bytes.saturating_add(handed_bytes);
        if self.call.handed_bytes > HANDED_BYTES_MAX {
            let mib = HANDED_BYTES_MAX >> 20;
            return Err(wasmtime::Error::msg(format!("its calls of the host moved more than {mib} MiB")));
        }
        Ok(())
    }
}

/// What a list of pairs of texts costs to hand over.
fn bytes_of(pairs: &[(String, String)]) -> usize {
    pairs.iter().map(|(name, value)| name.len() + value.len() + 2 * TEXT_BYTES).sum()
}
