//! Proposals of this member's clients on their way to being applied, wherever the leader is.
//!
//! A leader puts a proposal into its own log and finds who waits by the entry's place. Another member sends it to the
//! leader under a number, which is in the entry too, and finds who waits by that number when the entry is committed; the
//! leader's word on where it put the entry only serves to tell early that another leader's entry took the place. While
//! there is no leader a proposal is held, as in etcd. A proposal is sent to another leader only if one has said that it
//! did not take it: everything else could carry it out twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::command;
use crate::consensus::answers::Waiter;
use crate::consensus::effects::{Effects, Forward};
use crate::log::{EntryKind, LogEntry};
use crate::refusal::Refusal;
use crate::sabotage::{Sabotage, is_on};

/// Proposals held while there is no leader, and on their way to another. Past it they are refused: as many as the inbox
/// takes from clients in one round.
const ELSEWHERE_MAX: usize = 16_384;

/// What an entry is to hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Payload {
    /// Unlike that of any other proposal in flight, and in the bytes too.
    pub(crate) number: u64,
    pub(crate) kind: EntryKind,
    pub(crate) data: Bytes,
}

/// A command to be put into the log.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) payload: Payload,
    pub(crate) waiter: Waiter,
}

#[derive(Default)]
pub(super) struct Proposals {
    /// In this member's log and not yet committed, in index order.
    placed: VecDeque<Placed>,
    /// Sent to the leader, by number.
    sent: BTreeMap<u64, Sent>,
    /// Places that leaders named for those of `sent`: (index, number).
    places: BTreeSet<(u64, u64)>,
    /// No leader is known for them, in the order of their arrival.
    held: VecDeque<Held>,
    /// When the next of `sent` may be late, so that not all are looked at in each tick.
    next_expiry: u64,
}

struct Placed {
    index: u64,
    term: u64,
    waiter: Waiter,
    expires_ticks: u64,
}

struct Sent {
    payload: Payload,
    waiter: Waiter,
    expires_ticks: u64,
}

struct Held {
    proposal: Proposal,
    expires_ticks: u64,
}

/// What a leader says of proposals that another member sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    /// In the order in which they were sent.
    pub(crate) numbers: Vec<u64>,
    pub(crate) outcome: Result<Place, Declined>,
}

impl Verdict {
    /// Whether the next proposal fared as these did, and so belongs to them.
    pub(super) fn is_followed_by(&self, outcome: &Result<Place, Declined>) -> bool {
        match (self.outcome, outcome) {
            (Ok(first), Ok(next)) => first.term == next.term && first.index + self.numbers.len() as u64 == next.index,
            (Err(declined), Err(next)) => declined == *next,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        }
    }
}

/// Where the first of some proposals stands in the log; the others follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) index: u64,
    pub(crate) term: u64,
}

/// Why proposals are in no log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Declined {
    NotLeader,
    TooManyRequests,
    ReconfigurationPending,
}

impl Declined {
    /// What whoever waits is told; `None` when the proposal is for another leader to take.
    pub(super) fn refusal(self) -> Option<Refusal> {
        match self {
            Declined::NotLeader => None,
            Declined::TooManyRequests => Some(Refusal::TooManyRequests),
            Declined::ReconfigurationPending => Some(Refusal::ReconfigurationPending),
        }
    }
}

impl Proposals {
    /// Proposals in this member's log that are not committed yet.
    pub(super) fn pending(&self) -> u64 {
        self.placed.len() as u64
    }

    /// The waiter's proposal went into the log here.
    pub(super) fn place(&mut self, place: Place, waiter: Waiter, expires_ticks: u64, effects: &mut Effects) {
        // Of an earlier term of this member's, and cut off the log since.
        while let Some(cut) = self.placed.pop_back_if(|last| last.index >= place.index) {
            effects.fail_proposal(cut.waiter, Refusal::LeaderChanged);
        }
        self.placed.push_back(Placed { index: place.index, term: place.term, waiter, expires_ticks });
    }

    /// Sends proposals to the leader, or holds them until there is one. Each comes with the tick at which it gives up.
    pub(super) fn send(&mut self, leader: Option<u64>, proposals: Vec<(Proposal, u64)>, effects: &mut Effects) {
        let mut sendable = Vec::new();
        for (proposal, expires_ticks) in proposals {
            if self.sent.len() + self.held.len() + sendable.len() >= ELSEWHERE_MAX {
                effects.answers.push((proposal.waiter, Err(Refusal::TooManyRequests)));
                continue;
            }
            let held = Held { proposal, expires_ticks };
            if leader.is_some() {
                sendable.push(held);
            } else {
                self.held.push_back(held);
            }
        }
        if let Some(leader) = leader {
            self.send_to(leader, sendable, effects);
        }
    }

    /// What was held, now that another member leads.
    pub(super) fn send_held(&mut self, leader: u64, effects: &mut Effects) {
        if is_on(Sabotage::DoubleApply) {
            let entries = self.sent.values().map(|sent| sent.payload.clone()).collect();
            effects.forwards.push(Forward { to: leader, entries });
        }
        let held = std::mem::take(&mut self.held).into();
        self.send_to(leader, held, effects);
    }

