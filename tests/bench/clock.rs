//! The benchmark's clock: measuring time is what it is for.

use std::time::{Instant, SystemTime};

#[expect(clippy::disallowed_methods, reason = "the clock seam of the benchmark")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The date and time in UTC, as RFC 3339 writes them.
#[expect(clippy::disallowed_methods, reason = "the clock seam of the benchmark: the date of a report")]
pub(crate) fn date() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
