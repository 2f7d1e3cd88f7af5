//! Lines of crates that speak the `log` facade, from `warn` up.
//!
//! Below `warn` they describe their own insides, which no reader of etcd's log looks for.

use log::{LevelFilter, Log, Metadata, Record};

use super::{Caller, Field, Level};

struct Bridge;

/// Another logger that was there first stays: tests may install their own.
pub(super) fn install(level: Level) {
    let filter = match level {
        Level::Debug | Level::Info | Level::Warn => LevelFilter::Warn,
        Level::Error => LevelFilter::Error,
        Level::Panic | Level::Fatal => LevelFilter::Off,
    };
    if log::set_logger(&Bridge).is_ok() {
        log::set_max_level(filter);
    }
}

impl Log for Bridge {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        let level = match record.level() {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warn,
            log::Level::Info | log::Level::Debug | log::Level::Trace => return,
        };
        let caller = Caller { file: record.file_static().unwrap_or("?"), line: record.line().unwrap_or(0) };
        let message = record.args().to_string();
        super::write(level, caller, &message, &[Field::new("logger", &record.target())]);
    }

    fn flush(&self) {}
}
