//! The values behind a request that was made without them.

use std::{cell::RefCell, collections::BTreeMap};

/// As much of a value as the host hands over at once.
const READ_BYTES_MAX: u32 = 64 << 10;

thread_local! {
    static VALUES: RefCell<BTreeMap<u32, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
}

/// The whole value of the put that is number `op` in the request's operations.
pub fn set(op: u32, value: impl Into<Vec<u8>>) {
    VALUES.with_borrow_mut(|values| values.insert(op, value.into()));
}

pub(super) fn reset() {
    VALUES.set(BTreeMap::new());
}

pub(crate) fn read(op: u32, offset: u32, max: u32) -> Vec<u8> {
    VALUES.with_borrow(|values| {
        let rest = values.get(&op).and_then(|value| value.get(offset as usize..)).unwrap_or_default();
        rest[..rest.len().min(max.min(READ_BYTES_MAX) as usize)].to_vec()
    })
}
