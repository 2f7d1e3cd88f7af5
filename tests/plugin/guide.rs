//! Runs the guide of plugin-sdk/README.md: every command in a block marked `console`, in order, in one shell, and compares
//! what it prints with what the guide says it prints.
//!
//! In what the guide says, `...` stands for anything within a line, and a line of it alone for any number of lines. Empty
//! lines do not count. Lines that begin with two spaces, one below the other, may come in any order: members get ready when
//! they do. A command may fail only where the guide shows an error in its last line. Ports are replaced by free ones on the
//! way in and put back on the way out, and nothing else is.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use kuorum_tests::ports::free_ports;
use kuorum_tests::subject::{Subject, oracle, target_dir, workspace};

/// Client and peer ports of the three members in the guide.
const PORTS: [(&str, &str); 3] = [("12379", "12380"), ("22379", "22380"), ("32379", "32380")];
/// The first build of a plugin, and of Rust's standard library where it has to be built, take minutes on a slow machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(900);
/// What follows the output of each command, with how it ended.
const END: &str = "== that was it:";
/// Said once on machines that build the library themselves.
const ONCE: &str = "building Rust's standard library";
const LINES_MAX: usize = 10_000;

/// A command of the guide and what it is said to print.
struct Step {
    line: usize,
    command: String,
    printed: Vec<String>,
}

/// Reads the blocks marked `console`: `$ ` begins a command, `> ` goes on with it, all else is output.
fn steps(guide: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_block = false;
    for (index, line) in guide.lines().enumerate() {
        if line.starts_with("```") {
            in_block = line == "```console";
        } else if in_block && let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { line: index + 1, command: command.to_owned(), printed: Vec::new() });
        } else if in_block {
            let step = steps.last_mut().expect("a block begins with a command");
            match line.strip_prefix("> ") {
                Some(more) => step.command = format!("{}\n{more}", step.command),
                None => step.printed.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Whether a line is as the guide says.
fn line_matches(said: &str, printed: &str) -> bool {
    let mut parts = said.split("...");
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn matches(said: &[&str], printed: &[&str]) -> bool {
    let Some((first, rest)) = said.split_first() else { return printed.is_empty() };
    if *first == "..." {
        return (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]));
    }
    if first.starts_with("  ") {
        // The first of a run that has no order: any of the lines printed in the run may be the one.
        let run = printed.iter().take_while(|line| line.starts_with("  ")).count();
        return (0..run).any(|at| {
            let mut others = printed.to_vec();
            line_matches(first, others.remove(at)) && matches(rest, &others)
        });
    }
    printed.split_first().is_some_and(|(line, others)| line_matches(first, line) && matches(rest, others))
}

/// Whether the guide's shell has this variable of the environment. What speaks of a store is the guide's to say, and the cargo
/// that runs this test says things that are meant for this package: another cargo would compile otherwise for them.
fn is_kept(variable: &str) -> bool {
    const OF_THE_MACHINE: [&str; 3] = ["CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"];
    let of_others = ["ETCD", "KUORUM_", "CARGO", "RUST"].iter().any(|of| variable.starts_with(of));
    OF_THE_MACHINE.contains(&variable) || (!of_others && variable != "LD_LIBRARY_PATH")
}

/// A shell that runs the commands of the guide in a directory of its own.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
    /// Ports of the guide, and those that stand for them.
    ports: Vec<(String, String)>,
}

impl Shell {
    fn start(home: &Path) -> Shell {
        let programs = home.join(".programs");
        std::fs::create_dir(&programs).unwrap();
        symlink(Subject::kuorum().binary.canonicalize().unwrap(), programs.join("kuorum")).unwrap();
        symlink(oracle("etcdctl").canonicalize().unwrap(), programs.join("etcdctl")).unwrap();
        // The guide is followed in a clone of the source.
        symlink(workspace().join("plugin-sdk"), home.join("plugin-sdk")).unwrap();
        let mut path = OsString::from(programs);
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());

