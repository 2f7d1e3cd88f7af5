//! The watch core: who watches what, who is behind, what is sent. Synchronous: events in, responses into outboxes.
//!
//! Everything that a stream gets passes through its one outbox in the order in which this core puts it there. So a
//! progress notice can never overtake an event of an earlier revision (etcd#15220): both are put in by one thread, the
//! event first.
//!
//! A watcher is *synced* when it has been given every published change it asked for; changes are then matched by key
//! through the index of synced watchers. Otherwise it is *behind*, and catches up from the recent changes, or from the
//! store when those do not reach back far enough. A stream whose client reads too slowly has its watchers put behind
//! instead of more and more into its outbox; they catch up when it has drained.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};

use crate::cluster::Facts;
use crate::mvcc::query::{self, Change};
use crate::mvcc::revision::Revision;
use crate::mvcc::{HistoryLimit, ReadError, Store};
use crate::sabotage::{Sabotage, is_on};
use crate::watch::outbox::Outbox;
use crate::watch::recent::{Recent, Recorded};
use crate::watch::synced::SyncedIndex;
use crate::watch::watcher::{Standing, Wants, WatchId, Watched, Watcher};
use crate::watch::{Options, encode};

/// Watchers brought forward by one read of the history (etcd: maxWatchersPerSync). Few in tests, so that they meet it.
const WATCHERS_PER_CATCH_UP: usize = if cfg!(test) { 4 } else { 512 };
/// Revisions in one read of the history (etcd: watchBatchMaxRevs). Few in tests, so that they meet it.
const REVISIONS_PER_CATCH_UP: usize = if cfg!(test) { 16 } else { 1_000 };
/// Changes looked at by one read of the history: about 5 ms, for which everyone else waits.
const ROWS_PER_CATCH_UP: usize = 10_000;
/// Bytes of one read of the history, so that a thousand large values do not come at once.
const BYTES_PER_CATCH_UP: usize = 4 << 20;
/// How long nobody is brought forward after the store could not be read: each try costs a read and a line in the log,
/// and would otherwise be made at every write.
const UNREADABLE_PAUSE_MS: u64 = 1_000;
/// Watchers one stream may hold: a bound against a client that only ever creates.
const WATCHERS_PER_STREAM_MAX: usize = 1 << 20;

/// Changes in order, and the revision after the last one covered.
type Span = (Vec<Rc<Recorded>>, Revision);

/// What reaches the core.
pub(super) enum Event {
    /// The store committed these changes, and has this revision now.
    Published {
        revision: Revision,
        compacted: Revision,
        changes: Vec<Change>,
    },
    /// The store went on to this revision with changes that were too much to pass on.
    Skipped {
        revision: Revision,
        compacted: Revision,
    },
    /// Another store took the place of the one in use, later than that.
    Replaced {
        store: Store,
    },
    Open {
        stream: u64,
        outbox: Outbox,
    },
    Create {
        stream: u64,
        request: WatchCreateRequest,
    },
    Cancel {
        stream: u64,
        id: i64,
    },
    Progress {
        stream: u64,
    },
    /// A stream that was put behind for its size has drained.
    Drained {
        stream: u64,
    },
    Close {
        stream: u64,
    },
    Tick {
        now_ms: u64,
    },
}

pub(super) struct Core {
    store: Store,
    facts: Arc<Facts>,
    options: Options,
    /// The revision of the last publication.
    revision: Revision,
    compacted: Revision,
    recent: Recent,
    streams: HashMap<u64, Stream>,
    /// Keyed by a number of the core's own.
    watchers: HashMap<u64, Watcher>,
    next_watcher: u64,
    synced: SyncedIndex,
    /// Watchers behind whose stream can take more.
    behind: BTreeSet<u64>,
    /// Where in `behind` the next catching up begins, so that everyone gets a turn.
    turn: u64,
    /// Nobody is brought forward before.
    catch_up_from_ms: u64,
    /// Reads of the history so far: where the next one begins.
    history_reads: usize,
    now_ms: u64,
    /// No stream's progress notices are due before.
    progress_due_ms: u64,
}

struct Stream {
    outbox: Outbox,
    /// `None` for an id whose watcher was cancelled by a compaction: the id stays taken until the client lets go of it.
    watchers: BTreeMap<WatchId, Option<u64>>,
    next_id: i64,
    /// Watchers that want progress notices, and whether one is due at the next tick of the stream.
    progress: BTreeMap<WatchId, bool>,
    next_progress_ms: u64,
    /// Too many bytes wait for the client; its watchers stay behind until it has drained.
    full: bool,
}

