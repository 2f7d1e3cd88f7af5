//! What comes from other members, on its way to the raft thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::catch_up;
use crate::cluster::MemberId;
use crate::consensus::event::Event;
use crate::consensus::inbox::Inbox;
use crate::consensus::proposals::{Declined, Verdict};
use crate::consensus::wire;
use crate::transport::hello::Reason;
use crate::transport::{self, Conversation, Kind};

/// How often this member may be told that it was removed before it believes that and ends: some seconds of calling two others
/// over two streams each.
const REMOVALS_TOLD_MAX: u32 = 40;

/// Where frames of other members go that ask something of this process rather than of its log.
pub(crate) trait Questions: Send + Sync {
    /// Takes in a question or an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    fn take(&self, from: MemberId, kind: Kind, payload: &[u8]) -> Result<(), String>;

    /// What was last sent to this member may be lost, and its answers too.
    fn lost(&self, member: MemberId);
}

/// Hands frames to whom they concern.
pub(crate) struct Inlet {
    inbox: Arc<Inbox<Event>>,
    questions: Arc<dyn Questions>,
    snapshots: catch_up::Receiver,
    /// How often other members have said that this one was removed.
    removals_told: AtomicU32,
}

impl Inlet {
    pub(crate) fn new(inbox: Arc<Inbox<Event>>, questions: Arc<dyn Questions>, snapshots: catch_up::Receiver) -> Inlet {
        Inlet { inbox, questions, snapshots, removals_told: AtomicU32::new(0) }
    }
}

impl transport::Inlet for Inlet {
    fn frame(&self, from: MemberId, kind: Kind, payload: &[u8]) -> Result<(), String> {
        let named = |what: &'static str| move |error: &'static str| format!("{what} {error}");
        let event = match kind {
            Kind::Message => {
                let message = wire::decode(payload).map_err(named("a message"))?;
                if message.from != from.0 {
                    return Err(format!("a message in the name of member {:x}", message.from));
                }
                Event::Message(Box::new(message))
            }
            Kind::Forward => {
                let entries = wire::decode_forward(payload).map_err(named("commands"))?;
                Event::Forwarded { from: from.0, entries }
            }
            Kind::Placed => Event::Judged(wire::decode_verdict(payload).map_err(named("a verdict"))?),
            Kind::Ask | Kind::Answer => return self.questions.take(from, kind, payload),
            Kind::Ping
            | Kind::Hello
            | Kind::Welcome
            | Kind::Refused
            | Kind::Head
            | Kind::Rows
            | Kind::End
            | Kind::Taken => {
                return Err(format!("a frame that has no place here: {kind:?}"));
            }
        };
        self.inbox.push_from_peer(event, payload.len());
        Ok(())
    }

    fn unsent(&self, _to: MemberId, kind: Kind, payload: &[u8]) {
        // Of everything else the loss is noticed by whoever waits for an answer.
        if kind == Kind::Forward
            && let Ok(entries) = wire::decode_forward(payload)
        {
            let numbers = entries.into_iter().map(|payload| payload.number).collect();
            self.inbox.push(Event::Judged(Verdict { numbers, outcome: Err(Declined::NotLeader) }));
        }
    }

    fn converse(&self, from: MemberId, connection: Conversation) {
        self.snapshots.converse(from, connection);
    }

    fn lost(&self, member: MemberId) {
        self.questions.lost(member);
        self.inbox.push(Event::Lost { member: member.0 });
    }

    fn unheard(&self, member: MemberId) {
        self.questions.lost(member);
    }

    fn refused(&self, by: MemberId, reason: Reason, sentence: &str) {
        let for_good = match reason {
            Reason::Wiped => true,
            // This member's own log may be about to say so; it then hands over and ends in order.
            Reason::Removed => self.removals_told.fetch_add(1, Ordering::Relaxed) >= REMOVALS_TOLD_MAX,
            Reason::Stranger | Reason::Protocol => false,
        };
        if for_good {
            crate::fatal!("another member refuses this one for good", by = by.to_string(), reason = sentence);
        }
    }
}
