//! The files that a plugin reaches. Every grant is given, and each has a tree of its own.

use std::{cell::RefCell, collections::BTreeMap, mem, ops::Bound};

use crate::host::files::{Entry, FsError};

type Name = (String, String);

thread_local! {
    static FILES: RefCell<BTreeMap<Name, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// What a file holds, where it is there.
pub fn content(grant: &str, path: &str) -> Option<Vec<u8>> {
    FILES.with_borrow(|files| files.get(&name(grant, path)).cloned())
}

/// Puts a file in place, whole.
pub fn put(grant: &str, path: &str, content: impl Into<Vec<u8>>) {
    FILES.with_borrow_mut(|files| files.insert(name(grant, path), content.into()));
}

pub(super) fn reset() {
    FILES.set(BTreeMap::new());
}

pub(crate) struct Writer {
    name: Name,
    content: RefCell<Vec<u8>>,
}

impl Writer {
    pub(crate) fn append(&self, chunk: &[u8]) -> Result<(), FsError> {
        self.content.borrow_mut().extend_from_slice(chunk);
        Ok(())
    }

    pub(crate) fn commit(&self) -> Result<(), FsError> {
        let content = mem::take(&mut *self.content.borrow_mut());
        FILES.with_borrow_mut(|files| files.insert(self.name.clone(), content));
        Ok(())
    }
}

pub(crate) fn create(grant: &str, path: &str) -> Result<Writer, FsError> {
    let name = name(grant, path);
    if FILES.with_borrow(|files| files.contains_key(&name)) {
        return Err(FsError::Exists);
    }
    Ok(Writer { name, content: RefCell::default() })
}

pub(crate) fn read(grant: &str, path: &str, offset: u64, max: u32) -> Result<Vec<u8>, FsError> {
    FILES.with_borrow(|files| {
        let content = files.get(&name(grant, path)).ok_or(FsError::NotFound)?;
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = content.get(offset..).unwrap_or_default();
        Ok(rest[..rest.len().min(max as usize)].to_vec())
    })
}

pub(crate) fn list_entries(grant: &str, under: &str) -> Result<Vec<Entry>, FsError> {
    FILES.with_borrow(|files| {
        let from = files.range((Bound::Included(name(grant, under)), Bound::Unbounded));
        let within = from.take_while(|((of, path), _)| of == grant && path.starts_with(under));
        let entry = |path: &str, bytes: usize| Entry { path: path.to_string(), bytes: bytes as u64, modified_ms: 0 };
        Ok(within.map(|((_, path), content)| entry(path, content.len())).collect())
    })
}

pub(crate) fn remove(grant: &str, path: &str) -> Result<(), FsError> {
    FILES.with_borrow_mut(|files| files.remove(&name(grant, path)).map(|_| ()).ok_or(FsError::NotFound))
}

fn name(grant: &str, path: &str) -> Name {
    (grant.into(), path.into())
}