impl Core {
    pub(super) fn new(store: Store, facts: Arc<Facts>, options: Options) -> Core {
        let (revision, compacted) = (store.revision(), store.compacted());
        Core {
            store,
            facts,
            options,
            revision,
            compacted,
            recent: Recent::new(revision, options.recent_bytes_max),
            streams: HashMap::new(),
            watchers: HashMap::new(),
            next_watcher: 0,
            synced: SyncedIndex::default(),
            behind: BTreeSet::new(),
            turn: 0,
            catch_up_from_ms: 0,
            history_reads: 0,
            now_ms: 0,
            progress_due_ms: u64::MAX,
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Published { revision, compacted, changes } => self.publish(revision, compacted, changes),
            Event::Skipped { revision, compacted } => self.skip(revision, compacted),
            Event::Replaced { store } => {
                let (revision, compacted) = (store.revision(), store.compacted());
                self.store = store;
                self.skip(revision, compacted);
            }
            Event::Open { stream, outbox } => self.open(stream, outbox),
            Event::Create { stream, request } => self.create(stream, request),
            Event::Cancel { stream, id } => self.cancel(stream, WatchId(id)),
            Event::Progress { stream } => self.progress(stream),
            Event::Drained { stream } => self.drained(stream),
            Event::Close { stream } => self.close(stream),
            Event::Tick { now_ms } => self.tick(now_ms),
        }
    }

    /// Brings some watchers forward that are behind. Returns whether more could be at once: not for a while after the
    /// store could not be read.
    pub(super) fn catch_up(&mut self) -> bool {
        if self.now_ms < self.catch_up_from_ms {
            return false;
        }
        let from_turn = self.behind.range(self.turn..).chain(self.behind.range(..self.turn));
        let chosen: Vec<u64> = from_turn.copied().take(WATCHERS_PER_CATCH_UP).collect();
        self.turn = chosen.last().map_or(0, |last| last + 1);
        match self.catch_up_with(&chosen) {
            Ok(()) => !self.behind.is_empty(),
            Err(error) => {
                crate::error!("the history for watchers can't be read", error = error.to_string());
                self.catch_up_from_ms = self.now_ms + UNREADABLE_PAUSE_MS;
                false
            }
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            streams: self.streams.len(),
            watchers: self.watchers.len(),
            slow_watchers: self.watchers.len() - self.synced.len(),
        }
    }

    /// The lowest revision that a watcher behind has to be told of, those among them whose client does not read.
    pub(super) fn slowest(&self) -> Option<Revision> {
        if self.watchers.len() == self.synced.len() {
            return None;
        }
        let next = |watcher: &Watcher| match watcher.standing {
            Standing::Behind { next } => Some(next),
            Standing::Synced => None,
        };
        self.watchers.values().filter_map(next).min()
    }

    // ---- changes

    fn publish(&mut self, revision: Revision, compacted: Revision, changes: Vec<Change>) {
        self.compacted = compacted;
        self.revision = revision;
        let changes: Vec<Rc<Recorded>> = changes.into_iter().map(|change| Rc::new(Recorded::new(change))).collect();
        // Per watcher, the changes it gets; in the order of the watchers so that a run repeats itself.
        let mut matched: BTreeMap<u64, Vec<Rc<Recorded>>> = BTreeMap::new();
        for change in &changes {
            self.synced.at(change.key(), &mut |watcher| matched.entry(watcher).or_default().push(Rc::clone(change)));
        }
        for change in changes {
            self.recent.push(change);
        }
        for (number, changes) in matched {
            self.notify(number, &changes);
        }
    }

    /// Gives a synced watcher the changes of one publication, or puts it behind.
    fn notify(&mut self, number: u64, changes: &[Rc<Recorded>]) {
        let watcher = &self.watchers[&number];
        let Some(first) = changes.iter().find(|change| change.revision() >= watcher.start) else { return };
        let next = first.revision();
        if self.streams[&watcher.stream].full {
            self.put_behind(number, next);
            return;
        }
        let sent = self.revision;
        self.send_changes(number, changes, sent);
    }

