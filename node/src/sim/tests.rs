//! The simulation at work, and the proof that it sees what is wrong.

use super::*;
use crate::sabotage::{self, Sabotage};

/// Seeds that every change of the node has to pass.
const SEEDS: u64 = 500;

/// Changes of what is enforced.
const ACTIVATIONS: u64 = 1_000;

/// Each fault, and the seeds within which it has to be found.
const FAULTS: [(Sabotage, u64); 11] = [
    (Sabotage::VoteWithoutFsync, 200),
    (Sabotage::ReusedReadContext, 600),
    (Sabotage::AppliedIndexOutsideBatch, 50),
    (Sabotage::LostTombstone, 50),
    (Sabotage::ProgressBeforeEvent, 20),
    (Sabotage::EarlyLeaseExpiry, 20),
    (Sabotage::DoubleApply, 20),
    (Sabotage::AckBeforeCommit, 20),
    (Sabotage::PolicyEpochUnchecked, 50),
    (Sabotage::ReadSetUnchecked, 50),
    (Sabotage::SplitConfChange, 20),
];

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

/// Policies come into force and are taken back while leaders die, links fail and disks lose power.
#[test]
fn a_thousand_activations_keep_every_rule() {
    let (mut activations, mut seeds) = (0, 0);
    while activations < ACTIVATIONS {
        let (Outcome { violation, .. }, epochs) = run_policies(seeds);
        assert_eq!(violation, None, "seed {seeds} of policies");
        activations += epochs;
        seeds += 1;
        assert!(seeds < ACTIVATIONS, "{activations} activations in {seeds} seeds: the operator gets nothing done");
    }
    println!("{activations} changes of what is enforced in {seeds} seeds");
}

#[test]
fn a_seed_replays_to_the_byte() {
    for seed in [7, 8] {
        let (first, second) = (run(seed, true).trace, run(seed, true).trace);
        assert!(first.lines().count() > 500, "{} lines", first.lines().count());
        assert!(first == second, "seed {seed} runs in two ways");
    }
}

#[test]
fn each_fault_is_found() {
    for (fault, seeds) in FAULTS {
        sabotage::switch(Some(fault));
        // Not the seed that is lucky today: a change of the node deals the cards anew.
        let found = (0..seeds).find_map(|seed| run(seed, false).violation.map(|violation| (seed, violation)));
        sabotage::switch(None);
        println!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?} is not found in {seeds} seeds");
    }
}
