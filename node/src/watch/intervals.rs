//! Which watched ranges hold a key: an index over ranges that come and go.
//!
//! Ranges stand in one array sorted by start, each with the greatest end among the ranges of its subtree when the array
//! is read as a balanced binary tree; a lookup walks only subtrees that can reach the key. The array is rebuilt when
//! enough ranges have come since; until then new ones stand in a short list that is searched whole.

use bytes::Bytes;

/// New ranges kept beside the array before it is rebuilt, at least; it may grow to a sixteenth of the array, so that
/// building up n ranges costs O(n log n) in all.
const RECENT_MIN: usize = 32;

/// The end of a range: exclusive, or none.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum End {
    Before(Bytes),
    Unbounded,
}

impl End {
    fn is_after(&self, key: &[u8]) -> bool {
        match self {
            End::Before(end) => key < end.as_ref(),
            End::Unbounded => true,
        }
    }

    fn max(&self, other: &End) -> End {
        match (self, other) {
            (End::Before(a), End::Before(b)) => End::Before(if a >= b { a } else { b }.clone()),
            _ => End::Unbounded,
        }
    }
}

/// A range and what it was registered with.
#[derive(Clone, Debug)]
struct Entry<T> {
    start: Bytes,
    end: End,
    reach: End,
    /// `None` once removed; the entry leaves at the next rebuild.
    value: Option<T>,
}

#[derive(Debug)]
pub(super) struct Intervals<T> {
    sorted: Vec<Entry<T>>,
    /// Entries of `sorted` that are removed.
    dead: usize,
    recent: Vec<Entry<T>>,
}

impl<T> Default for Intervals<T> {
    fn default() -> Intervals<T> {
        Intervals { sorted: Vec::new(), dead: 0, recent: Vec::new() }
    }
}

impl<T: Copy + PartialEq> Intervals<T> {
    pub(super) fn insert(&mut self, start: Bytes, end: End, value: T) {
        self.recent.push(Entry { start, reach: end.clone(), end, value: Some(value) });
        if self.recent.len() > RECENT_MIN.max(self.sorted.len() / 16) {
            self.sorted.append(&mut self.recent);
            self.rebuild();
        }
    }

    pub(super) fn remove(&mut self, value: T) {
        let held = Some(value);
        if let Some(at) = self.recent.iter().position(|entry| entry.value == held) {
            self.recent.swap_remove(at);
        } else if let Some(entry) = self.sorted.iter_mut().find(|entry| entry.value == held) {
            entry.value = None;
            self.dead += 1;
            if self.dead > self.sorted.len() / 2 {
                self.rebuild();
            }
        }
    }

    /// Calls `found` with every range that holds the key.
    pub(super) fn at(&self, key: &[u8], found: &mut impl FnMut(T)) {
        for entry in &self.recent {
            if let Some(value) = entry.value
                && entry.start.as_ref() <= key
                && entry.end.is_after(key)
            {
                found(value);
            }
        }
        self.descend(0, self.sorted.len(), key, found);
    }

    fn descend(&self, from: usize, to: usize, key: &[u8], found: &mut impl FnMut(T)) {
        if from >= to {
            return;
        }
        let middle = from.midpoint(to);
        let entry = &self.sorted[middle];
        if !entry.reach.is_after(key) {
            return;
        }
        self.descend(from, middle, key, found);
        if entry.start.as_ref() <= key {
            if let Some(value) = entry.value
                && entry.end.is_after(key)
            {
                found(value);
            }
            self.descend(middle + 1, to, key, found);
        }
    }

    fn rebuild(&mut self) {
        self.sorted.retain(|entry| entry.value.is_some());
        self.dead = 0;
        self.sorted.sort_by(|a, b| a.start.cmp(&b.start));
        let length = self.sorted.len();
        self.set_reach(0, length);
    }

    fn set_reach(&mut self, from: usize, to: usize) -> Option<End> {
        if from >= to {
            return None;
        }
        let middle = from.midpoint(to);
        let left = self.set_reach(from, middle);
        let right = self.set_reach(middle + 1, to);
        let own = self.sorted[middle].end.clone();
        let reach = [left, right].into_iter().flatten().fold(own, |reach, side| reach.max(&side));
        self.sorted[middle].reach = reach.clone();
        Some(reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_search_of_everything_finds(
            ranges in prop::collection::vec((0u8..40, 0u8..40, any::<bool>()), 0..120),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
            key in 0u8..41,
        ) {
            let mut intervals = Intervals::default();
            let mut model = Vec::new();
            for (number, (start, length, unbounded)) in ranges.iter().enumerate() {
                let end = if *unbounded { End::Unbounded } else { End::Before(vec![start.saturating_add(*length)].into()) };
                intervals.insert(vec![*start].into(), end.clone(), number);
                model.push((number, *start, end));
            }
            for index in removed {
                if !model.is_empty() {
                    let (number, ..) = model.swap_remove(index.index(model.len()));
                    intervals.remove(number);
                }
            }
            let mut found = Vec::new();
            intervals.at(&[key], &mut |number| found.push(number));
            found.sort_unstable();
            let mut expected: Vec<usize> = model
                .iter()
                .filter(|(_, start, end)| *start <= key && end.is_after(&[key]))
                .map(|(number, ..)| *number)
                .collect();
            expected.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
