//! Faults under load, again and again: whatever happens to members and links, clients see one store.
//!
//! Each round starts clients and watchers, breaks something, mends it, and lets every member take a write. Then all
//! members must have the same hash, what clients were told must be linearizable, and watchers must have been told all of
//! it, in order and once. A round that fails prints its kind and seed and where its history is saved.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::linearizability;
use kuorum_tests::network::{Condition, Network};
use kuorum_tests::random::{Random, seed};
use kuorum_tests::recorder::{Load, Recorder};
use kuorum_tests::small_disk::SmallDisk;
use kuorum_tests::subject::{Subject, target_dir};
use kuorum_tests::watches;

use crate::{block_on, get, put};

const ROUNDS_VARIABLE: &str = "KUORUM_FAULT_ROUNDS";
/// Of each kind: all kinds take about a minute.
const ROUNDS: u64 = 2;
const MEMBERS: usize = 3;
/// Far fewer entries than a round writes are kept for a member that was away, so that some need a snapshot.
const FLAGS: [&str; 2] = ["--snapshot-count=200", "--snapshot-catchup-entries=100"];
/// Two that stay with each member would be enough to see it stale; as many ask any member.
const CLIENTS: usize = 12;
/// Load before and after the fault.
const QUIET: Duration = Duration::from_millis(400);
/// A fault lasts from a moment that nobody notices to well beyond the election timeout of a second.
const FAULT_MILLISECONDS: (u64, u64) = (200, 2_800);
/// A member that takes no write by then, with everything mended, hangs.
const MENDED_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// Room for two log segments of 64 MiB and some data.
const DISK_MIB: u64 = 200;
/// Room that a disk is left with: enough for a member to live, and less than it wants for writes.
const SPARED_BYTES: u64 = 16 << 20;

/// A cluster under test and what can be done to it.
struct Stage {
    cluster: Cluster,
    network: Network,
    random: Random,
    /// The disks of the members that have one of their own. They go after the members.
    disks: Vec<(usize, SmallDisk)>,
}

impl Stage {
    /// Lets the fault last.
    async fn last(&mut self) {
        let (low, high) = FAULT_MILLISECONDS;
        tokio::time::sleep(Duration::from_millis(self.random.between(low, high))).await;
    }

    /// Breaks connections, or holds what they carry.
    fn broken(&mut self) -> Condition {
        if self.random.one_in(2) { Condition::Cut } else { Condition::Held }
    }

    /// Load for the round of this name.
    fn load(&mut self, name: &str, first_revision: i64) -> Load {
        Load {
            endpoints: self.cluster.members.iter().map(|member| member.endpoint()).collect(),
            prefix: format!("{name}/"),
            first_revision,
            clients: CLIENTS,
            serializable: false,
            seed: self.random.number(),
            saved_as: target_dir().join("faults").join(name),
        }
    }

    fn slow(&mut self) -> Condition {
        let delay = Duration::from_millis(self.random.below(80));
        Condition::Slow { bytes: 1 << self.random.between(10, 16), delay }
    }

    /// Every direction of every link: from a member to another.
    fn links() -> impl Iterator<Item = (usize, usize)> {
        (0..MEMBERS).flat_map(|from| (0..MEMBERS).filter(move |to| *to != from).map(move |to| (from, to)))
    }

    /// Whatever breaks, no member says what another must refuse; it would lose the connection with all that is on it.
    fn no_member_was_refused(&self) {
        for member in &self.cluster.members {
            let log = member.log();
            let refused =
                log.lines().find(|line| ["\"a message ", "\"a frame "].iter().any(|words| line.contains(words)));
            assert!(refused.is_none(), "{} refused what another member said: {refused:?}", member.name);
        }
    }

