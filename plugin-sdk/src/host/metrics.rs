//! Metrics of the plugin's own, exported as `plugin_user_<name>` with the plugin's name as a label.
//!
//! A plugin has 64 series at most: each name with each set of labels is one.

#[cfg(target_arch = "wasm32")]
use crate::bindings::host::kuorum::policy::metrics as raw;
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::metrics as raw;

/// Names and values that tell the series of a metric apart.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Raises a counter.
pub fn count(name: &str, labels: Labels, by: u64) {
    raw::count(name, labels, by);
}

/// Sets a gauge.
pub fn gauge(name: &str, labels: Labels, value: i64) {
    raw::gauge(name, labels, value);
}

/// Adds a duration in microseconds to a histogram.
pub fn observe_us(name: &str, labels: Labels, value: u64) {
    raw::observe_us(name, labels, value);
}
