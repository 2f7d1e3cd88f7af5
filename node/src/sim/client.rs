//! A client: one request at a time, to any member, and what it makes of the answer.

use bytes::Bytes;
use crossbeam_channel::{Receiver, TryRecvError};
use kuorum_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, ReadSetEntry,
    RequestOp, TxnRequest, compare, request_op,
};

use crate::admission::{Admitted, Gate};
use crate::consensus::answers::Answer;
use crate::lease::{LeaseId, Renewal};
use crate::mvcc::ReadError;
use crate::mvcc::query::{self, RangeQuery};
use crate::refusal::Refusal;
use crate::sim::checker::{Checker, Read, Violation};
use crate::sim::plan::Plan;
use crate::sim::process::Process;
use crate::sim::random::Random;

/// As a range: every key.
const ALL: (&[u8], &[u8]) = (&[0], &[0]);
/// Bounds of a client's patience.
const PATIENCE_US: (u64, u64) = (200_000, 9_000_000);
/// Values are padded up to so many bytes, so that the log fills its segments.
const PADDING_BYTES_MAX: u64 = 120;
/// Leases that a client remembers.
const LEASES_MAX: usize = 3;
/// How far behind the newest revision a client reads or compacts.
const BACK_MAX: u64 = 40;

/// The member a client talks to, in one of its processes.
pub(super) struct Peer<'a> {
    pub(super) member: u64,
    pub(super) boot: u64,
    pub(super) process: &'a Process,
    pub(super) now_ms: u64,
}

#[derive(Default)]
pub(super) struct Client {
    id: u64,
    waiting: Option<Waiting>,
    requests: u64,
    leases: Vec<i64>,
}

struct Waiting {
    member: u64,
    boot: u64,
    asked: Asked,
    answer: Receiver<Answer>,
    gives_up_us: u64,
}

/// What a client waits for.
#[derive(Debug)]
enum Asked {
    Write {
        number: u64,
    },
    Read {
        key: Bytes,
        end: Bytes,
        began: i64,
    },
    /// Confirmation that the member leads in this term, for a renewal.
    Renewal {
        lease: i64,
        term: u64,
    },
    /// What was noted of a lease that is renewed is taken back first.
    TakeBack {
        lease: i64,
        number: u64,
    },
}

