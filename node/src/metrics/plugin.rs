//! What is counted of each plugin, and the series that plugins make themselves. They appear with the plugin; their names are
//! ours, since etcd has no such thing.

use std::collections::BTreeMap;

use ::metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;

use super::registrar::Registrar;

const CALLS: &str = "plugin_calls_total";
const VERDICTS: &str = "plugin_verdicts_total";
const TRAPS: &str = "plugin_traps_total";
const TIMEOUTS: &str = "plugin_timeouts_total";
const FAILURES: &str = "plugin_failures_total";
const LINES_DROPPED: &str = "plugin_log_lines_dropped_total";
const SERIES_REFUSED: &str = "plugin_user_series_refused_total";

/// Names that plugins give metrics, over all plugins and for as long as the process runs.
const USER_NAMES_MAX: usize = 1024;

/// Moved by the host of plugins.
#[derive(Clone)]
pub(crate) struct Plugin {
    pub(crate) admissions: Counter,
    pub(crate) admission_seconds: Histogram,
    pub(crate) compactions: Counter,
    pub(crate) compaction_seconds: Histogram,
    pub(crate) allowed: Counter,
    pub(crate) warned: Counter,
    pub(crate) denied: Counter,
    pub(crate) traps: Counter,
    pub(crate) out_of_fuel: Counter,
    pub(crate) out_of_time: Counter,
    pub(crate) failures: Counter,
    pub(crate) quarantined: Gauge,
    pub(crate) lines_dropped: Counter,
    pub(crate) series_refused: Counter,
}

impl Plugin {
    pub(super) fn describe(r: &Registrar) {
        r.describe_counter(CALLS, "How often the plugin was asked.");
        r.describe_counter(VERDICTS, "What the plugin said of requests.");
        r.describe_counter(TRAPS, "Calls that the plugin did not survive, those that ran out of a budget among them.");
        r.describe_counter(TIMEOUTS, "Calls that ran out of fuel or of time.");
        r.describe_counter(FAILURES, "Calls that the plugin answered with a failure.");
        r.describe_counter(LINES_DROPPED, "Log lines of the plugin beyond what it may write in a second.");
        r.describe_counter(SERIES_REFUSED, "Calls for a metric that the plugin may not have.");
    }

    pub(super) fn register(r: &Registrar, plugin: &str) -> Plugin {
        let with = |name, label, value| r.labelled_counter(name, [("plugin", plugin), (label, value)]);
        let seconds = |kind| {
            let help = "Time that the plugin took to answer.";
            r.labelled_histogram("plugin_call_duration_seconds", help, [("plugin", plugin), ("kind", kind)])
        };
        let of = [("plugin", plugin)];
        let quarantined =
            r.labelled_gauge("plugin_quarantined", "1 while the plugin is not asked for its failures.", of);
        quarantined.set(0.0);
        Plugin {
            admissions: with(CALLS, "kind", "admission"),
            admission_seconds: seconds("admission"),
            compactions: with(CALLS, "kind", "compaction"),
            compaction_seconds: seconds("compaction"),
            allowed: with(VERDICTS, "verdict", "allow"),
            warned: with(VERDICTS, "verdict", "warn"),
            denied: with(VERDICTS, "verdict", "deny"),
            traps: r.labelled_counter(TRAPS, of),
            out_of_fuel: with(TIMEOUTS, "budget", "fuel"),
            out_of_time: with(TIMEOUTS, "budget", "time"),
            failures: r.labelled_counter(FAILURES, of),
            quarantined,
            lines_dropped: r.labelled_counter(LINES_DROPPED, of),
            series_refused: r.labelled_counter(SERIES_REFUSED, of),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserKind {
    Counter,
    Gauge,
    Histogram,
}

/// A series of a plugin's own.
pub(crate) enum UserSeries {
    Counter(Counter),
    Gauge(Gauge),
    Histogram(Histogram),
}

/// The names that plugins gave, since one name can have one kind only in what is shown.
// A lock, since any thread may ask a plugin that makes a new series; held for a look at the table.
#[derive(Default)]
pub(super) struct UserNames(Mutex<BTreeMap<String, UserKind>>);

impl UserNames {
    /// `None` if the name has another kind already, or if there are too many names.
    pub(super) fn series(
        &self,
        r: &Registrar,
        kind: UserKind,
        name: &str,
        labels: Vec<(String, String)>,
    ) -> Option<UserSeries> {
        let mut names = self.0.lock();
        match names.get(name) {
            Some(known) if *known != kind => return None,
            None if names.len() >= USER_NAMES_MAX => return None,
            _ => {}
        }
        names.insert(name.to_owned(), kind);
        let shown = format!("plugin_user_{name}");
        Some(match kind {
            UserKind::Counter => UserSeries::Counter(r.user_counter(shown, labels)),
            UserKind::Gauge => UserSeries::Gauge(r.user_gauge(shown, labels)),
            UserKind::Histogram => UserSeries::Histogram(r.user_histogram(shown, labels)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::registrar;

    #[test]
    fn a_name_keeps_its_kind_and_the_number_of_names_is_bounded() {
        let (names, r) = (UserNames::default(), Registrar::new(registrar::recorder()));
        let series = |kind, name: &str| names.series(&r, kind, name, Vec::new());
        assert!(series(UserKind::Counter, "a").is_some());
        assert!(series(UserKind::Counter, "a").is_some());
        assert!(series(UserKind::Gauge, "a").is_none());
        for number in 1..USER_NAMES_MAX {
            assert!(series(UserKind::Gauge, &format!("n{number}")).is_some());
        }
        assert!(series(UserKind::Gauge, "one_more").is_none());
    }
}
