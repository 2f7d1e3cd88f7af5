//! The simulation at work.

use super::*;

/// Seeds that every change of the node has to pass.
const SEEDS: u64 = 500;

fn check(seed: u64) {
    let Outcome { violation, .. } = run(seed, false);
    assert_eq!(violation, None, "seed {seed}");
}

#[test]
fn the_even_seeds_pass() {
    (0..SEEDS).step_by(2).for_each(check);
}

#[test]
fn the_odd_seeds_pass() {
    (1..SEEDS).step_by(2).for_each(check);
}

#[test]
fn a_seed_replays_to_the_byte() {
    for seed in [7, 8] {
        let (first, second) = (run(seed, true).trace, run(seed, true).trace);
        assert!(first.lines().count() > 500, "{} lines", first.lines().count());
        assert!(first == second, "seed {seed} runs in two ways");
    }
}
