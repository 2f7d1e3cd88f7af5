//! What a plugin may ask of the host: nothing else of the world is within its reach.
//!
//! Off wasm32 these calls reach the fakes of [`testing`](crate::testing), each under the same name.

pub mod files;
pub mod kv_read;
pub mod log;
pub mod metrics;
pub mod outbound_http;
pub mod request_values;
