//! `sim --seed N` replays one simulated run and prints what happened; `sim --seeds A..B` runs many, up to the first that
//! breaks a rule.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use kuorum::sim::{self, Outcome};
use kuorum::trace::{self, Level, LogConfig, LogFormat};

const USAGE: &str = "sim --seed N | sim --seeds A..B";
/// Seeds between two signs of life.
const SEEDS_PER_LINE: u64 = 1_000;

/// The seed under way, for a panic that ends the process.
static SEED: AtomicU64 = AtomicU64::new(0);

enum Task {
    Replay(u64),
    Search(u64, u64),
}

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        let seed = SEED.load(Ordering::Relaxed);
        report(&mut io::stderr(), seed, &panic.to_string()).ok();
    }));
    // What members log is not what happens in the world, and has the time of day in it.
    let silence = LogConfig { level: Level::Fatal, format: LogFormat::Console, outputs: Vec::new() };
    if let Err(error) = trace::init(&silence) {
        writeln!(io::stderr(), "{error}").ok();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match task(&arguments) {
        Some(Task::Replay(seed)) => replay(seed),
        Some(Task::Search(first, end)) => search(first, end),
        None => writeln!(io::stderr(), "{USAGE}").map(|()| ExitCode::from(2)),
    };
    // Whoever reads the output has gone.
    done.unwrap_or(ExitCode::FAILURE)
}

fn task(arguments: &[String]) -> Option<Task> {
    match arguments {
        [flag, seed] if flag == "--seed" => seed.parse().ok().map(Task::Replay),
        [flag, seeds] if flag == "--seeds" => {
            let (first, end) = seeds.split_once("..")?;
            Some(Task::Search(first.parse().ok()?, end.parse().ok()?))
        }
        _ => None,
    }
}

fn replay(seed: u64) -> io::Result<ExitCode> {
    SEED.store(seed, Ordering::Relaxed);
    let Outcome { violation, trace } = sim::run(seed, true);
    io::stdout().write_all(trace.as_bytes())?;
    match violation {
        Some(violation) => {
            writeln!(io::stdout(), "seed {seed}: {violation}")?;
            Ok(ExitCode::FAILURE)
        }
        None => {
            writeln!(io::stdout(), "seed {seed}: every rule was kept")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn search(first: u64, end: u64) -> io::Result<ExitCode> {
    for seed in first..end {
        SEED.store(seed, Ordering::Relaxed);
        if let Some(violation) = sim::run(seed, false).violation {
            report(&mut io::stdout(), seed, &violation)?;
            return Ok(ExitCode::FAILURE);
        }
        if (seed + 1 - first).is_multiple_of(SEEDS_PER_LINE) {
            writeln!(io::stdout(), "seeds {first}..{} kept every rule", seed + 1)?;
        }
    }
    writeln!(io::stdout(), "seeds {first}..{end} kept every rule")?;
    Ok(ExitCode::SUCCESS)
}

fn report(out: &mut dyn Write, seed: u64, violation: &str) -> io::Result<()> {
    writeln!(out, "seed {seed}: {violation}")?;
    writeln!(out, "replay it with: cargo run --profile fast --features sim --bin sim -- --seed {seed}")
}
