//! A [`Disk`] in memory whose power can fail: for tests and for the simulator.
//!
//! Every change is in the journal until a sync makes it durable. [`MemDisk::crash`] keeps a prefix of the journal,
//! counted in bytes, so a write can be torn at any byte; later writes are then lost as a whole.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::disk::{Disk, DiskFile};

/// A cheap handle; clones see the same directory.
#[derive(Clone, Default)]
pub struct MemDisk {
    // A lock and not an owner: the log, its readers and the test that injects faults hold the disk at the same time.
    state: Arc<Mutex<State>>,
}

struct MemFile {
    disk: MemDisk,
    inode: usize,
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    live: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    journal: Vec<Change>,
    capacity_bytes: Option<u64>,
    sync_failures: u32,
    syncs: u64,
    writes: u64,
}

#[derive(Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
}

enum Change {
    Write { inode: usize, offset: usize, bytes: Vec<u8> },
    Resize { inode: usize, size: usize },
    Link { name: String, inode: usize },
    Unlink { name: String },
}

impl MemDisk {
    pub fn new() -> Self {
        Self::default()
    }

    /// Loses power: keeps what was synced and the first `unsynced_bytes_kept` bytes of what was not (a change that is
    /// no write counts as one byte).
    pub fn crash(&self, unsynced_bytes_kept: usize) {
        let mut state = self.state.lock();
        let mut budget = unsynced_bytes_kept;
        for mut change in std::mem::take(&mut state.journal) {
            let cost = change.cost();
            if budget < cost {
                if let Change::Write { bytes, .. } = &mut change {
                    bytes.truncate(budget);
                    state.make_durable(&change);
                }
                break;
            }
            budget -= cost;
            state.make_durable(&change);
        }
        state.live = state.durable.clone();
        for inode in &mut state.inodes {
            inode.live.clone_from(&inode.durable);
        }
    }

    /// The cost in bytes of all that a crash could lose now.
    pub fn unsynced_bytes(&self) -> usize {
        self.state.lock().journal.iter().map(Change::cost).sum()
    }

    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        state.live.get(name).map(|inode| state.inodes[*inode].live.clone())
    }

    /// Replaces a file, durably: how a test damages a log.
    pub fn replace(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        state.inodes.push(Inode { live: bytes.clone(), durable: bytes });
        let inode = state.inodes.len() - 1;
        state.live.insert(name.to_owned(), inode);
        state.durable.insert(name.to_owned(), inode);
    }

    /// Bytes that all files together may take, preallocated ones included.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity_bytes = bytes;
    }

    pub fn fail_syncs(&self, count: u32) {
        self.state.lock().sync_failures = count;
    }

    /// File syncs and writes so far.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.syncs, state.writes)
    }

    /// An independent copy of the durable directory.
    pub fn copy(&self) -> Self {
        let state = self.state.lock();
        let copy = Self::new();
        for (name, inode) in &state.durable {
            copy.replace(name, state.inodes[*inode].durable.clone());
        }
        copy
    }

    fn file(&self, inode: usize) -> Arc<dyn DiskFile> {
        Arc::new(MemFile { disk: self.clone(), inode })
    }
}

impl Change {
    fn cost(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Resize { .. } | Self::Link { .. } | Self::Unlink { .. } => 1,
        }
    }

    fn is_of(&self, file: usize) -> bool {
        match self {
            Self::Write { inode, .. } | Self::Resize { inode, .. } => *inode == file,
            Self::Link { .. } | Self::Unlink { .. } => false,
        }
    }
}

impl State {
    fn make_durable(&mut self, change: &Change) {
        match change {
            Change::Write { inode, offset, bytes } => write(&mut self.inodes[*inode].durable, *offset, bytes),
            Change::Resize { inode, size } => self.inodes[*inode].durable.resize(*size, 0),
            Change::Link { name, inode } => {
                self.durable.insert(name.clone(), *inode);
            }
            Change::Unlink { name } => {
                self.durable.remove(name);
            }
        }
    }

    fn sync_where(&mut self, is_synced: impl Fn(&Change) -> bool) {
        let (synced, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.journal).into_iter().partition(is_synced);
        for change in &synced {
            self.make_durable(change);
        }
        self.journal = kept;
    }

    fn link(&mut self, name: &str, inode: usize) {
        self.live.insert(name.to_owned(), inode);
        self.journal.push(Change::Link { name: name.to_owned(), inode });
    }

    fn unlink(&mut self, name: &str) -> io::Result<usize> {
        let inode = self.live.remove(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.journal.push(Change::Unlink { name: name.to_owned() });
        Ok(inode)
    }

    fn resize(&mut self, inode: usize, size: usize) {
        self.inodes[inode].live.resize(size, 0);
        self.journal.push(Change::Resize { inode, size });
    }

    /// How far a file may grow from `size` before the disk is full.
    fn room(&self, inode: usize) -> usize {
        let Some(capacity) = self.capacity_bytes else { return usize::MAX };
        let used: usize = self.live.values().map(|inode| self.inodes[*inode].live.len()).sum();
        let free = usize::try_from(capacity).unwrap_or(usize::MAX).saturating_sub(used);
        self.inodes[inode].live.len().saturating_add(free)
    }
}

fn write(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("files in memory are addressable")
}

impl Disk for MemDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().live.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.link(name, inode);
        Ok(self.file(inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.state.lock().live.get(name).copied();
        inode.map(|inode| self.file(inode)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        // The new name first: a crash between the two changes leaves both names, never none.
        let inode = *state.live.get(from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        state.link(to, inode);
        state.unlink(from).map(|_| ())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state.lock().unlink(name).map(|_| ())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.state.lock().sync_where(|change| matches!(change, Change::Link { .. } | Change::Unlink { .. }));
        Ok(())
    }
}

impl DiskFile for MemFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().inodes[self.inode].live.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state.lock();
        let content = &state.inodes[self.inode].live;
        let start = position(offset).min(content.len());
        let count = buffer.len().min(content.len() - start);
        buffer[..count].copy_from_slice(&content[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let offset = position(offset);
        let fits = state.room(self.inode).saturating_sub(offset).min(bytes.len());
        write(&mut state.inodes[self.inode].live, offset, &bytes[..fits]);
        state.journal.push(Change::Write { inode: self.inode, offset, bytes: bytes[..fits].to_vec() });
        state.writes += 1;
        if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<Duration> {
        let mut state = self.disk.state.lock();
        state.syncs += 1;
        if state.sync_failures > 0 {
            state.sync_failures -= 1;
            return Err(io::Error::other("injected sync failure"));
        }
        state.sync_where(|change| change.is_of(self.inode));
        Ok(Duration::ZERO)
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.disk.state.lock().resize(self.inode, position(size));
        Ok(())
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let size = position(size);
        if size > state.room(self.inode) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if size > state.inodes[self.inode].live.len() {
            state.resize(self.inode, size);
        }
        Ok(())
    }
}
