//! Bad input: whatever is wrong is said in one clear line or by the exact status, and a running member goes on.
//!
//! `start` is what keeps a member from starting, `requests` what clients send it, `connections` what arrives on its
//! port without being gRPC, `full_disk` a disk that takes no more.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod connections;
mod full_disk;
mod requests;
mod start;

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use kuorum_tests::clock::Deadline;
use kuorum_tests::member::Member;

/// A refusal that takes longer hangs.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

/// Runs a test on a runtime of one thread.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built").block_on(test)
}

/// What a refused start said on standard error, and how it ended.
struct Refusal {
    status: ExitStatus,
    stderr: String,
}

/// Starts the member's binary with `arguments`; it must end by itself.
fn refused(member: &Member, arguments: &[std::ffi::OsString]) -> Refusal {
    let stderr_path = member.home().join("stderr");
    let stderr = std::fs::File::create(&stderr_path).expect("the member's home is writable");
    let mut child = Command::new(&member.subject.binary)
        .args(arguments)
        .current_dir(member.home())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .expect("the binary under test runs");
    let deadline = Deadline::after(REFUSED_WITHIN);
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if deadline.has_passed() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a killed child can be waited for");
            panic!("not refused within {} s: {arguments:?}\n{}", REFUSED_WITHIN.as_secs(), read(&stderr_path));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Refusal { status, stderr: read(&stderr_path) }
}

fn read(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

impl Refusal {
    /// One line, apart from log lines, says what is wrong: it holds every one of `words`.
    fn says(&self, words: &[&str]) {
        assert!(!self.status.success(), "ended with {}", self.status);
        let is_said = self.stderr.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(is_said, "no line holds {words:?}:\n{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}
