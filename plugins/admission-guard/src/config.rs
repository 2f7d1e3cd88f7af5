//! The rules, as an operator writes them.

use std::{collections::BTreeMap, fmt};

use kuorum_plugin_sdk::{FieldError, Prefix};
use serde::Deserialize;

/// Rules of each sort at most: every write goes through all of them.
const RULES_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct Config {
    pub(crate) range_deletes: Option<RangeDeletes>,
    pub(crate) protected: Vec<Protected>,
    pub(crate) value_bytes_max: Vec<ValueBytesMax>,
    pub(crate) rates: Option<Rates>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RangeDeletes {
    pub(crate) allowed_within: Vec<Prefix>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Protected {
    pub(crate) prefix: Prefix,
    pub(crate) refuse: Vec<Refused>,
    #[serde(default)]
    except_users: Vec<String>,
    #[serde(default)]
    except_roles: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Refused {
    Put,
    Delete,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ValueBytesMax {
    pub(crate) prefix: Prefix,
    pub(crate) bytes: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rates {
    pub(crate) above_space_percent: u8,
    #[serde(default)]
    pub(crate) users: BTreeMap<String, UserRate>,
    pub(crate) each_user: Option<UserRate>,
    #[serde(default)]
    pub(crate) prefixes: Vec<PrefixRate>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserRate {
    pub(crate) puts_per_s: u32,
    pub(crate) burst: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PrefixRate {
    pub(crate) prefix: Prefix,
    pub(crate) puts_per_s: u32,
    pub(crate) burst: u32,
}

impl Config {
    pub(crate) fn errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let within = self.range_deletes.as_ref().map_or(0, |rule| rule.allowed_within.len());
        bounded(&mut errors, "range_deletes.allowed_within", within);
        bounded(&mut errors, "protected", self.protected.len());
        bounded(&mut errors, "value_bytes_max", self.value_bytes_max.len());
        for (at, rule) in self.protected.iter().enumerate() {
            if rule.refuse.is_empty() {
                errors.push(FieldError::new(format!("protected[{at}].refuse"), "name put, delete, or both"));
            }
        }
        if let Some(rates) = &self.rates {
            rates.add_errors(&mut errors);
        }
        errors
    }
}

impl Rates {
    fn add_errors(&self, errors: &mut Vec<FieldError>) {
        if self.above_space_percent > 100 {
            errors.push(FieldError::new("rates.above_space_percent", "there are 100 percent at most"));
        }
        bounded(errors, "rates.users", self.users.len());
        bounded(errors, "rates.prefixes", self.prefixes.len());
        let users = self.users.iter().map(|(user, rate)| (format!("rates.users.{user}.burst"), rate.burst));
        let each_user = self.each_user.iter().map(|rate| ("rates.each_user.burst".to_string(), rate.burst));
        let prefixes = self.prefixes.iter().enumerate();
        let prefixes = prefixes.map(|(at, rate)| (format!("rates.prefixes[{at}].burst"), rate.burst));
        for (path, burst) in users.chain(each_user).chain(prefixes) {
            if burst == 0 {
                errors.push(FieldError::new(path, "a burst of 0 would refuse every put"));
            }
        }
    }
}

impl Protected {
    pub(crate) fn excepts(&self, user: &Option<String>, roles: &[String]) -> bool {
        user.as_ref().is_some_and(|user| self.except_users.contains(user))
            || roles.iter().any(|role| self.except_roles.contains(role))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Put => "put",
            Self::Delete => "delete",
        })
    }
}

fn bounded(errors: &mut Vec<FieldError>, path: &str, count: usize) {
    if count > RULES_MAX {
        errors.push(FieldError::new(path, format!("{count} are more than {RULES_MAX}")));
    }
}
