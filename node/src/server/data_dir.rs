//! The data directory at start: whose it is, whether it is whole, and what of it has to be made first.
//!
//! ```text
//! <data-dir>/member/lock    held while a process serves this directory
//! <data-dir>/member/wal/    the Raft log, in etcd's format (or --wal-dir)
//! <data-dir>/member/store/  the state machine, or one that `current` names (see `current`)
//! ```
//!
//! The log is made before the store, and says in its metadata whose it is; the store says the same in a row of its own.
//! The log of a member that founds a cluster begins with the members being added, as in etcd, each by an entry of its own;
//! that of a member that joins is empty, and gets these entries, or a snapshot, from the others.
//! A log without a store is a first start that was cut short, or a store that was lost and is built again from a log
//! that reaches back to the first entry. A store without its log is refused: what was acknowledged may be missing.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};

use super::current::{self, Current};
use super::join;
use crate::catch_up;
use crate::cluster::{self, ClusterId, FOUNDING_TERM, Identity, Member, MemberId, Members, founding_entries};
use crate::config::{Config, Url};
use crate::log::{Disk, EntryKind, FileDisk, HardState, Log, LogOptions, Metadata, Recovered};
use crate::mvcc::filter::Floor;
use crate::mvcc::{self, AppliedMark, MvccOptions, Store, Writer};
use crate::storage::{self, Storage};

/// What stands in `<data-dir>/member`, beside etcd's own names, which are refused.
const MEMBER_ENTRIES: [&str; 5] = ["lock", "wal", "store.new", "index.tmp", "plugins"];

/// An opened data directory.
pub(super) struct DataDir {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    /// A number unlike that of any other data directory; 0 for one that was made without.
    pub(super) number: u64,
    pub(super) log: Log,
    pub(super) recovered: Recovered,
    pub(super) store: Store,
    /// The name of the store's directory.
    pub(super) store_name: String,
    pub(super) writer: Writer,
    pub(super) applied: AppliedMark,
    pub(super) members: Members,
    /// Released when the process ends.
    pub(super) lock: File,
}

impl DataDir {
    pub(super) fn open(config: &Config) -> anyhow::Result<DataDir> {
        let path = config.member.data_dir.clone();
        let member_dir = path.join("member");
        make_dir(&path)?;
        refuse_etcd(&member_dir)?;
        make_dir(&member_dir)?;
        let lock = lock(&member_dir.join("lock"))?;
        warn_of_foreign_files(&path, &|name| name == "member")?;
        warn_of_foreign_files(&member_dir, &|name| MEMBER_ENTRIES.contains(&name) || current::is_known(name))?;

        let Current { store: store_name, mark } = current::find(&member_dir)?;
        let store_dir = member_dir.join(&store_name);
        let store_exists = storage::has_entries(&store_dir).with_context(|| store_dir.display().to_string())?;
        let (mut log, mut recovered) = open_log(config, store_exists)?;
        if let Some(mark) = mark.filter(|mark| mark.index > recovered.snapshot.index) {
            // The store was put in its place, and the log did not hear of it any more.
            log.restart_at(&mark, None).with_context(|| config.member.wal_dir().display().to_string())?;
            drop(log);
            (log, recovered) = open_log(config, store_exists)?;
        }
        let founders = founders(config, &recovered);
        let logged = Identity {
            cluster_id: ClusterId(recovered.metadata.cluster_id),
            member_id: MemberId(recovered.metadata.node_id),
        };
        let (store, mut writer, mut applied) =
            open_store(config, &store_dir, &member_dir.join(catch_up::index_dump(&store_name)))?;
        let members = match store.sys_get(cluster::IDENTITY_ROW)? {
            Some(row) => {
                check_identity(&row, logged, &store_dir)?;
                let row = store.sys_get(cluster::MEMBERS_ROW)?.context("the store names no members; restore it")?;
                let removed = store.sys_get(cluster::REMOVED_ROW)?;
                Members::from_rows(&row, removed.as_deref())
                    .context("the store's member list can't be read; restore it")?
            }
            None => {
                let (members, mark) = founders;
                let members = found(members, logged, &mut writer, mark)?;
                applied = mark;
                // Durable before anything else: a store that does not say whose it is fits beside any log.
                store.persist()?;
                members
            }
        };
        if members.was_removed(logged.member_id) {
            bail!(
                "{}: member {} has been permanently removed from the cluster: the data directory is of no more use; to run the \
                 member again, add it anew (member add) and start it with an empty directory",
                path.display(),
                logged.member_id
            );
        }
        if config.cluster.force_new {
            go_on_alone(logged.member_id, &members, &recovered, &mut writer, applied)?;
            store.persist()?;
        }
        check_own_urls(config, logged, &members)?;
        let number = recovered.metadata.data_dir;
        Ok(DataDir {
            path,
            identity: logged,
            number,
            log,
            recovered,
            store,
            store_name,
            writer,
            applied,
            members,
            lock,
        })
    }
}

