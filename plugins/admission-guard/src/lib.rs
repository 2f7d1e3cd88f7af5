//! Refuses writes that are accidents, and slows writers down while space runs out. README.md has the configuration.

mod config;
mod rates;

use kuorum_plugin_sdk::{
    Failure, FieldError, KeyRange, Plugin,
    admission::{Admission, Code, Op, PutOp, Request, Verdict},
    host::metrics,
};

use config::{Config, Protected, Refused};
use rates::Buckets;

/// How much of a key a message quotes: keys may be long, and a message is cut at 1 KiB.
const KEY_CHARS_MAX: usize = 200;

/// The rules, and the rates as this instance has counted them.
pub struct Guard {
    config: Config,
    buckets: Buckets,
}

/// Why a write is refused.
struct Refusal {
    reason: &'static str,
    code: Code,
    message: String,
}

impl Plugin for Guard {
    type Config = Config;

    fn validate(config: &Config) -> Vec<FieldError> {
        config.errors()
    }

    fn new(mut config: Config) -> Result<Self, Failure> {
        // The longest prefix that fits a key decides about its value: it comes first.
        config.value_bytes_max.sort_by_key(|rule| std::cmp::Reverse(rule.prefix.0.len()));
        let buckets = Buckets::new(config.rates.take());
        Ok(Self { config, buckets })
    }
}

impl Admission for Guard {
    fn check(&mut self, request: &Request) -> Result<Verdict, Failure> {
        let refused = request.ops.iter().find_map(|op| self.refuse_op(request, op));
        let Some(refusal) = refused.or_else(|| self.refuse_rate(request)) else { return Ok(Verdict::Allow) };
        metrics::count("refusals", &[("reason", refusal.reason)], 1);
        Ok(Verdict::deny(refusal.code, refusal.message))
    }
}

impl Guard {
    fn refuse_op(&self, request: &Request, op: &Op) -> Option<Refusal> {
        match op {
            Op::Put(put) => {
                let range = KeyRange { key: &put.key, range_end: None };
                self.refuse_protected(request, Refused::Put, range).or_else(|| self.refuse_value(put))
            }
            Op::Delete(delete) => {
                let range = KeyRange { key: &delete.key, range_end: delete.range_end.as_deref() };
                self.refuse_range(range).or_else(|| self.refuse_protected(request, Refused::Delete, range))
            }
            Op::LeaseGrant(_) => None,
        }
    }

    fn refuse_range(&self, range: KeyRange) -> Option<Refusal> {
        let rule = self.config.range_deletes.as_ref()?;
        if range.is_single() || rule.allowed_within.iter().any(|prefix| prefix.covers(range)) {
            return None;
        }
        let message = format!("the range from {} on is wider than a transaction may delete", quote(range.key));
        Some(Refusal { reason: "range-delete", code: Code::PermissionDenied, message })
    }

    fn refuse_protected(&self, request: &Request, refused: Refused, range: KeyRange) -> Option<Refusal> {
        let applies = |rule: &&Protected| {
            rule.refuse.contains(&refused)
                && rule.prefix.overlaps(range)
                && !rule.excepts(&request.user, &request.roles)
        };
        let rule = self.config.protected.iter().find(applies)?;
        let message = format!("a {refused} at {} is refused: {} is protected", quote(range.key), quote(&rule.prefix.0));
        Some(Refusal { reason: "protected", code: Code::PermissionDenied, message })
    }

    fn refuse_value(&self, put: &PutOp) -> Option<Refusal> {
        let rule = self.config.value_bytes_max.iter().find(|rule| rule.prefix.contains(&put.key))?;
        if put.value_bytes <= rule.bytes {
            return None;
        }
        let key = quote(&put.key);
        let message = format!("the value of {key} has {} bytes, and {} are allowed", put.value_bytes, rule.bytes);
        Some(Refusal { reason: "value-size", code: Code::InvalidArgument, message })
    }

    fn refuse_rate(&mut self, request: &Request) -> Option<Refusal> {
        let exhausted = self.buckets.take(request)?;
        let message = format!("too many puts a second {exhausted} while space is short");
        Some(Refusal { reason: "rate", code: Code::ResourceExhausted, message })
    }
}

fn quote(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    let mut quoted: String = text.chars().take(KEY_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(KEY_CHARS_MAX).is_some() {
        quoted.push('…');
    }
    format!("\"{quoted}\"")
}

kuorum_plugin_sdk::export!(Guard: admission);
