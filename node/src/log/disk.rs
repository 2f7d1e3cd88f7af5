//! The simulation seam of the log: named files in one directory.
//!
//! [`FileDisk`] is the real one; `MemDisk` (in `mem_disk`) loses, tears and flips bytes on demand. Nothing in the log
//! touches `std::fs` but through this trait, and nothing here knows about records. Every call blocks; the log's own
//! thread makes them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One directory. A name becomes durable with `sync_dir`, not with the file's own sync.
pub trait Disk: Send + Sync {
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes an empty file, emptying the one that has this name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_dir(&self) -> io::Result<()>;
}

/// One open file; it stays the same file when its name changes.
pub trait DiskFile: Send + Sync {
    fn size(&self) -> io::Result<u64>;
    /// Reads up to `buffer.len()` bytes and fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes`, or fails having written any part of them.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes content and size durable, and says how long that took.
    fn sync(&self) -> io::Result<Duration>;
    fn truncate(&self, size: u64) -> io::Result<()>;
    /// Reserves space up to `size` and makes the file at least that long; new bytes read as zeros.
    fn preallocate(&self, size: u64) -> io::Result<()>;
}

/// A directory of the file system, held under an exclusive lock so that two processes never write one log.
#[derive(Debug)]
pub struct FileDisk {
    path: PathBuf,
    directory: File,
}

impl FileDisk {
    /// Makes the directory and its parents durable where they are missing, and takes its lock.
    pub fn open(path: &Path) -> io::Result<Self> {
        make_directory(path)?;
        let directory = File::open(path)?;
        match directory.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), directory }),
            Err(TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("{} is in use by another process", path.display()),
            )),
            Err(TryLockError::Error(source)) => Err(source),
        }
    }
}

/// Creates each missing directory and syncs its parent; without that a power cut can take the whole directory away.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        Some(_) | None => Path::new("."),
    };
    make_directory(parent)?;
    match fs::DirBuilder::new().create(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => return Err(source),
        Ok(()) | Err(_) => {}
    }
    File::open(parent)?.sync_all()
}

impl Disk for FileDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        // Mode 0600 as etcd (fileutil.PrivateFileMode): the log holds every secret that is put.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.path.join(name))?;
        Ok(Arc::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(Arc::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

impl DiskFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match FileExt::read_at(self, &mut buffer[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(source) if source.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(source),
            }
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the disk is the seam at which a sync is timed; a simulated disk answers its own time"
    )]
    fn sync(&self) -> io::Result<Duration> {
        let start = Instant::now();
        self.sync_data()?;
        Ok(start.elapsed())
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn preallocate(&self, size: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(self, FallocateFlags::empty(), 0, size) {
            // Like etcd's preallocExtend: some file systems lack fallocate, and a long one may be interrupted for ever.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) if self.metadata()?.len() < size => self.set_len(size),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) | Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
