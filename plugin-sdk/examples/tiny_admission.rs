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

#[cfg(test)]
mod tests {
    use super::*;
    use kuorum_plugin_sdk::{admission::PutOp, testing};

    #[test]
    fn a_long_value_is_refused() {
        let mut lengths: Lengths = testing::plugin(r#"{"value_bytes_max": 3}"#);
        let put = |value: &str| Request { ops: vec![PutOp::new("/a", value).into()], ..Request::default() };
        assert_eq!(lengths.check(&put("abc")), Ok(Verdict::Allow));
        let refused = Verdict::deny(Code::InvalidArgument, "a value is longer than 3 bytes");
        assert_eq!(lengths.check(&put("abcd")), Ok(refused));
    }

    #[test]
    fn a_wrong_configuration_is_told_by_field() {
        let errors = testing::config_errors::<Lengths>(r#"{"value_bytes_max": "3"}"#);
        assert_eq!(errors, [r#"value_bytes_max: invalid type: string "3", expected u32 at line 1 column 23"#]);
    }
}
