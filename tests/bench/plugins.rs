//! What plugins cost: puts with none, with one that is not asked, and with one that is; what a call takes; how long it takes
//! to bring one into force; what it takes to compile those that ship. Kuorum alone: no other store has such a thing.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use kuorum_tests::cluster::Cluster;
use kuorum_tests::member::Member;
use kuorum_tests::plugin_command::ask;
use kuorum_tests::plugin_file::{PluginFile, golden_path};
use kuorum_tests::subject::Subject;
use serde_json::json;

use super::clock::now;
use super::load::{self, Target, block_on};
use super::process::{Process, peak_bytes};
use super::report::{Measure, Report, median};
use super::stages::{Plan, QUOTA, SETTLE, thousands};
use super::workloads::{Keys, Puts, Source};

const KEYS: Keys = Keys { prefix: "/bench/p/", count: 10_000 };
/// The plugin that is asked about puts below a prefix, and looks how long their values are.
const PLUGIN: &str = "bench";
/// Differences of a few percent need more turns than those of other rows.
const PAIRS_PER_TURN: usize = 3;
const LOOK_AT_CHILD: Duration = Duration::from_micros(500);

/// What is asked about the puts of a row.
#[derive(Clone, Copy)]
enum Asked {
    Nobody,
    /// A plugin is in force whose rules no put matches.
    Others,
    Plugin,
}

impl Asked {
    const ALL: [Asked; 3] = [Asked::Nobody, Asked::Others, Asked::Plugin];

    fn row(self, clients: usize) -> String {
        let with = match self {
            Asked::Nobody => "no plugin",
            Asked::Others => "a plugin that does not match",
            Asked::Plugin => "a plugin that reads the value's size",
        };
        format!("put, {} clients, {with}", thousands(u64::try_from(clients).unwrap_or(0)))
    }

    /// Keys that begin so are the plugin's.
    fn prefix(self) -> Option<&'static str> {
        match self {
            Asked::Nobody => None,
            Asked::Others => Some("/elsewhere/"),
            Asked::Plugin => Some(KEYS.prefix),
        }
    }
}

/// # Errors
/// A sentence naming the row and what went wrong in it.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<(), String> {
    for clients in [100, 1_000] {
        puts(plan, clients, report)?;
    }
    activation(plan, report)?;
    compiling(plan, report)
}

fn puts(plan: &Plan, clients: usize, report: &mut Report) -> Result<(), String> {
    if !Asked::ALL.iter().any(|asked| plan.wants(&asked.row(clients))) {
        return Ok(());
    }
    let member = block_on(async { Ok(Member::started(&Subject::kuorum(), &[QUOTA]).await) })?;
    let mut ratios: [Vec<f64>; 3] = Default::default();
    for turn in 0..PAIRS_PER_TURN * plan.alternations {
        let mut rates = [0.0; 3];
        // Each comes first, second and third equally often: a store grows, and machines grow warm.
        for place in 0..Asked::ALL.len() {
            let asked = Asked::ALL[(place + turn) % Asked::ALL.len()];
            put_in_force(&member, asked)?;
            std::thread::sleep(SETTLE);
            let seed = plan.seed + u64::try_from(turn).unwrap_or(0);
            let mut workload = Puts { source: Source::new(KEYS, seed), left: u64::MAX };
            let run = load::run(&Target::of([&member]), clients, &mut workload, plan.length())?;
            let measure = Measure::of(&run);
            report.add(&asked.row(clients), "kuorum", measure);
            rates[asked as usize] = measure.per_second.unwrap_or(0.0);
        }
        for asked in Asked::ALL {
            ratios[asked as usize].push(rates[asked as usize] / rates[Asked::Nobody as usize]);
        }
    }
    for asked in Asked::ALL {
        report.print_row(&asked.row(clients));
    }
    for asked in [Asked::Others, Asked::Plugin] {
        let ratio = median(std::mem::take(&mut ratios[asked as usize])).unwrap_or(0.0);
        report.say(format!("{}: {ratio:.3} of the puts a second with no plugin, median of pairs", asked.row(clients)));
    }
    let metrics = ask(&member, &["inspect", PLUGIN]);
    if metrics.code == 0 {
        report.say(format!("microseconds per call at {clients} clients: {}", call_us(&member)?));
    }
    Ok(())
}