impl Client {
    pub(super) fn new(id: u64) -> Client {
        Client { id, ..Client::default() }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Until when it waits at most.
    pub(super) fn gives_up_us(&self) -> u64 {
        self.waiting.as_ref().map_or(0, |waiting| waiting.gives_up_us)
    }

    pub(super) fn waits_for(&self, member: u64) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| waiting.member == member)
    }

    /// Makes a request. Returns what was asked, in a few words.
    pub(super) fn ask(
        &mut self,
        peer: &Peer<'_>,
        checker: &mut Checker,
        plan: &Plan,
        random: &mut Random,
    ) -> Result<String, Violation> {
        self.requests += 1;
        let gives_up_us = peer.now_ms * 1_000 + random.between(PATIENCE_US.0, PATIENCE_US.1);
        let (asked, answer) = match random.below(100) {
            0..25 => {
                let (key, end) = range(plan, random);
                (Asked::Read { key, end, began: checker.known_revision() }, peer.process.read())
            }
            25..35 => {
                read_here(peer, checker, plan, random)?;
                return Ok("read at once".to_owned());
            }
            35..43 => match (self.leases.is_empty(), peer.process.leads_in()) {
                // Only the leader knows; another member would ask it.
                (false, Some(term)) => {
                    let lease = random.pick(&self.leases);
                    (Asked::Renewal { lease, term }, peer.process.read())
                }
                _ => return Ok("nothing".to_owned()),
            },
            _ => {
                let number = self.id << 32 | self.requests;
                let command = self
                    .write(&peer.process.gate, checker, plan, random)
                    .map_err(|refusal| format!("client {} was refused at the door: {refusal}", self.id))?;
                (Asked::Write { number }, peer.process.propose(command, number))
            }
        };
        let shown = format!("{asked:?}");
        self.wait(peer, asked, answer, gives_up_us);
        Ok(shown)
    }

    fn wait(&mut self, peer: &Peer<'_>, asked: Asked, answer: Receiver<Answer>, gives_up_us: u64) {
        self.waiting = Some(Waiting { member: peer.member, boot: peer.boot, asked, answer, gives_up_us });
    }

    fn write(&mut self, gate: &Gate, checker: &Checker, plan: &Plan, random: &mut Random) -> Result<Admitted, Refusal> {
        match random.below(100) {
            0..50 => gate.put(self.put(plan, random), |put| match self.requests % 4 {
                // As if a policy had read the key.
                0 => {
                    let mod_revision = checker.history.modified(&put.key);
                    Ok(vec![ReadSetEntry { key: put.key.clone(), mod_revision }])
                }
                _ => crate::admission::unjudged(put),
            }),
            50..64 => {
                let (key, range_end) =
                    if random.permille(100) { range(plan, random) } else { (key(plan, random), Bytes::new()) };
                gate.delete_range(DeleteRangeRequest { key, range_end, prev_kv: false })
            }
            64..80 => gate.txn(self.txn(checker, plan, random), crate::admission::unjudged),
            80..86 => {
                let back = i64::try_from(random.below(BACK_MAX)).expect("a small number");
                let revision = checker.history.revision() - back;
                gate.compact(CompactionRequest { revision, physical: false })
            }
            86..95 => {
                let id = i64::try_from(self.id << 32 | self.requests).expect("a client's number is small");
                self.leases.push(id);
                if self.leases.len() > LEASES_MAX {
                    self.leases.remove(0);
                }
                let ttl = i64::try_from(random.between(2, 8)).expect("small");
                gate.lease_grant(LeaseGrantRequest { id, ttl }, crate::admission::unjudged)
            }
            _ => {
                let id = self.leases.pop().unwrap_or(1);
                gate.lease_revoke(LeaseRevokeRequest { id })
            }
        }
    }

    fn put(&self, plan: &Plan, random: &mut Random) -> PutRequest {
        let lease = if self.leases.is_empty() || random.permille(700) { 0 } else { random.pick(&self.leases) };
        PutRequest { key: key(plan, random), value: self.value(random), lease, ..PutRequest::default() }
    }

    /// Unlike any other, so that a read tells which write it saw.
    fn value(&self, random: &mut Random) -> Bytes {
        let padding = "x".repeat(random.place(usize::try_from(PADDING_BYTES_MAX).expect("small")));
        format!("c{}-{}{padding}", self.id, self.requests).into()
    }

    /// Puts a key and takes another away if the first has not changed since it was looked at.
    fn txn(&self, checker: &Checker, plan: &Plan, random: &mut Random) -> TxnRequest {
        let put = PutRequest { lease: 0, ..self.put(plan, random) };
        let seen = checker.history.modified(&put.key);
        let revision = if random.permille(200) { seen + 1 } else { seen };
        let compare = Compare {
            result: compare::CompareResult::Equal.into(),
            target: compare::CompareTarget::Mod.into(),
            key: put.key.clone(),
            target_union: Some(compare::TargetUnion::ModRevision(revision)),
            ..Compare::default()
        };
        let other = key(plan, random);
        let operation = |request| RequestOp { request: Some(request) };
        let mut success = Vec::new();
        if other != put.key {
            let delete = DeleteRangeRequest { key: other, ..DeleteRangeRequest::default() };
            success.push(operation(request_op::Request::RequestDeleteRange(delete)));
        }
        success.push(operation(request_op::Request::RequestPut(put.clone())));
        let failure = match random.permille(500) {
            true => vec![operation(request_op::Request::RequestPut(put))],
            false => Vec::new(),
        };
        TxnRequest { compare: vec![compare], success, failure }
    }

    /// Looks whether its request was answered. `peer` is the member asked, if it runs. Returns what came of it, once it
    /// waits no more.
    pub(super) fn look(
        &mut self,
        peer: Option<&Peer<'_>>,
        checker: &mut Checker,
        now_us: u64,
    ) -> Result<Option<String>, Violation> {
        let Some(waiting) = &self.waiting else { return Ok(None) };
        let Some(peer) = peer.filter(|peer| peer.boot == waiting.boot) else {
            self.waiting = None;
            return Ok(Some("connection lost".to_owned()));
        };
        let answer = match waiting.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) if now_us < waiting.gives_up_us => return Ok(None),
            Err(TryRecvError::Empty) => {
                self.waiting = None;
                return Ok(Some("gave up".to_owned()));
            }
            Err(TryRecvError::Disconnected) => {
                return Err(format!("m{} forgot who waits for {:?}", waiting.member, waiting.asked));
            }
        };
        let Some(Waiting { asked, gives_up_us, .. }) = self.waiting.take() else { return Ok(None) };
        let shown = match &answer {
            Ok(_) => "done".to_owned(),
            Err(refusal) => refusal.to_string(),
        };
        match asked {
            Asked::Write { number } => checker.answered(number, &answer)?,
            Asked::Read { key, end, began } if answer.is_ok() => read(peer, checker, (&key, &end), 0, Some(began))?,
            Asked::Renewal { lease, term } if answer.is_ok() && peer.process.leads_in() == Some(term) => {
                let clock_ms = peer.process.clock_ms(peer.now_ms);
                match peer.process.leases.keep_alive(LeaseId(lease), clock_ms, term) {
                    Renewal::Renewed(_) => checker.history.promise(lease, now_us),
                    Renewal::Gone => {}
                    Renewal::TakeBackFirst => {
                        self.requests += 1;
                        let number = self.id << 32 | self.requests;
                        let answer = peer.process.propose(Gate::lease_renewed(LeaseId(lease)), number);
                        self.wait(peer, Asked::TakeBack { lease, number }, answer, gives_up_us);
                        return Ok(None);
                    }
                }
            }
            Asked::TakeBack { lease, number } => {
                checker.answered(number, &answer)?;
                if let (Ok(_), Some(term)) = (&answer, peer.process.leads_in()) {
                    let asked = Asked::Renewal { lease, term };
                    self.wait(peer, asked, peer.process.read(), gives_up_us);
                    return Ok(None);
                }
            }
            Asked::Read { .. } | Asked::Renewal { .. } => {}
        }
        Ok(Some(shown))
    }
}

