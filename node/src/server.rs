//! Wiring: builds the parts, starts their threads, stops them in reverse. Decides nothing else.

mod current;
mod data_dir;
mod join;
mod trusted_keys;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use kuorum_proto::membershippb::{Attributes, ClusterMemberAttrSetRequest};
use tokio::sync::{Notify, watch as watch_channel};

use crate::admission::{self, Gate, space};
use crate::alarm::Alarms;
use crate::apply::Applier;
use crate::cluster::{Facts, Members};
use crate::config::{self, AutoCompaction, Config, MetricsDetail};
use crate::consensus::answers::{Delivery, PostOffice};
use crate::consensus::driver::{self, Driver};
use crate::consensus::handle::Shared;
use crate::consensus::inbox::Inbox;
use crate::consensus::inlet::Inlet;
use crate::consensus::tail::Tail;
use crate::consensus::{self, runner};
use crate::lease::{self, Leases};
use crate::maintenance::{self, Upkeep, clock, disk, planning, preparation};
use crate::mvcc::revision::Revision;
use crate::mvcc::{CurrentStore, Store};
use crate::policy::compaction::{Mode, Schedule};
use crate::policy::plan::StandIn;
use crate::policy::plugins::{Registry, TrustedKeys};
use crate::refusal::Refusal;
use crate::roster::Roster;
use crate::roster::reader::Reader;
use crate::transport::Peers;

use crate::{apply, catch_up, cluster, metrics, rpc, watch};
use data_dir::DataDir;

/// How long a start may wait for this member to lead and to apply what its log holds, before it says so and goes on
/// waiting. Not a bound on the start itself: a long log takes the time it takes.
const START_REMINDER: Duration = Duration::from_secs(10);
/// Pause before a member that could not introduce itself tries again.
const INTRODUCTION_PAUSE: Duration = Duration::from_millis(100);
/// How long a member waits for its cluster before it lets clients in all the same (etcd: --wait-cluster-ready-timeout).
const READY_PATIENCE: Duration = Duration::from_secs(5);
/// How long a leader that stops waits for another to lead.
const HAND_OVER_PATIENCE: Duration = Duration::from_millis(500);
/// How often a leader that was removed looks whether another leads.
const LEAVE_POLL: Duration = Duration::from_millis(10);
/// How long a request waits for other members, beside two election timeouts (etcd: ReqTimeout).
const REQUEST_PATIENCE: Duration = Duration::from_secs(5);
/// How long a stop waits for work on the disk that is under way, such as a compaction. Cut short it is taken up again
/// at the next start.
const DISK_STOP_GRACE: Duration = Duration::from_millis(500);
const DISK_STOP_POLL: Duration = Duration::from_millis(5);
/// How often the time left of long leases is noted where the gate LeaseCheckpoint is on (etcd's interval).
const LEASE_CHECKPOINT_INTERVAL_MS: u64 = 300_000;
/// How often a store that another took the place of is looked at, and how many times, before it is removed.
const OLD_STORE_POLL: Duration = Duration::from_millis(100);
const OLD_STORE_POLLS_MAX: u32 = 300;
/// The version the cluster works at, as metrics name it.
const CLUSTER_VERSION: &str = "3.7";
/// Changes that may wait for the watch thread.
const WATCH_FEED_BYTES_MAX: usize = 64 << 20;
/// Recent changes kept for watchers that are a little behind.
const WATCH_RECENT_BYTES_MAX: usize = 16 << 20;
/// Bytes that may wait for one watching client.
const WATCH_STREAM_BYTES_MAX: usize = 8 << 20;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// One sentence that says what hinders the start, where, and what to do. Nothing on disk is changed before the
/// listeners are bound and the data directory is found to be this member's.
#[expect(clippy::disallowed_methods, reason = "the clock seam: monotonic time of the process starts here")]
pub fn run(config: Config) -> anyhow::Result<()> {
    let config = &config;
    end_on_panic();
    let started = Instant::now();
    let trusted_keys = trusted_keys::read(&config.plugins.trusted_keys)?;
    let listeners = rpc::bind(&config.listen)?;
    say_what_starts(config);
    let data = DataDir::open(config)?;
    let number = data.number;
    let member = Running::start(config, data, trusted_keys, started)?;
    let serving = rpc::serve(Arc::clone(&member.node), listeners, member.office.clone(), &config.into())?;
    introduce(config, number, &member.node);
    serving.open();
    crate::info!("ready to serve client requests");
    for address in serving.client_addresses() {
        crate::info!(
            "serving client traffic insecurely; this is strongly discouraged!",
            traffic = "grpc+http",
            address = address.to_string()
        );
    }
    if let Some(signal) = serving.wait_for_signal(&member.departed)? {
        crate::info!("received signal; shutting down", signal = signal);
        hand_over(&member.node);
    } else {
        leave(&member.node, 2 * config.raft.election_timeout);
    }
    serving.stop();
    member.stop()?;
    crate::info!("stopped");
    // Everything is on disk; taking the engine down part by part would only keep whoever waits for this process
    // waiting.
    std::process::exit(0)
}

