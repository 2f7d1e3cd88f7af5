//! What a server process costs, as the system counts it in /proc.

use std::fs;
use std::time::{Duration, Instant};

use super::clock::now;

/// Ticks of a second in /proc/PID/stat: USER_HZ, 100 on every Linux.
const TICKS_PER_SECOND: u64 = 100;
/// Fields of /proc/PID/stat behind the name in parentheses: user and system time.
const USER_TICKS_FIELD: usize = 11;
const SYSTEM_TICKS_FIELD: usize = 12;

/// A process by its id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    /// CPU time so far. A process that ended has none, and its row fails anyway.
    fn cpu(self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or(Vec::new(), |(_, fields)| fields.split_whitespace().collect());
        let ticks = |field: usize| fields.get(field).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0);
        let ticks = ticks(USER_TICKS_FIELD) + ticks(SYSTEM_TICKS_FIELD);
        Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND)
    }

    fn resident_bytes(self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    fn status_bytes(self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        let kibibytes = line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
        kibibytes.unwrap_or(0) * 1_024
    }
}

/// The most memory that a process has had, as far as that can be seen before it ends.
pub(crate) fn peak_bytes(process: Process) -> u64 {
    process.status_bytes("VmHWM:")
}

/// The memory of all processes of a server.
pub(crate) fn resident_bytes(processes: &[Process]) -> u64 {
    processes.iter().map(|process| process.resident_bytes()).sum()
}

fn cpu(processes: &[Process]) -> Duration {
    processes.iter().map(|process| process.cpu()).sum()
}

/// The beginning of a measurement of a server, which is one process or the members of a cluster.
pub(crate) struct Mark {
    cpu: Duration,
    at: Instant,
}

/// What was used since a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Of all processes together.
    pub(crate) cpu: Duration,
    pub(crate) time: Duration,
}

impl Mark {
    pub(crate) fn new(processes: &[Process]) -> Mark {
        Mark { cpu: cpu(processes), at: now() }
    }

    pub(crate) fn taken(&self, processes: &[Process]) -> Taken {
        Taken { cpu: cpu(processes).saturating_sub(self.cpu), time: now() - self.at }
    }
}
