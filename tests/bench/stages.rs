//! The rows, grouped into stages. Each stage starts both servers fresh, gives them the same content, and measures its
//! rows in turn: etcd, Kuorum, etcd, Kuorum and so on.

use std::time::Duration;

use kuorum_proto::etcdserverpb::CompactionRequest;
use kuorum_tests::clock::Deadline;
use kuorum_tests::member::Member;
use kuorum_tests::subject::Subject;

use super::clusters;
use super::load::{self, Length, Run, Target, Workload, block_on};
use super::plugins;
use super::process::{Process, resident_bytes};
use super::profile::Recording;
use super::report::{Measure, Report};
use super::watchers::{self, Audience};
use super::workloads::{Count, Fill, Keys, Kubernetes, Mixed, Puts, Reads, Source, Updates};

/// Quiet between two turns, so that what one server still writes is not charged to the other.
pub(crate) const SETTLE: Duration = Duration::from_millis(300);
/// Clients that fill a store.
pub(crate) const FILLING_CLIENTS: usize = 500;
/// Room for every row in either server.
pub(crate) const QUOTA: &str = "--quota-backend-bytes=16000000000";

/// How large and how long a run is.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) alternations: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
    /// Keys of the reading rows, and of the large store.
    pub(crate) read_keys: u64,
    pub(crate) large_keys: u64,
    /// Revisions that the compaction removes.
    pub(crate) old_revisions: u64,
    /// Entries that a member of three misses in its long nap: more than the 15,000 or so that servers keep.
    pub(crate) missed_entries: u64,
    pub(crate) seed: u64,
    /// Only rows whose name contains this.
    pub(crate) only: Option<String>,
    /// Leaves etcd out.
    pub(crate) kuorum_alone: bool,
    /// Draws a flame graph of each row that runs for a time.
    pub(crate) profile: bool,
}

impl Plan {
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.only.as_ref().is_none_or(|only| row.contains(only.as_str()))
    }

    pub(crate) fn length(&self) -> Length {
        Length::Time { warm_up: self.warm_up, measured: self.measured }
    }

    /// Runs `row` on a member, and draws what it does meanwhile if that is wanted.
    fn profiled<T>(&self, row: &str, member: &Member, run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        if !self.profile {
            return run();
        }
        let recording = Recording::start(process(member), row, self.warm_up + self.measured)?;
        let result = run()?;
        eprintln!("drawn as {}", recording.draw()?.display());
        Ok(result)
    }

    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let etcd = (!self.kuorum_alone).then(Subject::etcd);
        etcd.into_iter().chain([Subject::kuorum()]).collect()
    }
}

/// A row that one workload makes.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) clients: usize,
    pub(crate) workload: Box<dyn Fn(Source) -> Box<dyn Workload>>,
}

impl Row {
    pub(crate) fn new<W: Workload + 'static>(
        name: &str,
        clients: usize,
        workload: impl Fn(Source) -> W + 'static,
    ) -> Row {
        Row { name: name.to_owned(), clients, workload: Box::new(move |source| Box::new(workload(source))) }
    }
}

/// Runs all stages that have a wanted row.
///
/// # Errors
/// A sentence naming the row and what went wrong in it.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let written = Keys { prefix: "/bench/w/", count: 10_000 };
    stage(plan, report, written, writes())?;
    let read = Keys { prefix: "/bench/r/", count: plan.read_keys };
    stage(plan, report, read, reads(plan.read_keys))?;
    let objects = Keys { prefix: "/registry/pods/", count: 10_000 };
    stage(plan, report, objects, kubernetes())?;
    watches(plan, report)?;
    large(plan, report)?;
    compaction(plan, report)?;
    clusters::run(plan, report)?;
    plugins::run(plan, report)
}

fn writes() -> Vec<Row> {
    let mut rows = Vec::new();
    for (clients, named) in [(1, "1 client"), (100, "100 clients"), (1_000, "1,000 clients")] {
        rows.push(Row::new(&format!("put, {named}"), clients, |source| Puts { source, left: u64::MAX }));
        rows.push(Row::new(&format!("txn compare+put, {named}"), clients, move |source| Updates::new(source, clients)));
    }
    rows.push(Row::new("mixed 80/20, 100 clients", 100, |source| {
        Mixed(Reads { source, span: 1, serializable: false })
    }));
    rows
}

