//! Refuses a value longer than the operator allows.

use kuorum_plugin_sdk::{
    Failure, Plugin,
    admission::{Admission, Code, Op, Request, Verdict},
};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Lengths {
    value_bytes_max: u32,
}

impl Plugin for Lengths {
    type Config = Self;

    fn new(config: Self) -> Result<Self, Failure> {
        Ok(config)
    }
}

impl Admission for Lengths {
    fn check(&mut self, request: &Request) -> Result<Verdict, Failure> {
        let too_long = |op: &Op| matches!(op, Op::Put(put) if put.value_bytes > self.value_bytes_max);
        if request.ops.iter().any(too_long) {
            let message = format!("a value is longer than {} bytes", self.value_bytes_max);
            return Ok(Verdict::deny(Code::InvalidArgument, message));
        }
        Ok(Verdict::Allow)
    }
}

kuorum_plugin_sdk::export!(Lengths: admission);
