//! The lines that a plugin wrote.

use std::{cell::RefCell, fmt, mem};

use crate::host::log::Level;

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// A line. It prints as `warn: message name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// How much it matters.
    pub level: Level,
    /// What it says.
    pub message: String,
    /// What is beside the message.
    pub fields: Vec<(String, String)>,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        };
        write!(f, "{level}: {}", self.message)?;
        self.fields.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// The lines since the last call.
pub fn lines() -> Vec<Line> {
    LINES.with_borrow_mut(mem::take)
}

pub(super) fn reset() {
    LINES.set(Vec::new());
}

pub(crate) fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
    let fields = fields.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    LINES.with_borrow_mut(|lines| lines.push(Line { level, message: message.into(), fields }));
}
