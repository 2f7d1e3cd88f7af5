//! What was set, by flag name, before it is judged.
//!
//! Every source (command line, variables, file) puts typed values here under the names of the flag table; what
//! nobody set reads as the table's default.

use std::collections::BTreeMap;

use super::Warning;
use super::flags::{self, Flag, Kind};
use super::gates::FeatureGates;
use super::number::{self, NumberError};
use super::url::{self, Url};

/// A value of one of the table's kinds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    /// Nanoseconds; may be negative as Go's may.
    Duration(i64),
    Urls(Vec<Url>),
    /// In the order given.
    List(Vec<String>),
    Gates(FeatureGates),
}

/// The values of one start, and what is to be said about them.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, Value>,
    /// Some of etcd's rules hold for the command line and variables alone.
    pub(super) from_file: bool,
    pub(super) warnings: Vec<Warning>,
}

impl Settings {
    pub(super) fn of_file() -> Settings {
        Settings { from_file: true, ..Settings::default() }
    }

    /// A later value replaces an earlier one, as a repeated flag does.
    pub(super) fn put(&mut self, flag: &'static Flag, value: Value) {
        self.values.insert(flag.name, value);
    }

    pub(super) fn warn(&mut self, message: impl Into<String>, fields: Vec<(&'static str, String)>) {
        self.warnings.push(Warning { message: message.into(), fields });
    }

    /// Whether somebody set it, even to its default.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// The flags that were set, in the order of their names.
    pub(super) fn set(&self) -> impl Iterator<Item = (&'static Flag, &Value)> {
        self.values.iter().map(|(name, value)| (row(name), value))
    }

    pub(super) fn text(&self, name: &str) -> &str {
        match self.values.get(name) {
            Some(Value::Text(text)) => text,
            Some(other) => wrong_kind(name, other),
            None => row(name).default,
        }
    }

    pub(super) fn bool(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(on) => on,
            other => wrong_kind(name, &other),
        }
    }

    pub(super) fn unsigned(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Unsigned(count) => count,
            other => wrong_kind(name, &other),
        }
    }

    pub(super) fn signed(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Signed(count) => count,
            other => wrong_kind(name, &other),
        }
    }

    /// In nanoseconds.
    pub(super) fn duration(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Duration(nanoseconds) => nanoseconds,
            other => wrong_kind(name, &other),
        }
    }

    pub(super) fn urls(&self, name: &str) -> Vec<Url> {
        match self.value(name) {
            Value::Urls(urls) => urls,
            other => wrong_kind(name, &other),
        }
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Value::List(list) => list,
            other => wrong_kind(name, &other),
        }
    }

    pub(super) fn gates(&self) -> FeatureGates {
        match self.value("feature-gates") {
            Value::Gates(gates) => gates,
            other => wrong_kind("feature-gates", &other),
        }
    }

    fn value(&self, name: &str) -> Value {
        self.values.get(name).cloned().unwrap_or_else(|| default(row(name)))
    }
}

/// The value a flag has when nobody sets it.
pub(super) fn default(flag: &Flag) -> Value {
    read(flag, flag.default).expect("the table's defaults are values of their kind")
}

/// The same in the table's text form.
pub(super) fn default_text(name: &str) -> &'static str {
    row(name).default
}

fn row(name: &str) -> &'static Flag {
    flags::find(name).expect("settings are asked for by names of the flag table")
}

fn wrong_kind(name: &str, value: &Value) -> ! {
    panic!("flag {name} holds {value:?}, which is not of the kind asked for")
}

/// Reads a value as Go's flag package and etcd's own flag types read it. The error is what follows
/// `invalid value "x" for flag -name: `.
pub(super) fn read(flag: &Flag, text: &str) -> Result<Value, String> {
    let words = |error: NumberError| error.flag_words().to_owned();
    match flag.kind {
        Kind::Text => Ok(Value::Text(text.to_owned())),
        Kind::Bool => number::boolean(text).map(Value::Bool).ok_or_else(|| "parse error".to_owned()),
        Kind::Unsigned => number::unsigned(text).map(Value::Unsigned).map_err(words),
        Kind::Unsigned32 => read_unsigned_32(text),
        Kind::Signed => number::signed(text).map(Value::Signed).map_err(words),
        // Go's flag package says no more than that about durations, too.
        Kind::Duration => number::duration(text).map(Value::Duration).map_err(|_| words(NumberError::Syntax)),
        // etcd's flag keeps its default when it is given nothing.
        Kind::Urls if text.is_empty() && flag.default.is_empty() => Ok(Value::Urls(Vec::new())),
        Kind::Urls if text.is_empty() => url::parse_list(flag.default).map(Value::Urls),
        Kind::Urls => url::parse_list(text).map(Value::Urls),
        Kind::Origins => read_origins(text),
        Kind::List if text.is_empty() => Ok(Value::List(Vec::new())),
        Kind::List => Ok(Value::List(text.split(',').map(str::to_owned).collect())),
        Kind::OneOf(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
        Kind::OneOf(_) => Err("invalid value".to_owned()),
        Kind::SomeOf(words) => match text.split(',').find(|word| !words.contains(word)) {
            Some(word) => Err(format!("invalid value {word:?}")),
            None => Ok(Value::Text(text.to_owned())),
        },
        Kind::Gates => FeatureGates::parse(text).map(Value::Gates),
    }
}

/// etcd has its own type for the one 32-bit flag, and with it `strconv`'s words.
fn read_unsigned_32(text: &str) -> Result<Value, String> {
    let number = number::unsigned(text)
        .and_then(|number| u32::try_from(number).map_err(|_| NumberError::Range))
        .map_err(|error| format!("strconv.ParseUint: parsing {text:?}: {}", error.strconv_words()))?;
    Ok(Value::Unsigned(number.into()))
}

/// `*`, or URLs whose text is kept.
fn read_origins(text: &str) -> Result<Value, String> {
    if text == "*" {
        return Ok(Value::List(vec![text.to_owned()]));
    }
    let urls = url::parse_list(text)?;
    Ok(Value::List(urls.iter().map(|url| url.text().to_owned()).collect()))
}