fn reads(keys: u64) -> Vec<Row> {
    let get = |serializable| move |source| Reads { source, span: 1, serializable };
    let range = |span: u64| move |source| Reads { source, span, serializable: false };
    vec![
        Row::new("linearizable get, 100 clients", 100, get(false)),
        Row::new("serializable get, 100 clients", 100, get(true)),
        Row::new("range of 10 keys, 100 clients", 100, range(10)),
        Row::new("range of 1,000 keys, 10 clients", 10, range(1_000)),
        Row::new("range of 10,000 keys, 1 client", 1, range(10_000)),
        Row::new(&format!("count of {} keys, 10 clients", thousands(keys)), 10, |source| Count(source.keys)),
    ]
}

fn kubernetes() -> Vec<Row> {
    vec![Row::new("Kubernetes-like mix, 100 clients", 100, |source| Kubernetes::new(source, 100))]
}

/// A stage of rows that each run for a time on the same content.
fn stage(plan: &Plan, report: &mut Report, keys: Keys, rows: Vec<Row>) -> Result<(), String> {
    let rows: Vec<Row> = rows.into_iter().filter(|row| plan.wants(&row.name)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let mut members = start(plan)?;
    for member in &mut members {
        fill(member, keys, plan.seed)?;
    }
    for row in rows {
        for turn in 0..plan.alternations {
            for member in &members {
                std::thread::sleep(SETTLE);
                let mut workload = (row.workload)(Source::new(keys, plan.seed + u64::try_from(turn).unwrap_or(0)));
                let run = || run_load(member, row.clients, workload.as_mut(), plan.length());
                let run = plan.profiled(&row.name, member, run);
                report.add(&row.name, member.subject.name, Measure::of(&run.map_err(in_row(&row.name, member))?));
            }
        }
        report.print_row(&row.name);
    }
    Ok(())
}

fn watches(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let keys = Keys { prefix: "/bench/e/", count: 10_000 };
    let prefix = Audience { watchers: 1_000, own_keys: false, keys };
    let own_keys = Audience { watchers: 10_000, own_keys: true, keys };
    let rows = [("events to 1,000 watchers of one prefix", prefix), ("events to 10,000 watchers of a key", own_keys)];
    for (name, audience) in rows {
        if !plan.wants(name) {
            continue;
        }
        let members = start(plan)?;
        for turn in 0..plan.alternations {
            for member in &members {
                std::thread::sleep(SETTLE);
                let mut source = Source::new(keys, plan.seed + u64::try_from(turn).unwrap_or(0));
                let endpoint = member.endpoint();
                let process = process(member);
                let run = || watchers::run(&endpoint, process, audience, &mut source, plan.warm_up, plan.measured);
                let run = plan.profiled(name, member, run);
                report.add(name, member.subject.name, Measure::of(&run.map_err(in_row(name, member))?));
            }
        }
        report.print_row(name);
    }
    Ok(())
}

/// The large store: its load, its memory, its counts, and its restart.
fn large(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let keys = Keys { prefix: "/bench/l/", count: plan.large_keys };
    let count = thousands(plan.large_keys);
    let [load, counting, putting, restart, recovery] = [
        format!("load of {count} keys, {FILLING_CLIENTS} clients"),
        format!("count of all {count} keys, 1 client"),
        format!("put, 100 clients, on {count} keys"),
        format!("restart on {count} keys until the first get"),
        format!("restart after kill -9 on {count} keys until the first get"),
    ];
    if ![&load, &counting, &putting, &restart, &recovery].into_iter().any(|row| plan.wants(row)) {
        return Ok(());
    }
    let mut members = start(plan)?;
    for member in &mut members {
        let run = fill(member, keys, plan.seed).map_err(in_row(&load, member))?;
        report.add(&load, member.subject.name, Measure::of(&run));
    }
    report.print_row(&load);
    for _ in 0..plan.alternations {
        for member in &members {
            let run = run_load(member, 1, &mut Count(keys), plan.length()).map_err(in_row(&counting, member))?;
            report.add(&counting, member.subject.name, Measure::of(&run));
        }
    }
    report.print_row(&counting);
    for (row, end) in [(&restart, End::Terminated), (&recovery, End::Killed)] {
        for _ in 0..plan.alternations {
            for member in &mut members {
                let took = restarted(member, end, keys, plan.seed).map_err(in_row(row, member))?;
                report.add(row, member.subject.name, Measure::of_wait(took, resident_bytes(&[process(member)])));
            }
        }
        report.print_row(row);
    }
    for _ in 0..plan.alternations {
        for member in &members {
            let mut puts = Puts { source: Source::new(keys, plan.seed), left: u64::MAX };
            let run = run_load(member, 100, &mut puts, plan.length()).map_err(in_row(&putting, member))?;
            report.add(&putting, member.subject.name, Measure::of(&run));
        }
    }
    report.print_row(&putting);
    Ok(())
}

/// How a member ends before it is started again.
#[derive(Clone, Copy)]
enum End {
    Terminated,
    Killed,
}

/// Puts beside a compaction of many old revisions, and the same puts without one.
fn compaction(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let old = thousands(plan.old_revisions);
    let with = format!("put, 100 clients, while {old} revisions are compacted");
    let without = "put, 100 clients, on the same store before".to_owned();
    if !plan.wants(&with) && !plan.wants(&without) {
        return Ok(());
    }
    let keys = Keys { prefix: "/bench/c/", count: 100_000 };
    let mut members = start(plan)?;
    for member in &mut members {
        let mut puts = Puts { source: Source::new(keys, plan.seed), left: plan.old_revisions };
        run_load(member, FILLING_CLIENTS, &mut puts, Length::Whole).map_err(in_row(&with, member))?;
    }
    for member in &members {
        let puts = || Puts { source: Source::new(keys, plan.seed), left: u64::MAX };
        let run = run_load(member, 100, &mut puts(), plan.length()).map_err(in_row(&without, member))?;
        report.add(&without, member.subject.name, Measure::of(&run));
        compact(member).map_err(in_row(&with, member))?;
        let length = Length::Time { warm_up: Duration::ZERO, measured: plan.measured };
        let run = run_load(member, 100, &mut puts(), length).map_err(in_row(&with, member))?;
        report.add(&with, member.subject.name, Measure::of(&run));
    }
    report.print_row(&without);
    report.print_row(&with);
    Ok(())
}

/// Asks for a compaction at the present revision, and does not wait until it is carried out.
fn compact(member: &Member) -> Result<(), String> {
    let endpoint = member.endpoint();
    block_on(async move {
        let mut client = kuorum_tests::client::Client::new(&endpoint);
        let count = kuorum_proto::etcdserverpb::RangeRequest { key: "x".into(), ..Default::default() };
        let answer = client.kv.range(count).await.map_err(|status| status.to_string())?;
        let revision = answer.into_inner().header.map_or(0, |header| header.revision);
        let compact = CompactionRequest { revision, physical: false };
        client.kv.compact(compact).await.map(drop).map_err(|status| status.to_string())
    })
}

fn start(plan: &Plan) -> Result<Vec<Member>, String> {
    let subjects = plan.subjects();
    block_on(async move {
        let mut members = Vec::new();
        for subject in &subjects {
            members.push(Member::started(subject, &[QUOTA]).await);
        }
        Ok(members)
    })
}

fn fill(member: &mut Member, keys: Keys, seed: u64) -> Result<Run, String> {
    run_load(member, FILLING_CLIENTS, &mut Fill::new(Source::new(keys, seed)), Length::Whole)
}

/// Ends the member, starts it, and waits for its answer to one linearizable get.
fn restarted(member: &mut Member, end: End, keys: Keys, seed: u64) -> Result<Duration, String> {
    const STOP_WITHIN: Duration = Duration::from_secs(60);
    const ANSWER_WITHIN: Duration = Duration::from_secs(600);
    const POLL: Duration = Duration::from_millis(2);
    match end {
        End::Terminated => {
            member.signal("TERM");
            member.exited_within(STOP_WITHIN).ok_or("no end after SIGTERM")?;
        }
        End::Killed => member.kill(),
    }
    member.start();
    let deadline = Deadline::after(ANSWER_WITHIN);
    loop {
        let mut get = Reads { source: Source::new(keys, seed), span: 1, serializable: false };
        let mut once = Once(Some(&mut get));
        match load::run(&Target::of([&*member]), 1, &mut once, Length::Whole) {
            Ok(_) => return Ok(deadline.elapsed()),
            Err(problem) if deadline.has_passed() => return Err(problem),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

/// The first request of another workload, alone.
struct Once<'a>(Option<&'a mut dyn Workload>);

impl Workload for Once<'_> {
    fn next(&mut self, client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        self.0.take()?.next(client, message)
    }
}

fn run_load(member: &Member, clients: usize, workload: &mut dyn Workload, length: Length) -> Result<Run, String> {
    load::run(&Target::of([member]), clients, workload, length)
}

fn process(member: &Member) -> Process {
    Process(member.id())
}

fn in_row(row: &str, member: &Member) -> impl Fn(String) -> String {
    let (row, name, log) = (row.to_owned(), member.subject.name, member.log_tail());
    move |problem| format!("{row}: {name}: {problem}\n{log}")
}

pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits are text")).collect();
    groups.join(",")
}
