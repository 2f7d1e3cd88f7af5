//! The apply thread: batches of committed entries in, answers and events out. A lone member that is idle does the same on
//! its raft thread, see [`Queue::try_apply`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use crate::admission::space::Sizes;
use crate::apply::{Applier, Reply};
use crate::command::TXN_STACK_BYTES;
use crate::consensus::answers::{Answer, Delivery, Waiter};
use crate::consensus::effects::Committed;
use crate::consensus::event::Event;
use crate::consensus::handle::Shared;
use crate::consensus::inbox::Inbox;
use crate::metrics;
use crate::mvcc::revision::Revision;
use crate::mvcc::{AppliedMark, Store, Writer};
use crate::watch::Feed;

/// Entries applied in one batch of the store. Large enough that the batch's fixed cost is spread thin, small enough
/// that the first answer of a long backlog does not wait for the last.
const BATCH_ENTRIES_MAX: usize = 1_024;
/// How long the thread sleeps when there is nothing to do; it is woken by work, so this is only a bound.
const IDLE_WAIT: Duration = Duration::from_secs(1);

/// What the apply thread is given.
#[derive(Debug)]
pub(crate) enum Task {
    /// Committed entries, in index order.
    Apply(Vec<Committed>),
    /// Another member's rows, as of this entry, take the place of the store.
    Install(u64),
    /// Reads to release once the index beside them is applied.
    Read(Vec<(u64, Waiter)>),
    /// Finish what came before, then end.
    Stop,
}

/// A store in the place of the one before.
pub(crate) struct Installed {
    pub(crate) store: Store,
    pub(crate) writer: Writer,
    pub(crate) applied: AppliedMark,
}

/// Everything the apply thread works with.
pub(crate) struct Parts {
    pub(crate) applier: Applier,
    pub(crate) delivery: Delivery,
    pub(crate) shared: Arc<Shared>,
    pub(crate) feed: Feed,
    /// Where compactions are carried out on disk, one by one: each has a hash of its own (HashKV), which covers what
    /// was changed since the one before. Full, it makes apply wait.
    pub(crate) compactions: Sender<Revision>,
    pub(crate) applied: AppliedMark,
    /// The raft thread, told of changes of the members once they are committed to the store.
    pub(crate) raft: Arc<Inbox<Event>>,
    /// Called before it is, for the connections to members.
    pub(crate) members_changed: Box<dyn Fn() + Send>,
    /// Called once changes of plugins are committed to the store.
    pub(crate) plugins_changed: Box<dyn Fn() + Send>,
    /// Puts the store that arrived as of this entry in the place of the one in use, durably.
    pub(crate) install: Box<dyn FnMut(u64) -> Installed + Send>,
    /// Told how much each batch added, so that a quota holds between two looks at the disk.
    pub(crate) sizes: Sizes,
    /// How long a batch may take before the log says so (etcd: --warning-apply-duration).
    pub(crate) slow: Duration,
}

/// Starts the apply thread, which ends after [`Task::Stop`].
pub(crate) fn start(parts: Parts) -> std::io::Result<(Queue, JoinHandle<()>)> {
    let queue = Queue::new(parts);
    let builder = std::thread::Builder::new().name("apply".into()).stack_size(TXN_STACK_BYTES);
    let thread = builder.spawn({
        let queue = queue.clone();
        move || queue.run()
    })?;
    Ok((queue, thread))
}

/// The way to the apply thread.
// A lock rather than an owner: an idle lone member applies a single entry on the raft thread, which saves a wake-up of
// two that a put at one client waits for. Whoever holds the lock empties the inbox first or finds it empty, so entries
// stay in order.
#[derive(Clone)]
pub(crate) struct Queue {
    inbox: Arc<Inbox<Task>>,
    applying: Arc<Mutex<Applying>>,
}

impl Queue {
    /// A queue that somebody empties by [`Queue::take_turn`]: the thread, or the simulation in its place.
    pub(crate) fn new(parts: Parts) -> Queue {
        let applying = Applying { parts, reads: Vec::new() };
        Queue { inbox: Arc::new(Inbox::new()), applying: Arc::new(Mutex::new(applying)) }
    }

    pub(crate) fn push(&self, task: Task) {
        self.inbox.push(task);
    }

    /// Applies on the calling thread, unless something is being applied or waits for it: then the entries come back.
    /// Only for the one thread that pushes, which needs a stack of [`TXN_STACK_BYTES`].
    pub(crate) fn try_apply(&self, committed: Vec<Committed>) -> Result<(), Vec<Committed>> {
        match self.applying.try_lock() {
            Some(mut applying) if self.inbox.is_empty() => {
                applying.apply(committed);
                Ok(())
            }
            Some(_) | None => Err(committed),
        }
    }

    fn run(&self) {
        let mut tasks = Vec::new();
        loop {
            self.inbox.wait(IDLE_WAIT);
            if self.take_turn(&mut tasks) {
                return;
            }
        }
    }

