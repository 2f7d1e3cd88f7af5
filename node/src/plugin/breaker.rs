//! Whether a plugin is asked at all: after a row of failures it rests, and is tried again by one call.
//!
//! A plugin that traps costs a new instance each time, and one that runs into its deadline costs its whole budget; a
//! member that goes on asking it serves nobody. While the plugin rests, every question is answered as its manifest says for
//! failures. Time is handed in.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures in a row that open the breaker.
const FAILURES_MAX: u32 = 5;
/// How long the plugin rests before a call tries it.
const REST: Duration = Duration::from_secs(5);

/// What the breaker of one plugin on this member says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// Asked as usual; so many failures in a row so far.
    Asked { failures: u32 },
    /// Resting: not asked.
    Quarantined,
    /// One call is trying it.
    Tried,
}

#[derive(Default)]
pub(super) struct Breaker {
    /// In a row. From `FAILURES_MAX` on the breaker is open, and `rest` says until when.
    failures: AtomicU32,
    /// A lock because an open breaker is rare, and then both fields belong together; a closed one never takes it.
    rest: Mutex<Rest>,
}

#[derive(Default)]
struct Rest {
    since: Option<Instant>,
    is_tried: bool,
}

impl Breaker {
    /// Whether to ask now. A caller that is told so has to say how it went. Most need not look at the clock for it.
    #[inline]
    pub(super) fn permits(&self, now: impl FnOnce() -> Instant) -> bool {
        self.failures.load(Ordering::Relaxed) < FAILURES_MAX || self.permits_trial(now())
    }

    #[cold]
    fn permits_trial(&self, now: Instant) -> bool {
        let mut rest = self.rest.lock();
        match rest.since {
            Some(since) if rest.is_tried || now.saturating_duration_since(since) < REST => false,
            Some(_) => {
                rest.is_tried = true;
                true
            }
            // Closed again between the two looks.
            None => true,
        }
    }

    /// Returns whether the breaker was open until now.
    #[inline]
    pub(super) fn succeeded(&self) -> bool {
        self.failures.load(Ordering::Relaxed) > 0 && self.close()
    }

    #[cold]
    fn close(&self) -> bool {
        let mut rest = self.rest.lock();
        // Under the lock: a failure meanwhile would leave a rest that nobody ends, since nothing failed.
        self.failures.store(0, Ordering::Relaxed);
        std::mem::take(&mut *rest).since.is_some()
    }

    /// Returns whether this failure opened the breaker.
    #[cold]
    pub(super) fn failed(&self, now: Instant) -> bool {
        let mut rest = self.rest.lock();
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        if failures >= FAILURES_MAX {
            *rest = Rest { since: Some(now), is_tried: false };
        }
        self.failures.store(failures, Ordering::Relaxed);
        failures == FAILURES_MAX
    }

    pub(super) fn health(&self) -> Health {
        let failures = self.failures.load(Ordering::Relaxed);
        let rest = self.rest.lock();
        match rest.since {
            None => Health::Asked { failures },
            Some(_) if rest.is_tried => Health::Tried,
            Some(_) => Health::Quarantined,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let (breaker, now) = (Breaker::default(), crate::plugin::engine::now());
        for _ in 1..FAILURES_MAX {
            assert!(!breaker.failed(now));
        }
        breaker.succeeded();
        assert_eq!(breaker.health(), Health::Asked { failures: 0 });
        for _ in 1..FAILURES_MAX {
            assert!(breaker.permits(|| now));
            assert!(!breaker.failed(now));
        }
        assert!(breaker.failed(now));
        assert!(!breaker.permits(|| now));
        assert_eq!(breaker.health(), Health::Quarantined);
    }

    #[test]
    fn after_a_rest_one_call_tries_it() {
        let (breaker, now) = (Breaker::default(), crate::plugin::engine::now());
        for _ in 0..FAILURES_MAX {
            breaker.failed(now);
        }
        assert!(breaker.permits(|| now + REST));
        assert_eq!(breaker.health(), Health::Tried);
        assert!(!breaker.permits(|| now + REST));
        assert!(!breaker.failed(now + REST));
        assert!(!breaker.permits(|| now + REST + REST / 2));
        assert!(breaker.permits(|| now + 2 * REST));
        breaker.succeeded();
        assert!(breaker.permits(|| now + 2 * REST));
        assert_eq!(breaker.health(), Health::Asked { failures: 0 });
    }
}
