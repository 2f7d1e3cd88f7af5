//! Which store of the data directory is in use.
//!
//! A member makes its first store as `store`. When it is given another member's whole state, that becomes a store of its own
//! beside it, and the file `current` names it from then on, with the entry that it stands for: the log hears of that a moment
//! later, and a start after a crash in between tells it. Whatever `current` does not name is removed at start.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::catch_up;
use crate::log::SnapshotMark;

const FILE: &str = "current";
const TEMPORARY: &str = "current.tmp";
/// The store that a member makes first.
const FIRST: &str = "store";

#[derive(Serialize, Deserialize)]
struct Named {
    store: String,
    index: u64,
    term: u64,
    voters: Vec<u64>,
    learners: Vec<u64>,
}

/// The store in use.
pub(super) struct Current {
    /// The name of its directory.
    pub(super) store: String,
    /// The entry as of which it came from another member, if it did.
    pub(super) mark: Option<SnapshotMark>,
}

/// Names the store that came from another member as the one in use. Durable when this returns.
pub(super) fn switch(member_dir: &Path, store: &str, mark: &SnapshotMark) -> io::Result<()> {
    let SnapshotMark { index, term, voters, learners } = mark.clone();
    let named = Named { store: store.to_owned(), index, term, voters, learners };
    let temporary = member_dir.join(TEMPORARY);
    let mut file = File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(&named)?)?;
    file.sync_all()?;
    fs::rename(&temporary, member_dir.join(FILE))?;
    File::open(member_dir)?.sync_all()
}

/// Finds the store in use, and removes others.
pub(super) fn find(member_dir: &Path) -> anyhow::Result<Current> {
    let path = member_dir.join(FILE);
    let current = match fs::read(&path) {
        Ok(bytes) => {
            let named: Named = serde_json::from_slice(&bytes).with_context(|| {
                format!("{}: does not name the store in use; restore it from a copy of the directory", path.display())
            })?;
            anyhow::ensure!(
                is_store(&named.store),
                "{}: names {:?}, which is no store; restore it from a copy of the directory",
                path.display(),
                named.store
            );
            let Named { store, index, term, voters, learners } = named;
            Current { store, mark: Some(SnapshotMark { index, term, voters, learners }) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Current { store: FIRST.to_owned(), mark: None },
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    remove_others(member_dir, &current.store).with_context(|| member_dir.display().to_string())?;
    Ok(current)
}

/// Whether a name is that of a store's directory.
fn is_store(name: &str) -> bool {
    name == FIRST || name.strip_prefix("store-").is_some_and(|index| u64::from_str_radix(index, 16).is_ok())
}

/// Whether an entry of the directory has to do with stores.
pub(super) fn is_known(name: &str) -> bool {
    let store = name.strip_prefix("index").map(|rest| format!("store{rest}"));
    [FILE, TEMPORARY].contains(&name) || is_store(name) || store.is_some_and(|store| is_store(&store))
}

fn remove_others(member_dir: &Path, current: &str) -> io::Result<()> {
    for entry in fs::read_dir(member_dir)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        if name == current || !is_store(&name) {
            continue;
        }
        fs::remove_dir_all(entry.path())?;
        let dump = member_dir.join(catch_up::index_dump(&name));
        if dump.exists() {
            fs::remove_file(dump)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_named_last_is_in_use_and_the_others_go() {
        let dir = tempfile::tempdir().unwrap();
        for store in ["store", "store-a", "store-1f", "storeroom"] {
            fs::create_dir(dir.path().join(store)).unwrap();
        }
        for file in ["index", "index-a", "lock"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        let mark = SnapshotMark { index: 31, term: 2, voters: vec![1], learners: vec![2] };
        switch(dir.path(), "store-1f", &mark).unwrap();
        let found = find(dir.path()).unwrap();
        assert_eq!((found.store.as_str(), found.mark), ("store-1f", Some(mark)));
        let mut left: Vec<String> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["current", "lock", "store-1f", "storeroom"]);

        fs::write(dir.path().join("current"), "{").unwrap();
        assert!(find(dir.path()).is_err());
        fs::remove_file(dir.path().join("current")).unwrap();
        let found = find(dir.path()).unwrap();
        assert_eq!((found.store.as_str(), found.mark), ("store", None));
    }

    #[test]
    fn only_names_of_stores_and_their_dumps_are_known() {
        for name in ["store", "store-1f", "index", "index-1f", "current"] {
            assert!(is_known(name), "{name}");
        }
        for name in ["storeroom", "store-x", "index-", "wal"] {
            assert!(!is_known(name), "{name}");
        }
    }
}