/// What etcd's rules make of the flags: this member's id and its cluster's.
fn identity_from_flags(config: &Config) -> Identity {
    let member_ids: Vec<MemberId> = config
        .cluster
        .initial
        .values()
        .map(|urls| MemberId::at_bootstrap(&texts(urls), &config.cluster.token))
        .collect();
    let own = texts(&config.cluster.initial[&config.member.name]);
    Identity { cluster_id: ClusterId::of(&member_ids), member_id: MemberId::at_bootstrap(&own, &config.cluster.token) }
}

fn texts(urls: &[Url]) -> Vec<String> {
    urls.iter().map(|url| url.text().to_owned()).collect()
}

/// The members that a new cluster of these flags has. Names come with the members themselves, once they have started.
fn members_from_flags(config: &Config) -> Vec<Member> {
    let member = |urls: &Vec<Url>| {
        let peer_urls = texts(urls);
        Member::unstarted(MemberId::at_bootstrap(&peer_urls, &config.cluster.token), peer_urls, false)
    };
    let mut members: Vec<Member> = config.cluster.initial.values().map(member).collect();
    members.sort_by_key(|member| member.id);
    members
}

/// The members that a store without rows begins with, and the entry up to which it then stands: what the log begins with
/// when it founded a cluster. Of a log that does not begin so nothing is known before it is applied.
fn founders(config: &Config, recovered: &Recovered) -> (Vec<Member>, AppliedMark) {
    let own = members_from_flags(config);
    let begins = |members: &[Member]| recovered.entries.starts_with(&founding_entries(members));
    let index = own.len() as u64;
    if recovered.hard_state.commit >= index && begins(&own) {
        return (own, AppliedMark { index, term: FOUNDING_TERM });
    }
    (Vec::new(), AppliedMark::default())
}

/// Writes the first rows of a new store: whose it is and who the members are.
fn found(
    members: Vec<Member>,
    identity: Identity,
    writer: &mut Writer,
    applied: AppliedMark,
) -> anyhow::Result<Members> {
    let members = Members::new(members);
    for (name, row) in members.to_rows() {
        writer.sys_put(name, row);
    }
    writer.sys_put(cluster::IDENTITY_ROW, serde_json::to_vec(&identity)?);
    writer.commit(applied)?;
    Ok(members)
}

/// Makes this member the only one of its cluster (--force-new-cluster). All that its log holds counts as committed from now
/// on: some of it may have been, and nobody is left to say.
fn go_on_alone(
    own: MemberId,
    members: &Members,
    recovered: &Recovered,
    writer: &mut Writer,
    applied: AppliedMark,
) -> anyhow::Result<()> {
    let mut unapplied = recovered.entries.iter().filter(|entry| entry.index > applied.index);
    if let Some(change) = unapplied.find(|entry| entry.kind != EntryKind::Normal) {
        bail!(
            "--force-new-cluster: entry {} changes the members and is not applied here yet, and would bring others back: use \
             the data directory of a member that has applied it",
            change.index
        );
    }
    if members.get(own).is_none() {
        bail!(
            "--force-new-cluster: the store does not know member {own} as one of its cluster; give it a member's directory"
        );
    }
    if members.keep_only(own) {
        for (name, row) in members.to_rows() {
            writer.sys_put(name, row);
        }
        writer.commit(applied)?;
        crate::warn!(
            "forgot all other members; this one is a cluster of its own now",
            "local-member-id" = own.to_string()
        );
    }
    Ok(())
}

fn check_identity(row: &[u8], logged: Identity, store_dir: &Path) -> anyhow::Result<()> {
    let stored: Identity = serde_json::from_slice(row).context("the store's identity can't be read; restore it")?;
    if stored != logged {
        bail!(
            "{}: the store belongs to member {} of cluster {}, the log beside it to member {} of cluster {}: \
             put the directories back that belong together, or remove the data directory to start anew",
            store_dir.display(),
            stored.member_id,
            stored.cluster_id,
            logged.member_id,
            logged.cluster_id
        );
    }
    Ok(())
}

