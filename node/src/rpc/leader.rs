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

#[derive(Default)]
struct Asked {
    last_number: u64,
    waiting: HashMap<u64, (MemberId, oneshot::Sender<Result<Bytes, Refusal>>)>,
}

/// The questions under way, in both directions. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Questions(Arc<Inner>);

struct Inner {
    // A lock, since every shard asks and connections bring the answers; held for map operations.
    asked: Mutex<Asked>,
    unanswered: mpsc::Sender<Question>,
    /// Until a shard takes it.
    to_answer: Mutex<Option<mpsc::Receiver<Question>>>,
}

impl Questions {
    pub(crate) fn new() -> Questions {
        let (unanswered, to_answer) = mpsc::channel(UNANSWERED_MAX);
        let to_answer = Mutex::new(Some(to_answer));
        // Unlike those of the process before: an answer to one of its questions may still be on the way.
        let asked = Mutex::new(Asked { last_number: rand::random(), ..Asked::default() });
        Questions(Arc::new(Inner { asked, unanswered, to_answer }))
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
            let mut asked = self.0.asked.lock();
            if asked.waiting.len() >= ASKED_MAX {
                return Err(Refusal::TooManyRequests);
            }
            asked.last_number = asked.last_number.wrapping_add(1);
            let number = asked.last_number;
            asked.waiting.insert(number, (member, sender));
            number
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
        self.questions.0.asked.lock().waiting.remove(&self.number);
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
            if let Some((_, waits)) = self.0.asked.lock().waiting.remove(&number) {
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
        self.0.asked.lock().waiting.retain(|_, (asked, _)| *asked != member);
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
    let deliver = deliver(&node.peers, from, |out| {
        out.put_u64_le(number);
        out.put_u8(code);
        out.extend_from_slice(&bytes);
    });
    // In vain: the one who asked has given up too.
    tokio::time::timeout(node.patience, deliver).await.ok();
}

/// Sends an answer, as soon as there is a connection: a member may ask before it can be reached, as when it has just
/// started. An answer that is lost with the connection is noticed by the one who asked, who asks again.
async fn deliver(peers: &Peers, to: MemberId, write: impl Fn(&mut Vec<u8>)) {
    while !peers.send(to, Stream::Requests, true, Kind::Answer, &write) {
        tokio::time::sleep(PAUSE).await;
    }
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::cluster::{ClusterId, Identity, Member, Members};
    use crate::transport::{self, Conversation, hello::Reason};

    /// Hands on questions and answers alone.
    struct Inlet(Questions);

    impl transport::Inlet for Inlet {
        fn frame(&self, from: MemberId, kind: Kind, payload: &[u8]) -> Result<(), String> {
            inlet::Questions::take(&self.0, from, kind, payload)
        }

        fn unsent(&self, _: MemberId, _: Kind, _: &[u8]) {}
        fn converse(&self, _: MemberId, _: Conversation) {}
        fn refused(&self, _: MemberId, _: Reason, _: &str) {}

        fn lost(&self, member: MemberId) {
            inlet::Questions::lost(&self.0, member);
        }

        fn unheard(&self, member: MemberId) {
            inlet::Questions::lost(&self.0, member);
        }
    }

    /// A member that calls the others, and its listener, on which it answers nobody yet.
    fn member(id: u64, listener: &TcpListener, members: &Members) -> (Questions, Peers) {
        let questions = Questions::new();
        let identity = Identity { cluster_id: ClusterId(1), member_id: MemberId(id) };
        let inlet = Arc::new(Inlet(questions.clone()));
        let peers = Peers::new(identity, 0, vec![url(listener)], members.clone(), inlet);
        peers.follow_members().unwrap();
        (questions, peers)
    }

    fn url(listener: &TcpListener) -> String {
        format!("http://{}", listener.local_addr().unwrap())
    }

    fn answers_calls(listener: TcpListener, peers: &Peers) {
        let peers = peers.clone();
        // Ends with the process: a test has no use for the thread's end.
        std::thread::spawn(move || listener.incoming().for_each(|connection| peers.accept(connection.unwrap(), ())));
    }

    #[tokio::test]
    async fn an_answer_waits_until_the_one_who_asked_can_be_reached() {
        let listeners = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
        let at = |id: u64, listener| Member {
            id: MemberId(id),
            name: String::new(),
            peer_urls: vec![url(listener)],
            client_urls: Vec::new(),
            is_learner: false,
            data_dir: 0,
        };
        let members = Members::new(vec![at(1, &listeners[0]), at(2, &listeners[1])]);
        let (questions, peers) = member(1, &listeners[0], &members);
        let (asked_of, leader) = member(2, &listeners[1], &members);
        let [listener, of_leader] = listeners;
        answers_calls(of_leader, &leader);

        let asks = async {
            loop {
                let question = kuorum_proto::etcdserverpb::LeaseTimeToLiveRequest { id: 7, keys: false };
                match questions.ask(&peers, MemberId(2), What::TimeToLive, &question).await {
                    // Its own way to the leader is not there yet.
                    Err(Refusal::NotLeader) => tokio::time::sleep(PAUSE).await,
                    answer => break answer.unwrap(),
                }
            }
        };
        let answers = async {
            let mut to_answer = asked_of.0.to_answer.lock().take().unwrap();
            let Question { from, number, .. } = to_answer.recv().await.unwrap();
            let said = |out: &mut Vec<u8>| {
                out.put_u64_le(number);
                out.extend_from_slice(b"\x00600");
            };
            let reachable = async {
                tokio::time::sleep(PAUSE).await;
                answers_calls(listener, &peers);
            };
            tokio::join!(deliver(&leader, from, said), reachable);
        };
        let both = async { tokio::join!(asks, answers).0 };
        let answer = tokio::time::timeout(Duration::from_secs(30), both).await.expect("the answer arrives");
        assert_eq!(answer, "600");
    }

    #[test]
    fn a_process_numbers_its_questions_unlike_the_one_before() {
        let first = |questions: Questions| questions.0.asked.lock().last_number;
        assert_ne!(first(Questions::new()), first(Questions::new()));
    }
}
