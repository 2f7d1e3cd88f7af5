//! The metrics that a plugin keeps. A series is named as it is scraped: `refusals{reason="size"}`.

use std::{cell::RefCell, collections::BTreeMap};

thread_local! {
    static COUNTERS: RefCell<BTreeMap<String, u64>> = const { RefCell::new(BTreeMap::new()) };
    static GAUGES: RefCell<BTreeMap<String, i64>> = const { RefCell::new(BTreeMap::new()) };
    static OBSERVED: RefCell<BTreeMap<String, Vec<u64>>> = const { RefCell::new(BTreeMap::new()) };
}

/// What a counter stands at; 0 where it was never raised.
pub fn counter(series: &str) -> u64 {
    COUNTERS.with_borrow(|all| all.get(series).copied().unwrap_or(0))
}

/// What a gauge was last set to.
pub fn gauge_value(series: &str) -> Option<i64> {
    GAUGES.with_borrow(|all| all.get(series).copied())
}

/// The durations that went into a histogram, in microseconds.
pub fn observed_us(series: &str) -> Vec<u64> {
    OBSERVED.with_borrow(|all| all.get(series).cloned().unwrap_or_default())
}

pub(super) fn reset() {
    COUNTERS.set(BTreeMap::new());
    GAUGES.set(BTreeMap::new());
    OBSERVED.set(BTreeMap::new());
}

pub(crate) fn count(name: &str, labels: &[(&str, &str)], by: u64) {
    COUNTERS.with_borrow_mut(|all| *all.entry(series(name, labels)).or_default() += by);
}

pub(crate) fn gauge(name: &str, labels: &[(&str, &str)], value: i64) {
    GAUGES.with_borrow_mut(|all| all.insert(series(name, labels), value));
}

pub(crate) fn observe_us(name: &str, labels: &[(&str, &str)], value: u64) {
    OBSERVED.with_borrow_mut(|all| all.entry(series(name, labels)).or_default().push(value));
}

fn series(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    if labels.is_empty() { name.into() } else { format!("{name}{{{}}}", labels.join(",")) }
}
