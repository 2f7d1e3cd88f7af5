//! Lines in the member's log, each with the plugin's name and revision.
//!
//! A line is cut at 4 KiB; past 100 lines a second they are counted and dropped.

#[cfg(target_arch = "wasm32")]
use crate::bindings::host::kuorum::policy::log as raw;
pub use crate::bindings::host::kuorum::policy::log::Level;
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::log as raw;

/// Names and values beside the message.
pub type Fields<'a> = &'a [(&'a str, &'a str)];

/// Writes a line.
pub fn write(level: Level, message: &str, fields: Fields) {
    raw::write(level, message, fields);
}

/// Something for whoever debugs the plugin.
pub fn debug(message: &str, fields: Fields) {
    write(Level::Debug, message, fields);
}

/// Something an operator may want to read later.
pub fn info(message: &str, fields: Fields) {
    write(Level::Info, message, fields);
}

/// Something an operator should look at.
pub fn warn(message: &str, fields: Fields) {
    write(Level::Warn, message, fields);
}

/// Something that keeps the plugin from its work.
pub fn error(message: &str, fields: Fields) {
    write(Level::Error, message, fields);
}
