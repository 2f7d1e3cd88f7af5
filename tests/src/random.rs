//! Random numbers from a seed. The generator is our own (splitmix64), so that a seed printed today replays after any
//! upgrade of a crate.

/// Names the seed of a run, so that a failing run can be repeated.
const SEED_VARIABLE: &str = "KUORUM_SEED";

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let count = u64::try_from(from.len()).expect("a slice length fits u64");
        let index = usize::try_from(self.below(count)).expect("an index of a slice fits usize");
        &from[index]
    }
}

/// The seed of this run: from the environment, else from the clock. Printed either way.
pub fn seed(test: &str) -> u64 {
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE}={text} is not a number")),
        Err(_) => {
            let now = u64::try_from(crate::clock::nanoseconds_now() & u128::from(u64::MAX)).expect("masked to 64 bits");
            Random::new(now).number() >> 20
        }
    };
    eprintln!("{test}: {SEED_VARIABLE}={seed}");
    seed
}