/// The line with which etcd starts too, with what the flags came to.
fn say_what_starts(config: &Config) {
    let joined = |urls: &[config::Url]| urls.iter().map(config::Url::text).collect::<Vec<_>>().join(",");
    let cluster = &config.cluster;
    let members = cluster.initial.iter().flat_map(|(name, urls)| urls.iter().map(move |url| format!("{name}={url}")));
    crate::info!(
        "starting an etcd server",
        "etcd-version" = config::ETCD_VERSION,
        "kuorum-version" = env!("CARGO_PKG_VERSION"),
        name = config.member.name,
        "data-dir" = config.member.data_dir.display().to_string(),
        "wal-dir" = config.member.wal_dir().display().to_string(),
        "heartbeat-interval" = config.raft.heartbeat_interval,
        "election-timeout" = config.raft.election_timeout,
        "pre-vote" = config.raft.pre_vote,
        "snapshot-count" = config.raft.snapshot_entries,
        "snapshot-catchup-entries" = config.raft.catch_up_entries,
        "initial-advertise-peer-urls" = joined(&cluster.advertise_peer_urls),
        "listen-peer-urls" = joined(&config.listen.peer),
        "advertise-client-urls" = joined(&cluster.advertise_client_urls),
        "listen-client-urls" = joined(&config.listen.client),
        "initial-cluster" = members.collect::<Vec<_>>().join(","),
        "initial-cluster-state" = if cluster.joins_existing { "existing" } else { "new" },
        "initial-cluster-token" = cluster.token,
        "max-request-bytes" = config.limits.request_bytes_max
    );
}

/// A thread of the node that panics has lost its invariants; the process must not go on without it.
fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let what = panic.payload_as_str().unwrap_or("no message");
        crate::error!("a fault in the server; the process ends", what = what, place = place);
        std::process::abort();
    }));
}

/// A member whose threads run.
struct Running {
    node: Arc<rpc::Node>,
    office: PostOffice,
    raft: runner::Running,
    apply_queue: apply::thread::Queue,
    apply: JoinHandle<()>,
    watch: watch::Running,
    clock: JoinHandle<()>,
    disk: JoinHandle<()>,
    /// Told when this member was removed from the cluster.
    departed: Arc<Notify>,
    /// Dropping it ends the clock and disk threads.
    stop: Sender<()>,
    /// Held until everything else has stopped.
    _lock: File,
}

/// What the threads share.
struct Base {
    facts: Arc<Facts>,
    office: PostOffice,
    shared: Arc<Shared>,
    inbox: Arc<Inbox<consensus::event::Event>>,
    handle: consensus::Handle,
    room: space::Room,
    sizes: space::Sizes,
    limits: admission::Limits,
    gate: Gate,
    leases: Leases,
    alarms: Alarms,
    registry: Registry,
    roster: Roster,
    stand_in: StandIn,
    questions: rpc::leader::Questions,
    peers: Peers,
    store: CurrentStore,
    snapshots_in: catch_up::Receiver,
    snapshots_out: catch_up::Sender,
}

