//! `request-values`: the values that an admission check was not handed.

use crate::plugin::bindings::kuorum::policy::request_values::Host;
use crate::plugin::instance::State;

const READ_BYTES_MAX: u32 = 64 * 1024;

impl Host for State {
    fn read(&mut self, op: u32, offset: u32, max: u32) -> wasmtime::Result<Vec<u8>> {
        let value = self.call.values.get(op as usize).map_or(&[][..], |value| value);
        let rest = value.get(offset as usize..).unwrap_or_default();
        let read = rest[..rest.len().min(max.min(READ_BYTES_MAX) as usize)].to_vec();
        self.count_host_call(read.len())?;
        Ok(read)
    }
}
