//! Keeps each backup as a file `<id>@<revision>` of the directory that is granted as "backups".

use kuorum_plugin_sdk::{Failure, NoConfig, Plugin, backup_target::*, host::files};

struct Folder;

impl Plugin for Folder {
    type Config = NoConfig;
    fn new(_: NoConfig) -> Result<Self, Failure> {
        Ok(Self)
    }
}

impl BackupTarget for Folder {
    type Upload = (Meta, u64, files::Writer);
    type Download = String;

    fn begin(&mut self, meta: Meta) -> Result<Self::Upload, Failure> {
        let writer = files::create("backups", &format!("{}@{}", meta.id, meta.revision))?;
        Ok((meta, 0, writer))
    }
    fn write(&mut self, (_, bytes, writer): &mut Self::Upload, _: u64, chunk: &[u8]) -> Result<(), Failure> {
        *bytes += chunk.len() as u64;
        Ok(writer.append(chunk)?)
    }
    fn finish(&mut self, (meta, bytes, writer): Self::Upload, sha256: &[u8]) -> Result<Stored, Failure> {
        writer.commit()?;
        let location = format!("backups/{}@{}", meta.id, meta.revision);
        Ok(Stored { id: meta.id, bytes, sha256: sha256.to_vec(), location })
    }
    fn list_objects(&mut self) -> Result<Vec<Object>, Failure> {
        let entries = files::list_entries("backups", "")?.into_iter();
        Ok(entries.filter_map(|entry| object(&entry)).collect())
    }
    fn open(&mut self, id: &str) -> Result<String, Failure> {
        let entry = files::list_entries("backups", &format!("{id}@"))?.pop();
        Ok(entry.ok_or(files::FsError::NotFound)?.path)
    }
    fn read(&mut self, path: &mut String, offset: u64, max: u32) -> Result<Vec<u8>, Failure> {
        Ok(files::read("backups", path, offset, max)?)
    }
    fn remove(&mut self, id: &str) -> Result<(), Failure> {
        let entries = files::list_entries("backups", &format!("{id}@"))?;
        entries.iter().try_for_each(|entry| Ok(files::remove("backups", &entry.path)?))
    }
}

fn object(entry: &files::Entry) -> Option<Object> {
    let (id, revision) = entry.path.rsplit_once('@')?;
    let meta = Meta { id: id.into(), revision: revision.parse().ok()?, ..Meta::default() };
    Some(Object { meta, bytes: entry.bytes, complete: true })
}

kuorum_plugin_sdk::export!(Folder: backup_target);

#[cfg(test)]
mod tests {
    use super::*;
    use kuorum_plugin_sdk::testing;

    #[test]
    fn a_backup_comes_back_as_it_was() {
        let mut folder: Folder = testing::plugin("{}");
        let meta = Meta { id: "b1".into(), revision: 7, ..Meta::default() };
        let mut upload = folder.begin(meta.clone()).expect("the file is new");
        folder.write(&mut upload, 0, b"ab").expect("first piece");
        folder.write(&mut upload, 2, b"c").expect("second piece");
        assert_eq!(folder.list_objects(), Ok(vec![]));
        let stored = folder.finish(upload, &[0; 32]).expect("durable");
        assert_eq!((stored.bytes, stored.location.as_str()), (3, "backups/b1@7"));

        assert_eq!(folder.list_objects(), Ok(vec![Object { meta, bytes: 3, complete: true }]));
        let mut download = folder.open("b1").expect("it is there");
        assert_eq!(folder.read(&mut download, 1, 10), Ok(b"bc".to_vec()));
        folder.remove("b1").expect("it is there");
        assert_eq!(testing::files::content("backups", "b1@7"), None);
    }
}
