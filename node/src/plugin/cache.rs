//! Compiled code on this member's disk, so that a restart does not compile anew.
//!
//! ```text
//! <data-dir>/member/plugins/<key>.code    magic, sha256 of what follows, compiled code
//! ```
//!
//! The key is the sha256 over the plugin's file and the engine's fingerprint, so code of another wasmtime, processor or
//! configuration is never found. Nothing here comes from another member. What is read is checked against its sum before
//! anybody runs it; an entry that does not fit is removed, and its plugin compiled again. A cache that can't be written
//! costs time only. Entries appear by a rename; they are not synced, since the sum tells a torn one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::event::Timespec;
use rustix::fs::{AtFlags, CWD, Timestamps, UTIME_NOW, utimensat};
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"KUOCODE1";
const SUM_BYTES: usize = 32;
const ENDING: &str = "code";
const HALF_WRITTEN: &str = "new";
/// The current and the previous revision of all plugins that a cluster can have, and then some.
const ENTRIES_MAX: usize = 64;
const BYTES_MAX: u64 = 2 << 30;
/// Of a file's times: the moment at which it is set.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };

pub(super) struct Cache {
    dir: PathBuf,
    /// Of the engine.
    fingerprint: [u8; 32],
}

/// What an entry turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Found(Vec<u8>),
    Missing,
    /// It was damaged, and is removed.
    Damaged,
}

impl Cache {
    /// Clears away what a crash left half written. Where the directory can't be used nothing is kept, until it can.
    pub(super) fn open(dir: &Path, fingerprint: [u8; 32]) -> Cache {
        let cache = Cache { dir: dir.to_owned(), fingerprint };
        if let Err(error) = cache.clear() {
            crate::warn!("compiled code may not be kept", path = dir.to_owned(), error = error.to_string());
        }
        cache
    }

    fn clear(&self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if has_ending(&path, HALF_WRITTEN) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn path(&self, file: &[u8]) -> PathBuf {
        let key = Sha256::new().chain_update(self.fingerprint).chain_update(file).finalize();
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.dir.join(name).with_extension(ENDING)
    }

    /// The compiled code of the plugin's file.
    pub(super) fn get(&self, file: &[u8]) -> io::Result<Lookup> {
        let path = self.path(file);
        let mut bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Lookup::Missing),
            Err(error) => return Err(error),
        };
        if is_whole(&bytes) {
            // What is used is not old. Should that not be noted, it is only dropped sooner.
            let now = Timestamps { last_access: NOW, last_modification: NOW };
            utimensat(CWD, &path, &now, AtFlags::empty()).ok();
            bytes.drain(..MAGIC.len() + SUM_BYTES);
            return Ok(Lookup::Found(bytes));
        }
        fs::remove_file(path)?;
        Ok(Lookup::Damaged)
    }

    /// Keeps the compiled code, and drops the oldest entries beyond the bound.
    pub(super) fn put(&self, file: &[u8], code: &[u8]) -> io::Result<()> {
        let path = self.path(file);
        let half = path.with_extension(HALF_WRITTEN);
        fs::create_dir_all(&self.dir)?;
        let mut bytes = Vec::with_capacity(MAGIC.len() + SUM_BYTES + code.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&Sha256::digest(code));
        bytes.extend_from_slice(code);
        if let Err(error) = fs::write(&half, bytes).and_then(|()| fs::rename(&half, path)) {
            // A part of it would take room that is lacking already.
            fs::remove_file(half).ok();
            return Err(error);
        }
        self.trim()
    }

    /// Forgets the code, which the engine did not take.
    pub(super) fn remove(&self, file: &[u8]) -> io::Result<()> {
        fs::remove_file(self.path(file))
    }

    fn trim(&self) -> io::Result<()> {
        let mut entries: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if has_ending(&path, ENDING) {
                let about = fs::metadata(&path)?;
                entries.push((about.modified()?, about.len(), path));
            }
        }
        entries.sort_unstable();
        let mut bytes: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        let mut left = entries.len();
        for (_, entry_bytes, path) in entries {
            // The newest stays whatever its size: it was just put.
            if (left <= ENTRIES_MAX && bytes <= BYTES_MAX) || left == 1 {
                break;
            }
            fs::remove_file(path)?;
            (left, bytes) = (left - 1, bytes - entry_bytes);
        }
        Ok(())
    }
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

fn is_whole(bytes: &[u8]) -> bool {
    let Some((sum, code)) = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk::<SUM_BYTES>()) else {
        return false;
    };
    Sha256::digest(code)[..] == sum[..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(dir: &Path) -> Cache {
        Cache::open(dir, [1; 32])
    }

    #[test]
    fn an_entry_comes_back_for_its_file_and_engine_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        cache.put(b"file", b"code").unwrap();
        assert_eq!(cache.get(b"file").unwrap(), Lookup::Found(b"code".to_vec()));
        assert_eq!(cache.get(b"other").unwrap(), Lookup::Missing);
        let other_engine = Cache::open(dir.path(), [2; 32]);
        assert_eq!(other_engine.get(b"file").unwrap(), Lookup::Missing);
    }

    #[test]
    fn a_damaged_or_torn_entry_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        for damage in [&(|bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1) as &dyn Fn(&mut Vec<u8>), &|bytes| {
            bytes.truncate(20);
        }] {
            cache.put(b"file", b"code").unwrap();
            let path = cache.path(b"file");
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, bytes).unwrap();
            assert_eq!(cache.get(b"file").unwrap(), Lookup::Damaged);
            assert_eq!(cache.get(b"file").unwrap(), Lookup::Missing);
        }
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_the_newest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        for number in 0..ENTRIES_MAX + 5 {
            cache.put(&number.to_be_bytes(), b"code").unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), ENTRIES_MAX);
        assert_ne!(cache.get(&(ENTRIES_MAX + 4).to_be_bytes()).unwrap(), Lookup::Missing);
    }

    #[test]
    fn what_is_used_is_not_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        for number in 0..ENTRIES_MAX {
            cache.put(&number.to_be_bytes(), b"code").unwrap();
        }
        // Longer than the file system's clock takes to go on.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_ne!(cache.get(&0_usize.to_be_bytes()).unwrap(), Lookup::Missing);
        for number in ENTRIES_MAX..2 * ENTRIES_MAX - 1 {
            cache.put(&number.to_be_bytes(), b"code").unwrap();
        }
        assert_ne!(cache.get(&0_usize.to_be_bytes()).unwrap(), Lookup::Missing);
        assert_eq!(cache.get(&1_usize.to_be_bytes()).unwrap(), Lookup::Missing);
    }

    #[test]
    fn a_directory_that_can_not_be_used_costs_time_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugins");
        fs::write(&path, "in the way").unwrap();
        let cache = cache(&path);
        cache.put(b"file", b"code").unwrap_err();
        cache.get(b"file").unwrap_err();
        fs::remove_file(&path).unwrap();
        cache.put(b"file", b"code").unwrap();
        assert_eq!(cache.get(b"file").unwrap(), Lookup::Found(b"code".to_vec()));
    }

    #[test]
    fn what_can_not_be_written_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        // Nothing can be renamed to what is a directory with something in it.
        fs::create_dir_all(cache.path(b"file").join("taken")).unwrap();
        cache.put(b"file", b"code").unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_crash_left_half_written_is_cleared_away() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ab.new"), b"x").unwrap();
        cache(dir.path());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
