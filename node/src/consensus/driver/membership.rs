//! Changes of who votes: what an applied change means for raft, when a learner may vote, how a removed leader leaves.

use raft::eraftpb::{ConfChange, ConfChangeType, Message, MessageType};

use super::{Driver, LEAVE_AFTER_TICKS};
use crate::apply::Reply;
use crate::cluster::Reconfiguration;
use crate::consensus::answers::{Answer, Waiter};
use crate::refusal::Refusal;
use crate::sabotage::{Sabotage, is_on};

impl Driver {
    /// Puts in force what an applied change of the members means for who votes.
    pub(super) fn reconfigure(&mut self, index: u64, reconfiguration: Reconfiguration) {
        let first = self.reconfigurations.pop_front();
        assert!(first == Some(index), "change {index} of the members applied while {first:?} is the next");
        if index <= self.installed {
            return;
        }
        self.advance_applied(index - 1);
        if is_on(Sabotage::SplitConfChange) && !self.leads() {
            return;
        }
        let (kind, id) = match reconfiguration {
            Reconfiguration::Voter(id) => (ConfChangeType::AddNode, id),
            Reconfiguration::Learner(id) => (ConfChangeType::AddLearnerNode, id),
            // raft would die of the next entry that it commits as a leader without a progress of its own. As a learner this
            // member has no vote either, here where nobody else sees it.
            Reconfiguration::Gone(id) if self.leads() && id.0 == self.options.member_id => {
                (ConfChangeType::AddLearnerNode, id)
            }
            Reconfiguration::Gone(id) => (ConfChangeType::RemoveNode, id),
            Reconfiguration::None => return,
        };
        let mut change = ConfChange::default();
        change.set_change_type(kind);
        change.node_id = id.0;
        match self.node.apply_conf_change(&change) {
            Ok(conf_state) => self.node.mut_store().set_conf_state(conf_state),
            Err(error) => {
                self.effects.dead = Some(format!(
                    "raft does not take change {index} of the members ({error}): restart this member; if it happens again, \
                     remove it from the cluster and add it anew"
                ));
            }
        }
    }

    /// Keeps a commit to this member that a change of the members hangs on and that its own log may not say yet.
    pub(super) fn withhold_commit(&self, message: &mut Message) {
        let in_log = self.node.raft.pending_conf_index;
        let withheld = self.withheld.as_ref().map(|withheld| withheld.index);
        let withheld = withheld.or((in_log > self.handed_on).then_some(in_log));
        if let Some(index) = withheld
            && matches!(message.get_msg_type(), MessageType::MsgAppend | MessageType::MsgHeartbeat)
        {
            message.commit = message.commit.min(index - 1);
        }
    }

    /// Whether a learner holds so much of the log that it would not hold up the others once it votes.
    pub(super) fn check_caught_up(&self, learner: u64) -> Answer {
        let raft = &self.node.raft;
        if !self.leads() {
            return Err(Refusal::NotLeader);
        }
        let matched = raft.prs().get(learner).map(|progress| progress.matched).ok_or(Refusal::MemberNotFound)?;
        let own = raft.raft_log.persisted;
        // At least nine tenths, reckoned without loss.
        let ready = u128::from(matched) * 10 >= u128::from(own) * 9;
        if ready { Ok(Reply::Empty) } else { Err(Refusal::LearnerNotReady) }
    }

    /// A leader that was removed goes on leading, without a vote of its own, until another takes over. The others are given
    /// a moment first: who has not applied the removal yet does not stand for election.
    pub(super) fn leave_if_removed(&mut self) {
        let id = self.options.member_id;
        if !self.leads() || self.node.store().conf_state().get_voters().contains(&id) {
            self.removed_ticks = None;
            return;
        }
        let since = *self.removed_ticks.get_or_insert(self.now_ticks);
        if self.now_ticks >= since + LEAVE_AFTER_TICKS && self.node.raft.lead_transferee.is_none() {
            self.transfer_leader(None, Waiter::None);
        }
    }
}
