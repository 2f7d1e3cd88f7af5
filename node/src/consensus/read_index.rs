//! Linearizable reads: rounds in which a leader confirms that it still leads.
//!
//! All reads that wait when a round begins share it. With other members one round is under way at a time: reads that come
//! meanwhile form the next, so that a round of messages serves as many reads as there are. A round's context is used once
//! (member, boot nonce, counter): a resent one could be answered by an older round (etcd#20418). A read waits while there
//! is no leader or the leader has not committed in its term; `raft` would drop it silently.

use std::collections::BTreeMap;

use raft::ReadState;

use crate::consensus::answers::Waiter;
use crate::consensus::effects::Effects;
use crate::refusal::Refusal;
use crate::sabotage::{Sabotage, is_on};

/// Reads that wait for a leader's word.
#[derive(Default)]
pub(super) struct Reads {
    /// Not yet asked for; with the tick at which each gives up.
    new: Vec<(Waiter, u64)>,
    /// Asked for, by the counter in the context.
    asked: BTreeMap<u64, Round>,
    counter: u64,
}

struct Round {
    waiters: Vec<(Waiter, u64)>,
    retry_ticks: u64,
}

impl Reads {
    pub(super) fn add(&mut self, waiter: Waiter, expires_ticks: u64) {
        self.new.push((waiter, expires_ticks));
    }

    /// Begins a round for all that wait, unless none do or, among several members, one is under way. Returns its counter.
    pub(super) fn begin(&mut self, alone: bool, retry_ticks: u64) -> Option<u64> {
        if self.new.is_empty() || !(alone || self.asked.is_empty()) {
            return None;
        }
        self.counter += u64::from(!is_on(Sabotage::ReusedReadContext));
        let waiters = std::mem::take(&mut self.new);
        self.asked.insert(self.counter, Round { waiters, retry_ticks });
        Some(self.counter)
    }

    /// Takes in what raft says of rounds.
    pub(super) fn answer(&mut self, states: Vec<ReadState>, effects: &mut Effects) {
        for state in states {
            let Some(counter) = state.request_ctx.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes)) else {
                continue;
            };
            // A round that was given up and asked anew: its waiters are with the newer context.
            let Some(round) = self.asked.remove(&counter) else { continue };
            effects.reads.extend(round.waiters.into_iter().map(|(waiter, _)| (state.index, waiter)));
        }
    }

    /// Gives up every round under way: its leader is one no more, or may be.
    pub(super) fn restart(&mut self) {
        for (_, round) in std::mem::take(&mut self.asked) {
            self.new.extend(round.waiters);
        }
    }

    /// Gives up rounds that were not answered in time, and reads that have waited long enough.
    pub(super) fn expire(&mut self, now_ticks: u64, has_leader: bool, effects: &mut Effects) {
        for (_, round) in self.asked.extract_if(.., |_, round| round.retry_ticks <= now_ticks) {
            effects.reads_slow += 1;
            self.new.extend(round.waiters);
        }
        let refusal = if has_leader { Refusal::Timeout } else { Refusal::NoLeader };
        for (waiter, _) in self.new.extract_if(.., |(_, expires)| *expires <= now_ticks) {
            effects.reads_failed += 1;
            effects.answers.push((waiter, Err(refusal.clone())));
        }
    }

    /// Everyone who waits.
    pub(super) fn drain(&mut self) -> Vec<Waiter> {
        self.restart();
        self.new.drain(..).map(|(waiter, _)| waiter).collect()
    }

    #[cfg(test)]
    pub(super) fn asked(&self) -> Vec<u64> {
        self.asked.keys().copied().collect()
    }
}
