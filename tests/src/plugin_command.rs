//! `kuorum plugin`, run as an operator's program runs it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde_json::Value;

use crate::member::Member;
use crate::subject::Subject;

/// Lines of a `tail` that nobody has looked at yet.
const LINES_MAX: usize = 10_000;

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

/// A `kuorum plugin tail` that runs, and what it writes. It is ended when dropped.
pub struct Tail {
    child: Child,
    lines: Receiver<Value>,
}

impl Tail {
    pub fn of(member: &Member, plugin: &str) -> Tail {
        let endpoint = member.endpoint();
        let mut child = Command::new(Subject::kuorum().binary)
            .args(["plugin", "tail", plugin, "--output", "json", "--endpoints", &endpoint])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let out = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (sender, lines) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Tail { child, lines }
    }

    /// The next line, if it comes in time.
    pub fn next_within(&self, wait: Duration) -> Option<Value> {
        self.lines.recv_timeout(wait).ok()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // It may have ended by itself, with its member.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What a member counts.
pub fn metrics(member: &Member) -> String {
    let mut stream = TcpStream::connect(member.endpoint()).expect("the port takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket takes a timeout");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("a member reads what it is sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page is text");
    page
}