        let mut command = Command::new("bash");
        command.args(["--noprofile", "--norc"]).current_dir(home).env("PATH", path);
        for (name, _) in std::env::vars_os() {
            if !is_kept(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        // Kept from run to run, since the first build of a plugin takes a minute.
        command.env("CARGO_TARGET_DIR", target_dir().join("guide"));
        // A group of its own, so that what it started in the background ends with it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this machine has bash");
        let mut input = child.stdin.take().expect("it is a pipe");
        writeln!(input, "exec 2>&1").unwrap();
        let lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let (sender, output) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let ports = PORTS.iter().flat_map(|(client, peer)| {
            let (free_client, free_peer) = free_ports();
            [((*client).to_owned(), free_client.to_string()), ((*peer).to_owned(), free_peer.to_string())]
        });
        Shell { child, input, output, ports: ports.collect() }
    }

    /// What a command printed, and how it ended.
    fn run(&mut self, command: &str) -> (Vec<String>, i32) {
        let command = self.ports.iter().fold(command.to_owned(), |text, (said, free)| text.replace(said, free));
        writeln!(self.input, "{command}\nprintf '\\n{END} %s\\n' $?").expect("the shell runs");
        let mut printed = Vec::new();
        loop {
            match self.output.recv_timeout(ANSWERED_WITHIN) {
                Ok(line) => match line.strip_prefix(END) {
                    Some(status) => return (printed, status.trim().parse().expect("a shell tells numbers")),
                    None => {
                        let line = self.ports.iter().fold(line, |text, (said, free)| text.replace(free, said));
                        printed.push(line);
                    }
                },
                Err(RecvTimeoutError::Timeout) => panic!("{command}\nhangs; it printed {printed:#?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("{command}\nended the shell; it printed {printed:#?}"),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The members are of its group, and of no other process here.
        let group = format!("-{}", self.child.id());
        let killed = Command::new("kill").args(["-KILL", "--", &group]).status();
        assert!(killed.is_ok(), "{killed:?}");
        self.child.wait().expect("a killed child can be waited for");
    }
}

#[test]
fn the_guide_tells_the_truth() {
    let path = workspace().join("plugin-sdk/README.md");
    let guide = std::fs::read_to_string(&path).expect("there is a guide");
    let steps = steps(&guide);
    assert!(steps.len() > 15, "the guide has {} commands", steps.len());
    let home = tempfile::tempdir().unwrap();
    let mut shell = Shell::start(home.path());
    for Step { line, command, printed: said } in &steps {
        let (printed, status) = shell.run(command);
        let said: Vec<&str> = said.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        let counts = |line: &&str| !line.is_empty() && !line.starts_with(ONCE);
        let printed: Vec<&str> = printed.iter().map(String::as_str).filter(counts).collect();
        let both = format!(
            "{}:{line}: {command}\n--- said\n{}\n--- printed\n{}\n---",
            path.display(),
            said.join("\n"),
            printed.join("\n")
        );
        assert!(matches(&said, &printed), "{both}");
        let last = said.last().copied().unwrap_or_default();
        let may_fail = last.starts_with("Error: ") || last.starts_with("kuorum plugin ");
        assert!(status == 0 || may_fail, "ended with {status}: {both}");
    }
    let built = std::fs::read(home.path().join("small-values/small-values.wasm")).unwrap();
    let built = String::from_utf8_lossy(&built);
    assert!(built.contains("/src/"), "panics of a plugin name files");
    let places = [std::env::var("HOME").unwrap(), home.path().display().to_string(), workspace().display().to_string()];
    for place in places {
        assert!(!built.contains(&place), "the plugin says that it was built in {place}");
    }
}

#[test]
fn a_lie_is_noticed() {
    let guide = "text\n```console\n$ a \\\n> b\nx ... z\n\n$ c\n```\n```sh\n$ d\n```\n";
    let steps = steps(guide);
    assert_eq!(steps.iter().map(|step| step.command.as_str()).collect::<Vec<_>>(), ["a \\\nb", "c"]);
    assert_eq!(steps[0].printed, ["x ... z", ""]);
    assert!(line_matches("x ... z", "x y z") && line_matches("...", "") && line_matches("a...a", "aa"));
    assert!(!line_matches("x ... z", "x y z.") && !line_matches("a...a", "a") && !line_matches("", "a"));
    assert!(matches(&["a", "...", "d"], &["a", "b", "c", "d"]) && matches(&["...", "d"], &["d"]));
    assert!(matches(&["h", "  b", "  a", "e"], &["h", "  a", "  b", "e"]));
    assert!(!matches(&["h", "  b", "  a", "e"], &["h", "  a", "  a", "e"]));
    assert!(
        is_kept("PATH") && is_kept("CARGO_HOME") && !is_kept("CARGO") && !is_kept("RUSTC") && !is_kept("ETCDCTL_API")
    );
    assert!(!matches(&["a"], &["a", "b"]) && !matches(&["a", "b"], &["a"]) && !matches(&["b", "a"], &["a", "b"]));
}
