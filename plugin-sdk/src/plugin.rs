//! What all kinds have in common: a type that is made from its configuration.

use serde::{Deserialize, de::DeserializeOwned};

use crate::{Ctx, Failure, FieldError};

/// A plugin. One value of it lives in each instance that the host makes of the component, and is asked through the traits
/// of the kinds that it is exported for.
///
/// An instance may be dropped between two calls, and a member may keep several. What a value remembers is a hint, as a
/// cache or a rate is; what must be exact belongs in the store.
pub trait Plugin: Sized + 'static {
    /// What the operator configures, as JSON. Take [`NoConfig`] where there is nothing to configure, and put
    /// `#[serde(deny_unknown_fields)]` on structs, so that a misspelt name is an error.
    type Config: DeserializeOwned;

    /// What is wrong with a configuration that has the right form; nothing, unless a plugin says so.
    ///
    /// Every member asks before the plugin is activated, and shows the operator all errors at once.
    fn validate(config: &Self::Config) -> Vec<FieldError> {
        let _ = config;
        Vec::new()
    }

    /// A fresh plugin with a configuration that [`Plugin::validate`] found nothing wrong with.
    fn new(config: Self::Config) -> Result<Self, Failure>;
}

/// The configuration of a plugin that has none: an empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoConfig {}

/// The configuration of `T` in `json`, or all that is wrong with it. No text at all counts as an empty object.
pub(crate) fn parse<T: Plugin>(json: &str) -> Result<T::Config, Vec<FieldError>> {
    let json = if json.trim().is_empty() { "{}" } else { json };
    let mut reader = serde_json::Deserializer::from_str(json);
    let config: T::Config = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        vec![FieldError::new(path, error.into_inner())]
    })?;
    reader.end().map_err(|error| vec![FieldError::new(".", error)])?;

    let errors = T::validate(&config);
    if errors.is_empty() { Ok(config) } else { Err(errors) }
}

/// A plugin made from `json`. The host has had it validated; an error here is one that validation did not find.
pub(crate) fn make<T: Plugin>(json: &str) -> Result<T, Failure> {
    let config = parse::<T>(json).map_err(|errors| {
        let errors: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect();
        Failure::Permanent(errors.join("; "))
    })?;
    T::new(config)
}

impl FieldError {
    /// An error of the field at `path`, written as in `limits[2].prefix`; `.` is the whole configuration.
    pub fn new(path: impl Into<String>, message: impl ToString) -> Self {
        Self { path: path.into(), message: message.to_string() }
    }
}

impl Default for Ctx {
    /// A context for tests: member 1 leads at revision 1, on a day in November 2023, with a second to answer.
    fn default() -> Self {
        Self {
            now_ms: 1_700_000_000_000,
            seed: 0,
            revision: 1,
            compact_revision: 0,
            raft_term: 1,
            raft_index: 1,
            member: 1,
            leader: true,
            policy_epoch: 1,
            deadline_ms: 1000,
        }
    }
}
