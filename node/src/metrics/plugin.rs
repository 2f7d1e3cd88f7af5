//! What is counted of each plugin, and the series that plugins make themselves. They appear with the plugin; their names are
//! ours, since etcd has no such thing.

use std::collections::{BTreeMap, BTreeSet};

use ::metrics::{Counter, Gauge, Histogram};
use parking_lot::Mutex;

use super::registrar::Registrar;
use crate::plugin::Verdict;

const CALLS: &str = "plugin_calls_total";
const VERDICTS: &str = "plugin_verdicts_total";
const SHADOW_DIFFERS: &str = "plugin_shadow_differs_total";
const UNJUDGED: &str = "plugin_unjudged_requests_total";
const TRAPS: &str = "plugin_traps_total";
const TIMEOUTS: &str = "plugin_timeouts_total";
const FAILURES: &str = "plugin_failures_total";
const LINES_DROPPED: &str = "plugin_log_lines_dropped_total";
const PLANS: &str = "plugin_plans_total";
const DEFRAGMENTS: &str = "plugin_defragments_total";
const SERIES_REFUSED: &str = "plugin_user_series_refused_total";

/// Names of plugins that have series of their own, for as long as the process runs: a series can't be taken back.
const NAMES_MAX: usize = 256;
/// All others share those of this name, which no plugin can have.
const OTHERS: &str = "(others)";
/// Names that plugins give metrics, and series under them, over all plugins and for as long as the process runs.
const USER_NAMES_MAX: usize = 1024;
const USER_SERIES_MAX: usize = 8192;

/// Of all plugins together.
pub(crate) struct Policies {
    /// Of this member; set when it changes.
    pub(crate) epoch: Gauge,
    pub(crate) stale_epochs: Counter,
    pub(crate) stale_reads: Counter,
    pub(crate) judged_in_vain: Counter,
}

impl Policies {
    pub(super) fn register(r: &Registrar) -> Policies {
        const JUDGED_AGAIN: &str = "plugin_judged_again_total";
        r.describe_counter(
            JUDGED_AGAIN,
            "Writes judged again, since what they were judged by had changed when applied.",
        );
        let judged_again = |cause| r.labelled_counter(JUDGED_AGAIN, [("cause", cause)]);
        Policies {
            epoch: r.gauge("plugin_policy_epoch", "The policy epoch that is in force on this member."),
            stale_epochs: judged_again("policy-epoch"),
            stale_reads: judged_again("read-set"),
            judged_in_vain: r.counter(
                "plugin_judged_in_vain_total",
                "Writes refused, since what they were judged by had changed each time when applied.",
            ),
        }
    }
}

/// Moved by whoever asks plugins of compaction. The same series for each plugin of a name.
pub(crate) struct Plans {
    /// Of plans that are followed, and of those in shadow.
    pub(crate) enforced: Outcomes,
    pub(crate) shadow: Outcomes,
    pub(crate) defragmented: Counter,
    pub(crate) not_defragmented: Counter,
}

/// Of plans, by what became of them.
pub(crate) struct Outcomes {
    pub(crate) compacted: Counter,
    /// Not as far as planned, or not at all: a guard rail.
    pub(crate) clamped: Counter,
    pub(crate) nothing: Counter,
    /// There was no plan, and the native schedule applied.
    pub(crate) failed: Counter,
}

impl Plans {
    pub(super) fn register(r: &Registrar, plugin: &str) -> Plans {
        let outcomes = |mode| {
            let of = |outcome| r.labelled_counter(PLANS, [("plugin", plugin), ("mode", mode), ("outcome", outcome)]);
            Outcomes {
                compacted: of("compacted"),
                clamped: of("clamped"),
                nothing: of("nothing"),
                failed: of("failed"),
            }
        };
        let defragments = |outcome| r.labelled_counter(DEFRAGMENTS, [("plugin", plugin), ("outcome", outcome)]);
        Plans {
            enforced: outcomes("enforce"),
            shadow: outcomes("shadow"),
            defragmented: defragments("done"),
            not_defragmented: defragments("failed"),
        }
    }
}

/// Moved by the host of plugins.
#[derive(Clone)]
pub(crate) struct Plugin {
    pub(crate) admissions: Counter,
    pub(crate) admission_seconds: Histogram,
    pub(crate) compactions: Counter,
    pub(crate) compaction_seconds: Histogram,
    enforced: Verdicts,
    shadow: Verdicts,
    /// Verdicts in shadow unlike what became of the request.
    pub(crate) shadow_differs: Counter,
    /// Requests that it had to be asked about and could not judge.
    pub(crate) passed_unjudged: Counter,
    pub(crate) refused_unjudged: Counter,
    /// Requests that it was not asked about in shadow, since the member was busy.
    pub(crate) shadow_spared: Counter,
    pub(crate) traps: Counter,
    pub(crate) out_of_fuel: Counter,
    pub(crate) out_of_time: Counter,
    pub(crate) failures: Counter,
    /// Set when it is looked at: several revisions of the plugin share it.
    pub(crate) quarantined: Gauge,
    pub(crate) lines_dropped: Counter,
    pub(crate) series_refused: Counter,
}

/// Counted by what they say.
#[derive(Clone)]
struct Verdicts {
    allow: Counter,
    warn: Counter,
    deny: Counter,
}

