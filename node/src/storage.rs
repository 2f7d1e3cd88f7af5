//! The store's rows on disk: spaces, batches, views. The only module that names fjall.
//!
//! Rows are bytes here; `mvcc::row` says what they mean, and hands in the rule by which a compaction of the engine
//! drops versions that nobody can read any more. A batch is atomic and not synced: the Raft log is what makes a write
//! durable, and [`Storage::persist`] is called from time to time so that little of the log has to be replayed.
//!
//! Traps of the engine that are minded here (fjall 3.1): a failed write poisons the database, after which every commit
//! fails and the process has to stop; the engine compacts only after flushes, so a compaction is nudged by rotating;
//! FIFO compaction, key-value separation and `clear()` are not used.

#[cfg(any(test, feature = "sim"))]
pub(crate) mod memory;
mod memtables;

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use self::memtables::Memtables;
use bytes::Bytes;
use fjall::compaction::filter::{CompactionFilter, Context, Factory, ItemAccessor, Verdict};
use fjall::config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable as _, Snapshot};
use lsm_tree::AbstractTree as _;
use rustix::process::{Pid, setpriority_process};

/// Memory for blocks read from disk.
const BLOCK_CACHE_BYTES: u64 = 64 << 20;
/// Journal on disk before the engine flushes what is in it.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;
/// Rows in memory before they are flushed to a table.
const MEMTABLE_BYTES_MAX: u64 = 16 << 20;
/// How often a flush is looked at that is waited for, and how many times.
const FLUSH_POLL: Duration = Duration::from_millis(10);
const FLUSH_POLLS_MAX: u32 = 6_000;
/// Threads for flushes and compactions. One: of two, the engine keeps the first for flushes by having it pass each
/// compaction on to itself, over and over, while the second compacts, which cost a put a tenth of its CPU and one put in
/// a hundred a tenth of its wait. Flushes behind a compaction made no writer wait in a load of 4 million keys.
const WORKER_THREADS: usize = 1;
/// The name the engine gives it, and how nice it is: on two busy cores it made one put in a hundred wait
/// (p99 at 100 clients 5.6 ms became 4.5). A much nicer one would fall behind, and then the engine makes writers wait.
const WORKER_NAME: &str = "fjall:worker";
const WORKER_NICENESS: i32 = 5;

/// Where the engine keeps its keyspaces, how it names the four (its own and the three below), and where each has its
/// tables.
const KEYSPACES_DIR: &str = "keyspaces";
const KEYSPACE_DIRS: [&str; 4] = ["0", "1", "2", "3"];
const TABLES_DIR: &str = "tables";

/// The longest key that a row can have. The engine panics over a longer one, be it only asked for.
const ROW_KEY_BYTES_MAX: usize = u16::MAX as usize;

/// A key that no row of any space has.
const NO_ROW: &[u8] = &[0xff];

/// The spaces of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// Versions of keys, in key order, newest first.
    Kv,
    /// Changes, in revision order.
    Rev,
    /// Everything else, under fixed names.
    Sys,
}

impl Space {
    pub(crate) const ALL: [Space; 3] = [Space::Kv, Space::Rev, Space::Sys];
}

/// Decides which versions a compaction of the engine may drop. Made anew for each compaction and shown the rows of one
/// run of tables in key order.
pub(crate) trait RowFilter: Send {
    /// Whether the row is to be dropped.
    fn drops(&mut self, key: &[u8], value: &[u8]) -> bool;
}

/// Makes a [`RowFilter`] for the space [`Space::Kv`].
// A seam, since the engine calls into the rules of `mvcc`, which stands above this module.
pub(crate) type MakeRowFilter = Arc<dyn Fn() -> Box<dyn RowFilter> + Send + Sync + std::panic::RefUnwindSafe>;

