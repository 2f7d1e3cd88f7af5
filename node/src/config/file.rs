//! The YAML file of `--config-file`.
//!
//! Its keys are the flags' names, except for TLS, discovery and socket options, which sit in sections. The types
//! are etcd's: durations are whole nanoseconds, lists of URLs one comma separated string, other lists YAML lists.
//! As in etcd, keys match without regard to case and an unknown key is no error; here it gets a warning.

use std::fs;

use serde_yaml_ng::Value as Yaml;

use super::ConfigError;
use super::flags::{self, Flag, Kind};
use super::settings::{self, Settings, Value};

/// Sections and what their keys mean as flags.
const SECTIONS: [(&str, &[(&str, &str)]); 4] = [
    (
        "client-transport-security",
        &[
            ("cert-file", "cert-file"),
            ("key-file", "key-file"),
            ("client-cert-file", "client-cert-file"),
            ("client-key-file", "client-key-file"),
            ("client-cert-auth", "client-cert-auth"),
            ("trusted-ca-file", "trusted-ca-file"),
            ("auto-tls", "auto-tls"),
            ("allowed-hostname", "client-cert-allowed-hostname"),
        ],
    ),
    (
        "peer-transport-security",
        &[
            ("cert-file", "peer-cert-file"),
            ("key-file", "peer-key-file"),
            ("client-cert-file", "peer-client-cert-file"),
            ("client-key-file", "peer-client-key-file"),
            ("client-cert-auth", "peer-client-cert-auth"),
            ("trusted-ca-file", "peer-trusted-ca-file"),
            ("auto-tls", "peer-auto-tls"),
            ("allowed-cn", "peer-cert-allowed-cn"),
            ("allowed-hostname", "peer-cert-allowed-hostname"),
            ("skip-client-san-verification", "peer-skip-client-san-verification"),
        ],
    ),
    ("discovery-config", &[("token", "discovery-token"), ("endpoints", "discovery-endpoints")]),
    ("socket-options", &[("reuse-port", "socket-reuse-port"), ("reuse-address", "socket-reuse-address")]),
];

/// Flags that etcd takes from no top-level key although their groups would suggest it.
const NOT_KEYS: [&str; 4] = ["raft-read-timeout", "raft-write-timeout", "config-file", "version"];

/// Keys that set nothing under its own name in etcd either, but stand in its sample file.
const SAMPLE_KEYS: [&str; 3] = ["discovery", "discovery-proxy", "proxy"];

pub(super) fn read(path: &str) -> Result<Settings, ConfigError> {
    let text = fs::read_to_string(path).map_err(|error| {
        ConfigError::Refused(format!("config file {path} cannot be read: {}; name a readable YAML file", plain(&error)))
    })?;
    from_text(path, &text)
}

/// `path` serves messages only.
pub(super) fn from_text(path: &str, text: &str) -> Result<Settings, ConfigError> {
    let document: Yaml = serde_yaml_ng::from_str(text)
        .map_err(|error| ConfigError::Refused(format!("config file {path} is not YAML: {error}; correct it there")))?;
    let entries = match document {
        Yaml::Null => serde_yaml_ng::Mapping::new(),
        Yaml::Mapping(entries) => entries,
        other => {
            let found = kind_of(&other);
            let words =
                format!("config file {path} holds {found} instead of keys; write one `flag-name: value` a line");
            return Err(ConfigError::Refused(words));
        }
    };
    let mut reader = Reader { path, settings: Settings::of_file() };
    for (key, value) in entries {
        match key.as_str() {
            Some(key) => reader.top_level(&key.to_lowercase(), value)?,
            None => reader.warn_unknown(&format!("{key:?}")),
        }
    }
    Ok(reader.settings)
}

struct Reader<'a> {
    path: &'a str,
    settings: Settings,
}

