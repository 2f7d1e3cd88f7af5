//! The figures that Prometheus' Go client shows of every process, read from /proc when somebody scrapes.
//!
//! Written as text beside the recorder's output, since CPU seconds are a counter with fractions, which the recorder
//! doesn't have. What the system doesn't offer is left out, never shown as zero.

use std::fmt::Write as _;
use std::fs;

/// Clock ticks in /proc are hundredths of a second on every Linux (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

/// Appends what can be read; an unreadable file leaves its lines out.
pub(super) fn append(text: &mut String) {
    if let Ok(stat) = fs::read_to_string("/proc/self/stat") {
        append_stat(text, &stat);
    }
    append_descriptors(text);
    if let Ok(devices) = fs::read_to_string("/proc/self/net/dev") {
        append_network(text, &devices);
    }
}

fn append_stat(text: &mut String, stat: &str) {
    // The second field is the program's name in brackets and may hold anything; what follows is split by blanks and
    // starts with field 3.
    let Some((_, rest)) = stat.rsplit_once(')') else { return };
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<f64>().ok());
    if let (Some(user), Some(system)) = (field(14), field(15)) {
        let seconds = (user + system) / TICKS_PER_SECOND;
        line(text, "process_cpu_seconds_total", "counter", "CPU time used, user and system.", seconds);
    }
    if let Some(bytes) = field(23) {
        line(text, "process_virtual_memory_bytes", "gauge", "Virtual memory in bytes.", bytes);
    }
    if let Some(pages) = field(24) {
        #[expect(clippy::cast_precision_loss, reason = "a page size is far below 2^53")]
        let bytes = pages * PAGE_BYTES as f64;
        line(text, "process_resident_memory_bytes", "gauge", "Resident memory in bytes.", bytes);
    }
    let booted = fs::read_to_string("/proc/stat").ok().and_then(|stat| {
        stat.lines().find_map(|line| line.strip_prefix("btime ")).and_then(|seconds| seconds.trim().parse::<f64>().ok())
    });
    if let (Some(booted), Some(started)) = (booted, field(22)) {
        let seconds = booted + started / TICKS_PER_SECOND;
        line(text, "process_start_time_seconds", "gauge", "Unix time at which the process started.", seconds);
    }
}

fn append_descriptors(text: &mut String) {
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        #[expect(clippy::cast_precision_loss, reason = "a count of open files is far below 2^53")]
        let open = entries.count() as f64;
        line(text, "process_open_fds", "gauge", "Open file descriptors.", open);
        line(text, "os_fd_used", "gauge", "Open file descriptors.", open);
    }
    if let Some(limit) = descriptors_max() {
        #[expect(clippy::cast_precision_loss, reason = "a limit of open files is far below 2^53")]
        let limit = limit as f64;
        line(text, "process_max_fds", "gauge", "Most file descriptors the process may open.", limit);
        line(text, "os_fd_limit", "gauge", "Most file descriptors the process may open.", limit);
    }
}

fn append_network(text: &mut String, devices: &str) {
    let (mut received, mut sent) = (0.0, 0.0);
    for device in devices.lines().filter_map(|line| line.split_once(':')) {
        let columns: Vec<f64> = device.1.split_ascii_whitespace().filter_map(|column| column.parse().ok()).collect();
        received += columns.first().unwrap_or(&0.0);
        sent += columns.get(8).unwrap_or(&0.0);
    }
    line(text, "process_network_receive_bytes_total", "counter", "Bytes the host's interfaces received.", received);
    line(text, "process_network_transmit_bytes_total", "counter", "Bytes the host's interfaces sent.", sent);
}

/// How many files the process may open, if the system says so.
pub(crate) fn descriptors_max() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

fn line(text: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").expect("a String takes any text");
}