/// A failure of the store. Fatal for a write; a read may be tried again.
#[derive(Debug)]
pub(crate) enum StorageError {
    Open {
        path: PathBuf,
        source: Box<fjall::Error>,
    },
    Io {
        path: PathBuf,
        source: io::Error,
    },
    Engine {
        what: &'static str,
        source: Box<fjall::Error>,
    },
    /// Something in the store's directory that the engine did not put there, and that it would die of or take for its
    /// own.
    Foreign {
        path: PathBuf,
    },
    /// Rows in memory that do not reach the disk in all the time given.
    FlushHangs,
    /// A row that does not say what its place demands.
    Damaged {
        what: &'static str,
    },
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageError::Open { path, source } => match source.as_ref() {
                fjall::Error::Locked => write!(f, "{}: the store is open in another process", path.display()),
                fjall::Error::Io(error) | fjall::Error::Storage(lsm_tree::Error::Io(error)) => {
                    write!(f, "{}: the store can't be opened ({error})", path.display())
                }
                error => write!(
                    f,
                    "{}: the store is damaged ({error:?}): remove this directory to have it built again from the log, or \
                     restore a backup",
                    path.display()
                ),
            },
            StorageError::Io { path, source } => write!(f, "{}: {source}", path.display()),
            StorageError::Foreign { path } => {
                write!(f, "{}: not a part of the store; move it to another place", path.display())
            }
            StorageError::Engine { what, source } => write!(f, "{what}: {source:?}"),
            StorageError::FlushHangs => write!(
                f,
                "rows in memory have not reached the disk for {} s; look at the disk, or restart this member",
                (FLUSH_POLL * FLUSH_POLLS_MAX).as_secs()
            ),
            StorageError::Damaged { what } => write!(f, "the store is damaged: {what}"),
        }
    }
}

impl std::error::Error for StorageError {}

/// Whether there is a directory with something in it.
pub(crate) fn has_entries(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Refuses what the engine panics at when it opens the store, calls damage, or deletes as its own: among the journals,
/// the directories of the spaces, and their tables. Other files it leaves alone.
fn refuse_foreign(store: &Path) -> Result<(), StorageError> {
    let is_journal = |name: &str| name.strip_suffix(".jnl").is_some_and(|number| number.parse::<u64>().is_ok());
    refuse_unless(store, |name, kind| {
        let extension = Path::new(name).extension();
        !extension.is_some_and(|extension| extension.eq_ignore_ascii_case("jnl"))
            || (is_journal(name) && kind.is_file())
    })?;
    let keyspaces = store.join(KEYSPACES_DIR);
    refuse_unless(&keyspaces, |name, kind| kind.is_file() || KEYSPACE_DIRS.contains(&name))?;
    for keyspace in KEYSPACE_DIRS {
        refuse_unless(&keyspaces.join(keyspace).join(TABLES_DIR), |name, kind| {
            kind.is_file() && (name.parse::<u64>().is_ok() || name == ".DS_Store" || name.starts_with("._"))
        })?;
    }
    Ok(())
}

/// Names the first entry of a directory that does not belong there. A missing directory is left to the engine.
fn refuse_unless(dir: &Path, belongs: impl Fn(&str, fs::FileType) -> bool) -> Result<(), StorageError> {
    let failed = |source| StorageError::Io { path: dir.to_owned(), source };
    if !dir.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if !entry.file_name().to_str().is_some_and(|name| belongs(name, kind)) {
            return Err(StorageError::Foreign { path: entry.path() });
        }
    }
    Ok(())
}

fn engine(what: &'static str) -> impl FnOnce(fjall::Error) -> StorageError {
    move |source| StorageError::Engine { what, source: Box::new(source) }
}

/// The open store. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Storage(Engine);

/// What keeps the rows. A closed choice and not a trait: a release build has one, and no call through it.
#[derive(Clone)]
enum Engine {
    Fjall(Arc<Inner>),
    #[cfg(any(test, feature = "sim"))]
    Memory(memory::Memory),
}

struct Inner {
    database: Database,
    kv: Keyspace,
    rev: Keyspace,
    sys: Keyspace,
    /// Commits begun and ended, so that one that hangs can be named.
    begun: AtomicU64,
    ended: AtomicU64,
    memtables: Memtables,
}

