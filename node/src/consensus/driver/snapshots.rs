//! The store's rows on their way between members: sent to one that lacks more than the log holds, and put in the place of
//! all that this one has. Raft deals in their index and members alone.

use raft::SnapshotStatus;
use raft::eraftpb::{Entry, Message, MessageType};

use super::{Driver, HELD_TAIL_BYTES_MAX, TAIL_BYTES_MAX};
use crate::consensus::effects::{Append, Committed, SendSnapshot};
use crate::log::{HardState, LogEntry, SnapshotMark};

/// What waits until rows have taken the place of the store.
pub(super) struct Installing {
    mark: Append,
    /// What was to be appended and applied after it.
    pub(super) appends: Vec<Append>,
    pub(super) committed: Vec<Committed>,
}

impl Driver {
    /// Rows are safe at another member, or will never be.
    pub(super) fn snapshot_sent(&mut self, to: u64, arrived: bool) {
        self.sending.remove(&to);
        self.node.mut_store().prepare(None);
        if to != 0 {
            let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
            self.node.report_snapshot(to, status);
        }
    }

    /// Lets raft decide whether another member's rows are to take the place of this one's.
    pub(super) fn snapshot_arrived(&mut self, from: u64, term: u64, mark: &SnapshotMark) {
        let own = self.options.member_id;
        let is_member = mark.voters.contains(&own) || mark.learners.contains(&own);
        // An older leader's are dropped by raft. From a term that is not known here yet they are as good as any message.
        if self.installing.is_some() || !is_member || mark.voters.is_empty() || term < mark.term {
            return;
        }
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        (message.from, message.to, message.term) = (from, own, term);
        message.set_snapshot(mark.into());
        self.node.step(message).ok();
        self.draw_election_timeout();
    }

    /// Raft took another member's rows in place of all that this one has.
    pub(super) fn install(
        &mut self,
        number: u64,
        mark: SnapshotMark,
        entries: &[Entry],
        hard_state: Option<HardState>,
    ) {
        let index = mark.index;
        // The rows go further, and what takes them in writes down that they are committed.
        let passed = self.withheld.take_if(|withheld| withheld.index <= index);
        self.effects.committed.extend(passed.into_iter().flat_map(|withheld| withheld.committed));
        self.proposals.pass_over(index, &mut self.effects);
        (self.handed_on, self.installed, self.release_asked) = (index, index, index);
        self.appends.outstanding.push_back((number, self.now_ticks));
        let hard_state = hard_state.or(self.appends.commit_unsaved.take());
        let entries = entries.iter().map(LogEntry::from).collect();
        let mark = Append { number, mark: Some(mark), entries, hard_state, sync: true };
        self.installing = Some(Installing { mark, appends: Vec::new(), committed: Vec::new() });
        self.effects.install = Some(index);
    }

    /// Whether raft has been given rows that are not in place yet. It must not stand for election then: it would look for
    /// what is not applied in a log that begins behind it, and die.
    pub(super) fn is_installing(&self) -> bool {
        self.installed > self.node.raft.raft_log.applied
    }

    /// The rows are in place: the log may say so, and what came after them follows.
    pub(super) fn installed(&mut self, index: u64) {
        let Some(done) =
            self.installing.take_if(|installing| installing.mark.mark.as_ref().is_some_and(|mark| mark.index == index))
        else {
            return;
        };
        self.effects.appends.push(done.mark);
        self.effects.appends.extend(done.appends);
        done.committed.into_iter().for_each(|committed| self.hand_on(committed));
    }

    pub(super) fn send(&mut self, messages: Vec<Message>) {
        for mut message in messages {
            if message.get_msg_type() != MessageType::MsgSnapshot {
                self.withhold_commit(&mut message);
                self.effects.messages.push(message);
                continue;
            }
            let mark = SnapshotMark::from(message.get_snapshot());
            self.sending.insert(message.to, mark.index);
            self.effects.snapshot = Some(SendSnapshot { to: message.to, term: message.term, mark });
        }
    }

    /// Up to where the log's head can go, with a store durable up to `index`: not what members that are there lack, nor what
    /// follows rows on their way, unless it has become too much.
    pub(super) fn releasable(&self, index: u64, payload_bytes: u64) -> u64 {
        if payload_bytes > HELD_TAIL_BYTES_MAX {
            return index;
        }
        let sending = self.sending.values().copied().min().unwrap_or(u64::MAX);
        if payload_bytes > TAIL_BYTES_MAX {
            return index.min(sending);
        }
        let raft = &self.node.raft;
        let others = raft.prs().iter().filter(|(id, _)| **id != self.options.member_id);
        let lacking = others.filter(|(_, progress)| self.leads() && progress.recent_active && progress.matched > 0);
        let matched = lacking.map(|(_, progress)| progress.matched).min().unwrap_or(u64::MAX);
        index.saturating_sub(self.options.catch_up_entries).min(sending).min(matched)
    }
}
