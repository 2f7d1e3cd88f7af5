//! What a seed decides before the run begins: the size of the cluster and how hard its life is.

use crate::sim::random::Random;

/// A tick of every member.
pub(super) const TICK_MS: u64 = 100;
pub(super) const ELECTION_TICKS: u64 = 10;
/// How long a cluster that is whole again may take until all members agree and serve.
pub(super) const CALM_MS: u64 = 25_000;
/// How long it is watched at least.
pub(super) const CALM_MIN_MS: u64 = 3_000;
/// How long clients and faults are at work.
const STORM_MS: u64 = 20_000;

/// The numbers of one run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) members: u64,
    pub(super) clients: usize,
    pub(super) watchers: usize,
    pub(super) keys: u64,
    pub(super) storm_ms: u64,
    /// Longest pause of a client between two requests.
    pub(super) think_ms: u64,
    /// Frames lost, sent twice, and much delayed, of a thousand.
    pub(super) loss_permille: u64,
    pub(super) twice_permille: u64,
    pub(super) slow_permille: u64,
    /// Mean time between two faults.
    pub(super) fault_ms: u64,
    pub(super) pre_vote: bool,
    /// Whether members are added and removed.
    pub(super) changes_members: bool,
    /// Shortest and longest pause of the operator between two steps, in microseconds.
    pub(super) operator_us: (u64, u64),
    /// How many of a thousand of its steps are about the plugin.
    pub(super) plugins_permille: u64,
    pub(super) snapshot_entries: u64,
    pub(super) catch_up_entries: u64,
    pub(super) segment_bytes: u64,
    pub(super) recent_bytes: usize,
    pub(super) stream_bytes: usize,
    /// How often the store is made durable.
    pub(super) persist_ms: u64,
    /// How often what is left of leases is noted for the next leader; 0: never.
    pub(super) checkpoint_ms: u64,
}

impl Plan {
    pub(super) fn draw(random: &mut Random) -> Plan {
        Plan {
            members: random.pick(&[3, 3, 3, 5, 4]),
            clients: random.pick(&[2, 3, 5]),
            watchers: random.pick(&[1, 2, 3]),
            keys: random.pick(&[2, 5, 12]),
            storm_ms: STORM_MS,
            think_ms: random.pick(&[20, 80, 250]),
            loss_permille: random.pick(&[0, 5, 20, 80]),
            twice_permille: random.pick(&[0, 5, 50]),
            slow_permille: random.pick(&[0, 10, 60]),
            fault_ms: random.pick(&[1_000, 2_500, 6_000]),
            pre_vote: random.permille(700),
            changes_members: random.permille(500),
            operator_us: (100_000, 2_000_000),
            plugins_permille: 500,
            snapshot_entries: random.pick(&[20, 60, 200]),
            catch_up_entries: random.pick(&[0, 10, 50]),
            segment_bytes: random.pick(&[2_048, 8_192, 32_768]),
            recent_bytes: random.pick(&[0, 2_000, 1 << 20]),
            stream_bytes: random.pick(&[0, 600, 1 << 20]),
            persist_ms: random.pick(&[300, 1_500, 5_000]),
            checkpoint_ms: random.pick(&[0, 1_000]),
        }
    }

    /// Makes the operator do nothing but bring revisions of the plugin into force, and that many times a second.
    #[cfg(test)]
    pub(super) fn turn_to_policies(&mut self) {
        self.changes_members = false;
        self.operator_us = (5_000, 60_000);
        self.plugins_permille = 1_000;
    }
}
