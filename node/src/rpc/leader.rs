//! What only the leader knows: how long a lease has to live, and how far a learner has come. Any member may be asked;
//! another than the leader passes the question on and the answer back. The other way round the leader asks a member how it
//! is off, or to defragment (see [`super::errands`]).
//!
//! Questions and answers are frames between members (see [`crate::transport`]):
//!
//! ```text
//! question  number u64, what u8 (0 renew, 1 time to live, 2 promote, 3 space, 4 defragment), the request in protobuf
//! answer    number u64, outcome u8 (0 answered, else why not), the response in protobuf
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{mpsc, oneshot};

use super::{Node, cluster, errands, lease};
use crate::cluster::MemberId;
use crate::consensus::inlet;
use crate::refusal::Refusal;
use crate::transport::{Kind, Peers, Stream};

/// Questions of this member that may wait for an answer.
const ASKED_MAX: usize = 16_384;
/// Questions of other members that may wait to be looked at.
const UNANSWERED_MAX: usize = 4_096;
/// Pause before a question is put again, to another leader or to none yet.
const PAUSE: Duration = Duration::from_millis(50);
const HEAD_BYTES: usize = 8 + 1;

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Renew,
    TimeToLive,
    Promote,
    Space,
    Defragment,
}

const QUESTIONS: [What; 5] = [What::Renew, What::TimeToLive, What::Promote, What::Space, What::Defragment];

/// A question of another member.
pub(super) struct Question {
    from: MemberId,
    number: u64,
    what: What,
    request: Bytes,
}

type Asked = HashMap<u64, (MemberId, oneshot::Sender<Result<Bytes, Refusal>>)>;

/// The questions under way, in both directions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Questions(Arc<Inner>);

struct Inner {
    // A lock, since every shard asks and connections bring the answers; held for map operations.
    asked: Mutex<(u64, Asked)>,
    unanswered: mpsc::Sender<Question>,
    /// Until a shard takes it.
    to_answer: Mutex<Option<mpsc::Receiver<Question>>>,
}

impl Questions {
    pub(crate) fn new() -> Questions {
        let (unanswered, to_answer) = mpsc::channel(UNANSWERED_MAX);
        let to_answer = Mutex::new(Some(to_answer));
        Questions(Arc::new(Inner { asked: Mutex::default(), unanswered, to_answer }))
    }

    /// Answers other members' questions until the node ends. For one shard to run.
    pub(super) async fn answer_all(self, node: Arc<Node>) {
        let Some(mut to_answer) = self.0.to_answer.lock().take() else { return };
        while let Some(question) = to_answer.recv().await {
            tokio::spawn(answer(Arc::clone(&node), question));
        }
    }

    /// Asks a member and waits for its answer.
    pub(super) async fn ask(
        &self,
        peers: &Peers,
        member: MemberId,
        what: What,
        request: &impl Message,
    ) -> Result<Bytes, Refusal> {
        let (sender, answer) = oneshot::channel();
        let number = {
            let (last, asked) = &mut *self.0.asked.lock();
            if asked.len() >= ASKED_MAX {
                return Err(Refusal::TooManyRequests);
            }
            *last += 1;
            asked.insert(*last, (member, sender));
            *last
        };
        // Whatever ends the wait, the answer is then no longer waited for.
        let _forgets = Forgets { questions: self, number };
        let sent = peers.send(member, Stream::Requests, true, Kind::Ask, |out| {
            out.put_u64_le(number);
            out.put_u8(what as u8);
            out.extend_from_slice(&request.encode_to_vec());
        });
        if !sent {
            return Err(Refusal::NotLeader);
        }
        answer.await.map_err(|_| Refusal::NotLeader)?
    }
}

struct Forgets<'a> {
    questions: &'a Questions,
    number: u64,
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        self.questions.0.asked.lock().1.remove(&self.number);
    }
}

impl inlet::Questions for Questions {
    fn take(&self, from: MemberId, kind: Kind, mut payload: &[u8]) -> Result<(), String> {
        if payload.len() < HEAD_BYTES {
            return Err("a question or an answer cut short".to_owned());
        }
        let (number, code) = (payload.get_u64_le(), payload.get_u8());
        let rest = Bytes::copy_from_slice(payload);
        if kind == Kind::Answer {
            let answer = if code == 0 { Ok(rest) } else { Err(refusal_of(code)) };
            if let Some((_, waits)) = self.0.asked.lock().1.remove(&number) {
                // The caller gave up at this very moment.
                waits.send(answer).ok();
            }
            return Ok(());
        }
        let what = QUESTIONS.into_iter().find(|what| *what as u8 == code);
        let what = what.ok_or_else(|| format!("a question of unknown kind {code}"))?;
        // Full: the one who asks runs out of time, as under any overload.
        self.0.unanswered.try_send(Question { from, number, what, request: rest }).ok();
        Ok(())
    }

