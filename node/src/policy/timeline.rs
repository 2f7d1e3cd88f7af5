//! The timeline: which revision there was when, for policies that keep so much time of history.
//!
//! A revision says nothing of time. So the leader notes both, at most every [`MARK_INTERVAL_MS`] and only while revisions
//! come: an idle cluster stays idle. The marks change by entries of the log alone and are a row of the `sys` space, so a
//! new leader has them too. There is a bound; past it those go first that are missed least:
//!
//! ```text
//!   oldest                                             newest
//!   |        |       |      |     |    |   |  | | | ||||||||||
//!                     the older, the further apart
//! ```
//!
//! Times are of the leaders' clocks. Where one lags behind the clock of the leader before, marks after its time are
//! dropped: history is then kept for longer than asked for. Where one was behind, it is kept for as much shorter; nothing
//! can tell.

use std::sync::Arc;

use kuorum_proto::kuorum::v1::{Timeline as Row, TimelineMark};
use parking_lot::RwLock;
use prost::Message as _;

use crate::mvcc::revision::Revision;

/// Name of the row in the store's `sys` space; missing while there is no mark.
pub(crate) const ROW: &[u8] = b"timeline";
/// Promised to plugins. A row has 16 KiB then.
const MARKS_MAX: usize = 1_024;
/// Plugins are promised a mark a minute; this is fine enough for history that is kept for a few.
const MARK_INTERVAL_MS: u64 = 10_000;

/// The marks as of the last applied entry. Cheap to clone; apply alone changes it.
// A lock, since the thread that asks plugins reads while apply writes; held for a copy of the marks.
#[derive(Clone, Default)]
pub(crate) struct Timeline(Arc<RwLock<Marks>>);

impl Timeline {
    /// Takes a mark in, and returns the row that keeps it if anything changed.
    pub(crate) fn add(&self, mark: TimelineMark, current: Revision, compacted: Revision) -> Option<Vec<u8>> {
        let mut marks = self.0.write();
        marks.add(mark, current, compacted).then(|| Row { marks: marks.0.clone() }.encode_to_vec())
    }

    /// Takes the marks back from their row. Returns false, changing nothing, when it is damaged.
    pub(crate) fn recover(&self, row: &[u8]) -> bool {
        match Row::decode(row) {
            Ok(row) => {
                *self.0.write() = Marks(row.marks);
                true
            }
            Err(_) => false,
        }
    }

    /// All marks, ascending in revision and time.
    pub(crate) fn marks(&self) -> Vec<TimelineMark> {
        self.0.read().0.clone()
    }

    fn newest(&self) -> Option<TimelineMark> {
        self.0.read().0.last().copied()
    }
}

/// Ascending in revision and time.
#[derive(Default)]
struct Marks(Vec<TimelineMark>);

impl Marks {
    /// Returns whether anything changed.
    fn add(&mut self, mark: TimelineMark, current: Revision, compacted: Revision) -> bool {
        let is_news = self.0.last().is_none_or(|last| last.revision < mark.revision);
        if !is_news || mark.revision > current.0 {
            return false;
        }
        // Of a clock that was ahead of this one.
        self.0.retain(|earlier| earlier.at_ms < mark.at_ms);
        self.0.push(mark);
        // All but the last of those that are compacted away: it says how old what is left is.
        let compacted_away = self.0.iter().take_while(|mark| mark.revision <= compacted.0).count();
        self.0.drain(..compacted_away.saturating_sub(1));
        while self.0.len() > MARKS_MAX {
            self.thin();
        }
        true
    }

    /// Removes the mark that leaves the smallest gap for its age, but neither the oldest nor the newest.
    fn thin(&mut self) {
        let newest_ms = self.0[self.0.len() - 1].at_ms;
        let gap_and_age = |place: usize| {
            let gap = self.0[place + 1].at_ms - self.0[place - 1].at_ms;
            (u128::from(gap), u128::from(newest_ms - self.0[place].at_ms))
        };
        let least = (1..self.0.len() - 1).min_by(|one, other| {
            let ((one_gap, one_age), (other_gap, other_age)) = (gap_and_age(*one), gap_and_age(*other));
            (one_gap * other_age).cmp(&(other_gap * one_age))
        });
        if let Some(least) = least {
            self.0.remove(least);
        }
    }
}

/// The newest revision that is known to have been there at this time. `None` when none is.
pub(crate) fn revision_at(marks: &[TimelineMark], at_ms: u64) -> Option<Revision> {
    let mark = marks.iter().rev().find(|mark| mark.at_ms <= at_ms)?;
    Some(Revision(mark.revision))
}

/// Says when the leader is to propose a mark.
#[derive(Default)]
pub(crate) struct Marker {
    /// By the process' clock: the next mark is due from then on.
    next_ms: u64,
}