impl Storage {
    /// Opens the store in a directory of its own, or makes it.
    ///
    /// # Errors
    /// What hinders it, with the path and what to do.
    pub(crate) fn open(path: &Path, make_filter: MakeRowFilter) -> Result<Storage, StorageError> {
        if !has_entries(path).map_err(|source| StorageError::Io { path: path.to_owned(), source })? {
            Storage::make(path, &make_filter)?;
        }
        refuse_foreign(path)?;
        Ok(Storage(Engine::Fjall(Storage::open_made(path, make_filter)?)))
    }

    /// Makes a store in a directory of its own from rows that come in the order of [`Space::ALL`] and, within a space, of
    /// their keys. Durable when this returns; what a failure leaves behind is of no use.
    ///
    /// # Errors
    /// What the source or the disk reports, and `Damaged` when rows are out of order.
    pub(crate) fn fill(
        path: &Path,
        make_filter: MakeRowFilter,
        next: &mut dyn FnMut() -> Result<Option<(Space, Row)>, StorageError>,
    ) -> Result<Storage, StorageError> {
        let inner = Storage::open_made(path, make_filter)?;
        let mut row = next()?;
        for space in Space::ALL {
            let mut ingestion = inner.space(space).start_ingestion().map_err(engine("rows can't be taken in"))?;
            let mut last: Option<Bytes> = None;
            while let Some((_, (key, value))) = row.take_if(|(of, _)| *of == space) {
                if last.as_ref().is_some_and(|last| *last >= key) {
                    return Err(StorageError::Damaged { what: "rows are out of order" });
                }
                ingestion
                    .write(fjall::Slice::from(key.clone()), fjall::Slice::from(value))
                    .map_err(engine("rows can't be taken in"))?;
                last = Some(key);
                row = next()?;
            }
            ingestion.finish().map_err(engine("rows can't be taken in"))?;
        }
        if row.is_some() {
            return Err(StorageError::Damaged { what: "rows are out of order" });
        }
        let storage = Storage(Engine::Fjall(inner));
        storage.persist()?;
        Ok(storage)
    }

