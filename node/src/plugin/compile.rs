//! Compiling in a process of its own: the node starts its own program again as `kuorum plugin-compile`, hands the plugin's
//! file in at one end and takes compiled code out at the other.
//!
//! A compiler is a large program fed by strangers, and some inputs cost it far more than their size (see `inspect`). So it
//! runs where it can be stopped: its address space, processor time and files are limited from its first line on, it dies
//! with the node, and it is killed when its time is over. What is wrong with the plugin comes back as one line.
//!
//! It takes what processor time is left over, since even a nicer process keeps those that answer requests waiting for some
//! milliseconds. On a machine that has none to spare it would never end, so after a while it begins again, merely nicer.
//! Code that requests wait for is made with the node's own priority.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, setrlimit};
use wasmtime::component::Component;
use wit_component::ComponentEncoder;

use super::engine;
use super::inspect::{self, FILE_BYTES_MAX, Form};

/// The hidden first argument.
pub(super) const ARGUMENT: &str = "plugin-compile";
/// The hidden second argument of a process that runs when nothing else does.
const WHEN_IDLE: &str = "when-idle";
/// The hidden second argument of a process that lets others go first.
const NICER: &str = "nicer";
/// How this process names itself to the system, whatever became of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Components of 18 MB, made from Python, need some 1.5 GiB.
const ADDRESS_SPACE_BYTES_MAX: u64 = 3 << 30;
/// A compiled component of 100 KB takes a tenth of a second, one of 18 MB fifteen.
const CPU_SECONDS_BASE: u64 = 10;
const CPU_SECONDS_PER_MIB: u64 = 4;
/// Beside what else the machine does.
const WALL_SECONDS_PER_CPU_SECOND: u64 = 3;
/// The part of the wall time for which it waits for idle processors: three seconds for a small component.
const IDLE_PART: u32 = 10;
/// Compiled code is some five times its source.
pub(super) const COMPILED_BYTES_MAX: usize = 512 << 20;
const ERROR_BYTES_MAX: u64 = 2 * 1024;
/// Beside one process that never rests, this leaves it a quarter of a processor.
const NICER_BY: i32 = 5;

/// Why there is no compiled code.
#[derive(Debug)]
pub(super) enum CompileError {
    /// The compiler's sentence about the file.
    Refused(String),
    /// It was stopped by its limits; the text says which.
    Stopped(String),
    /// It did not come to an end, for a reason that may pass.
    Hindered(String),
    /// The compiler could not be run.
    Io(io::Error),
}

/// How soon code is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// Those whom the node serves go first.
    Whenever,
    /// Requests wait for it, or its author does.
    Now,
}

/// Where compiling happens.
#[derive(Clone, Debug)]
pub(crate) enum Compiler {
    /// In a process: a program and its arguments. `None` for the program stands for this one.
    Process { program: Option<PathBuf>, arguments: Vec<String>, wall: Option<Duration> },
    /// On the calling thread, without limits: the programs of the unit tests have no `plugin-compile`.
    #[cfg(test)]
    InProcess,
}

impl Compiler {
    /// This very program.
    pub(crate) fn own() -> Compiler {
        Compiler::Process { program: None, arguments: vec![ARGUMENT.to_owned()], wall: None }
    }

    /// Compiles, and returns within a bounded time.
    pub(super) fn compile(&self, file: &[u8], urgency: Urgency) -> Result<Vec<u8>, CompileError> {
        match self {
            Compiler::Process { program, arguments, wall } => {
                let wall = wall.unwrap_or(Duration::from_secs(cpu_seconds(file.len()) * WALL_SECONDS_PER_CPU_SECOND));
                let compiled_within = |wall, words: &[&str]| {
                    let mut command = Command::new(program.as_deref().unwrap_or(Path::new(OWN_PROGRAM)));
                    command.arg0("kuorum").args(arguments).args(words);
                    run(command, file, wall)
                };
                let code = match urgency {
                    Urgency::Now => compiled_within(wall, &[])?,
                    Urgency::Whenever => match compiled_within(wall / IDLE_PART, &[WHEN_IDLE])? {
                        None => compiled_within(wall, &[NICER])?,
                        code => code,
                    },
                };
                let late = || format!("compiling it took longer than {} s", wall.as_secs_f32());
                code.ok_or_else(|| CompileError::Hindered(late()))
            }
            #[cfg(test)]
            Compiler::InProcess => compiled(file).map_err(CompileError::Refused),
        }
    }
}

fn cpu_seconds(file_bytes: usize) -> u64 {
    CPU_SECONDS_BASE + CPU_SECONDS_PER_MIB * (file_bytes as u64 >> 20)
}

