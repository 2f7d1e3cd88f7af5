//! Keeps backups as files of the directory that is granted as "backups".

use kuorum_plugin_sdk::{Failure, NoConfig, Plugin, backup_target::Blobs, host::files};

struct Folder;

impl Plugin for Folder {
    type Config = NoConfig;

    fn new(_: NoConfig) -> Result<Self, Failure> {
        Ok(Self)
    }
}

impl Blobs for Folder {
    type Writer = files::Writer;

    fn create(&mut self, name: &str) -> Result<files::Writer, Failure> {
        Ok(files::create("backups", name)?)
    }

    fn list(&mut self, prefix: &str) -> Result<Vec<(String, u64)>, Failure> {
        let entries = files::list_entries("backups", prefix)?.into_iter();
        Ok(entries.map(|entry| (entry.path, entry.bytes)).collect())
    }

    fn get(&mut self, name: &str, offset: u64, max: u32) -> Result<Vec<u8>, Failure> {
        Ok(files::read("backups", name, offset, max)?)
    }

    fn delete(&mut self, name: &str) -> Result<(), Failure> {
        Ok(files::remove("backups", name)?)
    }
}

kuorum_plugin_sdk::export!(Folder: backup_target);

#[cfg(test)]
mod tests {
    use super::*;
    use kuorum_plugin_sdk::backup_target::{BackupTarget, Meta, Object};
    use kuorum_plugin_sdk::testing;

    #[test]
    fn a_backup_comes_back_as_it_was() {
        let mut folder: Folder = testing::plugin("{}");
        let meta = Meta { id: "b1".into(), revision: 7, size_hint_bytes: 3, ..Meta::default() };
        let mut upload = folder.begin(meta.clone()).expect("the file is new");
        folder.write(&mut upload, 0, b"ab").expect("first piece");
        folder.write(&mut upload, 2, b"c").expect("second piece");
        assert_eq!(folder.list_objects(), Ok(vec![]));
        let stored = folder.finish(upload, &[0; 32]).expect("durable");
        assert_eq!((stored.bytes, stored.location.as_str()), (3, "b1@7@0@0@@"));

        assert_eq!(folder.list_objects(), Ok(vec![Object { meta, bytes: 3, complete: true }]));
        let mut download = folder.open("b1").expect("it is there");
        assert_eq!(folder.read(&mut download, 1, 10), Ok(b"bc".to_vec()));
        folder.remove("b1").expect("it is there");
        assert_eq!(testing::files::content("backups", "b1@7@0@0@@"), None);
    }
}
