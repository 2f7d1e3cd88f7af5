//! A flame graph of a server under one row's load: sampled by perf(1), drawn by inferno.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use inferno::collapse::Collapse as _;
use inferno::collapse::perf::Folder;
use inferno::flamegraph;
use kuorum_tests::subject::target_dir;

use super::process::Process;

/// Samples a second and thread: a prime, so that nothing periodic hides between them.
const SAMPLES_PER_SECOND: &str = "997";

/// A recording under way.
pub(crate) struct Recording {
    perf: Child,
    directory: PathBuf,
    row: String,
}

impl Recording {
    /// Records `process` for so long.
    pub(crate) fn start(process: Process, row: &str, time: Duration) -> Result<Recording, String> {
        let directory = target_dir().join("bench");
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let perf = Command::new("perf")
            .args(["record", "--quiet", "--call-graph", "fp", "--freq", SAMPLES_PER_SECOND])
            .args(["--pid", &process.0.to_string()])
            .arg("--output")
            .arg(directory.join("perf.data"))
            .args(["--", "sleep", &time.as_secs_f64().to_string()])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("perf: {error}: install it (Debian: linux-perf)"))?;
        let row = row.replace(|character: char| !character.is_ascii_alphanumeric(), "-");
        Ok(Recording { perf, directory, row })
    }

    /// Waits for the end of the recording and draws it. Returns where.
    pub(crate) fn draw(mut self) -> Result<PathBuf, String> {
        let status = self.perf.wait().map_err(|error| format!("perf: {error}"))?;
        if !status.success() {
            return Err(format!("perf record ended with {status}; see kernel.perf_event_paranoid"));
        }
        let data = self.directory.join("perf.data");
        let script = Command::new("perf").args(["script", "--input"]).arg(&data).stderr(Stdio::null()).output();
        let script = script.map_err(|error| format!("perf script: {error}"))?.stdout;
        let mut folded = Vec::new();
        Folder::default()
            .collapse(BufReader::new(script.as_slice()), &mut folded)
            .map_err(|error| format!("{}: {error}", data.display()))?;
        let path = self.directory.join(format!("{}.svg", self.row));
        let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        flamegraph::from_reader(&mut flamegraph::Options::default(), folded.as_slice(), BufWriter::new(file))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        fs::remove_file(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        Ok(path)
    }
}
