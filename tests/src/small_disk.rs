//! A small file system of its own, so that a test can fill a disk.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mounted tmpfs, unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where mounting is not allowed.
    pub fn mount(at: PathBuf, mebibytes: u64) -> Option<SmallDisk> {
        std::fs::create_dir_all(&at).expect("the member's home is writable");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
            .arg(&at)
            .stderr(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => Some(SmallDisk(at)),
            Ok(_) | Err(_) => None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Takes all room that is left but so many bytes.
    pub fn fill(&self, spared_bytes: u64) {
        let mut filler = std::fs::File::create(self.filler()).expect("the disk takes one more file");
        // Ends when there is no room for a page.
        while filler.write_all(&[0; 4_096]).is_ok() {}
        let bytes = filler.metadata().expect("an open file has a length").len();
        filler.set_len(bytes.saturating_sub(spared_bytes)).expect("a file can be cut");
    }

    /// Gives back what [`SmallDisk::fill`] took.
    pub fn clear(&self) {
        std::fs::remove_file(self.filler()).expect("what was filled can be emptied");
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    pub fn resize(&self, mebibytes: u64) {
        let size = format!("remount,size={mebibytes}m");
        let status = Command::new("mount").args(["-o", &size]).arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "{} cannot be resized", self.0.display());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(&self.0).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.0.display());
        }
    }
}
