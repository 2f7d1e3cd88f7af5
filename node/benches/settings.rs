//! How all benches measure.

use std::time::Duration;

use criterion::Criterion;

/// The node's, since most of these loops allocate.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Long enough that two runs on an idle machine differ by a few percent, short enough that the whole set of some thirty
/// measurements takes about two minutes.
const MEASUREMENT: Duration = Duration::from_secs(2);
/// Caches are warm after a few thousand rounds of any of these loops.
const WARM_UP: Duration = Duration::from_millis(500);
/// criterion's own 100 samples mean 5,050 rounds, since sample n holds n of them: too many for loops that take a
/// millisecond or need something new each time. 20 mean 210, and the slowest comes to its end in two seconds.
const SAMPLES: usize = 20;

pub(crate) fn criterion() -> Criterion {
    Criterion::default().measurement_time(MEASUREMENT).warm_up_time(WARM_UP).sample_size(SAMPLES)
}