/// A serializable read, at times of an older revision.
fn read_here(peer: &Peer<'_>, checker: &mut Checker, plan: &Plan, random: &mut Random) -> Result<(), Violation> {
    let (key, end) = range(plan, random);
    let back = i64::try_from(random.below(BACK_MAX)).expect("a small number");
    let at = if random.permille(500) { (peer.process.store().revision().0 - back).max(1) } else { 0 };
    read(peer, checker, (&key, &end), at, None)
}

/// Reads a member's store. `began` is the known revision when a linearizable read began.
pub(super) fn read(
    peer: &Peer<'_>,
    checker: &mut Checker,
    (key, end): (&[u8], &[u8]),
    at: i64,
    began: Option<i64>,
) -> Result<(), Violation> {
    let query = RangeQuery {
        key: Bytes::copy_from_slice(key),
        range_end: Bytes::copy_from_slice(end),
        revision: at,
        ..RangeQuery::default()
    };
    match peer.process.store().range(&query) {
        Ok(answer) => {
            let read = Read { member: peer.member, key, end, at, revision: answer.revision.0, kvs: &answer.kvs };
            match began {
                Some(began) => checker.linearizable(&read, began),
                None => checker.read(&read),
            }
        }
        Err(ReadError::Refused(query::Refusal::Compacted { compacted }))
            if at != 0 && at < compacted.0 && compacted.0 <= checker.history.compacted() =>
        {
            Ok(())
        }
        Err(error) => Err(format!("m{} can't read at revision {at}: {error}", peer.member)),
    }
}

/// Every key of a member's store as it is now.
pub(super) fn read_all(peer: &Peer<'_>, checker: &mut Checker) -> Result<(), Violation> {
    read(peer, checker, ALL, 0, None)
}

fn key(plan: &Plan, random: &mut Random) -> Bytes {
    format!("k{}", random.below(plan.keys)).into()
}

/// One key, some, or all of them.
pub(super) fn range(plan: &Plan, random: &mut Random) -> (Bytes, Bytes) {
    let first = key(plan, random);
    match random.below(3) {
        0 => (first, Bytes::new()),
        1 => (first, key(plan, random)),
        _ => (Bytes::from_static(ALL.0), Bytes::from_static(ALL.1)),
    }
}