    /// Makes the store under another name first: the engine does not open again what a crash left half made.
    fn make(path: &Path, make_filter: &MakeRowFilter) -> Result<(), StorageError> {
        let failed = |source| StorageError::Io { path: path.to_owned(), source };
        let half = path.with_extension("new");
        if has_entries(&half).map_err(failed)? {
            fs::remove_dir_all(&half).map_err(failed)?;
        }
        Storage(Engine::Fjall(Storage::open_made(&half, Arc::clone(make_filter))?)).persist()?;
        fs::rename(&half, path).map_err(failed)?;
        path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all()).map_err(failed)
    }

    fn open_made(path: &Path, make_filter: MakeRowFilter) -> Result<Arc<Inner>, StorageError> {
        let failed = |source| StorageError::Open { path: path.to_owned(), source: Box::new(source) };
        let filters: Arc<dyn Factory> = Arc::new(Filters(make_filter));
        let database = Database::builder(path)
            .cache_size(BLOCK_CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .worker_threads(WORKER_THREADS)
            .with_compaction_filter_factories(Arc::new(move |space| (space == "kv").then(|| Arc::clone(&filters))))
            .open()
            .map_err(failed)?;
        yield_to_requests();
        let options = || {
            KeyspaceCreateOptions::default()
                .manual_journal_persist(true)
                .max_memtable_size(MEMTABLE_BYTES_MAX)
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4))
        };
        // Rows of `rev` are never looked up one by one.
        let unfiltered = || {
            options()
                .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(0.0))))
        };
        let kv = database.keyspace("kv", options).map_err(failed)?;
        let rev = database.keyspace("rev", unfiltered).map_err(failed)?;
        let sys = database.keyspace("sys", options).map_err(failed)?;
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let memtables = Memtables::default();
        Ok(Arc::new(Inner { database, kv, rev, sys, begun, ended, memtables }))
    }

    /// The store of a simulated member.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn in_memory(rows: &memory::Memory, make_filter: MakeRowFilter) -> Storage {
        rows.open(make_filter);
        Storage(Engine::Memory(rows.clone()))
    }

    pub(crate) fn batch(&self) -> Batch {
        match &self.0 {
            Engine::Fjall(inner) => Batch(Rows::Fjall(Arc::clone(inner), inner.database.batch())),
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => Batch(Rows::Memory(memory.clone(), memory::Batch::default())),
        }
    }

    /// A view of all spaces as of the last commit. To be dropped soon: it keeps old tables alive.
    pub(crate) fn view(&self) -> View {
        match &self.0 {
            Engine::Fjall(inner) => View(Seen::Fjall(Arc::clone(inner), inner.database.snapshot())),
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => View(Seen::Memory(memory.view())),
        }
    }

    /// The newest row under this key.
    pub(crate) fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        if key.len() > ROW_KEY_BYTES_MAX {
            return Ok(None);
        }
        match &self.0 {
            Engine::Fjall(inner) => {
                let row = inner.space(space).get(key).map_err(engine("a row can't be read"))?;
                Ok(row.map(Bytes::from))
            }
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => Ok(memory.get(space, key)),
        }
    }

    /// Makes every commit so far durable.
    pub(crate) fn persist(&self) -> Result<(), StorageError> {
        match &self.0 {
            Engine::Fjall(inner) => {
                inner.database.persist(PersistMode::SyncAll).map_err(engine("the store can't be synced"))
            }
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => memory.persist(),
        }
    }

    /// Flushes what is in memory to tables, so that the engine looks for something to compact; all spaces, since a journal
    /// goes only when every one of its rows is in a table.
    pub(crate) fn nudge(&self) -> Result<(), StorageError> {
        match &self.0 {
            Engine::Fjall(inner) => inner.nudge(),
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => memory.nudge(),
        }
    }

    /// Rewrites all tables without what is dropped in them. Reads and writes go on meanwhile.
    pub(crate) fn rewrite(&self) -> Result<(), StorageError> {
        match &self.0 {
            Engine::Fjall(inner) => self.rewrite_tables(inner),
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => memory.rewrite(),
        }
    }

    fn rewrite_tables(&self, inner: &Inner) -> Result<(), StorageError> {
        for space in inner.spaces() {
            flush(space)?;
            space.major_compact().map_err(engine("tables can't be rewritten"))?;
        }
        // Another turn, so that the journal with the rewritten rows can go, and the tables they were in: the engine keeps
        // those until a flush finds nobody reading them. To remove what is not there makes one without changing a row.
        let mut turn = self.batch();
        for space in Space::ALL {
            turn.remove(space, Bytes::from_static(NO_ROW));
        }
        turn.commit()?;
        for space in inner.spaces() {
            flush(space)?;
        }
        Ok(())
    }

    /// Drops the tables of `rev` all of whose rows lie in the range, as a whole; others stay as they are.
    pub(crate) fn drop_rev_tables(&self, below: &[u8]) -> Result<(), StorageError> {
        match &self.0 {
            Engine::Fjall(inner) => inner
                .rev
                .tree
                .drop_range::<&[u8], _>((Bound::Unbounded, Bound::Excluded(below)))
                .map_err(|error| engine("old tables can't be dropped")(fjall::Error::Storage(error))),
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => memory.drop_rev_tables(below),
        }
    }

    /// Bytes that the spaces take: of tables on disk, and of rows in memory that will be in tables. The journal holds
    /// those rows a second time and many that are gone; it has bounds of its own, and nobody can make it smaller.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        match &self.0 {
            Engine::Fjall(inner) => {
                let tables: u64 = inner.spaces().into_iter().map(Keyspace::disk_space).sum();
                tables + inner.database.write_buffer_size()
            }
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(memory) => memory.allocated_bytes(),
        }
    }

    /// The number of the commit under way, if there is one.
    pub(crate) fn commit_under_way(&self) -> Option<u64> {
        match &self.0 {
            Engine::Fjall(inner) => {
                let begun = inner.begun.load(Ordering::Acquire);
                (inner.ended.load(Ordering::Acquire) != begun).then_some(begun)
            }
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(_) => None,
        }
    }

    /// Frees rows that were written to tables, and says how many memtables that were. From a thread that has time.
    pub(crate) fn free_memtables(&self) -> usize {
        match &self.0 {
            Engine::Fjall(inner) => inner.memtables.free(),
            #[cfg(any(test, feature = "sim"))]
            Engine::Memory(_) => 0,
        }
    }
}

