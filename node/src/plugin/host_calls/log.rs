//! `log`: lines of a plugin in the node's log, with the plugin's name and revision.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::bytes_of;
use crate::plugin::bindings::kuorum::policy::log::{Host, Level};
use crate::plugin::engine;
use crate::plugin::instance::{Plugin, State};
use crate::trace::{self, Caller, Field};

const LINE_BYTES_MAX: usize = 4 * 1024;
const FIELDS_MAX: usize = 16;
const LINES_PER_SECOND_MAX: u32 = 100;

/// Whoever wants to hear what plugins log, whatever level the node's own log begins at.
pub(crate) trait LineListener: Send + Sync {
    fn is_heard(&self) -> bool;
    fn heard(&self, plugin: &str, revision: u64, level: &'static str, text: String);
}

/// How many lines a plugin may still write in this second.
// A lock, since several threads ask the same plugin; held for a comparison.
#[derive(Default)]
pub(in crate::plugin) struct LogBudget(Mutex<Option<Second>>);

struct Second {
    began: Instant,
    lines: u32,
}

impl LogBudget {
    /// Whether a line may be written now.
    fn take(&self, now: Instant) -> bool {
        let mut second = self.0.lock();
        match &mut *second {
            Some(Second { began, lines }) if now.saturating_duration_since(*began) < Duration::from_secs(1) => {
                *lines += 1;
                *lines <= LINES_PER_SECOND_MAX
            }
            other => {
                *other = Some(Second { began: now, lines: 1 });
                true
            }
        }
    }
}

impl Plugin {
    /// Takes a line from what the plugin may log in a second. Returns false, and counts that, if none is left.
    pub(in crate::plugin) fn may_log(&self) -> bool {
        let may = self.lines.take(engine::now());
        if !may {
            self.counts.lines_dropped.increment(1);
        }
        may
    }
}

impl Host for State {
    fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) -> wasmtime::Result<()> {
        self.count_host_call(message.len() + bytes_of(&fields))?;
        let (level, level_text) = match level {
            Level::Trace => (trace::Level::Debug, "trace"),
            Level::Debug => (trace::Level::Debug, "debug"),
            Level::Info => (trace::Level::Info, "info"),
            Level::Warn => (trace::Level::Warn, "warn"),
            Level::Error => (trace::Level::Error, "error"),
        };
        let plugin = &self.plugin;
        let listener = plugin.listener.as_ref().filter(|listener| listener.is_heard());
        if !trace::is_enabled(level) && listener.is_none() {
            return Ok(());
        }
        if !plugin.may_log() {
            return Ok(());
        }
        let mut bytes_left = LINE_BYTES_MAX;
        // One line each, in the console too.
        let fit = |text: &str| text.replace(char::is_control, " ");
        let message = fit(cut(&message, &mut bytes_left));
        let (name, number) = (plugin.name.as_str(), plugin.number);
        let mut shown = vec![Field::new("plugin", &name), Field::new("revision", &number)];
        let fields: Vec<(String, String)> = fields
            .iter()
            .take(FIELDS_MAX)
            .map(|(name, value)| (fit(cut(name, &mut bytes_left)), fit(cut(value, &mut bytes_left))))
            .collect();
        if let Some(listener) = listener {
            let fields = fields.iter().map(|(name, value)| format!(" {name}={value}"));
            listener.heard(name, number, level_text, format!("{message}{}", fields.collect::<String>()));
        }
        if !trace::is_enabled(level) {
            return Ok(());
        }
        shown.extend(fields.iter().map(|(name, value)| Field::new(name, value)));
        trace::write(level, Caller { file: file!(), line: line!() }, &message, &shown);
        Ok(())
    }
}

/// As much of `text` as there are bytes left.
fn cut<'a>(text: &'a str, bytes_left: &mut usize) -> &'a str {
    let shown = &text[..text.floor_char_boundary(text.len().min(*bytes_left))];
    *bytes_left -= shown.len();
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holds_so_many_lines() {
        let (budget, now) = (LogBudget::default(), engine::now());
        let taken = (0..3 * LINES_PER_SECOND_MAX).filter(|_| budget.take(now)).count();
        assert_eq!(taken, LINES_PER_SECOND_MAX as usize);
        assert!(budget.take(now + Duration::from_secs(1)));
    }

    #[test]
    fn a_line_is_cut_between_letters() {
        let mut left = 4;
        assert_eq!(cut("ab", &mut left), "ab");
        assert_eq!(cut("aé", &mut left), "a");
        assert_eq!(left, 1);
    }
}
