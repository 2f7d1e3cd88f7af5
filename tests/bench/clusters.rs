//! The rows of three members: load through all of them, what the end of a leader costs, and how one that slept catches
//! up. CPU and memory are those of all members together; while one sleeps, of those that are awake.

use std::time::{Duration, Instant};

use kuorum_proto::etcdserverpb::{PutRequest, StatusRequest};
use kuorum_tests::client::Client;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use tokio::sync::mpsc;

use super::clock::now;
use super::load::{self, Length, Run, Target, block_on};
use super::report::{Measure, Report};
use super::stages::{FILLING_CLIENTS, Plan, QUOTA, Row, SETTLE, thousands};
use super::workloads::{Fill, Keys, Puts, Reads, Source, Updates};

const MEMBERS: usize = 3;
const KEYS: Keys = Keys { prefix: "/bench/m/", count: 10_000 };
/// Ends of a leader of each kind: elections take a random time, and the median needs some.
const ENDS: usize = 5;
/// A put is sent so often while a leader ends; the pause is measured to this.
const PROBE_EVERY: Duration = Duration::from_millis(5);
/// Puts on their way while nobody leads: those of a minute.
const PROBES_MAX: usize = 12_000;
/// Entries that a member misses in a short nap and while it is woken: together below the 5,000 that both servers keep for
/// a member that is behind, so that neither needs a snapshot.
const SHORT: NapLength = NapLength { missed: 4_000, beside: 900 };
const CLIENTS_BESIDE: usize = 9;
/// How often a woken member is asked how far it is.
const POLL: Duration = Duration::from_millis(2);
/// No election takes so long, and no catching-up besides what its entries need at this pace.
const HANGS_AFTER: Duration = Duration::from_secs(60);
const ENTRIES_A_SECOND_MIN: u64 = 10_000;

/// Runs all rows of clusters that are wanted.
///
/// # Errors
/// A sentence naming the row and what went wrong in it.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<(), String> {
    loads(plan, report)?;
    ends(plan, report)?;
    naps(plan, SHORT, report)?;
    naps(plan, NapLength { missed: plan.missed_entries, beside: plan.missed_entries / 10 }, report)
}

fn start(plan: &Plan) -> Result<Vec<Cluster>, String> {
    let subjects = plan.subjects();
    block_on(async move {
        let mut clusters = Vec::new();
        for subject in &subjects {
            clusters.push(Cluster::started(subject, MEMBERS, &[QUOTA]).await);
        }
        Ok(clusters)
    })
}

fn name(cluster: &Cluster) -> &'static str {
    cluster.members[0].subject.name
}

fn in_row(row: &str, cluster: &Cluster) -> impl Fn(String) -> String {
    let logs: Vec<String> = cluster.members.iter().map(|member| member.log_tail()).collect();
    let (row, name, logs) = (row.to_owned(), name(cluster), logs.join("\n"));
    move |problem| format!("{row}: {name}: {problem}\n{logs}")
}

fn load_rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for clients in [99, 999] {
        let named = |what: &str| format!("3 members: {what}, {clients} clients");
        rows.push(Row::new(&named("put"), clients, |source| Puts { source, left: u64::MAX }));
        rows.push(Row::new(&named("txn compare+put"), clients, move |source| Updates::new(source, clients)));
        let get = |source| Reads { source, span: 1, serializable: false };
        rows.push(Row::new(&named("linearizable get"), clients, get));
    }
    rows
}

