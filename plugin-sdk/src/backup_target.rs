//! Backup target: where backups are kept.
//!
//! The host makes a backup and hands it over in pieces; the target keeps them, lists them and hands them back. It reaches
//! the outside through [`files`](crate::host::files) and [`outbound_http`](crate::host::outbound_http), as far as the
//! operator grants it. Where that can keep blobs by name, [`Blobs`] is all there is to implement.
//!
//! ```
#![doc = include_str!("../examples/tiny_backup_target.rs")]
//! ```

mod blobs;

use std::cell::RefCell;

#[doc(hidden)]
pub use self::blobs::Writing;
pub use self::blobs::{BlobWriter, Blobs};
pub use crate::bindings::backup_target::exports::kuorum::policy::backup_target::{Meta, Object, Stored};
use crate::{
    Failure, Plugin,
    bindings::backup_target::exports::kuorum::policy::backup_target::{
        Download, Guest, GuestDownload, GuestUpload, Upload,
    },
    export::{Adapter, Exported},
};

/// A plugin that keeps backups.
pub trait BackupTarget: Plugin {
    /// A backup on its way in. Dropped where the host gives up.
    type Upload: 'static;
    /// A backup on its way out.
    type Download: 'static;

    /// Begins to take a backup.
    fn begin(&mut self, meta: Meta) -> Result<Self::Upload, Failure>;

    /// Takes the next piece, of at most 1 MiB. `offset` is where it begins; pieces come in order.
    fn write(&mut self, upload: &mut Self::Upload, offset: u64, chunk: &[u8]) -> Result<(), Failure>;

    /// The last piece was written. The backup must be durable when this returns `Ok`.
    fn finish(&mut self, upload: Self::Upload, sha256: &[u8]) -> Result<Stored, Failure>;

    /// Leaves nothing behind of a backup that won't be finished.
    fn abort(&mut self, upload: Self::Upload) {
        drop(upload);
    }

    /// All that is kept.
    fn list_objects(&mut self) -> Result<Vec<Object>, Failure>;

    /// Begins to hand out a backup.
    fn open(&mut self, id: &str) -> Result<Self::Download, Failure>;

    /// The bytes from `offset` on, at most `max`; none at the end.
    fn read(&mut self, download: &mut Self::Download, offset: u64, max: u32) -> Result<Vec<u8>, Failure>;

    /// Deletes a backup. One that isn't there is no error.
    fn remove(&mut self, id: &str) -> Result<(), Failure>;
}

/// The upload that a resource of the component stands for, until it is finished or aborted.
#[doc(hidden)]
pub struct Incoming<T: BackupTarget>(RefCell<Option<T::Upload>>);

/// The download that a resource of the component stands for.
#[doc(hidden)]
pub struct Outgoing<T: BackupTarget>(RefCell<T::Download>);

impl<T: Exported + BackupTarget> Guest for Adapter<T> {
    type Upload = Incoming<T>;
    type Download = Outgoing<T>;

    fn begin(meta: Meta) -> Result<Upload, Failure> {
        let upload = Self::ask(|plugin| plugin.begin(meta))?;
        Ok(Upload::new(Incoming::<T>(RefCell::new(Some(upload)))))
    }

    fn list_objects() -> Result<Vec<Object>, Failure> {
        Self::ask(T::list_objects)
    }

    fn open(id: String) -> Result<Download, Failure> {
        let download = Self::ask(|plugin| plugin.open(&id))?;
        Ok(Download::new(Outgoing::<T>(RefCell::new(download))))
    }

    fn remove(id: String) -> Result<(), Failure> {
        Self::ask(|plugin| plugin.remove(&id))
    }
}

impl<T: Exported + BackupTarget> GuestUpload for Incoming<T> {
    fn write(&self, offset: u64, chunk: Vec<u8>) -> Result<(), Failure> {
        let mut upload = self.0.borrow_mut();
        let upload = upload.as_mut().ok_or_else(over)?;
        Adapter::<T>::ask(|plugin| plugin.write(upload, offset, &chunk))
    }

    fn finish(&self, sha256: Vec<u8>) -> Result<Stored, Failure> {
        let upload = self.0.take().ok_or_else(over)?;
        Adapter::<T>::ask(|plugin| plugin.finish(upload, &sha256))
    }

    fn abort(&self) {
        if let Some(upload) = self.0.take() {
            // Without a plugin, nothing was begun.
            let _configured = Adapter::<T>::ask(|plugin| {
                plugin.abort(upload);
                Ok(())
            });
        }
    }
}

impl<T: Exported + BackupTarget> GuestDownload for Outgoing<T> {
    fn read(&self, offset: u64, max: u32) -> Result<Vec<u8>, Failure> {
        Adapter::<T>::ask(|plugin| plugin.read(&mut self.0.borrow_mut(), offset, max))
    }
}

fn over() -> Failure {
    Failure::Internal("the upload is finished or aborted already".into())
}

impl Default for Meta {
    /// A full backup that nothing is known of.
    fn default() -> Self {
        Self {
            id: String::new(),
            base: None,
            revision: 0,
            raft_index: 0,
            cluster: 0,
            size_hint_bytes: 0,
            format: String::new(),
        }
    }
}