/// Refuses the directory of another member: two processes would go by one name.
fn check_own_urls(config: &Config, identity: Identity, members: &Members) -> anyhow::Result<()> {
    let advertised = texts(&config.cluster.advertise_peer_urls);
    let taken = |member: &Member| {
        member.id != identity.member_id && member.peer_urls.iter().any(|url| advertised.contains(url))
    };
    if let Some(other) = members.list().into_iter().find(taken) {
        bail!(
            "{}: the data directory is that of another member, {}, while {} is where member {} is: start this member with its \
             own --data-dir, or with the peer URLs of the member that the directory belongs to",
            config.member.data_dir.display(),
            identity.member_id,
            advertised.join(","),
            other.id
        );
    }
    Ok(())
}

fn open_log(config: &Config, store_exists: bool) -> anyhow::Result<(Log, Recovered)> {
    let wal_dir = config.member.wal_dir();
    make_dir(&wal_dir)?;
    let place = || wal_dir.display().to_string();
    let options = LogOptions { unsafe_no_fsync: !config.member.fsync, ..LogOptions::default() };
    let disk: Arc<dyn Disk> = Arc::new(FileDisk::open(&wal_dir).with_context(place)?);
    if !Log::exists(&*disk).with_context(place)? {
        if store_exists {
            bail!(
                "{}: no log, but a store beside it: what was acknowledged may be missing. Put the log back (see \
                 --wal-dir), or remove the data directory to start anew",
                wal_dir.display()
            );
        }
        let identity = match config.cluster.joins_existing {
            true => join::existing(config)?,
            false => {
                let identity = identity_from_flags(config);
                join::check_not_bootstrapped(config, identity)?;
                identity
            }
        };
        let data_dir = rand::random::<u64>().max(1);
        let metadata = Metadata { node_id: identity.member_id.0, cluster_id: identity.cluster_id.0, data_dir };
        drop(Log::create(Arc::clone(&disk), metadata, options).with_context(place)?);
    }
    let (mut log, mut recovered) = Log::open(disk, options).with_context(place)?;
    let is_new = recovered.entries.is_empty() && recovered.hard_state == HardState::default() && !store_exists;
    if is_new && recovered.metadata.node_id == identity_from_flags(config).member_id.0 && !config.cluster.joins_existing
    {
        let entries = founding_entries(&members_from_flags(config));
        let hard_state = HardState { term: FOUNDING_TERM, vote: 0, commit: entries.len() as u64 };
        log.append(&entries, Some(&hard_state), true).with_context(place)?;
        (recovered.entries, recovered.hard_state) = (entries, hard_state);
    }
    if let Some(torn) = &recovered.torn_tail {
        crate::warn!(
            "cut an unfinished write off the end of the log",
            segment = torn.file,
            offset = torn.offset,
            bytes = torn.bytes,
            damage = torn.damage
        );
    }
    for name in &recovered.foreign {
        crate::warn!("found a file that is no segment of the log; it is left alone", path = wal_dir.join(name));
    }
    Ok((log, recovered))
}

fn open_store(config: &Config, store_dir: &Path, index_dump: &Path) -> anyhow::Result<(Store, Writer, AppliedMark)> {
    let floor = Floor::new();
    let storage = Storage::open(store_dir, floor.filters())?;
    let options = MvccOptions::new(index_dump.to_owned(), config.compaction.batch_revisions_max);
    mvcc::open(storage, floor, options).with_context(|| store_dir.display().to_string())
}

/// Refuses a directory that etcd wrote: serving beside it would look like an empty cluster.
fn refuse_etcd(member_dir: &Path) -> anyhow::Result<()> {
    let database = member_dir.join("snap").join("db");
    if database.exists() {
        bail!(
            "{}: an etcd data directory; importing one is not in this release. Use another --data-dir",
            database.display()
        );
    }
    Ok(())
}

fn make_dir(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            anyhow::anyhow!(
                "{}: a file stands where a directory is needed; move it or use another --data-dir",
                path.display()
            )
        }
        _ => anyhow::anyhow!(
            "{}: can't make the directory ({error}); make it writable or use another --data-dir",
            path.display()
        ),
    })
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::create(path)
        .map_err(|error| anyhow::anyhow!("{}: not writable ({error}); use another --data-dir", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("{}: another process serves this data directory; stop it or use another --data-dir", path.display())
        }
        Err(TryLockError::Error(error)) => bail!("{}: can't be locked ({error})", path.display()),
    }
}

/// Files that are not ours are left alone, and named once.
fn warn_of_foreign_files(dir: &Path, is_known: &dyn Fn(&str) -> bool) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let name = entry.with_context(|| dir.display().to_string())?.file_name();
        if !name.to_str().is_some_and(is_known) {
            crate::warn!(
                "found a file that is not part of the data directory; it is left alone",
                path = dir.join(&name).display().to_string()
            );
        }
    }
    Ok(())
}
