//! The command line, read as Go's `flag` package reads it.
//!
//! `-x`, `--x`, `--x=v` and `--x v` are one; a boolean takes its value only after `=`; the last of a repeated
//! flag wins; `--` and the first word that is no flag end the flags, and etcd takes no words. Reading stops at
//! the first mistake, and `-h` counts the moment it is met.

use std::ffi::OsString;

use super::ConfigError;
use super::flags::{self, Flag, Kind};
use super::settings::{self, Settings, Value};

/// What the command line amounts to.
pub(super) enum Read {
    Version,
    Help,
    Settings(Settings),
}

pub(super) fn read(arguments: impl Iterator<Item = OsString>) -> Result<Read, ConfigError> {
    let mut arguments = arguments.map(|argument| argument.into_string()).peekable();
    refuse_subcommands(arguments.peek())?;
    let mut settings = Settings::default();
    while let Some(argument) = arguments.next() {
        let argument = utf8(argument)?;
        let word = match flag_word(&argument) {
            Word::Flag(word) => word,
            Word::End => match arguments.next() {
                Some(word) => return Err(not_a_flag(&utf8(word)?)),
                None => break,
            },
            Word::Other => return Err(not_a_flag(&argument)),
        };
        let (name, given) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        if name.is_empty() || name.starts_with('-') {
            return Err(ConfigError::Usage(format!("bad flag syntax: {argument}")));
        }
        if matches!(name, "h" | "help") {
            return Ok(Read::Help);
        }
        if flags::is_historic(name) {
            settings.warn("flag is no longer supported - ignoring", vec![("flag-name", name.to_owned())]);
            continue;
        }
        let Some(flag) = flags::find(name) else {
            return Err(ConfigError::Usage(format!("flag provided but not defined: -{name}")));
        };
        let given = match given {
            None if !matches!(flag.kind, Kind::Bool) => arguments.next().map(utf8).transpose()?,
            given => given,
        };
        settings.put(flag, value(flag, given)?);
    }
    if settings.bool("version") {
        return Ok(Read::Version);
    }
    Ok(Read::Settings(settings))
}

enum Word<'a> {
    /// Without its dashes; may still be misspelt.
    Flag(&'a str),
    /// `--`.
    End,
    Other,
}

fn flag_word(argument: &str) -> Word<'_> {
    match argument.strip_prefix('-') {
        None | Some("") => Word::Other,
        Some("-") => Word::End,
        Some(word) => Word::Flag(word.strip_prefix('-').unwrap_or(word)),
    }
}

fn value(flag: &'static Flag, given: Option<String>) -> Result<Value, ConfigError> {
    let name = flag.name;
    let Some(text) = given else {
        return match flag.kind {
            Kind::Bool => Ok(Value::Bool(true)),
            _ => Err(ConfigError::Usage(format!("flag needs an argument: -{name}"))),
        };
    };
    settings::read(flag, &text).map_err(|words| {
        ConfigError::Usage(match flag.kind {
            Kind::Bool => format!("invalid boolean value {text:?} for -{name}: {words}"),
            _ => format!("invalid value {text:?} for flag -{name}: {words}"),
        })
    })
}

fn not_a_flag(word: &str) -> ConfigError {
    ConfigError::Refused(format!("{word:?} is not a valid flag"))
}

fn utf8(argument: Result<String, OsString>) -> Result<String, ConfigError> {
    argument.map_err(|bytes| ConfigError::Usage(format!("argument {bytes:?} is not UTF-8")))
}

/// etcd's proxies are programs of their own behind the same command.
fn refuse_subcommands(first: Option<&Result<String, OsString>>) -> Result<(), ConfigError> {
    match first {
        Some(Ok(word)) if matches!(word.as_str(), "gateway" | "grpc-proxy") => Err(ConfigError::Refused(format!(
            "etcd's {word} is not available in this release; run the one that comes with etcd"
        ))),
        _ => Ok(()),
    }
}