/// Puts the plugin in force for the keys that it is to be asked about, or takes it out.
fn put_in_force(member: &Member, asked: Asked) -> Result<(), String> {
    let Some(prefix) = asked.prefix() else {
        // The first time there is none.
        let is_there = ask(member, &["inspect", PLUGIN]).code == 0;
        return if is_there { succeed(member, &["off", PLUGIN]) } else { Ok(()) };
    };
    let manifest = json!({
        "name": PLUGIN, "version": "0.1.0",
        "admission": {"match": [{"ops": ["put"], "prefix": prefix}]},
    });
    let path = member.home().join("bench.wasm");
    let file = PluginFile::golden("tiny-admission").with_manifest(&manifest);
    std::fs::write(&path, file.bytes()).map_err(|error| format!("{}: {error}", path.display()))?;
    succeed(member, &["load", &path.to_string_lossy(), "--config-json", "{\"value_bytes_max\":100000}"])?;
    succeed(member, &["activate", PLUGIN])
}

fn succeed(member: &Member, words: &[&str]) -> Result<(), String> {
    let printed = ask(member, words);
    if printed.code == 0 { Ok(()) } else { Err(printed.err) }
}

/// The mean of what calls have taken, as the member counts it.
fn call_us(member: &Member) -> Result<String, String> {
    let page = kuorum_tests::plugin_command::metrics(member);
    let of = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(name) && line.contains("kind=\"admission\""));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    let sum = of("plugin_call_duration_seconds_sum").ok_or("no calls are counted")?;
    let count = of("plugin_call_duration_seconds_count").ok_or("no calls are counted")?;
    Ok(format!("{:.2} (mean of {count})", sum * 1e6 / count.max(1.0)))
}

/// From the file on an operator's disk to the answer that it is enforced, on three members that compile it anew.
fn activation(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let row = "3 members: plugin of 106 KB from upload to enforced";
    if !plan.wants(row) {
        return Ok(());
    }
    for _ in 0..plan.alternations {
        let cluster = block_on(async { Ok(Cluster::started(&Subject::kuorum(), 3, &[QUOTA]).await) })?;
        let path = golden_path("probe");
        let begun = now();
        succeed(&cluster.members[0], &["load", &path.to_string_lossy()])?;
        succeed(&cluster.members[0], &["activate", "probe"])?;
        report.add(row, "kuorum", Measure::of_wait(now().saturating_duration_since(begun), 0));
    }
    report.print_row(row);
    Ok(())
}

/// Time and peak memory of the process that compiles.
fn compiling(plan: &Plan, report: &mut Report) -> Result<(), String> {
    for name in ["admission-guard", "compaction-load-aware"] {
        let row = format!("compile plugin {name}");
        if !plan.wants(&row) {
            continue;
        }
        for _ in 0..plan.alternations {
            let (took, peak) = compiled(&PluginFile::golden(name))?;
            report.add(&row, "kuorum", Measure::of_wait(took, peak));
        }
        report.print_row(&row);
    }
    Ok(())
}

fn compiled(file: &PluginFile) -> Result<(Duration, u64), String> {
    let binary: PathBuf = Subject::kuorum().binary;
    let begun = now();
    let mut command = Command::new(binary);
    command.arg("plugin-compile").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let process = Process(child.id());
    let mut input = child.stdin.take().ok_or("the compiler has no input")?;
    input.write_all(file.bytes()).map_err(|error| error.to_string())?;
    drop(input);
    let mut peak = 0;
    loop {
        peak = peak.max(peak_bytes(process));
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok((now().saturating_duration_since(begun), peak)),
            Some(status) => return Err(format!("the compiler ended with {status}")),
            None => std::thread::sleep(LOOK_AT_CHILD),
        }
    }
}