    /// Sends a watcher those of the changes that it wants, in one response.
    fn send_changes(&mut self, number: u64, changes: &[Rc<Recorded>], revision: Revision) {
        let watcher = &self.watchers[&number];
        let wanted =
            changes.iter().filter(|change| change.revision() >= watcher.start && watcher.wants.accepts(change));
        let events: Vec<Bytes> = wanted
            .map(|change| {
                let event = if watcher.wants.previous {
                    change.with_previous(&self.store, self.compacted)
                } else {
                    change.plain()
                };
                event.clone()
            })
            .collect();
        if events.is_empty() {
            return;
        }
        let header = self.facts.header(revision.0);
        let fragment_bytes = watcher.wants.fragments.then_some(self.options.fragment_bytes);
        let responses = encode::with_events(&header, watcher.id.0, &events, fragment_bytes);
        let (stream, id) = (watcher.stream, watcher.id);
        let stream = self.streams.get_mut(&stream).expect("a watcher's stream is open");
        if let Some(due) = stream.progress.get_mut(&id) {
            // An event tells the client as much as the notice would.
            *due = false;
        }
        if stream.outbox.push(responses) > self.options.stream_bytes_max {
            stream.full = true;
        }
    }

    fn skip(&mut self, revision: Revision, compacted: Revision) {
        let next = self.revision.next();
        self.revision = revision;
        self.compacted = compacted;
        self.recent.reset(revision);
        for number in self.synced.drain() {
            let watcher = self.watchers.get_mut(&number).expect("an indexed watcher exists");
            watcher.standing = Standing::Behind { next: next.max(watcher.start) };
            self.behind.insert(number);
        }
    }

    // ---- streams

    fn open(&mut self, stream: u64, outbox: Outbox) {
        let next_progress_ms = self.now_ms + self.options.progress_interval_ms;
        let stream_state = Stream {
            outbox,
            watchers: BTreeMap::new(),
            next_id: 0,
            progress: BTreeMap::new(),
            next_progress_ms,
            full: false,
        };
        self.progress_due_ms = self.progress_due_ms.min(next_progress_ms);
        self.streams.insert(stream, stream_state);
    }

