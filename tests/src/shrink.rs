//! The smallest script that still shows a difference: delta debugging over the lines, fresh servers for every attempt.

use std::time::Duration;

use crate::clock::Deadline;
use crate::lockstep::{Difference, Pair};
use crate::script::Script;
use crate::side::Doctor;
use crate::subject::{Subject, target_dir};

/// An attempt takes a server start and the lines; a report that comes late is worth less than a longer script.
const ATTEMPTS_MAX: usize = 120;
const SHRINK_WITHIN: Duration = Duration::from_secs(120);

/// What shrinking left.
pub struct Shrunk {
    pub lines: Vec<String>,
    pub difference: Difference,
}

/// Makes `lines`, which end in `difference`, as short as the bounds allow.
pub async fn shrink(subject: &Subject, doctor: Option<Doctor>, lines: Vec<String>, difference: Difference) -> Shrunk {
    let deadline = Deadline::after(SHRINK_WITHIN);
    let mut attempts = 0;
    let mut best = Shrunk { lines, difference };
    let mut parts = 2;
    while best.lines.len() > 1 {
        let size = best.lines.len().div_ceil(parts).max(1);
        let mut smaller = None;
        for start in (0..best.lines.len()).step_by(size) {
            if attempts == ATTEMPTS_MAX || deadline.has_passed() {
                return best;
            }
            attempts += 1;
            let end = (start + size).min(best.lines.len());
            let candidate = [&best.lines[..start], &best.lines[end..]].concat();
            if candidate.is_empty() {
                continue;
            }
            if let Some(difference) = attempt(subject, doctor, &candidate).await {
                smaller = Some(cut(candidate, difference));
                break;
            }
        }
        match smaller {
            Some(shrunk) => {
                best = shrunk;
                parts = parts.saturating_sub(1).max(2);
            }
            None if size == 1 => return best,
            None => parts = (parts * 2).min(best.lines.len()),
        }
    }
    best
}

/// Lines after the difference play no part.
pub fn cut(mut lines: Vec<String>, difference: Difference) -> Shrunk {
    lines.truncate(difference.number);
    Shrunk { lines, difference }
}

async fn attempt(subject: &Subject, doctor: Option<Doctor>, lines: &[String]) -> Option<Difference> {
    let script = Script::of_lines("shrinking", lines.iter().map(String::as_str));
    let mut pair = Pair::started(subject, &[]).await;
    pair.subject.doctor = doctor;
    pair.run(&script).await.err()
}

/// Writes a shrunk script where a person finds it, ready to be kept under `tests/wire/cases`.
pub fn report(seed: u64, shrunk: &Shrunk) -> std::path::PathBuf {
    let directory = target_dir().join("parity");
    std::fs::create_dir_all(&directory).expect("the target directory is writable");
    let path = directory.join(format!("{seed}.txt"));
    let note = shrunk.difference.to_string().replace('\n', "\n# ");
    let text = format!("# Seed {seed}.\n# {note}\n{}\n", shrunk.lines.join("\n"));
    std::fs::write(&path, text).expect("the target directory is writable");
    path
}