    /// Writes through every member, as often as it takes.
    async fn write_through_all(&mut self) {
        let deadline = Deadline::after(MENDED_WITHIN);
        for number in 0..MEMBERS {
            let mut client = self.cluster.client(number);
            while let Err(status) = put(&mut client, "mended", "").await {
                let member = &mut self.cluster.members[number];
                assert!(member.is_running(), "member {number} ended by itself\n{}", member.log_tail());
                assert!(!deadline.has_passed(), "member {number} takes no write: {status}\n{}", member.log_tail());
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// Runs rounds of one kind on one cluster.
fn rounds(kind: &str, prepare: impl FnOnce(&mut Stage), fault: impl AsyncFn(&mut Stage)) {
    let rounds = std::env::var(ROUNDS_VARIABLE)
        .map_or(ROUNDS, |text| text.parse().unwrap_or_else(|_| panic!("{ROUNDS_VARIABLE}={text} is not a number")));
    let seed = seed(kind);
    block_on(async {
        let mut stage = started(seed, prepare).await;
        for number in 0..rounds {
            eprintln!("{kind}: round {number} of seed {seed}");
            round(&mut stage, &format!("{kind}-{seed}-{number}"), &fault).await;
        }
        // The file systems must be idle before they can go.
        stage.cluster.members.iter_mut().for_each(kuorum_tests::member::Member::kill);
    });
}

async fn started(seed: u64, prepare: impl FnOnce(&mut Stage)) -> Stage {
    let (cluster, network) = Cluster::in_network(&Subject::kuorum(), MEMBERS, &FLAGS);
    let mut stage = Stage { cluster, network, random: Random::new(seed), disks: Vec::new() };
    prepare(&mut stage);
    stage.cluster.start().await;
    stage.network.introduce(stage.cluster.ids().await);
    stage
}

/// Nothing is to be prepared.
fn as_it_is(_: &mut Stage) {}

/// One round: load, fault, load, and the verdict.
async fn round(stage: &mut Stage, name: &str, fault: &impl AsyncFn(&mut Stage)) {
    stage.write_through_all().await;
    let (before, _) = stage.cluster.aligned().await;
    let mut recorder = Recorder::start(stage.load(name, before + 1));
    tokio::time::sleep(QUIET).await;
    fault(stage).await;
    tokio::time::sleep(QUIET).await;
    recorder.stop().await;
    stage.write_through_all().await;
    stage.no_member_was_refused();
    let (revision, _) = stage.cluster.aligned().await;
    let answered = recorder.answered();
    recorder.read_all().await;
    let history = recorder.finish(revision).await;
    eprintln!("{answered} of {} requests were answered, revision {revision}", history.operations.len());
    assert!(!history.past.is_empty(), "no write happened in the whole round");
    if let Err(problem) = linearizability::check(&history).and_then(|()| watches::check(&history)) {
        panic!("{name}: {problem}");
    }
}

#[test]
fn clients_see_one_store_while_the_leader_is_killed() {
    rounds("leader_killed", as_it_is, async |stage| {
        let leader = stage.cluster.leader().await;
        stage.cluster.members[leader].kill();
        stage.last().await;
        stage.cluster.members[leader].start();
        stage.cluster.members[leader].ready().await;
    });
}

async fn stopped(stage: &mut Stage, number: usize) {
    stage.cluster.members[number].signal("STOP");
    stage.last().await;
    stage.cluster.members[number].signal("CONT");
}

#[test]
fn clients_see_one_store_while_the_leader_stands_still() {
    rounds("leader_stopped", as_it_is, async |stage| {
        let leader = stage.cluster.leader().await;
        stopped(stage, leader).await;
    });
}

#[test]
fn clients_see_one_store_while_a_follower_stands_still() {
    rounds("follower_stopped", as_it_is, async |stage| {
        let follower = stage.cluster.follower().await;
        stopped(stage, follower).await;
    });
}

#[test]
fn clients_see_one_store_while_the_leader_is_cut_off() {
    rounds("leader_cut_off", as_it_is, async |stage| {
        let leader = stage.cluster.leader().await;
        let condition = stage.broken();
        for other in (0..MEMBERS).filter(|other| *other != leader) {
            stage.network.set(leader, other, condition);
            stage.network.set(other, leader, condition);
        }
        stage.last().await;
        stage.network.heal();
    });
}

#[test]
fn clients_see_one_store_while_links_are_cut_one_way() {
    rounds("cut_one_way", as_it_is, async |stage| {
        let leader = stage.cluster.leader().await;
        let follower = stage.cluster.follower().await;
        let other = MEMBERS - leader - follower;
        let links = match stage.random.below(5) {
            0 => vec![(leader, follower), (leader, other)],
            1 => vec![(follower, leader), (other, leader)],
            2 => vec![(leader, follower)],
            3 => vec![(follower, leader)],
            _ => vec![(leader, follower), (follower, other), (other, leader)],
        };
        let condition = stage.broken();
        for (from, to) in links {
            stage.network.set(from, to, condition);
        }
        stage.last().await;
        stage.network.heal();
    });
}

#[test]
fn clients_see_one_store_over_slow_links() {
    rounds("slow_links", as_it_is, async |stage| {
        for (from, to) in Stage::links() {
            let condition = stage.slow();
            stage.network.set(from, to, condition);
        }
        stage.last().await;
        stage.network.heal();
    });
}

#[test]
fn clients_see_one_store_while_a_disk_is_full() {
    let mount = |stage: &mut Stage| {
        for (number, member) in stage.cluster.members.iter_mut().enumerate() {
            match SmallDisk::mount(member.home().join("disk"), DISK_MIB) {
                Some(disk) => {
                    member.set_data_dir(disk.path().join("data"));
                    stage.disks.push((number, disk));
                }
                None => eprintln!("mounting is refused: the disk of member {number} is never full"),
            }
        }
    };
    rounds("disk_full", mount, async |stage| {
        let leader = stage.cluster.leader().await;
        // As often the leader's as any.
        let number = if stage.random.one_in(2) { leader } else { stage.cluster.follower().await };
        let disk = stage.disks.iter().find(|(owner, _)| *owner == number);
        let Some((_, disk)) = disk else { return };
        // Below what a member keeps in reserve it refuses writes; with nothing left it may stop.
        let spared_bytes = if stage.random.one_in(2) { SPARED_BYTES } else { 0 };
        disk.fill(spared_bytes);
        let (low, high) = FAULT_MILLISECONDS;
        tokio::time::sleep(Duration::from_millis(stage.random.between(low, high))).await;
        disk.clear();
        let member = &mut stage.cluster.members[number];
        if member.exited_within(Duration::ZERO).is_some() {
            assert!(
                member.log().contains("No space left on device"),
                "it ended without a reason\n{}",
                member.log_tail()
            );
            member.start();
            member.ready().await;
        }
        disarm_all(stage).await;
    });
}

/// Disarms alarms until none is left: a member may raise its own once more before it has seen that there is room.
async fn disarm_all(stage: &mut Stage) {
    let deadline = Deadline::after(MENDED_WITHIN);
    let leader = stage.cluster.leader().await;
    let mut client = stage.cluster.client(leader);
    let mut calm = Deadline::after(QUIET);
    while !calm.has_passed() {
        assert!(!deadline.has_passed(), "alarms come back for ever");
        let list = pb::AlarmRequest { action: pb::alarm_request::AlarmAction::Get.into(), ..Default::default() };
        let Ok(list) = client.maintenance.alarm(list).await else { continue };
        for alarm in list.into_inner().alarms {
            calm = Deadline::after(QUIET);
            let action = pb::alarm_request::AlarmAction::Deactivate.into();
            let disarm = pb::AlarmRequest { action, member_id: alarm.member_id, alarm: alarm.alarm };
            if let Err(status) = client.maintenance.alarm(disarm).await {
                eprintln!("an alarm stays: {status}");
            }
        }
        tokio::time::sleep(POLL).await;
    }
    get(&mut client, "mended", false).await.unwrap();
}

/// Several faults at once, each beginning and ending when it likes.
#[test]
fn clients_see_one_store_while_everything_fails() {
    rounds("everything", as_it_is, async |stage| {
        let mut is_stopped = [false; MEMBERS];
        for _ in 0..stage.random.between(3, 9) {
            fail(stage, &mut is_stopped);
            tokio::time::sleep(Duration::from_millis(stage.random.below(900))).await;
        }
        stage.network.heal();
        for (number, member) in stage.cluster.members.iter_mut().enumerate() {
            match member.is_running() {
                true if is_stopped[number] => member.signal("CONT"),
                true => {}
                false => member.start(),
            }
        }
        for member in &mut stage.cluster.members {
            member.ready().await;
        }
    });
}

/// Begins or ends a fault at random.
fn fail(stage: &mut Stage, is_stopped: &mut [bool; MEMBERS]) {
    let number = draw(&mut stage.random, MEMBERS);
    let other = (number + 1 + draw(&mut stage.random, MEMBERS - 1)) % MEMBERS;
    let member = &mut stage.cluster.members[number];
    if !member.is_running() {
        member.start();
        return;
    }
    match stage.random.below(5) {
        0 => {
            member.kill();
            is_stopped[number] = false;
        }
        1 => {
            is_stopped[number] = !is_stopped[number];
            member.signal(if is_stopped[number] { "STOP" } else { "CONT" });
        }
        kind => {
            let condition = match kind {
                2 => stage.broken(),
                3 => stage.slow(),
                _ => Condition::Open,
            };
            stage.network.set(number, other, condition);
        }
    }
}

fn draw(random: &mut Random, below: usize) -> usize {
    *random.pick(&[0, 1, 2][..below])
}

/// Reads that may be stale are found to be, so the rounds above would find a store that serves such reads.
#[test]
fn stale_reads_are_seen_by_the_checker() {
    let seed = seed("stale_reads_are_seen_by_the_checker");
    block_on(async {
        let mut stage = started(seed, as_it_is).await;
        let (before, _) = stage.cluster.aligned().await;
        for (from, to) in Stage::links() {
            stage.network.set(from, to, Condition::Slow { bytes: 1 << 16, delay: Duration::from_millis(20) });
        }
        let mut recorder = Recorder::start(Load { serializable: true, ..stage.load("stale", before + 1) });
        tokio::time::sleep(2 * QUIET).await;
        recorder.stop().await;
        stage.network.heal();
        let (revision, _) = stage.cluster.aligned().await;
        let history = recorder.finish(revision).await;
        let verdict = linearizability::check(&history).unwrap_err();
        assert!(verdict.contains("read a revision below that of"), "{verdict}");
    });
}
