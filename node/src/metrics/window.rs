//! What the last minute was like: times of which a percentile is wanted now, not since the start. For policies, not shown.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// A window is as many slices as this; one more is filled meanwhile.
const SLICES: usize = 6;
/// Length of a slice.
pub(crate) const SLICE: Duration = Duration::from_secs(10);
/// Buckets between a power of two and the next: a percentile is at most an eighth too large.
const STEPS: u32 = 8;
const STEPS_LOG2: u32 = STEPS.ilog2();
/// Up to the largest number of 32 bits.
const BUCKETS: usize = ((32 - STEPS_LOG2 + 1) * STEPS) as usize;

/// Times in microseconds. Recording is one atomic addition.
pub(crate) struct Window {
    /// A ring; the one that is filled is `filled` modulo its length.
    slices: [[AtomicU32; BUCKETS]; SLICES + 1],
    filled: AtomicUsize,
}

impl Default for Window {
    fn default() -> Window {
        let slices = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU32::new(0)));
        Window { slices, filled: AtomicUsize::new(0) }
    }
}

impl Window {
    pub(crate) fn record(&self, took: Duration) {
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let filled = self.filled.load(Ordering::Relaxed) % self.slices.len();
        self.slices[filled][bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// Begins another slice, in the place of the oldest. To be called every [`SLICE`], by one thread.
    pub(crate) fn turn(&self) {
        let next = (self.filled.load(Ordering::Relaxed) + 1) % self.slices.len();
        for bucket in &self.slices[next] {
            bucket.store(0, Ordering::Relaxed);
        }
        self.filled.store(next, Ordering::Relaxed);
    }

    /// The time within which 99 of 100 stayed, in microseconds; 0 when there were none.
    pub(crate) fn p99_us(&self) -> u32 {
        let count = |bucket: usize| {
            self.slices.iter().map(|slice| u64::from(slice[bucket].load(Ordering::Relaxed))).sum::<u64>()
        };
        let counts: Vec<u64> = (0..BUCKETS).map(count).collect();
        let total: u64 = counts.iter().sum();
        let mut left = total - total / 100;
        for (bucket, count) in counts.iter().enumerate() {
            if total > 0 && *count >= left {
                return largest_of(bucket);
            }
            left -= count;
        }
        0
    }
}

/// The first buckets hold one number each; then there are [`STEPS`] for each power of two.
fn bucket(micros: u32) -> usize {
    let place = match micros.checked_ilog2() {
        Some(power) if power >= STEPS_LOG2 => {
            let shift = power - STEPS_LOG2;
            (shift + 1) * STEPS + (micros >> shift) - STEPS
        }
        _ => micros,
    };
    place as usize
}

/// The largest number in a bucket.
fn largest_of(bucket: usize) -> u32 {
    let bucket = u64::try_from(bucket).expect("there are some hundred buckets");
    let steps = u64::from(STEPS);
    if bucket < 2 * steps {
        return u32::try_from(bucket).unwrap_or(u32::MAX);
    }
    let (shift, step) = (bucket / steps - 1, bucket % steps);
    u32::try_from(((steps + step + 1) << shift) - 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_that_is_hardly_larger() {
        let mut last = 0;
        for power in 0..32 {
            for micros in [1_u32 << power, (1 << power) + (1 << power) / 3, u32::MAX >> power] {
                let largest = largest_of(bucket(micros));
                assert!(largest >= micros && largest - micros <= micros / 8, "{micros} is counted as {largest}");
            }
        }
        for bucket in 0..BUCKETS {
            let largest = largest_of(bucket);
            assert!(bucket == 0 || largest > last, "bucket {bucket}");
            assert_eq!(super::bucket(largest), bucket);
            last = largest;
        }
        assert_eq!(last, u32::MAX);
    }

    #[test]
    fn what_is_older_than_a_minute_is_forgotten() {
        let window = Window::default();
        assert_eq!(window.p99_us(), 0);
        for _ in 0..99 {
            window.record(Duration::from_micros(10));
        }
        window.record(Duration::from_micros(5_000));
        assert_eq!(window.p99_us(), 10);
        window.record(Duration::from_micros(5_000));
        assert!(window.p99_us() >= 5_000);
        for _ in 0..SLICES {
            window.turn();
            window.record(Duration::from_micros(3));
        }
        assert!(window.p99_us() >= 5_000, "the minute is not over");
        window.turn();
        assert_eq!(window.p99_us(), 3);
    }
}
