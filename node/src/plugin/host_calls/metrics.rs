//! `metrics`: series of a plugin's own, shown as `plugin_user_<name>` with the plugin's name as a label.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::bytes_of;
use crate::metrics::{self, UserKind, UserSeries};
use crate::plugin::bindings::kuorum::policy::metrics::Host;
use crate::plugin::instance::State;

/// Of one plugin. What does not fit is counted as refused.
const SERIES_MAX: usize = 64;
const LABELS_MAX: usize = 8;
const NAME_BYTES_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 128;

type Labels = Vec<(String, String)>;

/// The series of one plugin.
// A lock, since several threads ask the same plugin; held for a look at a table of 64.
#[derive(Default)]
pub(in crate::plugin) struct UserMetrics(Mutex<HashMap<(String, Labels), UserSeries>>);

impl UserMetrics {
    /// Moves a series, which is made if there is room. Returns false if the plugin can't have it.
    fn record(&self, kind: UserKind, plugin: &str, key: (String, Labels), moved: impl FnOnce(&UserSeries)) -> bool {
        let mut table = self.0.lock();
        if let Some(series) = table.get(&key) {
            moved(series);
            return true;
        }
        let (name, labels) = &key;
        if table.len() >= SERIES_MAX || !is_series(name) || !are_labels(labels) {
            return false;
        }
        let labels = [("plugin".to_owned(), plugin.to_owned())].into_iter().chain(labels.iter().cloned()).collect();
        let Some(series) = metrics::get().plugin_user(kind, name, labels) else {
            return false;
        };
        moved(&series);
        table.insert(key, series);
        true
    }
}

fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && !text.as_bytes()[0].is_ascii_digit()
        && text.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_')
}

/// Whether a series can be called so: the endings are those that a histogram gives its lines.
fn is_series(name: &str) -> bool {
    is_name(name) && !["_bucket", "_count", "_sum"].iter().any(|ending| name.ends_with(ending))
}

/// Whether a series can have these labels. One that can't be read, or is there twice, would cost the whole page.
fn are_labels(labels: &Labels) -> bool {
    let is_label = |(name, value): &(String, String)| {
        is_name(name)
            && !name.starts_with("__")
            && !["plugin", "le", "quantile"].contains(&name.as_str())
            && value.len() <= LABEL_BYTES_MAX
    };
    let is_first = |at: usize| labels[..at].iter().all(|(name, _)| *name != labels[at].0);
    labels.len() <= LABELS_MAX && labels.iter().all(is_label) && (0..labels.len()).all(is_first)
}

impl State {
    fn record(
        &mut self,
        kind: UserKind,
        name: String,
        labels: Labels,
        moved: impl FnOnce(&UserSeries),
    ) -> wasmtime::Result<()> {
        self.count_host_call(name.len() + bytes_of(&labels))?;
        let plugin = &self.plugin;
        if !plugin.user_metrics.record(kind, &plugin.name, (name, labels), moved) {
            plugin.counts.series_refused.increment(1);
        }
        Ok(())
    }
}

impl Host for State {
    fn count(&mut self, name: String, labels: Labels, by: u64) -> wasmtime::Result<()> {
        self.record(UserKind::Counter, name, labels, |series| {
            if let UserSeries::Counter(counter) = series {
                counter.increment(by);
            }
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a gauge is shown as a float")]
    fn gauge(&mut self, name: String, labels: Labels, value: i64) -> wasmtime::Result<()> {
        self.record(UserKind::Gauge, name, labels, |series| {
            if let UserSeries::Gauge(gauge) = series {
                gauge.set(value as f64);
            }
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a histogram counts floats")]
    fn observe_us(&mut self, name: String, labels: Labels, value: u64) -> wasmtime::Result<()> {
        self.record(UserKind::Histogram, name, labels, |series| {
            if let UserSeries::Histogram(histogram) = series {
                histogram.record(value as f64);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_has_so_many_series_and_their_names_are_in_order() {
        let table = UserMetrics::default();
        let record = |name: &str, labels: Labels| {
            table.record(UserKind::Counter, "series-test", (name.to_owned(), labels), |_| ())
        };
        let label = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        assert!(!record("Series", Vec::new()));
        assert!(!record("", Vec::new()));
        for name in ["series_count", "series_sum", "series_bucket"] {
            assert!(!record(name, Vec::new()));
        }
        for name in ["plugin", "le", "quantile", "__name__", "Label", ""] {
            assert!(!record("series", label(name, "other")));
        }
        assert!(!record("series", [label("x", "1"), label("x", "2")].concat()));
        assert!(!record("series", label("x", &"v".repeat(LABEL_BYTES_MAX + 1))));
        for number in 0..SERIES_MAX {
            assert!(record("series", label("x", &number.to_string())));
        }
        assert!(record("series", label("x", "0")));
        assert!(!record("series", label("x", "64")));
    }
}