impl Plugin {
    pub(crate) fn verdict(&self, verdict: &Verdict, in_shadow: bool) {
        let Verdicts { allow, warn, deny } = if in_shadow { &self.shadow } else { &self.enforced };
        match verdict {
            Verdict::Allow => allow.increment(1),
            Verdict::Warn(_) => warn.increment(1),
            Verdict::Deny { .. } => deny.increment(1),
        }
    }

    pub(super) fn describe(r: &Registrar) {
        r.describe_counter(CALLS, "How often the plugin was asked.");
        r.describe_counter(VERDICTS, "What the plugin said of requests.");
        r.describe_counter(SHADOW_DIFFERS, "Verdicts in shadow unlike what became of the request.");
        r.describe_counter(UNJUDGED, "Requests that the plugin was to be asked about and did not judge.");
        r.describe_counter(TRAPS, "Calls that the plugin did not survive, those that ran out of a budget among them.");
        r.describe_counter(TIMEOUTS, "Calls that ran out of fuel or of time.");
        r.describe_counter(FAILURES, "Calls that the plugin answered with a failure.");
        r.describe_counter(PLANS, "What the plugin planned to compact, by what became of it.");
        r.describe_counter(DEFRAGMENTS, "Members that the plugin had defragmented.");
        r.describe_counter(LINES_DROPPED, "Log lines of the plugin beyond what it may write in a second.");
        r.describe_counter(SERIES_REFUSED, "Calls for a metric that the plugin may not have.");
    }

    pub(super) fn register(r: &Registrar, plugin: &str) -> Plugin {
        let with = |name, label, value| r.labelled_counter(name, [("plugin", plugin), (label, value)]);
        let seconds = |kind| {
            let help = "Time that the plugin took to answer.";
            r.labelled_histogram("plugin_call_duration_seconds", help, [("plugin", plugin), ("kind", kind)])
        };
        let verdicts = |mode| {
            let of = |verdict| r.labelled_counter(VERDICTS, [("plugin", plugin), ("mode", mode), ("verdict", verdict)]);
            Verdicts { allow: of("allow"), warn: of("warn"), deny: of("deny") }
        };
        let of = [("plugin", plugin)];
        let quarantined =
            r.labelled_gauge("plugin_quarantined", "1 while the plugin is not asked for its failures.", of);
        Plugin {
            admissions: with(CALLS, "kind", "admission"),
            admission_seconds: seconds("admission"),
            compactions: with(CALLS, "kind", "compaction"),
            compaction_seconds: seconds("compaction"),
            enforced: verdicts("enforce"),
            shadow: verdicts("shadow"),
            shadow_differs: r.labelled_counter(SHADOW_DIFFERS, of),
            passed_unjudged: with(UNJUDGED, "outcome", "passed"),
            refused_unjudged: with(UNJUDGED, "outcome", "refused"),
            shadow_spared: with(UNJUDGED, "outcome", "spared"),
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

/// The plugins that have series.
// A lock, since whoever prepares a plugin asks; held for a look at the table.
#[derive(Default)]
pub(super) struct Names(Mutex<BTreeSet<String>>);

impl Names {
    /// What the plugin's series are labelled with.
    pub(super) fn label<'a>(&self, plugin: &'a str) -> &'a str {
        let mut names = self.0.lock();
        if names.contains(plugin) {
            return plugin;
        }
        if names.len() >= NAMES_MAX {
            return OTHERS;
        }
        names.insert(plugin.to_owned());
        plugin
    }
}

/// The names that plugins gave, since one name can have one kind only in what is shown.
// A lock, since any thread may ask a plugin that makes a new series; held for a look at the table.
#[derive(Default)]
pub(super) struct UserNames(Mutex<User>);

#[derive(Default)]
struct User {
    names: BTreeMap<String, UserKind>,
    /// By name and labels. Those of a plugin that was removed stay, and are its own again should it come back.
    series: BTreeSet<(String, Vec<(String, String)>)>,
}

impl UserNames {
    /// `None` if the name has another kind already, or if there are too many names or series.
    pub(super) fn series(
        &self,
        r: &Registrar,
        kind: UserKind,
        name: &str,
        labels: Vec<(String, String)>,
    ) -> Option<UserSeries> {
        let mut user = self.0.lock();
        match user.names.get(name) {
            Some(known) if *known != kind => return None,
            None if user.names.len() >= USER_NAMES_MAX => return None,
            _ => {}
        }
        let series = (name.to_owned(), labels);
        if user.series.len() >= USER_SERIES_MAX && !user.series.contains(&series) {
            return None;
        }
        let labels = series.1.clone();
        user.series.insert(series);
        user.names.insert(name.to_owned(), kind);
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

    #[test]
    fn the_number_of_series_is_bounded_and_those_that_are_there_stay() {
        let (names, r) = (UserNames::default(), Registrar::new(registrar::recorder()));
        let series = |number: usize| {
            let labels = vec![("number".to_owned(), number.to_string())];
            names.series(&r, UserKind::Counter, "a", labels)
        };
        assert!((0..USER_SERIES_MAX).all(|number| series(number).is_some()));
        assert!(series(USER_SERIES_MAX).is_none());
        assert!(series(0).is_some());
    }

    #[test]
    fn plugins_beyond_the_most_share_their_series() {
        let names = Names::default();
        for number in 0..NAMES_MAX {
            let name = format!("n{number}");
            assert_eq!(names.label(&name), name);
        }
        assert_eq!(names.label("one-more"), OTHERS);
        assert_eq!(names.label("n0"), "n0");
    }
}
