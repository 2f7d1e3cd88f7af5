//! Backups as blobs that are called after them.
//!
//! ```text
//! <id>@<revision>@<raft index>@<cluster, hexadecimal>@<format>@<base, empty for a full backup>
//! ```
//!
//! Whatever in a name is no letter, digit, `-`, `_` or `.` of ASCII is written as `%` and two hexadecimal digits a byte, so
//! that the name is one for files, URLs and objects alike.

use super::{BackupTarget, Meta, Object, Stored};
use crate::{Failure, Plugin};

/// A plugin that keeps blobs by name, in a directory or in an object store, and is a [`BackupTarget`] by that: all that is
/// known of a backup is in the name of its blob. A backup's size, as it was guessed before, is not.
pub trait Blobs: Plugin {
    /// A blob on its way in.
    type Writer: BlobWriter;

    /// Begins a blob. It is an error if there is one of this name.
    fn create(&mut self, name: &str) -> Result<Self::Writer, Failure>;

    /// Names and sizes in bytes of the blobs whose names begin so, once they are whole.
    fn list(&mut self, prefix: &str) -> Result<Vec<(String, u64)>, Failure>;

    /// The bytes from `offset` on, at most `max`; none at the end.
    fn get(&mut self, name: &str, offset: u64, max: u32) -> Result<Vec<u8>, Failure>;

    /// Deletes a blob.
    fn delete(&mut self, name: &str) -> Result<(), Failure>;
}

/// A blob on its way in. What is dropped before it is committed leaves nothing behind.
pub trait BlobWriter: 'static {
    /// Adds a piece of at most 1 MiB to the end.
    fn append(&mut self, chunk: &[u8]) -> Result<(), Failure>;

    /// Makes the blob durable, and lets it be seen.
    fn commit(self) -> Result<(), Failure>;
}

/// A backup on its way into a blob.
#[doc(hidden)]
pub struct Writing<W> {
    meta: Meta,
    name: String,
    bytes: u64,
    writer: W,
}

impl<T: Blobs> BackupTarget for T {
    type Upload = Writing<T::Writer>;
    type Download = String;

    fn begin(&mut self, meta: Meta) -> Result<Self::Upload, Failure> {
        let name = name_of(&meta);
        let writer = self.create(&name)?;
        Ok(Writing { meta, name, bytes: 0, writer })
    }

    fn write(&mut self, upload: &mut Self::Upload, offset: u64, chunk: &[u8]) -> Result<(), Failure> {
        if offset != upload.bytes {
            return Err(Failure::Internal(format!("a piece begins at {offset}, and not at {}", upload.bytes)));
        }
        upload.writer.append(chunk)?;
        upload.bytes += chunk.len() as u64;
        Ok(())
    }

    fn finish(&mut self, upload: Self::Upload, sha256: &[u8]) -> Result<Stored, Failure> {
        let Writing { meta, name, bytes, writer } = upload;
        writer.commit()?;
        Ok(Stored { id: meta.id, bytes, sha256: sha256.to_vec(), location: name })
    }

    fn list_objects(&mut self) -> Result<Vec<Object>, Failure> {
        let blobs = self.list("")?.into_iter();
        // What has another name is not the plugin's.
        Ok(blobs
            .filter_map(|(name, bytes)| Some(Object { meta: meta_of(&name, bytes)?, bytes, complete: true }))
            .collect())
    }

    fn open(&mut self, id: &str) -> Result<Self::Download, Failure> {
        let (name, _) =
            self.list(&beginning_of(id))?.pop().ok_or_else(|| Failure::Permanent(format!("no backup {id}")))?;
        Ok(name)
    }

    fn read(&mut self, download: &mut Self::Download, offset: u64, max: u32) -> Result<Vec<u8>, Failure> {
        self.get(download, offset, max)
    }

    fn remove(&mut self, id: &str) -> Result<(), Failure> {
        self.list(&beginning_of(id))?.iter().try_for_each(|(name, _)| self.delete(name))
    }
}

/// How the name of a backup's blob begins, whatever else is known of it.
fn beginning_of(id: &str) -> String {
    format!("{}@", escaped(id))
}

fn name_of(meta: &Meta) -> String {
    let Meta { id, base, revision, raft_index, cluster, format, size_hint_bytes: _ } = meta;
    let base = base.as_deref().unwrap_or_default();
    let (begin, format, base) = (beginning_of(id), escaped(format), escaped(base));
    format!("{begin}{revision}@{raft_index}@{cluster:x}@{format}@{base}")
}

fn meta_of(name: &str, bytes: u64) -> Option<Meta> {
    let parts: Vec<&str> = name.split('@').collect();
    let [id, revision, raft_index, cluster, format, base] = parts[..] else { return None };
    let meta = Meta {
        id: unescaped(id)?,
        base: Some(unescaped(base)?).filter(|base| !base.is_empty()),
        revision: revision.parse().ok()?,
        raft_index: raft_index.parse().ok()?,
        cluster: u64::from_str_radix(cluster, 16).ok()?,
        size_hint_bytes: bytes,
        format: unescaped(format)?,
    };
    // Numbers and bytes can be written in other ways too; a backup has one name.
    (name_of(&meta) == name).then_some(meta)
}

fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02x}"),
    };
    text.bytes().map(byte).collect()
}

fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_what_is_known_of_a_backup() {
        let full = Meta { id: "b1".into(), revision: 7, ..Meta::default() };
        assert_eq!(name_of(&full), "b1@7@0@0@@");
        let next = Meta {
            id: "täglich/2@".into(),
            base: Some("b1".into()),
            revision: 9,
            raft_index: 12,
            cluster: u64::MAX,
            size_hint_bytes: 5,
            format: "%41".into(),
        };
        assert_eq!(name_of(&next), "t%c3%a4glich%2f2%40@9@12@ffffffffffffffff@%2541@b1");
        for meta in [full, next] {
            assert_eq!(meta_of(&name_of(&meta), meta.size_hint_bytes), Some(meta));
        }
    }

    #[test]
    fn a_name_of_somebody_elses_is_seen() {
        for name in [
            "",
            "b1",
            "b1@7@0@0@",
            "b1@7@0@0@@@",
            "b1@x@0@0@@",
            "b1@7@0@g@@",
            "%4@7@0@0@@",
            "%ff@7@0@0@@",
            "%é@7@0@0@@",
            "b1@+7@0@0@@",
            "b%31@7@0@0@@",
        ] {
            assert_eq!(meta_of(name, 1), None, "{name}");
        }
    }
}
