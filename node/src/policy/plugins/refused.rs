//! Why plugins are not changed. Alike on every member.

use std::fmt;

use super::{
    CHUNK_BYTES, COMPONENT_BYTES_MAX, COMPONENTS_BYTES_MAX, CONFIG_BYTES_MAX, FAILURE_BYTES_MAX, GRANT_BYTES_MAX,
    GRANTS_MAX, NAME_BYTES_MAX, PLUGINS_MAX, SIGNATURE_BYTES,
};

/// Letters shown of what a member says: several members' texts have to fit in the headers of one answer.
const FAILURE_SHOWN_CHARS_MAX: usize = 200;

/// A voter that has not prepared a revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lacking {
    /// Its name, or its id while it has none.
    pub(crate) member: String,
    /// Why it could not; empty when it has not answered.
    pub(crate) failure: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    // The request itself.
    BadName(String),
    BadHash,
    BadSignature(usize),
    ConfigTooLarge,
    TooManyGrants,
    GrantTooLarge,
    BadComponentSize(u64),
    BadChunk(u32),
    FailureTooLarge,
    UnknownMode(i32),
    Empty,

    // What it meets.
    NoPlugin(String),
    NoRevision {
        name: String,
        revision: u64,
    },
    /// The revision before is put back by a rollback alone.
    IsPrevious {
        name: String,
        revision: u64,
    },
    NoPrevious(String),
    NoComponent,
    UploadReplaced,
    TooManyPlugins,
    NoRoom,
    NoMember,
    EpochMoved {
        expected: u64,
        epoch: u64,
    },
    NotReady {
        name: String,
        revision: u64,
        lacking: Vec<Lacking>,
    },
    InUse(String),
    /// The members have it ready, and nobody would ask it.
    Unusable(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::BadName(name) => write!(
                f,
                "{name:?} is no name of a plugin: a small letter, then small letters, digits and hyphens, \
                 {NAME_BYTES_MAX} at most"
            ),
            Refused::BadHash => write!(f, "the SHA-256 of a component has 32 bytes"),
            Refused::BadSignature(bytes) => {
                write!(f, "an Ed25519 signature has {SIGNATURE_BYTES} bytes; this one has {bytes}")
            }
            Refused::ConfigTooLarge => write!(f, "the configuration is longer than {CONFIG_BYTES_MAX} bytes"),
            Refused::TooManyGrants => write!(f, "more than {GRANTS_MAX} prefixes are granted"),
            Refused::GrantTooLarge => write!(f, "a prefix that is granted is longer than {GRANT_BYTES_MAX} bytes"),
            Refused::BadComponentSize(bytes) => {
                write!(f, "a component has 1 to {COMPONENT_BYTES_MAX} bytes; this one has {bytes}")
            }
            Refused::BadChunk(number) => {
                write!(f, "piece {number} of a component is not the one of up to {CHUNK_BYTES} bytes that is due")
            }
            Refused::FailureTooLarge => write!(f, "a failure is told in up to {FAILURE_BYTES_MAX} bytes"),
            Refused::UnknownMode(mode) => write!(f, "mode {mode} is none of off (0), shadow (1), enforce (2)"),
            Refused::Empty => write!(f, "a change of the plugins that this version does not know"),
            Refused::NoPlugin(name) => write!(f, "there is no plugin {name}"),
            Refused::NoRevision { name, revision: 0 } => write!(f, "plugin {name} has no revision that could be meant"),
            Refused::NoRevision { name, revision } => write!(f, "plugin {name} has no revision {revision}"),
            Refused::IsPrevious { name, revision } => write!(
                f,
                "revision {revision} of plugin {name} is the one before the current one: roll back to it, or load it anew"
            ),
            Refused::NoPrevious(name) => write!(f, "plugin {name} has no revision to go back to"),
            Refused::NoComponent => write!(f, "the component is not there, or not whole: upload it first"),
            Refused::UploadReplaced => {
                write!(
                    f,
                    "another upload of the same component, or newer ones, took the place of this one: start again"
                )
            }
            Refused::TooManyPlugins => write!(f, "there are {PLUGINS_MAX} plugins already: remove one first"),
            Refused::NoRoom => write!(
                f,
                "with this component there would be more than {COMPONENTS_BYTES_MAX} bytes of them: remove a plugin first"
            ),
            Refused::NoMember => write!(f, "who acknowledges is no member"),
            Refused::EpochMoved { expected, epoch } => write!(
                f,
                "the policy epoch is {epoch}, not {expected}: somebody changed the policies; look at them again"
            ),
            Refused::NotReady { name, revision, lacking } => {
                let one = |lacking: &Lacking| match lacking.failure.as_str() {
                    "" => format!("{} has not answered", lacking.member),
                    failure => {
                        let cut: String = failure.chars().take(FAILURE_SHOWN_CHARS_MAX).collect();
                        format!("{}: {cut}", lacking.member)
                    }
                };
                let members: Vec<String> = lacking.iter().map(one).collect();
                write!(f, "revision {revision} of plugin {name} is not ready on every voter ({})", members.join("; "))
            }
            Refused::Unusable(reason) => f.write_str(reason),
            Refused::InUse(name) => write!(f, "plugin {name} is not off"),
        }
    }
}