impl Marker {
    /// The mark to propose now, if one is due. `unix_ms` is called only then.
    pub(crate) fn due(
        &mut self,
        timeline: &Timeline,
        current: Revision,
        now_ms: u64,
        unix_ms: impl FnOnce() -> u64,
    ) -> Option<TimelineMark> {
        let marked = timeline.newest().map_or(Revision::INITIAL.0, |mark| mark.revision);
        if now_ms < self.next_ms || current.0 <= marked {
            return None;
        }
        self.next_ms = now_ms + MARK_INTERVAL_MS;
        Some(TimelineMark { revision: current.0, at_ms: unix_ms() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Revision = Revision(-1);
    const ANY: Revision = Revision(i64::MAX);

    fn mark(revision: i64, at_ms: u64) -> TimelineMark {
        TimelineMark { revision, at_ms }
    }

    fn marks(of: &[(i64, u64)]) -> Marks {
        Marks(of.iter().map(|(revision, at_ms)| mark(*revision, *at_ms)).collect())
    }

    #[track_caller]
    fn check(marks: &Marks, expected: &[(i64, u64)]) {
        let found: Vec<_> = marks.0.iter().map(|mark| (mark.revision, mark.at_ms)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn marks_ascend_in_revision_and_time() {
        let mut kept = marks(&[(5, 100), (7, 200), (9, 300)]);
        assert!(!kept.add(mark(9, 400), ANY, NOTHING), "nothing was written since");
        assert!(!kept.add(mark(12, 400), Revision(11), NOTHING), "not there yet");
        assert!(kept.add(mark(11, 400), Revision(11), NOTHING));
        check(&kept, &[(5, 100), (7, 200), (9, 300), (11, 400)]);
        // A leader whose clock is behind.
        assert!(kept.add(mark(12, 200), ANY, NOTHING));
        check(&kept, &[(5, 100), (12, 200)]);
    }

    #[test]
    fn of_what_is_compacted_away_one_mark_is_kept() {
        let mut kept = marks(&[(5, 100), (7, 200), (9, 300)]);
        kept.add(mark(11, 400), ANY, Revision(8));
        check(&kept, &[(7, 200), (9, 300), (11, 400)]);
        kept.add(mark(12, 500), ANY, Revision(11));
        check(&kept, &[(11, 400), (12, 500)]);
    }

    #[test]
    fn the_older_marks_are_the_further_apart_they_come_to_stand() {
        let mut kept = Marks::default();
        let (weeks, step_ms) = (4, 10_000);
        let last_ms = weeks * 7 * 24 * 3_600_000;
        for step in 1..=last_ms / step_ms {
            kept.add(mark(i64::try_from(step).unwrap(), step * step_ms), ANY, NOTHING);
        }
        assert_eq!(kept.0.len(), MARKS_MAX);
        assert_eq!((kept.0[0].revision, kept.0[MARKS_MAX - 1].at_ms), (1, last_ms));
        // Whatever time of history is asked for, what is found is hardly more.
        for minutes in [1, 5, 60, 24 * 60, 7 * 24 * 60] {
            let asked_ms = minutes * 60_000;
            let found = revision_at(&kept.0, last_ms - asked_ms).unwrap();
            let kept_ms = last_ms - u64::try_from(found.0).unwrap() * step_ms;
            assert!(kept_ms >= asked_ms && kept_ms <= asked_ms + asked_ms / 20 + step_ms, "{kept_ms} for {asked_ms}");
        }
    }

    #[test]
    fn a_revision_is_known_from_the_first_mark_on() {
        let kept = marks(&[(5, 100), (7, 200)]);
        let found = [99, 100, 199, 200, u64::MAX].map(|at_ms| revision_at(&kept.0, at_ms).map(|found| found.0));
        assert_eq!(found, [None, Some(5), Some(5), Some(7), Some(7)]);
    }

    #[test]
    fn an_idle_cluster_makes_no_marks() {
        let (timeline, mut marker) = (Timeline::default(), Marker::default());
        let mut due = |current, now_ms| {
            let due = marker.due(&timeline, Revision(current), now_ms, || 1_000_000 + now_ms);
            if let Some(mark) = due {
                timeline.add(mark, ANY, NOTHING);
            }
            due.map(|mark| (mark.revision, mark.at_ms))
        };
        assert_eq!(due(1, 0), None, "nothing was ever written");
        assert_eq!(due(4, 500), Some((4, 1_000_500)));
        assert_eq!(due(9, 10_000), None, "soon enough");
        assert_eq!(due(9, 10_500), Some((9, 1_010_500)));
        assert_eq!(due(9, 60_000), None);
        assert_eq!(due(10, 60_100), Some((10, 1_060_100)));

        let row = timeline.add(mark(11, 2_000_000), ANY, NOTHING).unwrap();
        let recovered = Timeline::default();
        assert!(recovered.recover(&row) && !recovered.recover(&[0xff]));
        assert_eq!(recovered.marks(), timeline.marks());
    }
}