    /// Carries out everything that waits. Returns whether it was told to stop. `tasks` is empty before and after.
    pub(crate) fn take_turn(&self, tasks: &mut Vec<Task>) -> bool {
        let mut applying = self.applying.lock();
        self.inbox.take(tasks, Duration::ZERO);
        let mut entries = Vec::new();
        let mut stop = false;
        for task in tasks.drain(..) {
            match task {
                Task::Apply(committed) => entries.extend(committed),
                Task::Read(reads) => applying.reads.extend(reads),
                Task::Install(index) => {
                    applying.apply(std::mem::take(&mut entries));
                    applying.install(index);
                }
                Task::Stop => stop = true,
            }
        }
        applying.apply(entries);
        stop
    }

    /// Whether nothing waits.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.is_empty()
    }
}

struct Applying {
    parts: Parts,
    /// Reads whose index is not applied yet. Bounded by the requests that may wait on the shards.
    reads: Vec<(u64, Waiter)>,
}

impl Applying {
    fn apply(&mut self, entries: Vec<Committed>) {
        let mut entries = entries.into_iter();
        loop {
            let batch: Vec<Committed> = entries.by_ref().take(BATCH_ENTRIES_MAX).collect();
            if batch.is_empty() {
                break;
            }
            self.apply_batch(batch);
        }
        self.release_reads();
        self.parts.delivery.send();
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the clock seam of apply: how long a batch took, for metrics and log"
    )]
    fn apply_batch(&mut self, batch: Vec<Committed>) {
        let begun = Instant::now();
        let entries = batch.len();
        let mut answers: Vec<(Waiter, Answer)> = Vec::with_capacity(batch.len());
        let mut reconfigured = Vec::new();
        let mut bytes = 0;
        for Committed { entry, waiter } in batch {
            bytes += entry.data.len() as u64;
            let AppliedMark { index: applied, .. } = self.parts.applied;
            assert!(entry.index == applied + 1, "entry {} applied after {}", entry.index, applied);
            self.parts.applied = AppliedMark { index: entry.index, term: entry.term };
            let index = entry.index;
            let answer = self.parts.applier.apply(entry).unwrap_or_else(|error| stop_for(&error));
            match self.parts.applier.take_reconfiguration() {
                Some(reconfiguration) => {
                    reconfigured.push(Event::Reconfigured { index, reconfiguration, waiter, answer });
                }
                None => answers.push((waiter, answer)),
            }
        }
        let applied = begun.elapsed();
        let committed = self.parts.applier.commit(self.parts.applied).unwrap_or_else(|error| stop_for(&error));
        let took = begun.elapsed();
        metrics::get().disk.backend_commit_seconds.record((took - applied).as_secs_f64());
        if took > self.parts.slow {
            metrics::get().server.slow_applies.increment(1);
            crate::warn!(
                "apply request took too long",
                took = took,
                "expected-duration" = self.parts.slow,
                entries = entries
            );
        }
        // Watchers hear of a change before its writer does: etcd notifies inside the write.
        self.parts.feed.publish(committed);
        self.parts.sizes.add_allocated_bytes(bytes);
        if !reconfigured.is_empty() {
            (self.parts.members_changed)();
        }
        if self.parts.applier.take_plugins_changed() {
            (self.parts.plugins_changed)();
        }
        for event in reconfigured {
            self.parts.raft.push(event);
        }
        self.parts.shared.set_applied(self.parts.applied.index);
        for revision in self.parts.applier.compacted.drain(..) {
            // The disk thread is gone at a stop; the next start goes on with the newest.
            self.parts.compactions.send(revision).ok();
        }
        for (waiter, answer) in answers {
            self.parts.delivery.add(waiter, answer);
        }
    }

    /// Goes on with the store that another member's rows were made into.
    fn install(&mut self, index: u64) {
        let Installed { store, writer, applied } = (self.parts.install)(index);
        let replaced = self.parts.applier.replace(&store, writer);
        replaced.unwrap_or_else(|error| stop_for(&error));
        self.parts.applied = applied;
        // Carried out by its sender or not: the disk thread finds out.
        self.parts.compactions.send(store.compacted()).ok();
        self.parts.sizes.set_allocated_bytes(store.sizes().allocated_bytes);
        crate::info!("applied snapshot", "snapshot-index" = applied.index, revision = store.revision().0);
        self.parts.feed.replaced(store);
        (self.parts.members_changed)();
        (self.parts.plugins_changed)();
        self.parts.shared.set_applied(applied.index);
        self.parts.raft.push(Event::Installed { index });
        self.release_reads();
    }

    fn release_reads(&mut self) {
        let applied = self.parts.applied.index;
        for (_, waiter) in self.reads.extract_if(.., |(index, _)| *index <= applied) {
            self.parts.delivery.add(waiter, Ok(Reply::Empty));
        }
    }
}