    fn close(&mut self, stream: u64) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        for number in closed.watchers.into_values().flatten() {
            self.forget(number);
        }
        closed.outbox.close();
    }

    /// The node stops.
    pub(super) fn close_all(&mut self) {
        let streams: Vec<u64> = self.streams.keys().copied().collect();
        for stream in streams {
            self.close(stream);
        }
    }

    fn drained(&mut self, stream: u64) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        stream.full = false;
        for number in stream.watchers.values().flatten() {
            if matches!(self.watchers[number].standing, Standing::Behind { .. }) {
                self.behind.insert(*number);
            }
        }
    }

    fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        if now_ms < self.progress_due_ms {
            return;
        }
        self.progress_due_ms = u64::MAX;
        let header = self.facts.header(self.revision.0);
        for stream in self.streams.values_mut() {
            if stream.next_progress_ms > now_ms {
                self.progress_due_ms = self.progress_due_ms.min(stream.next_progress_ms);
                continue;
            }
            stream.next_progress_ms = now_ms + self.options.progress_interval_ms;
            self.progress_due_ms = self.progress_due_ms.min(stream.next_progress_ms);
            for (id, due) in &mut stream.progress {
                let number = stream.watchers.get(id).copied().flatten();
                let in_step = number.is_some_and(|number| in_step(&self.watchers[&number], self.revision));
                if *due && in_step && !stream.full {
                    let notice = WatchResponse { header: Some(header), watch_id: id.0, ..WatchResponse::default() };
                    stream.outbox.push([encode::control(&notice)]);
                }
                *due = true;
            }
        }
    }

    // ---- requests

    fn create(&mut self, stream_id: u64, request: WatchCreateRequest) {
        let header = Some(self.facts.header(self.revision.0));
        let Some(stream) = self.streams.get_mut(&stream_id) else { return };
        let watched = Watched::from_wire(&request.key, &request.range_end);
        let id = match choose_id(stream, &request, watched.is_some()) {
            Ok(id) => id,
            Err(reason) => {
                let refusal = WatchResponse {
                    header,
                    watch_id: WatchId::NONE.0,
                    created: true,
                    canceled: true,
                    cancel_reason: reason.into(),
                    ..WatchResponse::default()
                };
                stream.outbox.push([encode::control(&refusal)]);
                return;
            }
        };
        let number = self.next_watcher;
        self.next_watcher += 1;
        stream.watchers.insert(id, Some(number));
        if request.progress_notify {
            stream.progress.insert(id, true);
        }
        let created = WatchResponse { header, watch_id: id.0, created: true, ..WatchResponse::default() };
        stream.outbox.push([encode::control(&created)]);

        let wants = Wants::from_wire(&request);
        let watched = watched.expect("an empty range was refused with the id");
        let start = if request.start_revision == 0 { self.revision.next() } else { Revision(request.start_revision) };
        let standing = if start > self.revision { Standing::Synced } else { Standing::Behind { next: start } };
        let asked = Revision(request.start_revision);
        let watcher = Watcher { stream: stream_id, id, watched, wants, start, asked, standing };
        match standing {
            Standing::Synced => self.synced.insert(number, &watcher.watched),
            Standing::Behind { .. } => {
                self.behind.insert(number);
            }
        }
        self.watchers.insert(number, watcher);
    }

    fn cancel(&mut self, stream: u64, id: WatchId) {
        let header = Some(self.facts.header(self.revision.0));
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        // An id that is not there is passed over in silence, as in etcd.
        let Some(number) = stream.watchers.remove(&id) else { return };
        stream.progress.remove(&id);
        let canceled = WatchResponse { header, watch_id: id.0, canceled: true, ..WatchResponse::default() };
        stream.outbox.push([encode::control(&canceled)]);
        if let Some(number) = number {
            self.forget(number);
        }
    }

    /// One notice for the whole stream, if every watcher of it is in step with the store; else none, as in etcd.
    fn progress(&mut self, stream_id: u64) {
        let Some(stream) = self.streams.get(&stream_id) else { return };
        // A watcher that was created just before gets its chance to catch up first.
        let behind: Vec<u64> =
            stream.watchers.values().flatten().copied().filter(|n| self.behind.contains(n)).collect();
        if !behind.is_empty() {
            let caught_up = self.catch_up_with(&behind[..behind.len().min(WATCHERS_PER_CATCH_UP)]);
            if caught_up.is_err() {
                // They are still behind, so there is no notice; the next round of catching up says what is wrong.
                return;
            }
        }
        let Some(stream) = self.streams.get(&stream_id) else { return };
        let in_step =
            stream.watchers.values().all(|number| number.is_some_and(|n| in_step(&self.watchers[&n], self.revision)));
        if stream.watchers.is_empty() || !in_step {
            return;
        }
        let notice = WatchResponse {
            header: Some(self.facts.header(self.revision.0)),
            watch_id: WatchId::NONE.0,
            ..WatchResponse::default()
        };
        stream.outbox.push([encode::control(&notice)]);
    }

    // ---- watchers

    fn forget(&mut self, number: u64) {
        let Some(watcher) = self.watchers.remove(&number) else { return };
        match watcher.standing {
            Standing::Synced => self.synced.remove(number, &watcher.watched),
            Standing::Behind { .. } => {
                self.behind.remove(&number);
            }
        }
    }

    fn put_behind(&mut self, number: u64, next: Revision) {
        let watcher = self.watchers.get_mut(&number).expect("an indexed watcher exists");
        self.synced.remove(number, &watcher.watched);
        watcher.standing = Standing::Behind { next };
        if !self.streams[&watcher.stream].full {
            self.behind.insert(number);
        }
    }

    fn put_in_step(&mut self, number: u64) {
        let watcher = self.watchers.get_mut(&number).expect("a watcher behind exists");
        watcher.standing = Standing::Synced;
        self.synced.insert(number, &watcher.watched);
        self.behind.remove(&number);
    }

    /// Tells a watcher that what it still needed is compacted away.
    fn cancel_compacted(&mut self, number: u64) {
        let Some(watcher) = self.watchers.get(&number) else { return };
        let stream = self.streams.get_mut(&watcher.stream).expect("a watcher's stream is open");
        let canceled = WatchResponse {
            header: Some(self.facts.header(0)),
            watch_id: watcher.id.0,
            canceled: true,
            compact_revision: self.compacted.0,
            ..WatchResponse::default()
        };
        stream.outbox.push([encode::control(&canceled)]);
        stream.watchers.insert(watcher.id, None);
        stream.progress.remove(&watcher.id);
        self.forget(number);
    }

    fn catch_up_with(&mut self, chosen: &[u64]) -> Result<(), ReadError> {
        let mut chosen: Vec<(Revision, u64)> =
            chosen.iter().filter_map(|n| self.next_of(*n).map(|next| (next, *n))).collect();
        chosen.retain(|(next, number)| {
            let compacted = *next < self.compacted;
            if compacted {
                self.cancel_compacted(*number);
            }
            !compacted
        });
        let (near, far): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|(next, _)| self.recent.reaches(*next));
        self.catch_up_near(&near);
        self.catch_up_far(&far)
    }

    /// Brings watchers forward whose changes are all among the recent ones.
    fn catch_up_near(&mut self, chosen: &[(Revision, u64)]) {
        let Some(from) = chosen.iter().map(|(next, _)| *next).min() else { return };
        let (changes, next) = self.recent_since(from);
        for (_, number) in chosen {
            self.bring_forward(*number, &changes, next);
        }
    }

    /// Brings watchers forward by one read of the history, and so one that is far behind only a part of its way.
    fn catch_up_far(&mut self, chosen: &[(Revision, u64)]) -> Result<(), ReadError> {
        // By turns from where the last of all stands, which serves most, and from where another one does, which need
        // not wait for it.
        let turn = self.history_reads / 2 + 1;
        let first = chosen.iter().map(|(next, _)| *next).min();
        let by_turn = if chosen.is_empty() { None } else { chosen.get(turn % chosen.len()).map(|(next, _)| *next) };
        let Some(from) = (if self.history_reads.is_multiple_of(2) { first } else { by_turn }) else { return Ok(()) };
        self.history_reads = self.history_reads.wrapping_add(1);
        let chosen: Vec<u64> = chosen.iter().filter(|(next, _)| *next >= from).map(|(_, number)| *number).collect();
        let Some((changes, next)) = self.history_since(from, &chosen)? else { return Ok(()) };
        for number in chosen {
            self.bring_forward(number, &changes, next);
        }
        Ok(())
    }

    fn next_of(&self, number: u64) -> Option<Revision> {
        match self.watchers.get(&number)?.standing {
            Standing::Behind { next } => Some(next),
            Standing::Synced => None,
        }
    }

    /// Gives one watcher its part of the changes below `next`.
    fn bring_forward(&mut self, number: u64, changes: &[Rc<Recorded>], next: Revision) {
        let watcher = &self.watchers[&number];
        let Standing::Behind { next: wanted } = watcher.standing else { return };
        if self.streams[&watcher.stream].full {
            // Looked at again when the client has read what waits for it.
            self.behind.remove(&number);
            return;
        }
        let matching = |change: &&Rc<Recorded>| change.revision() >= wanted && watcher.watched.contains(change.key());
        let own: Vec<Rc<Recorded>> = changes.iter().filter(matching).cloned().collect();
        // A response names the store's revision, as etcd's do, so that headers never fall on a stream.
        self.send_changes(number, &own, self.revision);
        if next > self.revision {
            self.put_in_step(number);
        } else {
            let watcher = self.watchers.get_mut(&number).expect("looked up above");
            watcher.standing = Standing::Behind { next: next.max(wanted) };
        }
    }

    /// Recent changes from `from` on, and the revision after the last one covered.
    fn recent_since(&self, from: Revision) -> Span {
        let mut changes = Vec::new();
        let mut revisions = 0;
        let mut last = Revision(0);
        for change in self.recent.since(from) {
            if change.revision() != last {
                revisions += 1;
                last = change.revision();
            }
            if revisions > REVISIONS_PER_CATCH_UP {
                return (changes, last);
            }
            changes.push(Rc::clone(change));
        }
        (changes, self.revision.next())
    }

    /// Stored changes from `from` on that any of the chosen watch, and the revision after the last one covered. `None`
    /// when a compaction overtook the read, which the next try will know of.
    fn history_since(&mut self, from: Revision, chosen: &[u64]) -> Result<Option<Span>, ReadError> {
        let limit = HistoryLimit {
            revisions_max: REVISIONS_PER_CATCH_UP,
            bytes_max: BYTES_PER_CATCH_UP,
            rows_max: ROWS_PER_CATCH_UP,
        };
        let watched: Vec<&Watched> = chosen.iter().map(|number| &self.watchers[number].watched).collect();
        let mut keep = |key: &[u8]| watched.iter().any(|watched| watched.contains(key));
        match self.store.history(from, self.revision, limit, &mut keep) {
            Ok(history) => {
                let changes = history.changes.into_iter().map(|change| Rc::new(Recorded::new(change))).collect();
                Ok(Some((changes, history.next)))
            }
            Err(ReadError::Refused(query::Refusal::Compacted { compacted })) => {
                // A compaction whose publication is still on its way: the watchers are told at the next try.
                self.compacted = self.compacted.max(compacted);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Numbers for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) streams: usize,
    pub(super) watchers: usize,
    pub(super) slow_watchers: usize,
}

fn in_step(watcher: &Watcher, revision: Revision) -> bool {
    // One that waits for a revision to come is not told of progress towards it, as in etcd.
    (watcher.standing == Standing::Synced || is_on(Sabotage::ProgressBeforeEvent)) && watcher.asked <= revision
}

/// The id for a new watcher, or why there is none; in etcd's words where etcd refuses too.
fn choose_id(stream: &mut Stream, request: &WatchCreateRequest, has_keys: bool) -> Result<WatchId, &'static str> {
    if request.start_revision < 0 {
        return Err("etcdserver: mvcc: required revision has been compacted");
    }
    if !has_keys {
        return Err("mvcc: watcher range is empty");
    }
    if stream.watchers.len() >= WATCHERS_PER_STREAM_MAX {
        return Err("too many watchers on this stream; open another");
    }
    let id = WatchId(request.watch_id);
    if id != WatchId::AUTO {
        let taken = stream.watchers.contains_key(&id);
        return if taken { Err("mvcc: duplicate watch ID provided on the WatchStream") } else { Ok(id) };
    }
    while stream.watchers.contains_key(&WatchId(stream.next_id)) {
        stream.next_id += 1;
    }
    let id = WatchId(stream.next_id);
    stream.next_id += 1;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use prost::Message as _;

    use super::*;
    use crate::cluster::{ClusterId, MemberId};
    use crate::mvcc::filter::Floor;
    use crate::mvcc::{AppliedMark, MvccOptions};
    use crate::storage::Storage;

    /// A core over a store to whose key `k` so many puts were made.
    fn core(puts: i64) -> (tempfile::TempDir, Core) {
        let dir = tempfile::tempdir().unwrap();
        let floor = Floor::new();
        let storage = Storage::open(&dir.path().join("store"), floor.filters()).unwrap();
        let (store, mut writer, _) =
            crate::mvcc::open(storage, floor, MvccOptions::new(dir.path().join("index"), 100)).unwrap();
        for _ in 0..puts {
            let mut txn = writer.txn();
            txn.put("k".into(), Bytes::new(), 0);
            txn.finish();
        }
        writer.commit(AppliedMark::default()).unwrap();
        let options = Options {
            fragment_bytes: 1 << 20,
            progress_interval_ms: 1_000,
            feed_bytes_max: 1 << 20,
            recent_bytes_max: 1 << 20,
            stream_bytes_max: 1 << 20,
        };
        (dir, Core::new(store, Arc::new(Facts::new(ClusterId(1), MemberId(2))), options))
    }

    #[test]
    fn headers_of_a_watcher_that_catches_up_never_fall() {
        let puts = 3 * i64::try_from(REVISIONS_PER_CATCH_UP).unwrap();
        let (_dir, mut core) = core(puts);
        let outbox = Outbox::default();
        core.handle(Event::Open { stream: 1, outbox: outbox.clone() });
        let request = WatchCreateRequest { key: "k".into(), start_revision: 2, ..WatchCreateRequest::default() };
        core.handle(Event::Create { stream: 1, request });
        while core.catch_up() {}
        let mut headers = Vec::new();
        while let Some(Some((response, _))) = outbox.next().now_or_never() {
            headers.push(WatchResponse::decode(response).unwrap().header.unwrap().revision);
        }
        assert_eq!(headers, [1 + puts; 4], "one that says that it is created, and three with events");
    }

    #[test]
    fn a_watcher_far_behind_holds_nobody_up() {
        let puts = 3 * i64::try_from(ROWS_PER_CATCH_UP).unwrap();
        let (_dir, mut core) = core(puts);
        core.handle(Event::Open { stream: 1, outbox: Outbox::default() });
        for start_revision in [1, puts - 10] {
            let request = WatchCreateRequest { key: "other".into(), start_revision, ..WatchCreateRequest::default() };
            core.handle(Event::Create { stream: 1, request });
        }
        assert_eq!(core.slowest(), Some(Revision(1)));
        assert!(core.catch_up());
        assert!(core.catch_up());
        assert_eq!(core.counts().slow_watchers, 1);
        assert!(core.slowest() > Some(Revision(1)));
        for _ in 0..4 {
            core.catch_up();
        }
        assert_eq!((core.counts().slow_watchers, core.slowest()), (0, None));
    }
}