    /// What was held, now that this member leads.
    pub(super) fn take_held(&mut self) -> Vec<(Proposal, u64)> {
        self.held.drain(..).map(|held| (held.proposal, held.expires_ticks)).collect()
    }

    fn send_to(&mut self, leader: u64, proposals: Vec<Held>, effects: &mut Effects) {
        if proposals.is_empty() {
            return;
        }
        let mut entries = Vec::with_capacity(proposals.len());
        for Held { proposal: Proposal { payload, waiter }, expires_ticks } in proposals {
            entries.push(payload.clone());
            self.next_expiry = if self.sent.is_empty() { expires_ticks } else { self.next_expiry.min(expires_ticks) };
            self.sent.insert(payload.number, Sent { payload, waiter, expires_ticks });
        }
        effects.forwards.push(Forward { to: leader, entries });
    }

    /// A leader's word on what was sent to it.
    /// `handed_on` is the last entry that was looked for in [`Proposals::waiter_of`].
    pub(super) fn judged(&mut self, verdict: &Verdict, handed_on: u64, effects: &mut Effects) {
        match verdict.outcome {
            Ok(Place { index, .. }) => {
                for (index, number) in (index..).zip(&verdict.numbers) {
                    if index > handed_on {
                        if self.sent.contains_key(number) {
                            self.places.insert((index, *number));
                        }
                    } else if let Some(lost) = self.sent.remove(number) {
                        // Committed here without having been found: another leader's entry stands there.
                        effects.fail_proposal(lost.waiter, Refusal::LeaderChanged);
                    }
                }
            }
            Err(declined) => {
                for number in &verdict.numbers {
                    let Some(Sent { payload, waiter, expires_ticks }) = self.sent.remove(number) else { continue };
                    match declined.refusal() {
                        Some(refusal) => effects.answers.push((waiter, Err(refusal))),
                        None => self.held.push_back(Held { proposal: Proposal { payload, waiter }, expires_ticks }),
                    }
                }
            }
        }
    }

    /// Entries up to here will not be looked at: another member's store holds what they did. What became of the proposals
    /// among them is not known.
    pub(super) fn pass_over(&mut self, index: u64, effects: &mut Effects) {
        while let Some(first) = self.placed.pop_front_if(|first| first.index <= index) {
            effects.fail_proposal(first.waiter, Refusal::Timeout);
        }
        while let Some((_, number)) = self.places.first().copied().filter(|(place, _)| *place <= index) {
            self.places.pop_first();
            if let Some(passed) = self.sent.remove(&number) {
                effects.fail_proposal(passed.waiter, Refusal::Timeout);
            }
        }
    }

    /// Who waits for this entry, which is committed now.
    pub(super) fn waiter_of(&mut self, entry: &LogEntry, effects: &mut Effects) -> Waiter {
        let mut found = Waiter::None;
        while let Some(first) = self.placed.pop_front_if(|first| first.index <= entry.index) {
            if first.index == entry.index && first.term == entry.term {
                found = first.waiter;
            } else {
                // Another leader's entry took the place.
                effects.fail_proposal(first.waiter, Refusal::LeaderChanged);
            }
        }
        if !self.sent.is_empty()
            && let Some(number) = command::number(&entry.data)
            && let Some(sent) = self.sent.remove(&number)
        {
            found = sent.waiter;
        }
        while let Some((_, number)) = self.places.first().copied().filter(|(index, _)| *index <= entry.index) {
            self.places.pop_first();
            if let Some(lost) = self.sent.remove(&number) {
                effects.fail_proposal(lost.waiter, Refusal::LeaderChanged);
            }
        }
        found
    }

    /// Tells those who have waited long enough.
    pub(super) fn expire(&mut self, now_ticks: u64, effects: &mut Effects) {
        while let Some(late) = self.placed.pop_front_if(|first| first.expires_ticks <= now_ticks) {
            effects.fail_proposal(late.waiter, Refusal::Timeout);
        }
        while let Some(late) = self.held.pop_front_if(|first| first.expires_ticks <= now_ticks) {
            effects.fail_proposal(late.proposal.waiter, Refusal::Timeout);
        }
        if self.sent.is_empty() || self.next_expiry > now_ticks {
            return;
        }
        for (_, late) in self.sent.extract_if(.., |_, sent| sent.expires_ticks <= now_ticks) {
            effects.fail_proposal(late.waiter, Refusal::Timeout);
        }
        self.next_expiry = self.sent.values().map(|sent| sent.expires_ticks).min().unwrap_or(0);
    }

    /// Everyone who waits.
    pub(super) fn drain(&mut self) -> Vec<Waiter> {
        let placed = self.placed.drain(..).map(|placed| placed.waiter);
        let sent = std::mem::take(&mut self.sent).into_values().map(|sent| sent.waiter);
        let held = self.held.drain(..).map(|held| held.proposal.waiter);
        self.places.clear();
        placed.chain(sent).chain(held).collect()
    }
}
