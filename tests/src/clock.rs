//! The clock of the suites: deadlines for waiting, never an assertion about speed.

use std::time::{Duration, Instant};

/// A moment after which waiting is a failure.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    end: Instant,
}

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "the clock seam of the suites: they wait for processes")]
    pub fn after(wait: Duration) -> Deadline {
        let start = Instant::now();
        Deadline { start, end: start + wait }
    }

    pub fn has_passed(&self) -> bool {
        self.left().is_zero()
    }

    #[expect(clippy::disallowed_methods, reason = "the clock seam of the suites: they wait for processes")]
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Time since the deadline was set.
    #[expect(clippy::disallowed_methods, reason = "the clock seam of the suites: they wait for processes")]
    pub fn elapsed(&self) -> Duration {
        Instant::now().saturating_duration_since(self.start)
    }
}

/// Measures from one moment on.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the clock seam of the suites: histories have times")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    #[expect(clippy::disallowed_methods, reason = "the clock seam of the suites: histories have times")]
    pub fn elapsed_us(&self) -> u64 {
        u64::try_from(Instant::now().saturating_duration_since(self.0).as_micros()).expect("a test ends within years")
    }
}

/// Seconds since the epoch, for seeds only.
#[expect(clippy::disallowed_methods, reason = "the clock seam of the suites: a fresh seed a run")]
pub(crate) fn nanoseconds_now() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
