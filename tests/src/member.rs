//! One server process of a test: its directory, ports, log and life.
//!
//! A member is killed by its own process id when dropped; its log is kept beside the data and its tail printed when the
//! test fails.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::client::Client;
use crate::clock::Deadline;
use crate::ports::free_ports;
use crate::subject::Subject;

/// A member that is not ready by then hangs: both servers start in well under a second on an idle machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How often a starting member is asked.
const READY_POLL: Duration = Duration::from_millis(20);
/// Lines of the log printed on failure.
const LOG_TAIL_LINES: usize = 30;

pub struct Member {
    pub subject: Subject,
    pub client_port: u16,
    pub peer_port: u16,
    /// Where other members reach it, if not at `peer_port`.
    pub advertised_peer_port: Option<u16>,
    pub name: String,
    /// Flags beyond the addresses, in order.
    pub flags: Vec<String>,
    /// Command in front of the binary (`prlimit` and the like).
    pub wrapper: Vec<OsString>,
    data_dir: PathBuf,
    home: TempDir,
    child: Option<Child>,
}

impl Member {
    /// A member with an empty directory and free ports, not yet started.
    pub fn new(subject: &Subject, flags: &[&str]) -> Member {
        let home = tempfile::Builder::new()
            .prefix(&format!("{}-test-", subject.name))
            .tempdir()
            .expect("the temporary directory is writable");
        let (client_port, peer_port) = free_ports();
        Member {
            subject: subject.clone(),
            client_port,
            peer_port,
            advertised_peer_port: None,
            name: "n1".to_owned(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            wrapper: Vec::new(),
            data_dir: home.path().join("data"),
            home,
            child: None,
        }
    }

    /// Starts a fresh member and waits until it answers.
    pub async fn started(subject: &Subject, flags: &[&str]) -> Member {
        let mut member = Member::new(subject, flags);
        member.start();
        member.ready().await;
        member
    }

    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    pub fn client_url(&self) -> String {
        format!("http://{}", self.endpoint())
    }

    pub fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    pub fn advertised_peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.advertised_peer_port.unwrap_or(self.peer_port))
    }

    /// The id of the running process.
    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("the member is running").id()
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// A directory for the test's own files; gone with the member.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn set_data_dir(&mut self, path: PathBuf) {
        self.data_dir = path;
    }

    pub fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    pub fn log(&self) -> String {
        std::fs::read(self.log_path()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The flags of a one-member cluster at this member's addresses, then `flags`.
    pub fn arguments(&self) -> Vec<OsString> {
        let client = self.client_url();
        let advertised = self.advertised_peer_url();
        let mut arguments: Vec<OsString> = [
            ("--name", self.name.clone()),
            ("--listen-client-urls", client.clone()),
            ("--advertise-client-urls", client),
            ("--listen-peer-urls", self.peer_url()),
            ("--initial-advertise-peer-urls", advertised.clone()),
            ("--initial-cluster", format!("{}={advertised}", self.name)),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [OsString::from(flag), OsString::from(value)])
        .collect();
        arguments.push("--data-dir".into());
        arguments.push(self.data_dir.clone().into());
        arguments.extend(self.flags.iter().map(OsString::from));
        arguments
    }

    /// Starts the process without waiting for it to answer.
    pub fn start(&mut self) {
        let arguments = self.arguments();
        self.start_with(&arguments);
    }

    pub fn start_with(&mut self, arguments: &[OsString]) {
        assert!(self.child.is_none(), "member {} is started already", self.name);
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the log file can be opened");
        let stderr = log.try_clone().expect("a file handle can be cloned");
        let mut command = match self.wrapper.split_first() {
            None => Command::new(&self.subject.binary),
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).arg(&self.subject.binary);
                command
            }
        };
        let child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(stderr)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.subject.binary.display()));
        self.child = Some(child);
    }

    /// Waits until the member answers Status with a leader. Panics, naming what happened, if it exits or hangs instead.
    pub async fn ready(&mut self) -> Client {
        match self.ready_within(READY_WITHIN).await {
            Ok(client) => client,
            Err(problem) => panic!("{problem}\n{}", self.log_tail()),
        }
    }

    pub async fn ready_within(&mut self, wait: Duration) -> Result<Client, String> {
        let deadline = Deadline::after(wait);
        let client = Client::new(&self.endpoint());
        loop {
            if let Some(status) = self.exit_status() {
                return Err(format!("{} ended with {status} before it answered", self.subject.name));
            }
            if client.has_leader().await {
                return Ok(client);
            }
            if deadline.has_passed() {
                return Err(format!(
                    "{} hangs at start: no answer to Status within {} s",
                    self.subject.name,
                    wait.as_secs()
                ));
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.is_some() && self.exit_status().is_none()
    }

    /// The exit status if the process has ended by itself.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        let child = self.child.as_mut()?;
        child.try_wait().expect("a child can be waited for")
    }

    /// Waits for the process to end by itself.
    pub fn exited_within(&mut self, wait: Duration) -> Option<ExitStatus> {
        let deadline = Deadline::after(wait);
        loop {
            if let Some(status) = self.exit_status() {
                self.child = None;
                return Some(status);
            }
            if deadline.has_passed() {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL, then waits for the end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a killed child can be waited for");
        }
    }

    /// Sends a signal by name ("TERM", "STOP", "CONT") to this process alone.
    pub fn signal(&self, name: &str) {
        let id = self.id().to_string();
        let status = Command::new("kill").arg(format!("-{name}")).arg(&id).status().expect("kill(1) runs");
        assert!(status.success(), "signal {name} to {id} refused");
    }

    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let from = lines.len().saturating_sub(LOG_TAIL_LINES);
        format!(
            "--- end of the log of {} at {} ---\n{}\n---",
            self.subject.name,
            self.endpoint(),
            lines[from..].join("\n")
        )
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A member that has ended already cannot be killed; waiting for it is all that is left.
            if child.kill().is_ok() {
                drop(child.wait());
            }
        }
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail());
        }
    }
}
