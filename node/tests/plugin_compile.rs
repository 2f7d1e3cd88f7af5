//! The process that compiles plugins, `kuorum plugin-compile`: what goes in, what comes out, and what holds it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that fails")]

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const KUORUM: &str = env!("CARGO_BIN_EXE_kuorum");

/// An empty component that says what it is.
const COMPONENT: &str = r#"(component (@custom "kuorum-manifest" "{}") (core module (func (result i32) i32.const 1)))"#;

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Hands the file in, and waits for the end.
fn finish(mut child: Child, file: &[u8]) -> Output {
    // A child that is stopped reads no further.
    child.stdin.take().unwrap().write_all(file).ok();
    child.wait_with_output().unwrap()
}

fn compile(file: &[u8]) -> Output {
    finish(start(Command::new(KUORUM).arg("plugin-compile")), file)
}

#[test]
fn a_component_becomes_code() {
    let output = compile(&wat::parse_str(COMPONENT).unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.starts_with(b"\x7fELF"));
}

#[test]
fn what_is_wrong_is_one_line() {
    let mut truncated = wat::parse_str(COMPONENT).unwrap();
    truncated.truncate(truncated.len() - 1);
    let module = r#"(module (@custom "kuorum-manifest" "{}") (import "env" "time" (func)))"#;
    let module = wat::parse_str(module).unwrap();
    for (file, part) in [
        (b"no component".to_vec(), "the file is no wasm component"),
        (truncated, "the file is damaged or cut short"),
        (module, "a core module that can't be made a component"),
    ] {
        let output = compile(&file);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(part) && said.trim_end().lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty());
    }
}

/// A field of a process's `stat`, by its number in proc_pid_stat(5). The third is the first behind the name, which is in
/// parentheses.
fn field(stat: &str, number: usize) -> i64 {
    let behind_name = stat.rsplit(')').next().unwrap();
    behind_name.split_whitespace().nth(number - 3).unwrap().parse().unwrap()
}

fn niceness(stat: &str) -> i64 {
    field(stat, 19)
}

#[test]
fn it_limits_itself_before_it_reads() {
    let own_nice = niceness(&std::fs::read_to_string("/proc/self/stat").unwrap());
    for (words, policy, nicer_by) in [
        (&["plugin-compile", "when-idle"][..], libc::SCHED_IDLE, 5),
        (&["plugin-compile", "nicer"], libc::SCHED_OTHER, 5),
        (&["plugin-compile"], libc::SCHED_OTHER, 0),
    ] {
        let mut child = start(Command::new(KUORUM).args(words));
        let of_child = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
        let holds = |limits: &str| {
            [
                ("Max cpu time", "10"),
                ("Max file size", "0"),
                ("Max core file size", "0"),
                ("Max address space", "3221225472"),
            ]
            .iter()
            .all(|(name, most)| {
                let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                line.split_whitespace().next() == Some(most)
            })
        };
        // It waits for its input for as long as this takes.
        let held = (0..1_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            holds(&of_child("limits"))
        });
        let (shown, stat) = (of_child("limits"), of_child("stat"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(held, "{shown}");
        assert_eq!(field(&stat, 41), i64::from(policy), "{words:?}: {stat}");
        assert_eq!(niceness(&stat), (own_nice + nicer_by).min(19), "{words:?}: {stat}");
    }
}

/// Some seconds of compiling, in functions that each look harmless.
fn slow() -> Vec<u8> {
    let (locals, loops) = (190, 190);
    let mut body = "(local i32)".repeat(locals);
    body.push_str(&"(loop ".repeat(loops));
    for local in 0..locals {
        body.push_str(&format!("(local.set {local} (i32.add (local.get {local}) (i32.const 1)))"));
    }
    body.push_str(&"(br_if 0 (local.get 0)))".repeat(loops));
    let functions = format!("(func {body})").repeat(30);
    let text = format!(r#"(component (@custom "kuorum-manifest" "{{}}") (core module {functions}))"#);
    wat::parse_str(text).unwrap()
}

#[test]
fn limits_end_it() {
    use std::os::unix::process::ExitStatusExt as _;
    let limited = |limit: &str| {
        let script = format!("{limit}; exec {KUORUM} plugin-compile");
        finish(start(Command::new("/bin/sh").args(["-c", &script])), &slow())
    };
    let out_of_time = limited("ulimit -t 1");
    assert!(matches!(out_of_time.status.signal(), Some(libc::SIGKILL | libc::SIGXCPU)), "{out_of_time:?}");
    let out_of_memory = limited("ulimit -v 150000");
    assert!(!out_of_memory.status.success(), "{out_of_memory:?}");
}
