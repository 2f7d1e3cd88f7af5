//! The host's side in tests: `cargo test` runs a plugin natively, and its host calls reach the fakes here.
//!
//! The fakes are of the thread, as a test is. [`plugin`] empties them.
//!
//! ```
//! use kuorum_plugin_sdk::{Failure, NoConfig, Plugin, host::{kv_read, log}, testing};
//!
//! struct Curious;
//!
//! impl Plugin for Curious {
//!     type Config = NoConfig;
//!     fn new(_: NoConfig) -> Result<Self, Failure> {
//!         Ok(Self)
//!     }
//! }
//!
//! let _curious: Curious = testing::plugin("{}");
//! testing::kv_read::put("/limits/a", "12");
//! let row = kv_read::get("/limits/a").unwrap().unwrap();
//! log::info("read a limit", &[("limit", &String::from_utf8_lossy(&row.value))]);
//! assert_eq!(testing::log::lines()[0].to_string(), "info: read a limit limit=12");
//! ```

pub mod files;
pub mod kv_read;
pub mod log;
pub mod metrics;
pub mod outbound_http;
pub mod request_values;

use crate::{FieldError, Plugin};

/// A plugin configured with `json`, as the host configures it; the fakes are as new.
///
/// # Panics
/// Where the configuration is wrong. What exactly is wrong is what [`config_errors`] tells.
#[track_caller]
pub fn plugin<T: Plugin>(json: &str) -> T {
    files::reset();
    kv_read::reset();
    log::reset();
    metrics::reset();
    outbound_http::reset();
    request_values::reset();
    match crate::plugin::make(json) {
        Ok(plugin) => plugin,
        Err(failure) => panic!("the plugin can't be configured: {failure:?}"),
    }
}

/// What the host shows an operator who configures `T` with `json`: each as "path: message"; nothing where all is well.
pub fn config_errors<T: Plugin>(json: &str) -> Vec<String> {
    let errors = crate::plugin::parse::<T>(json).err().unwrap_or_default();
    errors.iter().map(|FieldError { path, message }| format!("{path}: {message}")).collect()
}
