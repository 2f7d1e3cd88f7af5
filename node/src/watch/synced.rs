//! The watchers that are in step with the store, found by key.

use std::collections::HashMap;

use bytes::Bytes;

use crate::watch::intervals::Intervals;
use crate::watch::watcher::Watched;

/// Watchers of one key are found by hashing it; watchers of ranges through an interval index over the distinct ranges,
/// since many watchers tend to watch the same few.
#[derive(Default)]
pub(super) struct SyncedIndex {
    keys: HashMap<Bytes, Vec<u64>>,
    ranges: HashMap<Watched, u64>,
    groups: HashMap<u64, Vec<u64>>,
    intervals: Intervals<u64>,
    next_group: u64,
    len: usize,
}

impl SyncedIndex {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, watcher: u64, watched: &Watched) {
        self.len += 1;
        match watched {
            Watched::One(key) => self.keys.entry(key.clone()).or_default().push(watcher),
            Watched::Range(start, end) => {
                let group = *self.ranges.entry(watched.clone()).or_insert_with(|| {
                    self.next_group += 1;
                    self.intervals.insert(start.clone(), end.clone(), self.next_group);
                    self.next_group
                });
                self.groups.entry(group).or_default().push(watcher);
            }
        }
    }

    pub(super) fn remove(&mut self, watcher: u64, watched: &Watched) {
        match watched {
            Watched::One(key) => {
                let Some(watchers) = self.keys.get_mut(key) else { return };
                self.len -= take_out(watchers, watcher);
                if watchers.is_empty() {
                    self.keys.remove(key);
                }
            }
            Watched::Range(..) => {
                let Some(group) = self.ranges.get(watched).copied() else { return };
                let Some(watchers) = self.groups.get_mut(&group) else { return };
                self.len -= take_out(watchers, watcher);
                if watchers.is_empty() {
                    self.groups.remove(&group);
                    self.ranges.remove(watched);
                    self.intervals.remove(group);
                }
            }
        }
    }

    /// Calls `found` with every watcher of the key, each once.
    pub(super) fn at(&self, key: &[u8], found: &mut impl FnMut(u64)) {
        if let Some(watchers) = self.keys.get(key) {
            watchers.iter().copied().for_each(&mut *found);
        }
        self.intervals.at(key, &mut |group| self.groups[&group].iter().copied().for_each(&mut *found));
    }

    /// Takes out every watcher.
    pub(super) fn drain(&mut self) -> Vec<u64> {
        let all = std::mem::take(self);
        all.keys.into_values().chain(all.groups.into_values()).flatten().collect()
    }
}

fn take_out(watchers: &mut Vec<u64>, watcher: u64) -> usize {
    match watchers.iter().position(|known| *known == watcher) {
        Some(at) => {
            watchers.swap_remove(at);
            1
        }
        None => 0,
    }
}
