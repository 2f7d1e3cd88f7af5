//! A disk in memory that can lose what was not synced, and fill up. For tests and, later, the simulation.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::log::disk::Disk;

/// Shared between the log under test and the test that breaks it.
#[derive(Clone, Default)]
pub(super) struct MemDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: BTreeMap<String, File>,
    /// Writes that still succeed before the disk is full; `None` for all.
    writes_left: Option<u32>,
}

#[derive(Clone, Default)]
struct File {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

impl MemDisk {
    /// The bytes of a file as the process sees them.
    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        self.0.lock().files[name].bytes.clone()
    }

    /// Replaces a file's bytes, synced or not.
    pub(super) fn set_bytes(&self, name: &str, bytes: Vec<u8>) {
        let file = File { synced: bytes.clone(), bytes };
        self.0.lock().files.insert(name.to_owned(), file);
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.lock().files.keys().cloned().collect()
    }

    pub(super) fn last_name(&self) -> String {
        self.names().pop().expect("a log has a segment")
    }

    pub(super) fn remove_file(&self, name: &str) {
        self.0.lock().files.remove(name);
    }

    /// A copy of the disk after a loss of power: of what was written and not synced, the bytes before `kept` survive.
    pub(super) fn after_power_loss(&self, kept: usize) -> MemDisk {
        let files = self.0.lock().files.clone();
        let lose = |mut file: File| {
            let mut bytes = file.synced.clone();
            bytes.resize(file.bytes.len(), 0);
            bytes[..kept.min(file.bytes.len())].copy_from_slice(&file.bytes[..kept.min(file.bytes.len())]);
            file.bytes = bytes;
            file
        };
        let files = files.into_iter().map(|(name, file)| (name, lose(file))).collect();
        MemDisk(Arc::new(Mutex::new(State { files, writes_left: None })))
    }

    /// After so many more writes or creations the disk is full; the one that fails leaves half of its bytes behind.
    pub(super) fn fill_after(&self, writes: Option<u32>) {
        self.0.lock().writes_left = writes;
    }
}

impl State {
    fn take_write(&mut self) -> io::Result<()> {
        match &mut self.writes_left {
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        self.files.get_mut(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for MemDisk {
    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&mut self, name: &str, length: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.take_write()?;
        let bytes = vec![0; usize::try_from(length).expect("a test's file is small")];
        state.files.insert(name.to_owned(), File { synced: Vec::new(), bytes });
        Ok(())
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        let full = state.take_write();
        let written = if full.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let file = state.file(name)?;
        let from = usize::try_from(offset).expect("a test's file is small");
        let end = from + written.len();
        if file.bytes.len() < end {
            file.bytes.resize(end, 0);
        }
        file.bytes[from..end].copy_from_slice(written);
        full
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let file = state.file(name)?;
        file.synced = file.bytes.clone();
        Ok(())
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.0.lock().file(name)?.bytes.clone())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.0.lock();
        let file = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.0.lock().files.remove(name).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        Ok(())
    }
}