/// Has the process compile the file. `None`: it was killed when its time was over.
fn run(mut command: Command, file: &[u8], wall: Duration) -> Result<Option<Vec<u8>>, CompileError> {
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(CompileError::Io)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // Three pipes can fill at once, so each has a thread; all end when the child is gone.
    std::thread::scope(|scope| {
        let input = scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(file)));
        let output = scope.spawn(move || drain(stdout, COMPILED_BYTES_MAX as u64));
        let errors = scope.spawn(move || drain(stderr, ERROR_BYTES_MAX));
        let ended = wait(&mut child, wall);
        // A child that does not read its input to the end has said why, or was stopped.
        drop(input.join());
        let output = joined(output).map_err(CompileError::Io)?;
        let errors = joined(errors).map_err(CompileError::Io)?;
        let ended = ended.map_err(CompileError::Io)?;
        ended.map(|status| verdict(status, output, &errors)).transpose()
    })
}

/// The thread only reads, so it does not panic.
fn joined(thread: ScopedJoinHandle<'_, io::Result<Vec<u8>>>) -> io::Result<Vec<u8>> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that reads from the compiler ended")))
}

/// Reads to the end, and one byte beyond the bound at most.
fn drain(pipe: Option<impl Read>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(bytes_max + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Waits for the end of the child, kills it when the time is over, and reaps it in any case. `None`: it was killed.
fn wait(child: &mut Child, wall: Duration) -> io::Result<Option<ExitStatus>> {
    let ended_in_time = ended_within(child, wall);
    if !matches!(ended_in_time, Ok(true)) {
        // It may have ended just now.
        child.kill().ok();
    }
    let status = child.wait()?;
    Ok(ended_in_time?.then_some(status))
}

fn ended_within(child: &Child, wall: Duration) -> io::Result<bool> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = engine::now() + wall;
    loop {
        let left = deadline.saturating_duration_since(engine::now());
        let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn verdict(status: ExitStatus, output: Vec<u8>, errors: &[u8]) -> Result<Vec<u8>, CompileError> {
    use std::os::unix::process::ExitStatusExt as _;
    if output.len() > COMPILED_BYTES_MAX {
        return Err(CompileError::Stopped(format!("its compiled code has more than {COMPILED_BYTES_MAX} bytes")));
    }
    if status.success() {
        return Ok(output);
    }
    let said = one_line(&String::from_utf8_lossy(errors));
    match status.signal().and_then(Signal::from_named_raw) {
        Some(Signal::XCPU) => {
            Err(CompileError::Stopped("compiling it took more processor time than its size allows".to_owned()))
        }
        Some(Signal::KILL) => {
            Err(CompileError::Hindered("the compiler was killed, as it is when the machine lacks memory".to_owned()))
        }
        // Where an allocation fails, Rust aborts.
        Some(Signal::ABORT) => Err(CompileError::Stopped(format!(
            "the compiler was aborted, as it is when it needs more than {ADDRESS_SPACE_BYTES_MAX} bytes of memory: {said}"
        ))),
        Some(signal) => Err(CompileError::Stopped(format!("the compiler was ended by signal {}", signal.as_raw()))),
        None => Err(CompileError::Refused(said)),
    }
}

/// Several lines as one, without letters that a terminal would obey, cut at its bound.
pub(super) fn one_line(text: &str) -> String {
    let mut line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    if line.contains(char::is_control) {
        line = line.replace(char::is_control, " ");
    }
    let end = line.floor_char_boundary(line.len().min(1024));
    line.truncate(end);
    line
}

/// What the process does: limits itself, reads the file to its end, compiles it, writes the code. Nothing else of the node
/// runs in it.
pub(super) fn child(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let yields = yield_to_others(words.next().as_deref().and_then(OsStr::to_str));
    let outcome = yields.and_then(|()| limit_itself()).map_err(|error| error.to_string()).and_then(|()| {
        let mut file = Vec::new();
        let read = io::stdin().lock().take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut file);
        read.map_err(|error| error.to_string())?;
        limit_time(cpu_seconds(file.len())).map_err(|error| error.to_string())?;
        let code = compiled(&file)?;
        io::stdout().lock().write_all(&code).map_err(|error| error.to_string())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{}", one_line(&problem));
            ExitCode::FAILURE
        }
    }
}

fn yield_to_others(word: Option<&str>) -> io::Result<()> {
    if matches!(word, Some(WHEN_IDLE | NICER)) {
        rustix::process::nice(NICER_BY)?;
    }
    if word == Some(WHEN_IDLE) {
        // Where that is forbidden, being nicer has to do.
        run_when_idle().ok();
    }
    Ok(())
}

fn limit_itself() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    limit(Resource::As, ADDRESS_SPACE_BYTES_MAX)?;
    // It writes to its pipe alone, and leaves no picture of its memory behind.
    limit(Resource::Fsize, 0)?;
    limit(Resource::Core, 0)?;
    limit_time(CPU_SECONDS_BASE)
}

#[expect(unsafe_code, reason = "the scheduling policy is set by a system call that no safe library here has")]
fn run_when_idle() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads one struct, which lives until it returns.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn limit_time(seconds: u64) -> io::Result<()> {
    limit(Resource::Cpu, seconds)
}

/// The hard limit stays a little above, so that the limit can still be raised to what the file's size allows.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let hard = rustix::process::getrlimit(resource).maximum;
    let current = hard.map_or(most, |hard| hard.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(current), maximum: hard })?)
}

