//! Why a configuration is refused, in etcd's words where etcd refuses it too.

use std::fmt;

use super::usage;

/// A configuration that cannot be served. Nothing has been touched on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The command line cannot be read. Go's flag package leaves with 2 after printing the usage.
    Usage(String),
    /// The words are fine, what they say is not.
    Refused(String),
}

impl ConfigError {
    pub fn exit_code(&self) -> u8 {
        match self {
            ConfigError::Usage(_) => 2,
            ConfigError::Refused(_) => 1,
        }
    }

    /// What goes to stderr, line by line.
    pub fn lines(&self) -> Vec<String> {
        match self {
            ConfigError::Usage(words) => {
                let usage = usage::short();
                std::iter::once(words.clone()).chain(usage.lines().map(str::to_owned)).collect()
            }
            ConfigError::Refused(words) => vec![format!("kuorum: {words}")],
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Usage(words) | ConfigError::Refused(words) => f.write_str(words),
        }
    }
}

impl std::error::Error for ConfigError {}