impl Base {
    fn new(config: &Config, data: &DataDir) -> anyhow::Result<Base> {
        let shared = Arc::new(Shared::new(data.applied.index, rand::random()));
        let inbox = Arc::new(Inbox::new());
        let room = space::Room::default();
        let sizes = space::Sizes::default();
        sizes.set_allocated_bytes(data.store.sizes().allocated_bytes);
        let limits = admission::Limits {
            request_bytes_max: config.limits.request_bytes_max,
            txn_operations_max: config.limits.txn_ops_max,
            quota_bytes: config.limits.quota_bytes,
        };
        let tick_ms = u64::try_from(config.raft.heartbeat_interval.as_millis())?;
        let ttl_seconds_min = lease::ttl_seconds_min(config.raft.election_ticks as u64, tick_ms);
        let leases = match config.gates.lease_checkpoint {
            true => Leases::with_checkpoints(ttl_seconds_min, LEASE_CHECKPOINT_INTERVAL_MS),
            false => Leases::new(ttl_seconds_min),
        };
        let alarms = Alarms::default();
        let (registry, roster) = (Registry::default(), Roster::default());
        roster.follow(&registry);
        let gate = Gate::new(limits, sizes.clone(), room.clone(), registry.epoch());
        apply::recover(&data.store, &leases, &alarms, &registry)?;
        let store = CurrentStore::new(data.store.clone());
        let snapshots_in = catch_up::Receiver::new(
            data.path.join("member"),
            data.identity,
            config.compaction.batch_revisions_max,
            Arc::clone(&shared),
            Arc::clone(&inbox),
        );
        let questions = rpc::leader::Questions::new();
        let inlet = Inlet::new(Arc::clone(&inbox), Arc::new(questions.clone()), snapshots_in.clone());
        let own_urls = config.cluster.advertise_peer_urls.iter().map(|url| url.text().to_owned()).collect();
        let peers = Peers::new(data.identity, data.number, own_urls, data.members.clone(), Arc::new(inlet));
        peers.follow_members()?;
        let inbox_of_snapshots = Arc::clone(&inbox);
        Ok(Base {
            facts: Arc::new(Facts::new(data.identity.cluster_id, data.identity.member_id)),
            office: PostOffice::new(rpc::shards()),
            handle: consensus::Handle::new(Arc::clone(&inbox), Arc::clone(&shared)),
            gate,
            shared,
            inbox,
            room,
            sizes,
            limits,
            leases,
            alarms,
            registry,
            roster,
            stand_in: StandIn::default(),
            questions,
            snapshots_out: catch_up::Sender::new(store.clone(), peers.clone(), inbox_of_snapshots),
            peers,
            store,
            snapshots_in,
        })
    }
}

fn start_metrics(config: &Config, identity: &cluster::Identity) {
    let quota_bytes = config.limits.quota_bytes.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    let identity = metrics::Identity {
        server_version: config::ETCD_VERSION,
        cluster_version: CLUSTER_VERSION,
        server_id: &identity.member_id.to_string(),
        quota_bytes,
    };
    metrics::start(config.http.metrics == MetricsDetail::Extensive, &identity);
}

