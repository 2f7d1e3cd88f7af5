//! `kuorum plugin`, run as an operator's program runs it.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::member::Member;
use crate::subject::Subject;

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Printed {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Printed {
    /// The JSON of a command that succeeded.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The one line of a command that failed.
    pub fn refusal(&self) -> &str {
        assert_eq!((self.code, self.err.lines().count()), (1, 1), "{self:?}");
        self.err.trim_end()
    }
}

/// Runs `kuorum plugin` with these words and no more.
pub fn plugin(words: &[&str]) -> Printed {
    let output = Command::new(Subject::kuorum().binary).arg("plugin").args(words).stdin(Stdio::null()).output();
    let output = output.expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Printed {
        code: output.status.code().expect("it ends by itself"),
        out: text(&output.stdout),
        err: text(&output.stderr),
    }
}

/// Asks one member, for JSON.
pub fn ask(member: &Member, words: &[&str]) -> Printed {
    let endpoint = member.endpoint();
    plugin(&[words, &["--endpoints", &endpoint, "--output", "json"]].concat())
}
