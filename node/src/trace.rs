//! The log: one line an event, in the form etcd's zap logger writes.
//!
//! JSON by default (`{"level":"info","ts":...,"caller":...,"msg":...,fields}`), tab separated with `--log-format
//! console`. The macros [`info!`](crate::info) and its kin compare the level first: a line that is not wanted costs one
//! relaxed load. A line that is wanted is built in one buffer and written with one `write` an output, so lines of
//! several threads never mix.
//!
//! Crates that speak the `log` facade (the storage engine) land in the same stream from `warn` up. A line that cannot
//! be written is dropped: there is no better place to say so.

mod bridge;
mod line;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

pub use line::{Field, FieldValue, Shown};

/// How grave a line is, in zap's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
    Panic,
    Fatal,
}

impl Level {
    /// As zap reads it; an empty text is info.
    pub fn parse(text: &str) -> Option<Level> {
        match text {
            "debug" | "DEBUG" => Some(Level::Debug),
            "info" | "INFO" | "" => Some(Level::Info),
            "warn" | "WARN" | "warning" | "WARNING" => Some(Level::Warn),
            "error" | "ERROR" => Some(Level::Error),
            "dpanic" | "DPANIC" | "panic" | "PANIC" => Some(Level::Panic),
            "fatal" | "FATAL" => Some(Level::Fatal),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
            Level::Panic => "panic",
            Level::Fatal => "fatal",
        }
    }
}

/// `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Console,
}

/// One of `--log-outputs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogOutput {
    Stderr,
    Stdout,
    /// Appended to.
    File(PathBuf),
}

/// What is logged, how, and where to. No output at all means silence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub level: Level,
    pub format: LogFormat,
    pub outputs: Vec<LogOutput>,
}

/// Info until [`init`] says otherwise, as in etcd.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Info as u8);
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    format: LogFormat,
    /// A lock because any thread may log at any time; it is held for one `write` an output.
    sinks: Mutex<Vec<Sink>>,
}

enum Sink {
    Stderr,
    Stdout,
    File(File),
}

impl Sink {
    fn open(output: &LogOutput) -> Result<Sink, InitError> {
        match output {
            LogOutput::Stderr => Ok(Sink::Stderr),
            LogOutput::Stdout => Ok(Sink::Stdout),
            LogOutput::File(path) => match OpenOptions::new().create(true).append(true).open(path) {
                Ok(file) => Ok(Sink::File(file)),
                Err(error) => Err(InitError { path: path.clone(), error }),
            },
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stderr => io::stderr().write_all(line),
            Sink::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(line)?;
                stdout.flush()
            }
            Sink::File(file) => file.write_all(line),
        }
    }
}

/// A log file that cannot be opened.
#[derive(Debug)]
pub struct InitError {
    path: PathBuf,
    error: io::Error,
}

impl std::fmt::Display for InitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "log file {} cannot be opened", self.path.display())
    }
}

impl std::error::Error for InitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Opens the outputs and catches the `log` facade. The first call counts; lines before it go to stderr.
pub fn init(config: &LogConfig) -> Result<(), InitError> {
    let sinks = config.outputs.iter().map(Sink::open).collect::<Result<Vec<Sink>, InitError>>()?;
    LOG.get_or_init(|| Log { format: config.format, sinks: Mutex::new(sinks) });
    set_level(config.level);
    bridge::install(config.level);
    Ok(())
}

/// From which level on lines are written.
pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Whether lines of this level are written.
#[inline]
pub fn is_enabled(level: Level) -> bool {
    level as u8 >= LEVEL.load(Ordering::Relaxed)
}

/// Writes one line. The macros call it after [`is_enabled`].
#[cold]
pub fn write(level: Level, caller: Caller, message: &str, fields: &[Field<'_>]) {
    let format = LOG.get().map_or(LogFormat::Json, |log| log.format);
    let mut buffer = Vec::with_capacity(256);
    line::build(&mut buffer, format, &line::Event { level, at: now(), caller, message, fields });
    // A failed write is dropped on purpose: the log is the place where it would be reported.
    match LOG.get() {
        Some(log) => log.sinks.lock().iter_mut().for_each(|sink| drop(sink.write(&buffer))),
        None => drop(io::stderr().write_all(&buffer)),
    }
}

/// Logs what the configuration has to say.
pub fn warn_of(warning: &crate::config::Warning) {
    if is_enabled(Level::Warn) {
        let fields: Vec<Field<'_>> = warning.fields.iter().map(|(name, value)| Field::new(name, value)).collect();
        write(Level::Warn, Caller { file: file!(), line: line!() }, &warning.message, &fields);
    }
}

#[expect(clippy::disallowed_methods, reason = "the log's own clock: nothing but the text of a line depends on it")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Where a line comes from: `file!()` and `line!()`.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub file: &'static str,
    pub line: u32,
}

/// One line at a level: `log_at!(level, "message", "key" = value, name = value)`. A key without quotes stands for
/// itself with `_` written as `-`, as etcd's fields are spelt.
#[macro_export]
macro_rules! log_at {
    ($level:expr, $message:expr $(, $key:tt = $value:expr)* $(,)?) => {
        if $crate::trace::is_enabled($level) {
            $crate::trace::write(
                $level,
                $crate::trace::Caller { file: file!(), line: line!() },
                ::std::convert::AsRef::<str>::as_ref(&$message),
                &[$($crate::trace::Field::new(stringify!($key), &$value)),*],
            );
        }
    };
}

#[macro_export]
macro_rules! debug {
    ($($line:tt)+) => { $crate::log_at!($crate::trace::Level::Debug, $($line)+) };
}

#[macro_export]
macro_rules! info {
    ($($line:tt)+) => { $crate::log_at!($crate::trace::Level::Info, $($line)+) };
}

#[macro_export]
macro_rules! warn {
    ($($line:tt)+) => { $crate::log_at!($crate::trace::Level::Warn, $($line)+) };
}

#[macro_export]
macro_rules! error {
    ($($line:tt)+) => { $crate::log_at!($crate::trace::Level::Error, $($line)+) };
}

/// Says why the process cannot go on, and ends it with exit code 1 as zap's `Fatal` does.
#[macro_export]
macro_rules! fatal {
    ($($line:tt)+) => {{
        $crate::log_at!($crate::trace::Level::Fatal, $($line)+);
        ::std::process::exit(1)
    }};
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_that_is_not_wanted_evaluates_nothing() {
        let mut evaluated = 0_u64;
        crate::debug!(
            "not wanted",
            count = {
                evaluated += 1;
                evaluated
            }
        );
        assert_eq!(evaluated, 0);
        crate::info!(
            "wanted",
            count = {
                evaluated += 1;
                evaluated
            },
            "quoted-name" = "text"
        );
        assert_eq!(evaluated, 1);
    }

    #[test]
    fn levels_are_read_as_zap_reads_them() {
        assert_eq!(super::Level::parse(""), Some(super::Level::Info));
        assert_eq!(super::Level::parse("WARN"), Some(super::Level::Warn));
        assert_eq!(super::Level::parse("foo"), None);
    }
}