impl Running {
    fn start(config: &Config, data: DataDir, trusted_keys: TrustedKeys, started: Instant) -> anyhow::Result<Running> {
        start_metrics(config, &data.identity);
        #[rustfmt::skip]
        let Base {
            facts, office, shared, inbox, handle, room, sizes, limits, gate, leases, alarms, registry, roster, questions,
            stand_in, peers, store, snapshots_in, snapshots_out,
        } = Base::new(config, &data)?;
        let (stop, stopped) = crossbeam_channel::bounded(0);
        let (compactions, compactions_due) = compaction_queue(&data.store);
        let (durability, durability_wanted) = crossbeam_channel::bounded(1);
        let (upkeep, disk_jobs, compacted) = Upkeep::with_queue();
        let (members_changed, departed) = members_changed(&data, peers.clone());
        let PluginNews { changed, readied, changes: plugins_changed, to_prepare } = PluginNews::new();
        let (hub, feed, watch) = watch::start(data.store.clone(), Arc::clone(&facts), watch_options(config), started)?;
        let (apply_queue, apply) = apply::thread::start(apply::thread::Parts {
            applier: Applier::new(data.writer, leases.clone(), alarms.clone(), data.members.clone(), registry.clone()),
            delivery: Delivery::new(office.clone()),
            shared: Arc::clone(&shared),
            feed,
            compactions,
            applied: data.applied,
            raft: Arc::clone(&inbox),
            members_changed,
            plugins_changed: changed,
            install: install(data.path.join("member"), data.store_name, store.clone(), snapshots_in),
            sizes: sizes.clone(),
            slow: config.upkeep.slow_apply,
        })?;
        let raft = runner::start(runner::Parts {
            driver: driver(config, &data.identity, &data.members, data.recovered, data.applied.index)?,
            inbox,
            log: data.log,
            apply: apply_queue.clone(),
            delivery: Delivery::new(office.clone()),
            shared,
            facts: Arc::clone(&facts),
            peers: peers.clone(),
            snapshots: snapshots_out,
            tick: config.raft.heartbeat_interval,
            room: room.clone(),
            durability,
        })?;
        let clock = clock::start(clock::Parts {
            store: store.clone(),
            consensus: handle.clone(),
            gate: gate.clone(),
            leases: leases.clone(),
            sizes,
            schedule: Schedule::new(mode(config.compaction.auto), clock::now_ms(started)),
            stand_in: stand_in.clone(),
            roster: roster.clone(),
            registry: registry.clone(),
            dirs: [data.path.clone(), config.member.wal_dir()],
            room,
            started,
            stop: stopped.clone(),
        })?;
        #[rustfmt::skip]
        let disk = disk::start(disk::Parts {
            store: store.clone(), consensus: handle.clone(), jobs: disk_jobs, compactions: compactions_due,
            durability: durability_wanted, stop: stopped.clone(), compacted, compaction_pause: config.compaction.pause,
        })?;
        #[rustfmt::skip]
        let node = Arc::new(rpc::Node {
            limits, rules: change_rules(config), facts, consensus: handle, store, leases, alarms, members: data.members,
            watch: hub, upkeep, gate, peers, questions, errands: rpc::errands::Errands::new(), plugins: registry, roster,
            uploads: rpc::uploads(), slow_lane: rpc::slow_lane(), trusted_keys, plugins_changed, patience: patience(config), started,
        });
        plan_compactions(&node, stand_in, stopped.clone())?;
        prepare_plugins(&node, data.path.join("member").join("plugins"), readied, to_prepare, stopped)?;
        Ok(Running { node, office, raft, apply_queue, apply, watch, clock, disk, departed, stop, _lock: data.lock })
    }

    /// Stops in reverse: nobody proposes any more, then the log, then apply, then who looks at what was applied.
    #[expect(clippy::disallowed_methods, reason = "the clock seam: how long the stop has taken")]
    fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        join(self.clock);
        self.raft.stop();
        self.node.peers.stop();
        self.apply_queue.push(apply::Task::Stop);
        join(self.apply);
        self.watch.stop();
        let begun = Instant::now();
        while !self.disk.is_finished() && begun.elapsed() < DISK_STOP_GRACE {
            std::thread::sleep(DISK_STOP_POLL);
        }
        self.node.store.get().persist()?;
        Ok(())
    }
}

/// What follows from a change of the members on this one: other connections, and its own end once it was removed.
/// The latter is notified.
fn members_changed(data: &DataDir, peers: Peers) -> (Box<dyn Fn() + Send>, Arc<Notify>) {
    let (members, own) = (data.members.clone(), data.identity.member_id);
    let departed = Arc::new(Notify::new());
    let departs = Arc::clone(&departed);
    let changed = move || {
        if let Err(error) = peers.follow_members() {
            crate::fatal!("the system gives no thread", error = error.to_string());
        }
        if members.was_removed(own) {
            crate::warn!(
                "the member has been permanently removed from the cluster",
                "local-member-id" = own.to_string()
            );
            departs.notify_one();
        }
    };
    (Box::new(changed), departed)
}

/// Who tells of plugins, and who hears of it.
struct PluginNews {
    /// Called when plugins change.
    changed: Box<dyn Fn() + Send>,
    /// Called when one is ready here.
    readied: Box<dyn Fn() + Send>,
    /// Requests that wait hear of both.
    changes: watch_channel::Receiver<()>,
    /// The preparation thread hears of changes.
    to_prepare: Receiver<()>,
}

impl PluginNews {
    fn new() -> PluginNews {
        let (tell, changes) = watch_channel::channel(());
        let tell = Arc::new(tell);
        let (wake, to_prepare) = crossbeam_channel::bounded(1);
        let changed = {
            let tell = Arc::clone(&tell);
            move || {
                tell.send_replace(());
                // Full: it looks anyhow.
                wake.try_send(()).ok();
            }
        };
        let readied = move || tell.send_replace(());
        PluginNews { changed: Box::new(changed), readied: Box::new(readied), changes, to_prepare }
    }
}

