//! `ETCD_*` variables: a value for every flag that the command line left open.
//!
//! `ETCD_` and the flag's name in capitals, `-` written as `_`. An empty value counts as none. A variable that
//! names no flag gets a warning, so that a misspelt one is found.

use std::collections::BTreeMap;

use super::ConfigError;
use super::flags;
use super::settings::{self, Settings};

/// Variables with a meaning of their own for etcd's builds and tests, or none for a server: passed over silently.
const SPECIAL: [&str; 4] = ["ETCD_VERSION", "ETCD_UNSUPPORTED_ARCH", "ETCD_VERIFY", "ETCD_CONFIG_FILE"];

pub(super) fn fill(settings: &mut Settings, environment: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    let mut known = BTreeMap::new();
    for flag in flags::all().filter(|flag| !matches!(flag.name, "version" | "config-file")) {
        let variable = variable_name(flag.name);
        if let Some(text) = environment.get(&variable).filter(|text| !text.is_empty()) {
            if settings.is_set(flag.name) {
                // etcd 3.7 refuses to start here. The command line wins instead: scripts written for
                // earlier releases rely on it.
                settings.warn(
                    "environment variable is shadowed by corresponding command-line flag",
                    vec![("environment-variable", variable.clone())],
                );
            } else {
                let value = settings::read(flag, text)
                    .map_err(|words| ConfigError::Refused(format!("invalid value {text:?} for {variable}: {words}")))?;
                settings.put(flag, value);
            }
        }
        known.insert(variable, flag);
    }
    for (variable, value) in environment {
        let is_ours = variable.starts_with("ETCD_") && !known.contains_key(variable);
        if is_ours && !SPECIAL.contains(&variable.as_str()) && !is_historic(variable) {
            settings.warn(
                "unrecognized environment variable",
                vec![("environment-variable", format!("{variable}={value}"))],
            );
        }
    }
    Ok(())
}

/// `some-flag` -> `ETCD_SOME_FLAG`.
fn variable_name(flag: &str) -> String {
    format!("ETCD_{}", flag.to_uppercase().replace('-', "_"))
}

fn is_historic(variable: &str) -> bool {
    flags::HISTORIC.iter().any(|flag| variable_name(flag) == variable)
}