/// Clients that are spread over all members.
fn loads(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let rows: Vec<Row> = load_rows().into_iter().filter(|row| plan.wants(&row.name)).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let clusters = start(plan)?;
    for cluster in &clusters {
        let mut fill = Fill::new(Source::new(KEYS, plan.seed));
        load::run(&Target::of(&cluster.members), FILLING_CLIENTS, &mut fill, Length::Whole)?;
    }
    for row in rows {
        for turn in 0..plan.alternations {
            for cluster in &clusters {
                std::thread::sleep(SETTLE);
                let mut workload = (row.workload)(Source::new(KEYS, plan.seed + u64::try_from(turn).unwrap_or(0)));
                let target = Target::of(&cluster.members);
                let run = load::run(&target, row.clients, workload.as_mut(), plan.length());
                report.add(&row.name, name(cluster), Measure::of(&run.map_err(in_row(&row.name, cluster))?));
            }
        }
        report.print_row(&row.name);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum End {
    Killed,
    Terminated,
}

/// How long puts through a surviving member stand still when the leader ends.
fn ends(plan: &Plan, report: &mut Report) -> Result<(), String> {
    let rows = [
        ("3 members: pause of puts when the leader is killed", End::Killed),
        ("3 members: pause of puts when the leader is told to stop", End::Terminated),
    ];
    for (row, end) in rows {
        if !plan.wants(row) {
            continue;
        }
        let mut clusters = start(plan)?;
        for _ in 0..ENDS {
            for cluster in &mut clusters {
                let pause = block_on(end_of_leader(cluster, end)).map_err(in_row(row, cluster))?;
                report.add(row, name(cluster), Measure::of_pause(pause));
            }
        }
        report.print_row(row);
    }
    Ok(())
}

/// Ends the leader, and starts it again. Returns the longest time without the answer to a put until a put that was sent
/// after the leader's end is answered.
async fn end_of_leader(cluster: &mut Cluster, end: End) -> Result<Duration, String> {
    let leader = cluster.leader().await;
    let survivor = cluster.follower().await;
    let client = cluster.client(survivor);
    put(client.clone()).await?;
    let (answering, mut answers) = mpsc::channel(PROBES_MAX);
    let deadline = Deadline::after(HANGS_AFTER);
    let mut last_answer = now();
    let mut pause = Duration::ZERO;
    let mut gone = None;
    match end {
        End::Killed => cluster.members[leader].kill(),
        End::Terminated => cluster.members[leader].signal("TERM"),
    }
    loop {
        if gone.is_none() && !cluster.members[leader].is_running() {
            gone = Some(now());
        }
        let (client, answering, sent) = (client.clone(), answering.clone(), now());
        tokio::spawn(async move {
            if put(client).await.is_ok() {
                // Nobody waits for the answers to the last probes.
                answering.try_send((sent, now())).ok();
            }
        });
        tokio::time::sleep(PROBE_EVERY).await;
        let mut is_over = false;
        while let Ok((sent, answered)) = answers.try_recv() {
            let answered: Instant = answered;
            pause = pause.max(answered.saturating_duration_since(last_answer));
            last_answer = last_answer.max(answered);
            is_over |= gone.is_some_and(|gone| sent > gone);
        }
        if is_over {
            break;
        }
        if deadline.has_passed() {
            return Err(format!("no put was answered within {} s of the leader's end", HANGS_AFTER.as_secs()));
        }
    }
    let member = &mut cluster.members[leader];
    if let End::Terminated = end {
        member.exited_within(HANGS_AFTER).ok_or("no end after SIGTERM")?;
    }
    member.start();
    member.ready().await;
    cluster.aligned().await;
    Ok(pause)
}

async fn put(mut client: Client) -> Result<(), String> {
    let put = PutRequest { key: KEYS.key(0), value: "probe".into(), ..PutRequest::default() };
    client.kv.put(put).await.map(drop).map_err(|status| status.to_string())
}

#[derive(Clone, Copy)]
enum Nap {
    Stopped,
    Killed,
}

/// How many entries a member misses while it sleeps, and how many more while it is woken.
#[derive(Clone, Copy)]
struct NapLength {
    missed: u64,
    beside: u64,
}

impl NapLength {
    fn hangs_after(self) -> Duration {
        HANGS_AFTER + Duration::from_secs((self.missed + self.beside) / ENTRIES_A_SECOND_MIN)
    }
}

/// A member sleeps while the others take puts, and catches up while they take a few more.
fn naps(plan: &Plan, length: NapLength, report: &mut Report) -> Result<(), String> {
    let missed = thousands(length.missed);
    let asleep = &format!("3 members: put, 99 clients, while a member sleeps through {missed}");
    let beside = &format!("3 members: put, 9 clients, while a member catches up on {missed}");
    let [stopped, killed] =
        ["SIGCONT", "kill -9 and a start"].map(|wake| format!("3 members: catch-up on {missed} entries after {wake}"));
    if ![asleep, beside, &stopped, &killed].into_iter().any(|row| plan.wants(row)) {
        return Ok(());
    }
    let mut clusters = start(plan)?;
    for turn in 0..plan.alternations {
        for (row, nap) in [(&stopped, Nap::Stopped), (&killed, Nap::Killed)] {
            for cluster in &mut clusters {
                std::thread::sleep(SETTLE);
                let seed = plan.seed + u64::try_from(turn).unwrap_or(0);
                let slept = sleep(cluster, nap, length, seed).map_err(in_row(row, cluster))?;
                report.add(asleep, name(cluster), Measure::of(&slept.meanwhile));
                report.add(beside, name(cluster), Measure::of(&slept.beside));
                report.add(row, name(cluster), Measure::of_wait(slept.behind, slept.beside.resident_bytes));
            }
        }
    }
    [asleep, beside, &stopped, &killed].into_iter().for_each(|row| report.print_row(row));
    Ok(())
}

/// What one nap showed.
struct Slept {
    meanwhile: Run,
    beside: Run,
    /// From waking the member until it had what the others had then.
    behind: Duration,
}

fn sleep(cluster: &mut Cluster, nap: Nap, length: NapLength, seed: u64) -> Result<Slept, String> {
    let sleeper = block_on(async { Ok(cluster.follower().await) })?;
    match nap {
        Nap::Stopped => cluster.members[sleeper].signal("STOP"),
        Nap::Killed => cluster.members[sleeper].kill(),
    }
    let awake = cluster.members.iter().enumerate().filter(|(number, _)| *number != sleeper);
    let awake = Target::of(awake.map(|(_, member)| member));
    let puts = |left| Puts { source: Source::new(KEYS, seed), left };
    let meanwhile = load::run(&awake, 99, &mut puts(length.missed), Length::Whole)?;
    let goal = block_on(async { revision(&Client::new(&awake.endpoints[0])).await.ok_or("no revision".to_owned()) })?;
    let endpoint = cluster.members[sleeper].endpoint();
    let woken = Deadline::after(length.hangs_after());
    match nap {
        Nap::Stopped => cluster.members[sleeper].signal("CONT"),
        Nap::Killed => cluster.members[sleeper].start(),
    }
    let (behind, beside) = std::thread::scope(|scope| {
        let catching_up = scope.spawn(|| block_on(caught_up(&endpoint, goal, woken)));
        let beside = load::run(&awake, CLIENTS_BESIDE, &mut puts(length.beside), Length::Whole);
        (catching_up.join().expect("asking for a revision does not panic"), beside)
    });
    let slept = Slept { meanwhile, beside: beside?, behind: behind? };
    block_on(async { Ok(cluster.aligned().await) })?;
    Ok(slept)
}

async fn caught_up(endpoint: &str, goal: i64, woken: Deadline) -> Result<Duration, String> {
    loop {
        // A new connection each time, since the member may not listen yet.
        if revision(&Client::new(endpoint)).await.is_some_and(|revision| revision >= goal) {
            return Ok(woken.elapsed());
        }
        if woken.has_passed() {
            return Err(format!("the member has not come to revision {goal} within {} s", woken.elapsed().as_secs()));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The revision that a member has applied, where it says so soon.
async fn revision(client: &Client) -> Option<i64> {
    let mut maintenance = client.maintenance.clone();
    let status = maintenance.status(StatusRequest {});
    let status = tokio::time::timeout(Duration::from_secs(1), status).await.ok()?.ok()?;
    status.into_inner().header.map(|header| header.revision)
}
