//! What the host makes of a plugin's plan: the guard rails of compaction, whom to defragment in which order, when to ask
//! again. Arithmetic alone; `maintenance::planning` asks and carries out.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cluster::MemberId;
use crate::mvcc::revision::Revision;

/// History that no plugin can have compacted: a client that reads page by page, or watches and lost its connection, goes on
/// where it was within it.
pub(crate) const HISTORY_MS_MIN: u64 = 60_000;
/// How soon and how late a plugin may have itself asked again.
const NEXT_CALL_MS: RangeInclusive<u64> = 1_000..=3_600_000;
/// When a plugin is asked again that failed.
pub(crate) const RETRY_MS: u64 = 60_000;
/// What the mean of writes is taken over.
const PACE_MS: u64 = 60_000;

/// Whether a plugin decides what is compacted; the native schedule then does not. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Decides(Arc<AtomicBool>);

impl Decides {
    pub(crate) fn set(&self, decides: bool) {
        self.0.store(decides, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// How far a compaction may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rails {
    pub(crate) compacted: Revision,
    pub(crate) applied: Revision,
    /// The newest revision that is known to be older than [`HISTORY_MS_MIN`].
    pub(crate) old: Option<Revision>,
    /// The lowest revision that a running backup needs.
    pub(crate) backup_floor: Option<Revision>,
}

/// A plan to compact, within the rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Within {
    pub(crate) to: Option<Revision>,
    /// What held it back.
    pub(crate) clamped_by: Option<&'static str>,
}

impl Rails {
    pub(crate) fn hold(&self, asked: Option<Revision>) -> Within {
        let Some(asked) = asked.filter(|asked| *asked > self.compacted) else {
            return Within { to: None, clamped_by: None };
        };
        let rails = [
            (self.applied, "the current revision"),
            (self.old.unwrap_or(Revision(0)), "the history of the last minute"),
            (self.backup_floor.map_or(asked, |floor| Revision(floor.0 - 1)), "a backup that is under way"),
        ];
        let (bound, by) = rails.into_iter().min_by_key(|(bound, _)| *bound).unwrap_or((asked, ""));
        let to = asked.min(bound);
        let clamped_by = (to < asked).then_some(by);
        Within { to: (to > self.compacted && to.0 > 0).then_some(to), clamped_by }
    }
}

/// When to ask again, for what a plugin said of it. In milliseconds.
pub(crate) fn next_call_ms(asked_ms: u32) -> u64 {
    u64::from(asked_ms).clamp(*NEXT_CALL_MS.start(), *NEXT_CALL_MS.end())
}

/// Whom to defragment.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Round {
    /// One at a time, in this order.
    pub(crate) members: Vec<MemberId>,
    /// Whom the plan names beside, and why not.
    pub(crate) skipped: Vec<(MemberId, &'static str)>,
}

/// The members that a plan names, each once and the leader last. `is_healthy` answers for every member of the cluster.
pub(crate) fn round(
    asked: impl IntoIterator<Item = MemberId>,
    leader: MemberId,
    is_healthy: impl Fn(MemberId) -> Option<bool>,
) -> Round {
    let mut round = Round { members: Vec::new(), skipped: Vec::new() };
    for member in asked {
        match is_healthy(member) {
            _ if round.members.contains(&member) => {}
            Some(true) => round.members.push(member),
            Some(false) => round.skipped.push((member, "it does not answer")),
            None => round.skipped.push((member, "it is no member of the cluster")),
        }
    }
    // Stable, so all others stay in the plan's order.
    round.members.sort_by_key(|member| *member == leader);
    round
}

/// How many writes there are.
#[derive(Default)]
pub(crate) struct Pace {
    /// Time and revision, oldest first, as often as it was looked at in [`PACE_MS`].
    samples: VecDeque<(u64, i64)>,
}

impl Pace {
    /// Takes in the revision as of now, and returns the mean of writes in a second.
    pub(crate) fn look(&mut self, now_ms: u64, current: Revision) -> u32 {
        self.samples.push_back((now_ms, current.0));
        // One that is as old as the window stays, to reckon from.
        while self.samples.get(1).is_some_and(|(at_ms, _)| at_ms + PACE_MS <= now_ms) {
            self.samples.pop_front();
        }
        let (since_ms, revision) = self.samples[0];
        let writes = u64::try_from(current.0 - revision).unwrap_or(0);
        u32::try_from(writes * 1_000 / (now_ms - since_ms).max(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAILS: Rails =
        Rails { compacted: Revision(10), applied: Revision(100), old: Some(Revision(80)), backup_floor: None };

    #[track_caller]
    fn check(rails: Rails, asked: impl Into<Option<i64>>, to: impl Into<Option<i64>>, clamped: bool) {
        let within = rails.hold(asked.into().map(Revision));
        assert_eq!((within.to.map(|to| to.0), within.clamped_by.is_some()), (to.into(), clamped), "{within:?}");
    }

    #[test]
    fn a_plan_is_held_within_the_rails() {
        check(RAILS, None, None, false);
        check(RAILS, 50, 50, false);
        check(RAILS, 80, 80, false);
        check(RAILS, 81, 80, true);
        check(RAILS, i64::MAX, 80, true);
        check(RAILS, 10, None, false);
        check(RAILS, -5, None, false);
        check(Rails { applied: Revision(70), ..RAILS }, 75, 70, true);
        check(Rails { old: None, ..RAILS }, 50, None, true);
        check(Rails { old: Some(Revision(10)), ..RAILS }, 50, None, true);
        check(Rails { backup_floor: Some(Revision(40)), ..RAILS }, 50, 39, true);
        check(Rails { backup_floor: Some(Revision(11)), ..RAILS }, 50, None, true);
        let fresh = Rails { compacted: Revision(-1), ..RAILS };
        check(fresh, 0, None, false);
        check(fresh, 1, 1, false);
    }

    #[test]
    fn a_plugin_is_asked_again_neither_at_once_nor_never() {
        assert_eq!([0, 999, 5_000, u32::MAX].map(next_call_ms), [1_000, 1_000, 5_000, 3_600_000]);
    }

    #[test]
    fn members_are_defragmented_once_each_and_the_leader_last() {
        let is_healthy = |member: MemberId| {
            [(1, true), (2, true), (3, false), (4, true)]
                .into_iter()
                .find(|known| known.0 == member.0)
                .map(|known| known.1)
        };
        let found = round([2, 9, 4, 3, 1, 4].map(MemberId), MemberId(2), is_healthy);
        assert_eq!(found.members, [4, 1, 2].map(MemberId));
        assert_eq!(found.skipped.iter().map(|skipped| skipped.0.0).collect::<Vec<_>>(), [9, 3]);
    }

    #[test]
    fn the_pace_is_that_of_the_last_minute() {
        let mut pace = Pace::default();
        assert_eq!(pace.look(0, Revision(1_000)), 0);
        assert_eq!(pace.look(1_000, Revision(1_050)), 50);
        for second in 2..=60 {
            pace.look(second * 1_000, Revision(1_050));
        }
        assert_eq!(pace.look(60_000, Revision(1_600)), 10);
        assert_eq!(pace.look(61_000, Revision(1_650)), 10);
        assert_eq!(pace.look(200_000, Revision(1_650)), 0);
        // Another store took the place of the one in use.
        assert_eq!(pace.look(201_000, Revision(5)), 0);
    }
}
