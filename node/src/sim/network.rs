//! The network between members: what becomes of a frame.
//!
//! Raft's messages may be lost, delayed, overtaken and delivered twice: more than the node's own connections do to them.
//! Commands for the leader and its verdicts travel as on a connection: in order, and never twice.

use std::collections::BTreeMap;

use crate::sim::plan::Plan;
use crate::sim::random::Random;
use crate::transport::Kind;

/// Delay of a frame on a good day, in microseconds.
const DELAY_US: (u64, u64) = (100, 3_000);
/// Of one that is held up somewhere.
const SLOW_DELAY_US: (u64, u64) = (20_000, 4_000_000);

/// When a frame arrives: never, once or twice.
pub(super) type Arrivals = Vec<u64>;

#[derive(Default)]
pub(super) struct Network {
    /// Links that carry nothing: from, to.
    cut: BTreeMap<(u64, u64), ()>,
    /// When the last frame of a request connection arrives.
    last_request_us: BTreeMap<(u64, u64), u64>,
}

impl Network {
    pub(super) fn is_cut(&self, from: u64, to: u64) -> bool {
        self.cut.contains_key(&(from, to))
    }

    /// Nothing gets from the one to the other any more.
    pub(super) fn cut(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to), ());
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    /// Decides when a frame sent now arrives.
    pub(super) fn send(
        &mut self,
        (from, to): (u64, u64),
        kind: Kind,
        now_us: u64,
        plan: &Plan,
        random: &mut Random,
    ) -> Arrivals {
        if self.is_cut(from, to) || random.permille(plan.loss_permille) {
            return Vec::new();
        }
        let (low, high) = if random.permille(plan.slow_permille) { SLOW_DELAY_US } else { DELAY_US };
        let arrival = now_us + random.between(low, high);
        if kind != Kind::Message {
            let last = self.last_request_us.entry((from, to)).or_default();
            *last = arrival.max(*last + 1);
            return vec![*last];
        }
        let mut arrivals = vec![arrival];
        if random.permille(plan.twice_permille) {
            arrivals.push(now_us + random.between(DELAY_US.0, SLOW_DELAY_US.1));
        }
        arrivals
    }
}
