//! Real etcdctl and etcdutl against a member.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::subject::oracle;

/// What a command printed and how it ended.
#[derive(Debug)]
pub struct Printed {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Runs etcdctl against `endpoint` (host:port).
pub fn etcdctl(endpoint: &str, arguments: &[&str]) -> Printed {
    let mut command = Command::new(oracle("etcdctl"));
    command.arg("--endpoints").arg(endpoint).args(arguments);
    run(command)
}

/// Runs etcdutl, which works on files only.
pub fn etcdutl(directory: &Path, arguments: &[&str]) -> Printed {
    let mut command = Command::new(oracle("etcdutl"));
    command.current_dir(directory).args(arguments);
    run(command)
}

fn run(mut command: Command) -> Printed {
    // ETCDCTL_* of the caller's shell must not change what the suite sees.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCDCTL_") {
            command.env_remove(name);
        }
    }
    let output = command.stdin(Stdio::null()).output().expect("the oracle's programs run on this machine");
    Printed {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