impl Inner {
    fn nudge(&self) -> Result<(), StorageError> {
        for space in self.spaces() {
            space.rotate_memtable().map_err(engine("rows in memory can't be flushed"))?;
        }
        Ok(())
    }

    fn commit(&self, rows: fjall::OwnedWriteBatch) -> Result<(), StorageError> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        let result = rows.commit();
        self.memtables.note([&self.kv.tree, &self.rev.tree].into_iter());
        self.ended.fetch_add(1, Ordering::AcqRel);
        result.map_err(engine("a batch can't be written"))
    }

    fn spaces(&self) -> [&Keyspace; 3] {
        [&self.kv, &self.rev, &self.sys]
    }

    fn space(&self, space: Space) -> &Keyspace {
        match space {
            Space::Kv => &self.kv,
            Space::Rev => &self.rev,
            Space::Sys => &self.sys,
        }
    }
}

/// Lowers the priority of the engine's thread. Without it, or where it is not allowed, all works but less evenly.
fn yield_to_requests() {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let is_worker = fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim_end() == WORKER_NAME);
        let id = thread.file_name().to_str().and_then(|id| id.parse().ok()).and_then(Pid::from_raw);
        if let (true, Some(id)) = (is_worker, id) {
            setpriority_process(Some(id), WORKER_NICENESS).ok();
        }
    }
}

/// Writes the rows in memory to tables and waits for it.
///
/// The engine itself waits only for what it rotates now; rows rotated just before may be on their way still.
fn flush(space: &Keyspace) -> Result<(), StorageError> {
    space.rotate_memtable_and_wait().map_err(engine("rows in memory can't be flushed"))?;
    for _ in 0..FLUSH_POLLS_MAX {
        if space.tree.sealed_memtable_count() == 0 {
            return Ok(());
        }
        std::thread::sleep(FLUSH_POLL);
    }
    Err(StorageError::FlushHangs)
}

/// Rows to be written together or not at all.
pub(crate) struct Batch(Rows);

enum Rows {
    Fjall(Arc<Inner>, fjall::OwnedWriteBatch),
    #[cfg(any(test, feature = "sim"))]
    Memory(memory::Memory, memory::Batch),
}

impl Batch {
    pub(crate) fn put(&mut self, space: Space, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        match &mut self.0 {
            Rows::Fjall(inner, rows) => {
                rows.insert(inner.space(space), fjall::Slice::from(key.into()), fjall::Slice::from(value.into()));
            }
            #[cfg(any(test, feature = "sim"))]
            Rows::Memory(_, rows) => rows.put(space, key.into(), Some(value.into())),
        }
    }

    pub(crate) fn remove(&mut self, space: Space, key: impl Into<Bytes>) {
        match &mut self.0 {
            Rows::Fjall(inner, rows) => rows.remove(inner.space(space), fjall::Slice::from(key.into())),
            #[cfg(any(test, feature = "sim"))]
            Rows::Memory(_, rows) => rows.put(space, key.into(), None),
        }
    }

    /// Writes the rows. From a plain thread: the engine makes the writer wait when it can't keep up.
    ///
    /// # Errors
    /// Fatal: whether the rows are in the store is not known.
    pub(crate) fn commit(self) -> Result<(), StorageError> {
        match self.0 {
            Rows::Fjall(inner, rows) => inner.commit(rows),
            #[cfg(any(test, feature = "sim"))]
            Rows::Memory(memory, rows) => memory.commit(rows),
        }
    }
}