/// The compiled code of a component, or of a core module that is made one first.
fn compiled(file: &[u8]) -> Result<Vec<u8>, String> {
    let encoded;
    let component = match inspect::inspect(file)?.form {
        Form::Component => file,
        Form::CoreModule => {
            encoded = encoded_component(file)?;
            &encoded
        }
    };
    let engine = engine::compiler().map_err(|error| format!("{error:#}"))?;
    let compiled = Component::new(&engine, component).and_then(|component| component.serialize());
    compiled.map_err(|error| format!("{error:#}"))
}

/// A core module with the interface embedded, as a component.
pub(super) fn encoded_component(module: &[u8]) -> Result<Vec<u8>, String> {
    let encoder = ComponentEncoder::default().validate(true).module(module);
    encoder.and_then(|mut encoder| encoder.encode()).map_err(|error| {
        format!("the file is a core module that can't be made a component of kuorum:policy: {error:#}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, wall: Duration) -> Result<Vec<u8>, CompileError> {
        shell_by(Urgency::Whenever, script, wall)
    }

    fn shell_by(urgency: Urgency, script: &str, wall: Duration) -> Result<Vec<u8>, CompileError> {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        let compiler = Compiler::Process { program: Some("/bin/sh".into()), arguments, wall: Some(wall) };
        compiler.compile(&vec![7; 1 << 20], urgency)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_the_process_writes_is_the_code() {
        assert_eq!(shell("cat", LONG).unwrap(), vec![7; 1 << 20]);
    }

    #[test]
    fn what_it_says_before_it_fails_is_the_error_in_one_line() {
        let error = shell("echo 'no such' >&2; echo '  code' >&2; exit 1", LONG).unwrap_err();
        assert!(matches!(&error, CompileError::Refused(text) if text == "no such code"), "{error:?}");
    }

    #[test]
    fn it_is_killed_when_its_time_is_over() {
        let error = shell("exec sleep 3600", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(&error, CompileError::Hindered(text) if text.contains("longer than 0.05 s")), "{error:?}");
    }

    #[test]
    fn it_begins_again_when_no_processor_becomes_idle() {
        let code =
            shell(r#"case $0 in when-idle) exec sleep 3600 ;; *) cat ;; esac"#, Duration::from_secs(20)).unwrap();
        assert_eq!(code, vec![7; 1 << 20]);
    }

    #[test]
    fn it_does_not_wait_for_idle_processors_when_it_is_needed_now() {
        // Without a further word, a script is called as the process is.
        let code = shell_by(Urgency::Now, r#"case $0 in kuorum) cat ;; *) exec sleep 3600 ;; esac"#, LONG).unwrap();
        assert_eq!(code, vec![7; 1 << 20]);
    }

    #[test]
    fn a_limit_that_ends_it_is_named() {
        let error = shell("kill -XCPU $$", LONG).unwrap_err();
        assert!(matches!(&error, CompileError::Stopped(text) if text.contains("processor time")), "{error:?}");
        let error = shell("kill -KILL $$", LONG).unwrap_err();
        assert!(matches!(&error, CompileError::Hindered(text) if text.contains("was killed")), "{error:?}");
        let error = shell("kill -ABRT $$", LONG).unwrap_err();
        assert!(matches!(&error, CompileError::Stopped(text) if text.contains("bytes of memory")), "{error:?}");
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error_of_this_member() {
        let compiler = Compiler::Process { program: Some("/nonexistent".into()), arguments: Vec::new(), wall: None };
        assert!(matches!(compiler.compile(b"", Urgency::Now), Err(CompileError::Io(_))));
    }
}
