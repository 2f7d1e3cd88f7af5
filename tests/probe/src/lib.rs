//! A plugin for the suites: it says no to what its configuration names, and breaks where it is told to.

use std::hint::black_box;

use kuorum_plugin_sdk::{
    Failure, FieldError, Plugin,
    admission::{Admission, Code, Op, Request, Verdict},
    host::{kv_read, log},
};

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Probe {
    /// Says no to everything.
    deny_all: bool,
    /// Says no to values longer than this.
    value_bytes_max: Option<u32>,
    /// A key with one of these beginnings can be put while the other key is not there: pairs of beginning and key.
    while_absent: Vec<(String, String)>,
    /// Keys on whose put it misbehaves begin so.
    trigger: Option<String>,
    /// How.
    act: Act,
    /// Whether its configuration is to be found wrong.
    invalid: bool,
}

#[derive(Clone, Copy, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Act {
    #[default]
    Trap,
    Loop,
    Memory,
    Recursion,
    HostCalls,
    LogFlood,
    Transient,
    Warn,
}

impl Plugin for Probe {
    type Config = Self;

    fn validate(config: &Self) -> Vec<FieldError> {
        if config.invalid { vec![FieldError::new("invalid", "it was asked to find fault")] } else { Vec::new() }
    }

    fn new(config: Self) -> Result<Self, Failure> {
        Ok(config)
    }
}

impl Admission for Probe {
    fn check(&mut self, request: &Request) -> Result<Verdict, Failure> {
        if self.deny_all {
            return Ok(Verdict::deny(Code::PermissionDenied, "nothing is allowed"));
        }
        for op in &request.ops {
            let Op::Put(put) = op else { continue };
            if self.value_bytes_max.is_some_and(|max| put.value_bytes > max) {
                return Ok(Verdict::deny(Code::InvalidArgument, "the value is too long"));
            }
            let begins = |beginning: &str| put.key.starts_with(beginning.as_bytes());
            for (_, other) in self.while_absent.iter().filter(|(beginning, _)| begins(beginning)) {
                match kv_read::get(other.as_bytes()) {
                    Ok(None) => {}
                    Ok(Some(_)) => return Ok(Verdict::deny(Code::FailedPrecondition, format!("{other} is there"))),
                    Err(error) => return Err(Failure::Permanent(format!("{other}: {error:?}"))),
                }
            }
            if self.trigger.as_deref().is_some_and(begins) {
                return misbehave(self.act);
            }
        }
        Ok(Verdict::Allow)
    }
}

fn misbehave(act: Act) -> Result<Verdict, Failure> {
    match act {
        Act::Trap => panic!("it was told to"),
        Act::Loop => loop {
            black_box(());
        },
        Act::Memory => {
            let mut hoard = Vec::new();
            loop {
                hoard.push(black_box(vec![1_u8; 1 << 20]));
            }
        }
        Act::Recursion => {
            black_box(deeper(black_box(1)));
        }
        Act::HostCalls => loop {
            black_box(kv_read::get(b"k").is_ok());
        },
        Act::LogFlood => {
            for line in 0..2_000 {
                log::info(&format!("line {line}"), &[]);
            }
        }
        Act::Transient => return Err(Failure::Transient(("not now".to_owned(), 100))),
        Act::Warn => return Ok(Verdict::Warn("mind this".to_owned())),
    }
    Ok(Verdict::Allow)
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn deeper(depth: u64) -> u64 {
    black_box([depth; 64]);
    deeper(black_box(depth + 1)) + 1
}

kuorum_plugin_sdk::export!(Probe: admission);