/// All spaces as of one commit.
pub(crate) struct View(Seen);

enum Seen {
    Fjall(Arc<Inner>, Snapshot),
    #[cfg(any(test, feature = "sim"))]
    Memory(memory::View),
}

/// One row: key and value.
pub(crate) type Row = (Bytes, Bytes);

/// The rows of a scan, by either engine.
enum Scan<I> {
    Fjall(I),
    #[cfg(any(test, feature = "sim"))]
    Memory(memory::Scan),
}

impl View {
    pub(crate) fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        if key.len() > ROW_KEY_BYTES_MAX {
            return Ok(None);
        }
        match &self.0 {
            Seen::Fjall(inner, snapshot) => {
                let row = snapshot.get(inner.space(space), key).map_err(engine("a row can't be read"))?;
                Ok(row.map(Bytes::from))
            }
            #[cfg(any(test, feature = "sim"))]
            Seen::Memory(view) => Ok(view.get(space, key)),
        }
    }

    /// The rows between the bounds, in key order. Bounds may be longer than any row's key.
    pub(crate) fn scan(
        &self,
        space: Space,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = Result<Row, StorageError>> + use<> {
        let bounds = cut(bounds);
        match &self.0 {
            Seen::Fjall(inner, snapshot) => {
                Scan::Fjall(snapshot.range::<&[u8], _>(inner.space(space), bounds).map(|guard| {
                    let (key, value) = guard.into_inner().map_err(engine("rows can't be read"))?;
                    Ok((Bytes::from(key), Bytes::from(value)))
                }))
            }
            #[cfg(any(test, feature = "sim"))]
            Seen::Memory(view) => Scan::Memory(view.scan(space, bounds)),
        }
    }
}

/// The same rows, by bounds as long as a row's key at most: one that begins with a longer bound's first bytes and is no
/// longer than they are is below that bound.
fn cut<'a>((low, high): (Bound<&'a [u8]>, Bound<&'a [u8]>)) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    let cut = |bound: Bound<&'a [u8]>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => {
            key.get(..ROW_KEY_BYTES_MAX + 1).map(|key| &key[..key.len() - 1])
        }
        Bound::Unbounded => None,
    };
    (cut(low).map_or(low, Bound::Excluded), cut(high).map_or(high, Bound::Included))
}

impl<I: Iterator<Item = Result<Row, StorageError>>> Iterator for Scan<I> {
    type Item = Result<Row, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Scan::Fjall(rows) => rows.next(),
            #[cfg(any(test, feature = "sim"))]
            Scan::Memory(rows) => rows.next().map(Ok),
        }
    }
}

impl<I: DoubleEndedIterator<Item = Result<Row, StorageError>>> DoubleEndedIterator for Scan<I> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            Scan::Fjall(rows) => rows.next_back(),
            #[cfg(any(test, feature = "sim"))]
            Scan::Memory(rows) => rows.next_back().map(Ok),
        }
    }
}

struct Filters(MakeRowFilter);

impl Factory for Filters {
    fn name(&self) -> &'static str {
        "kuorum-versions"
    }

    fn make_filter(&self, _: &Context) -> Box<dyn CompactionFilter> {
        Box::new(Filter((self.0)()))
    }
}

struct Filter(Box<dyn RowFilter>);

