//! When to compact by itself, and to which revision: etcd's two modes, as plain arithmetic over a clock handed in.

use std::collections::VecDeque;

use crate::mvcc::revision::Revision;

/// How often the revision mode looks (etcd: revInterval, five minutes).
const REVISION_INTERVAL_MS: u64 = 5 * 60 * 1_000;
/// The periodic mode compacts at most this often (etcd: checkCompactionInterval's bound of an hour).
const PERIODIC_INTERVAL_MS_MAX: u64 = 60 * 60 * 1_000;
/// Samples taken in one interval (etcd: retryDivisor).
const SAMPLES_PER_INTERVAL: u64 = 10;

/// etcd's --auto-compaction-mode and --auto-compaction-retention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Off,
    /// Keep this much time of history.
    Periodic {
        retention_ms: u64,
    },
    /// Keep this many revisions.
    Revision {
        retention: i64,
    },
}

/// Decides when to compact. Asked with the clock as often as the caller likes.
pub(crate) struct Schedule {
    mode: Mode,
    /// The revision at the start of each past sample interval, oldest first. At most retention / sample interval + 1.
    samples: VecDeque<Revision>,
    next_ms: u64,
    last_compaction_ms: u64,
    last: Option<Revision>,
}

impl Schedule {
    pub(crate) fn new(mode: Mode, now_ms: u64) -> Schedule {
        let next_ms = match mode {
            Mode::Off => u64::MAX,
            Mode::Periodic { .. } => now_ms,
            Mode::Revision { .. } => now_ms + REVISION_INTERVAL_MS,
        };
        Schedule { mode, samples: VecDeque::new(), next_ms, last_compaction_ms: now_ms, last: None }
    }

    /// The revision to compact to now, if any.
    pub(crate) fn due(&mut self, now_ms: u64, current: Revision) -> Option<Revision> {
        if now_ms < self.next_ms {
            return None;
        }
        let target = match self.mode {
            Mode::Off => None,
            Mode::Periodic { retention_ms } => self.periodic(now_ms, current, retention_ms),
            Mode::Revision { retention } => {
                self.next_ms = now_ms + REVISION_INTERVAL_MS;
                Some(Revision(current.0 - retention))
            }
        }?;
        if target.0 <= 0 || self.last == Some(target) {
            return None;
        }
        self.last = Some(target);
        self.last_compaction_ms = now_ms;
        Some(target)
    }

    /// What was due last was not done: it may be due again.
    pub(crate) fn put_off(&mut self) {
        self.last = None;
    }

    fn periodic(&mut self, now_ms: u64, current: Revision, retention_ms: u64) -> Option<Revision> {
        let interval_ms = retention_ms.min(PERIODIC_INTERVAL_MS_MAX);
        let sample_ms = (interval_ms / SAMPLES_PER_INTERVAL).max(1);
        self.next_ms = now_ms + sample_ms;
        self.samples.push_back(current);
        let kept = retention_ms / sample_ms + 1;
        while self.samples.len() as u64 > kept {
            self.samples.pop_front();
        }
        // Until the window has filled once there is nothing older than the retention.
        let filled = self.samples.len() as u64 == kept;
        let due = now_ms - self.last_compaction_ms >= interval_ms;
        if filled && due { self.samples.front().copied() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    #[test]
    fn periodic_mode_keeps_the_retention() {
        let mut schedule = Schedule::new(Mode::Periodic { retention_ms: 10 * MINUTE }, 0);
        let mut compacted = Vec::new();
        for minute in 0..=30 {
            let current = Revision(100 + i64::try_from(minute).unwrap());
            if let Some(target) = schedule.due(minute * MINUTE, current) {
                compacted.push((minute, target.0));
            }
        }
        assert_eq!(compacted, [(10, 100), (20, 110), (30, 120)]);
    }

    #[test]
    fn a_long_retention_compacts_hourly_once_it_has_filled() {
        let mut schedule = Schedule::new(Mode::Periodic { retention_ms: 180 * MINUTE }, 0);
        let mut compacted = Vec::new();
        for minute in 0..=301 {
            if let Some(target) = schedule.due(minute * MINUTE, Revision(i64::try_from(minute).unwrap() + 1)) {
                compacted.push((minute, target.0));
            }
        }
        assert_eq!(compacted, [(180, 1), (240, 61), (300, 121)]);
    }

    #[test]
    fn revision_mode_keeps_so_many_revisions_and_never_repeats_itself() {
        let mut schedule = Schedule::new(Mode::Revision { retention: 50 }, 0);
        assert_eq!(schedule.due(REVISION_INTERVAL_MS - 1, Revision(140)), None);
        assert_eq!(schedule.due(REVISION_INTERVAL_MS, Revision(140)), Some(Revision(90)));
        assert_eq!(schedule.due(2 * REVISION_INTERVAL_MS - 1, Revision(150)), None);
        assert_eq!(schedule.due(2 * REVISION_INTERVAL_MS, Revision(140)), None);
    }

    #[test]
    fn what_was_put_off_is_due_again() {
        let mut schedule = Schedule::new(Mode::Revision { retention: 50 }, 0);
        assert_eq!(schedule.due(REVISION_INTERVAL_MS, Revision(140)), Some(Revision(90)));
        schedule.put_off();
        assert_eq!(schedule.due(2 * REVISION_INTERVAL_MS - 1, Revision(140)), None);
        assert_eq!(schedule.due(2 * REVISION_INTERVAL_MS, Revision(140)), Some(Revision(90)));
    }

    #[test]
    fn off_is_off() {
        assert_eq!(Schedule::new(Mode::Off, 0).due(u64::MAX - 1, Revision(1_000_000)), None);
    }
}