/// Ends the process: memory may be ahead of what the store holds, and only a restart finds out.
fn stop_for(error: &crate::storage::StorageError) -> ! {
    crate::fatal!("the store failed; the member stops so that nothing is lost", error = error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::{Receiver, bounded};
    use kuorum_proto::etcdserverpb::{CompactionRequest, PutRequest};

    use super::*;
    use crate::alarm::Alarms;
    use crate::cluster::{ClusterId, Facts, MemberId, Members};
    use crate::command::Command;
    use crate::consensus::answers::PostOffice;
    use crate::lease::Leases;
    use crate::log::{EntryKind, LogEntry};
    use crate::mvcc::filter::Floor;
    use crate::mvcc::{self, MvccOptions};
    use crate::policy::plugins::Registry;
    use crate::refusal::Refusal;
    use crate::storage::Storage;
    use crate::watch;

    fn waiter() -> (Waiter, Receiver<Answer>) {
        let (sender, receiver) = bounded(1);
        (Waiter::Thread(sender), receiver)
    }

    fn committed(index: u64, command: Command, waiter: Waiter) -> Committed {
        let entry = LogEntry {
            term: 1,
            index,
            kind: EntryKind::Normal,
            data: command.encode(0, crate::command::Judgement::default()),
        };
        Committed { entry, waiter }
    }

    fn put(key: &str) -> Command {
        Command::Put(PutRequest { key: key.to_owned().into(), ..PutRequest::default() })
    }

    fn compact(revision: i64) -> Command {
        Command::Compact(CompactionRequest { revision, physical: false })
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the watch thread wants to know when the process started")]
    fn answers_come_after_the_commit_and_reads_after_their_index() {
        let directory = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&directory.path().join("store"), floor.filters()).unwrap();
        let options = MvccOptions::new(directory.path().join("index"), 3);
        let (store, writer, applied) = mvcc::open(storage, floor, options).unwrap();
        let facts = Arc::new(Facts::new(ClusterId(1), MemberId(1)));
        let options = watch::Options {
            fragment_bytes: 1 << 20,
            progress_interval_ms: 1_000,
            feed_bytes_max: 1 << 20,
            recent_bytes_max: 1 << 20,
            stream_bytes_max: 1 << 20,
        };
        let (_hub, feed, watching) = watch::start(store.clone(), facts, options, Instant::now()).unwrap();
        let shared = Arc::new(Shared::new(0, 0));
        let (compactions, to_compact) = bounded(1);
        let parts = Parts {
            applier: Applier::new(
                writer,
                Leases::new(1),
                Alarms::default(),
                Members::new(Vec::new()),
                Registry::default(),
            ),
            delivery: Delivery::new(PostOffice::new(0)),
            shared: Arc::clone(&shared),
            feed,
            compactions,
            applied,
            raft: Arc::new(Inbox::new()),
            members_changed: Box::new(|| ()),
            plugins_changed: Box::new(|| ()),
            install: Box::new(|_| unreachable!("nothing arrives here")),
            sizes: Sizes::default(),
            slow: Duration::MAX,
        };
        let (queue, thread) = start(parts).unwrap();

        let (early, early_read) = waiter();
        let (late, late_read) = waiter();
        queue.push(Task::Read(vec![(0, early), (3, late)]));
        assert_eq!(early_read.recv().unwrap(), Ok(Reply::Empty));
        let (refused, refusal) = waiter();
        queue.push(Task::Apply(vec![committed(1, put("a"), Waiter::None), committed(2, compact(99), refused)]));
        assert_eq!(refusal.recv().unwrap(), Err(Refusal::FutureRevision));
        assert_eq!((shared.applied(), store.revision()), (2, Revision(2)));
        assert!(late_read.is_empty(), "read before its index is applied");
        queue.push(Task::Apply(vec![committed(3, compact(2), Waiter::None)]));
        assert_eq!(late_read.recv().unwrap(), Ok(Reply::Empty));
        assert_eq!(to_compact.recv().unwrap(), Revision(2));

        // On this thread, unless something is under way.
        let here = vec![committed(4, put("here"), Waiter::None)];
        let here = {
            let _under_way = queue.applying.lock();
            queue.try_apply(here).unwrap_err()
        };
        queue.try_apply(here).unwrap();
        assert_eq!(shared.applied(), 4);

        // What came before the stop is done before it, in more than one batch.
        let count = 2 * BATCH_ENTRIES_MAX as u64 + 1;
        queue.push(Task::Apply((5..5 + count).map(|index| committed(index, put("b"), Waiter::None)).collect()));
        queue.push(Task::Stop);
        thread.join().unwrap();
        assert_eq!(shared.applied(), 4 + count);
        assert_eq!(store.revision(), Revision(3 + i64::try_from(count).unwrap()));
        watching.stop();
    }
}
