//! Deterministic simulation: a cluster with its clients in one process, on one thread, from one seed.
//!
//! The members are made of the very parts that the node runs (driver, log, apply, mvcc, leases, watches), around five
//! seams: time is handed in, the network is data, the log's disk and the store's engine are in memory and can lose
//! power, and all chance comes from the seed. A checker looks at everything after each step.
//!
//! ```text
//!   world      what happens when; turns of the members' threads, frames, faults, clients
//!   process    the parts of one member, thread by thread        member   what outlives it: disk and store
//!   client, watching, operator   requests, watches, changes of members and plugins
//!   network, faults    what goes wrong                            rows     whole stores on their way
//!   checker    the rules                                        history, policies  the model that says what is right
//! ```
//!
//! One seed is one run: [`run`] twice is the same bytes of trace twice. A violation is reported with its seed, which
//! `sim --seed N` replays. Only compiled for tests and under the feature `sim`.

mod checker;
mod client;
mod faults;
mod history;
mod member;
mod network;
mod operator;
mod plan;
mod policies;
mod process;
mod random;
mod rows;
mod watching;
mod world;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::metrics;
use world::World;

/// How a run ended.
pub struct Outcome {
    /// The rule that was broken, if one was.
    pub violation: Option<String>,
    /// What happened, line by line; empty unless asked for.
    pub trace: String,
}

/// Runs one seed.
pub fn run(seed: u64, traces: bool) -> Outcome {
    run_world(&mut World::new(seed, traces))
}

/// Runs one seed with an operator who does nothing but bring policies into force. Also returns how often he did.
#[cfg(test)]
fn run_policies(seed: u64) -> (Outcome, u64) {
    let mut world = World::new(seed, false);
    world.turn_to_policies();
    let outcome = run_world(&mut world);
    (outcome, world.policy_epoch())
}

fn run_world(world: &mut World) -> Outcome {
    // An assertion of the node is a rule like those of the checker. Where panics end the process, this catches nothing.
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = ended.map_or_else(
        |panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("a member panicked: {}", text.unwrap_or("no message")))
        },
        Result::err,
    );
    // Samples pile up until somebody looks at them, and here nobody does.
    metrics::get().fold_samples();
    Outcome { violation, trace: world.take_trace() }
}
