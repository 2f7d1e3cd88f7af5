//! What a message promises on behalf of its sender's disk, for the simulation: a crash must not make a lie of it.

use raft::eraftpb::{Message, MessageType};

/// A promise, made in a term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Promise {
    /// The sender's vote is this candidate's.
    Vote { term: u64, to: u64 },
    /// The sender's log holds the leader's entries up to here.
    Holds { term: u64, index: u64 },
}

impl Promise {
    pub(crate) fn of(message: &Message) -> Option<Promise> {
        match message.get_msg_type() {
            MessageType::MsgRequestVoteResponse if !message.reject => {
                Some(Promise::Vote { term: message.term, to: message.to })
            }
            MessageType::MsgAppendResponse if !message.reject => {
                Some(Promise::Holds { term: message.term, index: message.index })
            }
            _ => None,
        }
    }
}