/// Starts to prepare plugins. Not waited for at a stop: a preparation may take long, and what was not told is told after the
/// next start.
fn prepare_plugins(
    node: &rpc::Node,
    cache_dir: PathBuf,
    readied: Box<dyn Fn() + Send>,
    changed: Receiver<()>,
    stop: Receiver<()>,
) -> std::io::Result<()> {
    let parts = preparation::Parts {
        store: node.store.clone(),
        consensus: node.consensus.clone(),
        gate: node.gate.clone(),
        member: node.facts.member_id,
        registry: node.plugins.clone(),
        roster: node.roster.clone(),
        trusted_keys: node.trusted_keys.clone(),
        cache_dir,
        reader: Arc::new(Reader(node.store.clone())),
        readied,
        changed,
        stop,
    };
    preparation::start(parts).map(|_| ())
}

/// Starts to ask plugins what to compact. Not waited for at a stop: what it waits for may take long, and the next leader
/// asks anew.
fn plan_compactions(node: &rpc::Node, stand_in: StandIn, stop: Receiver<()>) -> std::io::Result<()> {
    let parts = planning::Parts {
        store: node.store.clone(),
        consensus: node.consensus.clone(),
        gate: node.gate.clone(),
        member: node.facts.member_id,
        members: node.members.clone(),
        registry: node.plugins.clone(),
        roster: node.roster.clone(),
        upkeep: node.upkeep.clone(),
        neighbours: Box::new(node.errands.clone()),
        stand_in,
        started: node.started,
        stop,
    };
    planning::start(parts).map(|_| ())
}

/// Compactions on their way to the disk thread. The first is the newest before this start: where a crash interrupted its
/// being carried out, it goes on.
fn compaction_queue(store: &Store) -> (Sender<Revision>, Receiver<Revision>) {
    let (sender, receiver) = crossbeam_channel::bounded(maintenance::COMPACTIONS_MAX);
    sender.send(store.compacted()).expect("a new queue has room, and its receiver is here");
    (sender, receiver)
}

fn join(thread: JoinHandle<()>) {
    thread.join().expect("a thread of the node ends the process rather than panic");
}

/// Puts a store made of another member's rows in the place of the one in use. The old one is removed once nobody reads it.
fn install(
    member_dir: PathBuf,
    mut name: String,
    current: CurrentStore,
    snapshots: catch_up::Receiver,
) -> Box<dyn FnMut(u64) -> apply::thread::Installed + Send> {
    Box::new(move |index| {
        let Some(arrival) = snapshots.take(index) else {
            crate::fatal!("the rows that were to take the store's place are not there; a restart asks for them again");
        };
        let catch_up::Arrival { mark, name: new_name, store, writer, applied } = arrival;
        if let Err(error) = current::switch(&member_dir, &new_name, &mark) {
            crate::fatal!(
                "the store in use can't be named; a restart asks for the rows again",
                error = error.to_string()
            );
        }
        let old = current.replace(store.clone());
        let old_name = std::mem::replace(&mut name, new_name);
        remove_later(member_dir.clone(), old_name, old);
        apply::thread::Installed { store, writer, applied }
    })
}

/// Removes a store that is in use no more, after a while for those who still read it.
fn remove_later(member_dir: PathBuf, name: String, store: Store) {
    let remove = move || {
        for _ in 0..OLD_STORE_POLLS_MAX {
            std::thread::sleep(OLD_STORE_POLL);
            if store.is_last() {
                break;
            }
        }
        drop(store);
        // What can't be removed now is removed at the next start.
        let dump = member_dir.join(catch_up::index_dump(&name));
        if std::fs::remove_dir_all(member_dir.join(&name)).and_then(|()| std::fs::remove_file(dump)).is_err() {
            crate::info!("what is left of the store before is removed at the next start", store = name);
        }
    };
    // Without a thread it stays until the next start.
    std::thread::Builder::new().name("old-store".into()).spawn(remove).ok();
}

/// The consensus driver over the recovered log.
fn driver(
    config: &Config,
    identity: &cluster::Identity,
    members: &Members,
    recovered: crate::log::Recovered,
    applied: u64,
) -> anyhow::Result<Driver> {
    let tail = Tail::recovered(recovered, members, applied);
    let options = driver::Options {
        member_id: identity.member_id.0,
        tick_ms: u64::try_from(config.raft.heartbeat_interval.as_millis())?,
        election_ticks: config.raft.election_ticks as u64,
        pre_vote: config.raft.pre_vote,
        snapshot_entries: config.raft.snapshot_entries,
        catch_up_entries: config.raft.catch_up_entries,
        applied,
        boot_nonce: rand::random(),
        early_first_election: config.raft.initial_election_tick_advance,
        seed: rand::random(),
    };
    Driver::new(tail, options).map_err(anyhow::Error::msg)
}

