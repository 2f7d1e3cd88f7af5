//! The keys that a plugin sees.

use std::{cell::RefCell, collections::BTreeMap};

use crate::host::kv_read::{Kv, ReadError};

thread_local! {
    static STORE: RefCell<Store> = const { RefCell::new(Store::new()) };
}

struct Store {
    rows: BTreeMap<Vec<u8>, Kv>,
    revision: i64,
    /// None: everything is granted.
    granted: Option<Vec<Vec<u8>>>,
    scans: bool,
}

impl Store {
    const fn new() -> Self {
        Self { rows: BTreeMap::new(), revision: 1, granted: None, scans: true }
    }

    fn grants(&self, key: &[u8]) -> bool {
        self.granted.as_ref().is_none_or(|prefixes| prefixes.iter().any(|prefix| key.starts_with(prefix)))
    }
}

/// Sets a key. Revisions count up from 2, as in a fresh store.
pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
    let (key, value) = (key.into(), value.into());
    STORE.with_borrow_mut(|store| {
        store.revision += 1;
        let revision = store.revision;
        let (create_revision, version) =
            store.rows.get(&key).map_or((revision, 1), |row| (row.create_revision, row.version + 1));
        let row = Kv { key: key.clone(), value, create_revision, mod_revision: revision, version, lease: 0 };
        store.rows.insert(key, row);
    });
}

/// Deletes a key.
pub fn delete(key: impl AsRef<[u8]>) {
    STORE.with_borrow_mut(|store| {
        store.revision += 1;
        store.rows.remove(key.as_ref());
    });
}

/// Denies every key outside these prefixes. Until then all are granted.
pub fn grant(prefixes: &[&str]) {
    STORE.with_borrow_mut(|store| store.granted = Some(prefixes.iter().map(|prefix| (*prefix).into()).collect()));
}

/// Denies scans, as the host does in an admission check.
pub fn deny_scans() {
    STORE.with_borrow_mut(|store| store.scans = false);
}

pub(super) fn reset() {
    STORE.set(Store::new());
}

pub(crate) fn get(key: &[u8]) -> Result<Option<Kv>, ReadError> {
    STORE.with_borrow(|store| if store.grants(key) { Ok(store.rows.get(key).cloned()) } else { Err(ReadError::Denied) })
}

pub(crate) fn scan(prefix: &[u8], after: Option<&[u8]>, limit: u32, keys_only: bool) -> Result<Vec<Kv>, ReadError> {
    STORE.with_borrow(|store| {
        if !store.scans || !store.grants(prefix) {
            return Err(ReadError::Denied);
        }
        let rows = store.rows.values().filter(|row| row.key.starts_with(prefix));
        let rows = rows.filter(|row| after.is_none_or(|after| row.key.as_slice() > after));
        let rows = rows.take(limit as usize).cloned();
        Ok(rows.map(|row| if keys_only { Kv { value: Vec::new(), ..row } } else { row }).collect())
    })
}
