//! The disk under the log: named files of one directory. The seam at which a simulation puts a disk that fails.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Files of one directory. Offsets and lengths are in bytes.
pub trait Disk: Send {
    /// The names of all files.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// Makes an empty file of this length whose bytes are zero and, where the disk can, allocated.
    fn create(&mut self, name: &str, length: u64) -> io::Result<()>;
    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns once the file's bytes and length will survive a loss of power.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    fn read(&mut self, name: &str) -> io::Result<Vec<u8>>;
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Returns once makings, renamings and removals will survive a loss of power.
    fn sync_dir(&mut self) -> io::Result<()>;
}

/// A directory of the file system.
pub struct FileDisk {
    dir: PathBuf,
    /// Without it a loss of power loses what was acknowledged (etcd: --unsafe-no-fsync).
    fsync: bool,
    /// Files that were written; the log writes one at a time, so there are few.
    open: BTreeMap<String, File>,
}

impl FileDisk {
    /// The files of a directory, which must exist.
    pub fn open(dir: &Path, fsync: bool) -> io::Result<FileDisk> {
        // Found out now rather than at the first write.
        File::open(dir)?;
        Ok(FileDisk { dir: dir.to_owned(), fsync, open: BTreeMap::new() })
    }

    fn file(&mut self, name: &str) -> io::Result<&File> {
        if !self.open.contains_key(name) {
            let file = OpenOptions::new().read(true).write(true).open(self.dir.join(name))?;
            self.open.insert(name.to_owned(), file);
        }
        Ok(&self.open[name])
    }
}

impl Disk for FileDisk {
    fn list(&mut self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&mut self, name: &str, length: u64) -> io::Result<()> {
        let path = self.dir.join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(length)?,
            Err(error) => {
                drop(file);
                // What was allocated before the disk was full is given back.
                fs::remove_file(&path)?;
                return Err(error.into());
            }
        }
        self.open.insert(name.to_owned(), file);
        Ok(())
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all_at(bytes, offset)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        if self.fsync { self.file(name)?.sync_data() } else { Ok(()) }
    }

    fn read(&mut self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.dir.join(name))
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.dir.join(from), self.dir.join(to))?;
        if let Some(file) = self.open.remove(from) {
            self.open.insert(to.to_owned(), file);
        }
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.open.remove(name);
        fs::remove_file(self.dir.join(name))
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        if self.fsync { File::open(&self.dir)?.sync_all() } else { Ok(()) }
    }
}