/// Tells the cluster this member's name and client URLs, and so waits until there is a leader and this member has applied
/// its log. After [`READY_PATIENCE`] clients are let in all the same, as in etcd, and the cluster is told when it can be.
fn introduce(config: &Config, data_dir: u64, node: &Arc<rpc::Node>) {
    let client_urls = config.cluster.advertise_client_urls.iter().map(|url| url.text().to_owned()).collect();
    let request = ClusterMemberAttrSetRequest {
        member_id: node.facts.member_id.0,
        member_attributes: Some(Attributes { name: config.member.name.clone(), client_urls, data_dir }),
    };
    let (done, is_done) = crossbeam_channel::bounded::<()>(1);
    let alone = matches!(&node.members.list()[..], [only] if only.id == node.facts.member_id);
    let introduction = {
        let node = Arc::clone(node);
        move || {
            while let Err(refusal) =
                node.consensus.propose_and_wait(Gate::member_attributes(request.clone()), START_REMINDER)
            {
                if refusal == Refusal::Stopped {
                    return;
                }
                crate::info!("still bringing the store up to date with the log", state = refusal.to_string());
                std::thread::sleep(INTRODUCTION_PAUSE);
            }
            // Nobody waits any more after a slow start.
            done.send(()).ok();
        }
    };
    if alone {
        return introduction();
    }
    let thread = std::thread::Builder::new().name("introduce".into()).spawn(introduction);
    if let Err(error) = thread {
        crate::fatal!("the system gives no thread", error = error.to_string());
    }
    if is_done.recv_timeout(READY_PATIENCE) == Err(RecvTimeoutError::Timeout) {
        crate::warn!("timed out waiting for the ready notification", timeout = READY_PATIENCE);
    }
}

/// Leaves leadership to another member, so that the cluster need not miss this one for an election timeout.
fn hand_over(node: &rpc::Node) {
    let others = node.members.list().iter().any(|member| member.id != node.facts.member_id && !member.is_learner);
    if !others || !node.consensus.status().is_leader {
        return;
    }
    match node.consensus.transfer_and_wait(None, HAND_OVER_PATIENCE) {
        Ok(_) => crate::info!("leadership transfer succeeded"),
        Err(refusal) => crate::warn!("leadership transfer failed", error = refusal.to_string()),
    }
}

fn patience(config: &Config) -> Duration {
    REQUEST_PATIENCE + 2 * config.raft.election_timeout
}

fn change_rules(config: &Config) -> rpc::ChangeRules {
    let cluster = &config.cluster;
    rpc::ChangeRules { strict: cluster.strict_reconfig_check, learners_max: cluster.learners_max }
}

/// Waits until a member that was removed leads no more: its driver hands over once the others know of the removal.
fn leave(node: &rpc::Node, patience: Duration) {
    let polls = patience.as_millis() / LEAVE_POLL.as_millis();
    for _ in 0..polls {
        if !node.consensus.status().is_leader {
            return;
        }
        std::thread::sleep(LEAVE_POLL);
    }
    crate::warn!("no other member leads yet; this one stops all the same, since it was removed");
}

fn watch_options(config: &Config) -> watch::Options {
    watch::Options {
        fragment_bytes: config.limits.request_bytes_max + rpc::MESSAGE_OVERHEAD_BYTES,
        progress_interval_ms: u64::try_from(config.upkeep.watch_progress_interval.as_millis()).unwrap_or(u64::MAX),
        feed_bytes_max: WATCH_FEED_BYTES_MAX,
        recent_bytes_max: WATCH_RECENT_BYTES_MAX,
        stream_bytes_max: WATCH_STREAM_BYTES_MAX,
    }
}

fn mode(auto: AutoCompaction) -> Mode {
    match auto {
        AutoCompaction::Off => Mode::Off,
        AutoCompaction::Periodic(retention) => {
            Mode::Periodic { retention_ms: u64::try_from(retention.as_millis()).unwrap_or(u64::MAX) }
        }
        AutoCompaction::Revision(retention) => Mode::Revision { retention },
    }
}