    fn lost(&self, member: MemberId) {
        // Dropping the senders tells those who wait to ask again.
        self.0.asked.lock().1.retain(|_, (asked, _)| *asked != member);
    }
}

async fn answer(node: Arc<Node>, question: Question) {
    let Question { from, number, what, request } = question;
    let answer = match what {
        What::Renew => decoded(&node, request, lease::keep_alive_here).await,
        What::TimeToLive => decoded(&node, request, lease::time_to_live_here).await,
        What::Promote => decoded(&node, request, cluster::promote_here).await,
        What::Space => decoded(&node, request, errands::space_here).await,
        What::Defragment => decoded(&node, request, errands::defragment_here).await,
    };
    let (code, bytes) = match answer {
        Ok(bytes) => (0, bytes),
        Err(refusal) => (code_of(&refusal), Vec::new()),
    };
    // Lost with the connection: the one who asks hears of that, and asks again.
    node.peers.send(from, Stream::Requests, true, Kind::Answer, |out| {
        out.put_u64_le(number);
        out.put_u8(code);
        out.extend_from_slice(&bytes);
    });
}

async fn decoded<Q: Message + Default, A: Message>(
    node: &Node,
    request: Bytes,
    here: impl AsyncFn(&Node, &Q) -> Result<A, Refusal>,
) -> Result<Vec<u8>, Refusal> {
    let request = Q::decode(request).map_err(|error| Refusal::Internal(error.to_string()))?;
    here(node, &request).await.map(|response| response.encode_to_vec())
}

/// The refusals that mean something to whoever asked, each with its code on the wire. Any other is told as a timeout.
const CODES: [(Refusal, u8); 11] = [
    (Refusal::NotLeader, 1),
    (Refusal::NoLeader, 2),
    (Refusal::TooManyRequests, 3),
    (Refusal::Stopped, 4),
    (Refusal::MemberNotFound, 6),
    (Refusal::MemberNotLearner, 7),
    (Refusal::LearnerNotReady, 8),
    (Refusal::NotEnoughStarted, 9),
    (Refusal::ReconfigurationPending, 10),
    (Refusal::Unhealthy, 11),
    (Refusal::LearnerNotPrepared, 12),
];
const TIMED_OUT: u8 = 5;

fn code_of(refusal: &Refusal) -> u8 {
    CODES.iter().find(|(known, _)| known == refusal).map_or(TIMED_OUT, |(_, code)| *code)
}

fn refusal_of(code: u8) -> Refusal {
    match CODES.iter().find(|(_, known)| *known == code) {
        // A leader that stops is soon followed by another.
        Some((Refusal::Stopped, _)) => Refusal::NotLeader,
        Some((refusal, _)) => refusal.clone(),
        None => Refusal::Timeout,
    }
}

/// Has the leader do what only it can: `here` if that is this member, else by asking. Goes on asking while the leader
/// changes; both kinds of question may be answered twice without harm.
///
/// # Errors
/// `NoLeader` or `Timeout` after as long as any request may take, and what the leader says.
pub(super) async fn ask<Q: Message, A: Message + Default>(
    node: &Node,
    what: What,
    request: &Q,
    here: impl AsyncFn(&Node, &Q) -> Result<A, Refusal>,
) -> Result<A, Refusal> {
    let attempts = async {
        loop {
            let status = node.consensus.status();
            let answer = match status.leader {
                _ if status.is_leader => here(node, request).await,
                None => Err(Refusal::NoLeader),
                Some(leader) => match node.questions.ask(&node.peers, leader, what, request).await {
                    Ok(bytes) => A::decode(bytes).map_err(|error| Refusal::Internal(error.to_string())),
                    Err(refusal) => Err(refusal),
                },
            };
            match answer {
                Err(Refusal::NotLeader | Refusal::NoLeader) => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    };
    match tokio::time::timeout(node.patience, attempts).await {
        Ok(answer) => answer,
        Err(_) if node.consensus.status().leader.is_none() => Err(Refusal::NoLeader),
        Err(_) => Err(Refusal::Timeout),
    }
}
