//! The values that an admission check was not handed, because the manifest doesn't ask for them or they are long.

#[cfg(target_arch = "wasm32")]
use crate::bindings::host::kuorum::policy::request_values as raw;
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::request_values as raw;

/// The value of the put that is number `op` in the request's operations, from `offset` on and at most `max` bytes, of
/// which the host hands over 64 KiB at a time. Empty past its end, and where that operation is no put.
pub fn read(op: u32, offset: u32, max: u32) -> Vec<u8> {
    raw::read(op, offset, max)
}
