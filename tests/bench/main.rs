//! `make bench`: Kuorum and a real etcd in turn on the same machine under the same light client.
//!
//! Prints each row as it is measured and saves the table with its circumstances below `target/bench`. Numbers of one
//! machine mean little; the ratios of one run are what the project quotes.
//!
//! - [`stages`]: the rows, what content they run on, and in what order; [`clusters`]: those of three members; [`plugins`]:
//!   what plugins cost
//! - [`workloads`], [`watchers`]: what clients ask for
//! - [`load`], [`wire`]: the light client
//! - [`process`], [`profile`], [`clock`], [`report`]: CPU and memory of a server, its flame graph, time, the table

mod clock;
mod clusters;
mod load;
mod plugins;
mod process;
mod profile;
mod report;
mod stages;
mod watchers;
mod wire;
mod workloads;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use kuorum_tests::subject::{Subject, target_dir};

use report::Report;
use stages::Plan;

const USAGE: &str =
    "usage: bench [--quick] [--row PART_OF_A_NAME] [--seed NUMBER] [--seconds NUMBER] [--large-keys NUMBER]
             [--missed-entries NUMBER] [--kuorum-alone] [--profile]";

fn main() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
fn bench() -> Result<(), String> {
    let plan = plan(std::env::args().skip(1))?;
    let circumstances = circumstances(&plan);
    println!("{circumstances}\n{}", report::header().trim_end());
    let mut report = Report::default();
    stages::run(&plan, &mut report)?;
    let path = save(&format!("{circumstances}\n{}", report.table()))?;
    println!("\nsaved as {}", path.display());
    Ok(())
}

/// The plan of these arguments.
fn plan(arguments: impl Iterator<Item = String>) -> Result<Plan, String> {
    let mut plan = Plan {
        alternations: 3,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(5),
        read_keys: 100_000,
        large_keys: 1_000_000,
        old_revisions: 1_000_000,
        missed_entries: 100_000,
        seed: 1,
        only: None,
        kuorum_alone: false,
        profile: false,
    };
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value; {USAGE}"));
        match argument.as_str() {
            "--quick" => {
                (plan.warm_up, plan.measured) = (Duration::from_millis(200), Duration::from_millis(600));
                (plan.read_keys, plan.large_keys, plan.old_revisions) = (20_000, 50_000, 50_000);
                plan.missed_entries = 20_000;
            }
            "--kuorum-alone" => (plan.kuorum_alone, plan.alternations) = (true, 1),
            "--profile" => (plan.kuorum_alone, plan.profile, plan.alternations) = (true, true, 1),
            "--row" => plan.only = Some(value()?),
            "--seed" => plan.seed = number(&value()?)?,
            "--large-keys" => plan.large_keys = number(&value()?)?,
            "--missed-entries" => plan.missed_entries = number(&value()?)?,
            "--seconds" => plan.measured = Duration::from_secs(number(&value()?)?),
            _ => return Err(format!("{argument} is unknown; {USAGE}")),
        }
    }
    Ok(plan)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number; {USAGE}"))
}

/// Date, versions, cores and seed.
fn circumstances(plan: &Plan) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let version = |subject: Subject| {
        let output = Command::new(&subject.binary).arg("--version").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let name = if subject.is_etcd { "etcd" } else { "Kuorum" };
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} Version: ")));
        format!("{name} {}", line.unwrap_or("of an unknown version"))
    };
    let etcd = if plan.kuorum_alone { "etcd left out".into() } else { version(Subject::etcd()) };
    format!(
        "{}, {cores} cores, client on the same cores; {} beside {etcd}; seed {}, {} turns of {:?} each; medians, and \
         Kuorum to etcd as a ratio\n",
        clock::date(),
        version(Subject::kuorum()),
        plan.seed,
        plan.alternations,
        plan.measured,
    )
}

fn save(text: &str) -> Result<PathBuf, String> {
    let directory = target_dir().join("bench");
    std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let path = directory.join(format!("{}.md", clock::date().replace(':', "")));
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