impl Reader<'_> {
    fn top_level(&mut self, key: &str, value: Yaml) -> Result<(), ConfigError> {
        if let Some((section, flags)) = SECTIONS.iter().find(|(section, _)| *section == key) {
            return self.section(section, flags, value);
        }
        let is_sectioned = SECTIONS.iter().any(|(_, flags)| flags.iter().any(|(_, flag)| *flag == key));
        match flags::find(key) {
            Some(flag) if !is_sectioned && !NOT_KEYS.contains(&key) => self.put(flag, key, value),
            _ if SAMPLE_KEYS.contains(&key) => Ok(()),
            _ => {
                self.warn_unknown(key);
                Ok(())
            }
        }
    }

    fn section(&mut self, section: &str, flags: &[(&str, &str)], value: Yaml) -> Result<(), ConfigError> {
        let entries = match value {
            Yaml::Null => return Ok(()),
            Yaml::Mapping(entries) => entries,
            other => return Err(self.wrong(section, &other, "a section of keys")),
        };
        for (key, value) in entries {
            let key = key.as_str().unwrap_or_default().to_lowercase();
            match flags.iter().find(|(name, _)| *name == key) {
                Some((_, flag)) => {
                    let flag = flags::find(flag).expect("sections name flags of the table");
                    self.put(flag, &format!("{section}.{key}"), value)?;
                }
                None => self.warn_unknown(&format!("{section}.{key}")),
            }
        }
        Ok(())
    }

    fn put(&mut self, flag: &'static Flag, key: &str, value: Yaml) -> Result<(), ConfigError> {
        // In Go a null leaves the field alone.
        if value.is_null() {
            return Ok(());
        }
        let value = match (flag.kind, &value) {
            (Kind::Bool, Yaml::Bool(on)) => Value::Bool(*on),
            (Kind::Bool, _) => return Err(self.wrong(key, &value, "true or false")),
            (Kind::Unsigned | Kind::Unsigned32, Yaml::Number(number)) => match number.as_u64() {
                Some(number) if flag.kind == Kind::Unsigned || u32::try_from(number).is_ok() => Value::Unsigned(number),
                _ => return Err(self.wrong(key, &value, "a whole number that is not negative")),
            },
            (Kind::Unsigned | Kind::Unsigned32, _) => {
                return Err(self.wrong(key, &value, "a number"));
            }
            (Kind::Signed, Yaml::Number(number)) => match number.as_i64() {
                Some(number) => Value::Signed(number),
                None => return Err(self.wrong(key, &value, "a whole number")),
            },
            (Kind::Signed, _) => return Err(self.wrong(key, &value, "a number")),
            (Kind::Duration, Yaml::Number(number)) if number.is_i64() || number.as_i64().is_some() => {
                Value::Duration(number.as_i64().unwrap_or_default())
            }
            (Kind::Duration, _) => {
                return Err(self.wrong(key, &value, "whole nanoseconds, for example 600000000000 for 10m"));
            }
            (Kind::List, _) if !matches!(flag.name, "host-whitelist") => Value::List(self.list(key, &value)?),
            (_, Yaml::String(text)) => return self.put_text(flag, key, text),
            _ => return Err(self.wrong(key, &value, "a string; put it in quotes")),
        };
        self.settings.put(flag, value);
        Ok(())
    }

    /// Strings with a form of their own. An empty one keeps the default, except where any text will do.
    fn put_text(&mut self, flag: &'static Flag, key: &str, text: &str) -> Result<(), ConfigError> {
        let value = match flag.kind {
            Kind::Text => Value::Text(text.to_owned()),
            _ if text.is_empty() => return Ok(()),
            // etcd overrides whatever a file says here.
            Kind::SomeOf(_) => Value::Text(text.to_owned()),
            Kind::OneOf(words) if !words.contains(&text) => {
                return Err(self.wrong_choice(key, text));
            }
            _ => settings::read(flag, text).map_err(|words| {
                let verb = if flag.kind == Kind::Urls { "unexpected error setting up" } else { "invalid" };
                ConfigError::Refused(format!("{verb} {key}: {words} (in config file {})", self.path))
            })?,
        };
        self.settings.put(flag, value);
        Ok(())
    }

    fn list(&self, key: &str, value: &Yaml) -> Result<Vec<String>, ConfigError> {
        let wrong = || self.wrong(key, value, "a YAML list of strings, for example [stderr]");
        let items = value.as_sequence().ok_or_else(wrong)?;
        items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
    }

    fn wrong(&self, key: &str, value: &Yaml, wanted: &str) -> ConfigError {
        let found = kind_of(value);
        ConfigError::Refused(format!("config file {}: {key} is {found}, must be {wanted}", self.path))
    }

    fn wrong_choice(&self, key: &str, text: &str) -> ConfigError {
        ConfigError::Refused(match key {
            "initial-cluster-state" => format!("unexpected clusterState {text:?} (in config file {})", self.path),
            _ => format!("config file {}: {key} has the invalid value {text:?}", self.path),
        })
    }

    fn warn_unknown(&mut self, key: &str) {
        let fields = vec![("key", key.to_owned()), ("path", self.path.to_owned())];
        self.settings.warn("unknown key in the config file is ignored", fields);
    }
}

/// The value as it stands in the file, for messages.
fn kind_of(value: &Yaml) -> String {
    match value {
        Yaml::Null => "null".to_owned(),
        Yaml::Bool(on) => on.to_string(),
        Yaml::Number(number) => number.to_string(),
        Yaml::String(text) => format!("the string {text:?}"),
        Yaml::Sequence(_) => "a list".to_owned(),
        Yaml::Mapping(_) => "a section".to_owned(),
        Yaml::Tagged(_) => "a tagged value".to_owned(),
    }
}

/// The system's words without Rust's error number.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