impl CompactionFilter for Filter {
    fn filter_item(&mut self, item: ItemAccessor<'_>, _: &Context) -> lsm_tree::Result<Verdict> {
        // A row is written once under its key, so nothing older can show through where it is taken away.
        Ok(if self.0.drops(item.key(), &item.value()?) { Verdict::Destroy } else { Verdict::Keep })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeBounds;

    use super::*;
    use crate::mvcc::filter::Floor;

    #[test]
    fn a_flushed_memtable_is_freed_when_asked_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("store"), Floor::new().filters()).unwrap();
        let commit = |key: &'static str| {
            let mut batch = storage.batch();
            batch.put(Space::Kv, key, "1");
            batch.put(Space::Rev, key, "1");
            batch.commit().unwrap();
        };
        commit("a");
        assert_eq!(storage.free_memtables(), 0);
        storage.rewrite().unwrap();
        commit("b");
        // The engine lets go of what it has flushed at its next turn.
        storage.rewrite().unwrap();
        assert!(storage.free_memtables() >= 2);
        assert_eq!(storage.free_memtables(), 0);
        assert_eq!(storage.get(Space::Kv, b"a").unwrap().unwrap(), "1");
    }

    #[test]
    fn rows_are_sought_by_bounds_longer_than_any_key() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(&dir.path().join("store"), Floor::new().filters()).unwrap();
        let longest = vec![b'm'; ROW_KEY_BYTES_MAX];
        let keys = [b"a".to_vec(), longest.clone(), b"n".to_vec()];
        let mut batch = storage.batch();
        for key in &keys {
            batch.put(Space::Kv, key.clone(), "1");
        }
        batch.commit().unwrap();
        let view = storage.view();
        let below = [&longest[..], b"a"].concat();
        let above = [&longest[1..], b"n", b"a"].concat();
        let ends = [&below, &above, &longest, &keys[0], &keys[2]];
        let bounds = ends.map(|key| [Bound::Included(&key[..]), Bound::Excluded(&key[..])]).concat();
        for (low, high) in bounds.iter().flat_map(|low| bounds.iter().map(|high| (*low, *high))) {
            let found: Vec<Bytes> = view.scan(Space::Kv, (low, high)).map(|row| row.unwrap().0).collect();
            let within = |key: &&Vec<u8>| RangeBounds::<[u8]>::contains(&(low, high), &key[..]);
            assert_eq!(found, keys.iter().filter(within).collect::<Vec<_>>());
        }
        assert!(view.get(Space::Kv, &longest).unwrap().is_some());
        assert_eq!(view.get(Space::Kv, &below).unwrap(), None);
        assert_eq!(storage.get(Space::Kv, &below).unwrap(), None);
    }

    #[test]
    fn what_a_crash_left_half_made_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (half, whole) = (dir.path().join("store.new"), dir.path().join("store"));
        fs::create_dir_all(half.join("keyspaces")).unwrap();
        fs::write(half.join("0.jnl"), "").unwrap();
        let storage = Storage::open(&whole, Floor::new().filters()).unwrap();
        let mut batch = storage.batch();
        batch.put(Space::Sys, "a", "1");
        batch.commit().unwrap();
        storage.persist().unwrap();
        drop(storage);
        assert!(!half.exists());
        let storage = Storage::open(&whole, Floor::new().filters()).unwrap();
        assert_eq!(storage.get(Space::Sys, b"a").unwrap().unwrap(), "1");
    }

    #[test]
    fn what_does_not_belong_in_the_store_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        drop(Storage::open(&store, Floor::new().filters()).unwrap());
        for foreign in ["x.jnl", "7.jnl", "keyspaces/backup", "keyspaces/9", "keyspaces/1/tables/old"] {
            let path = store.join(foreign);
            fs::create_dir(&path).unwrap();
            let error = Storage::open(&store, Floor::new().filters()).err().unwrap().to_string();
            assert_eq!(error, format!("{}: not a part of the store; move it to another place", path.display()));
            fs::remove_dir(&path).unwrap();
        }
        fs::write(store.join("x.jnl"), "").unwrap();
        assert!(Storage::open(&store, Floor::new().filters()).is_err());
        fs::remove_file(store.join("x.jnl")).unwrap();
        // Plain files elsewhere do no harm.
        fs::write(store.join("notes"), "").unwrap();
        fs::write(store.join("keyspaces/notes"), "").unwrap();
        Storage::open(&store, Floor::new().filters()).unwrap();
    }
}
