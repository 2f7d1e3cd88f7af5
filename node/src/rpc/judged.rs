//! Writes that policies are asked about: judged on the member that the client asked, agreed on, and judged again when
//! that is too late by then.
//!
//! A consent rests on the policy epoch and on the keys that plugins read, and goes with the entry: apply looks whether they
//! still hold. A denial rests on what this member knew, and is told once that is known to be the newest.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{LeaseGrantRequest, PutRequest, TxnRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{Node, refusal_of};
use crate::admission::{Admitted, ReadSet};
use crate::consensus::answers::Answer;
use crate::metrics;
use crate::mvcc::query::RangeQuery;
use crate::plugin::{Op, Space};
use crate::refusal::Refusal;
use crate::roster;
use crate::roster::judge::{Asker, Kept, keeping_puts_of_txn, keeps, op_of_grant, op_of_put, ops_of_txn};

/// How often one write is judged while policies, or the keys that they read, change under it.
const JUDGEMENTS_MAX: usize = 16;
/// An address of IPv6 with its scope and a port.
const PEER_BYTES_MAX: usize = 64;
/// How long to wait for a plugin before looking again, should its being ready not have been told.
const READY_LOOK: Duration = Duration::from_millis(500);

/// Requests that wait for policies which take long to be asked about them. Each is held in memory.
const SLOW_WAITING_MAX: usize = 1_024;

/// Where requests are judged that may take long: beside the shards, a few at a time.
pub(crate) struct SlowLane {
    threads: Arc<Semaphore>,
    waiting: Semaphore,
}

impl SlowLane {
    /// So many are judged at a time.
    pub(crate) fn new(threads: usize) -> SlowLane {
        SlowLane { threads: Arc::new(Semaphore::new(threads)), waiting: Semaphore::new(SLOW_WAITING_MAX) }
    }

    /// Waits for a thread.
    async fn thread(&self, give_up: Instant) -> Result<OwnedSemaphorePermit, Refusal> {
        let _waiting = self.waiting.try_acquire().map_err(|_| Refusal::TooManyRequests)?;
        let thread = Arc::clone(&self.threads).acquire_owned();
        tokio::time::timeout_at(give_up, thread).await.map_err(|_| Refusal::Timeout)?.map_err(|_| Refusal::Stopped)
    }
}

/// Where policies are asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Others wait for the thread: those that may take long are not asked.
    Shard,
    /// As on a shard, and of those that take long no more is asked than needed: not those in shadow.
    BusyShard,
    SlowLane,
}

/// Whom a write is judged for.
pub(super) struct Judge<'a> {
    pub(super) node: &'a Node,
    peer: SocketAddr,
    place: Place,
    /// Whether the request has waited for plugins, and does so no longer.
    has_waited: bool,
}

impl Judge<'_> {
    /// Asks the plugins in force about a put.
    pub(super) fn ask_put(&self, put: &PutRequest) -> Result<ReadSet, Refusal> {
        if !self.is_asked() {
            return Ok(ReadSet::new());
        }
        let kept = self.kept(Some(put).filter(|put| keeps(put)))?;
        self.ask(&[op_of_put(put, &kept)], &kept, false)
    }

    /// Asks the plugins in force about a transaction that writes.
    pub(super) fn ask_txn(&self, txn: &TxnRequest) -> Result<ReadSet, Refusal> {
        if !self.is_asked() {
            return Ok(ReadSet::new());
        }
        let kept = self.kept(keeping_puts_of_txn(txn))?;
        let (ops, conditional) = ops_of_txn(txn, &kept);
        self.ask(&ops, &kept, conditional)
    }

    /// Asks the plugins in force about a grant.
    pub(super) fn ask_grant(&self, grant: &LeaseGrantRequest) -> Result<ReadSet, Refusal> {
        self.ask(&[op_of_grant(grant)], &Kept::default(), false)
    }

    fn kept<'b>(&self, puts: impl IntoIterator<Item = &'b PutRequest>) -> Result<Kept, Refusal> {
        let newest = |key: &Bytes| {
            let query = RangeQuery { key: key.clone(), ..RangeQuery::default() };
            let found = self.node.store.get().range(&query).map_err(refusal_of)?;
            Ok(found.kvs.into_iter().next())
        };
        Kept::of_puts(puts, newest)
    }

    fn ask(&self, ops: &[Op<'_>], kept: &Kept, conditional: bool) -> Result<ReadSet, Refusal> {
        let Some(table) = self.node.roster.admission().filter(|table| table.concern(ops)) else {
            return Ok(ReadSet::new());
        };
        let spares_shadow = self.place == Place::BusyShard;
        if self.place != Place::SlowLane && table.may_take_long(ops, spares_shadow) {
            return Err(Refusal::SlowPolicy);
        }
        // Room for the longest, or it would grow while it is written.
        let mut peer = String::with_capacity(PEER_BYTES_MAX);
        write!(peer, "{}", self.peer).expect("a string takes what is written to it");
        let (store, raft) = (self.node.store.get(), self.node.consensus.status());
        let (db_bytes, quota_bytes) = self.node.gate.space();
        let ctx = roster::context(&store, &raft, self.node.facts.member_id, &self.node.plugins, rand::random());
        let in_use_bytes = (store.in_use_bytes() + self.node.plugins.pieces_bytes()).min(db_bytes);
        let space = Space { db_bytes, in_use_bytes, quota_bytes };
        let tail = self.node.roster.tail();
        let asker = Asker { ctx, peer: &peer, space, tail, has_waited: self.has_waited, spares_shadow };
        table.judge(&asker, ops, kept, conditional)
    }

    /// Whether plugins may have something to say at all.
    fn is_asked(&self) -> bool {
        self.node.roster.has_admission()
    }
}

/// Has a write agreed on that policies are asked about.
pub(super) async fn agreed(
    node: &Arc<Node>,
    peer: SocketAddr,
    admit: impl Fn(&Judge<'_>) -> Result<Admitted, Refusal> + Clone + Send + 'static,
) -> Answer {
    let give_up = Instant::now() + node.patience;
    let (mut is_newest, mut has_waited) = (false, false);
    let mut refusal = Refusal::StalePolicy;
    let mut rounds = 0;
    while rounds < JUDGEMENTS_MAX {
        let epoch = node.plugins.epoch().get();
        let admission = match admit(&Judge { node, peer, place: Place::Shard, has_waited }) {
            Err(Refusal::SlowPolicy) => admitted_slowly(node, peer, has_waited, give_up, &admit).await,
            admission => admission,
        };
        match admission {
            // What denied it may have changed already, for all that this member knows.
            Err(Refusal::Denied(denial)) if !is_newest => {
                node.consensus.read_barrier().await?;
                if !denial.has_read && node.plugins.epoch().get() == epoch {
                    return Err(Refusal::Denied(denial));
                }
                is_newest = true;
                rounds += 1;
            }
            Err(Refusal::Unjudged(unjudged)) if unjudged.failure.is_none() && !has_waited => {
                if Instant::now() < give_up {
                    ready(node).await?;
                } else {
                    has_waited = true;
                }
            }
            admission => {
                let command = node.admitted(admission).await?;
                let timed = Timed(Instant::now());
                let answer = node.consensus.propose(command).await;
                drop(timed);
                match answer {
                    Err(stale @ (Refusal::StalePolicy | Refusal::StaleReads)) => {
                        let counts = metrics::get().policies();
                        match stale {
                            Refusal::StalePolicy => counts.stale_epochs.increment(1),
                            _ => counts.stale_reads.increment(1),
                        }
                        refusal = stale;
                        is_newest = false;
                        rounds += 1;
                    }
                    answer => return answer,
                }
            }
        }
    }
    metrics::get().policies().judged_in_vain.increment(1);
    Err(refusal)
}

/// How long a write took to be agreed on. One that its client waits for no longer counts as well.
struct Timed(Instant);

impl Drop for Timed {
    fn drop(&mut self) {
        metrics::get().recent.writes.record(self.0.elapsed());
    }
}

/// Asks policies that may take long on a thread that serves nobody. Enforced ones are waited for; those in shadow refuse
/// nothing by being slow, and are left out where all threads are busy or the time is over.
async fn admitted_slowly(
    node: &Arc<Node>,
    peer: SocketAddr,
    has_waited: bool,
    give_up: Instant,
    admit: &(impl Fn(&Judge<'_>) -> Result<Admitted, Refusal> + Clone + Send + 'static),
) -> Result<Admitted, Refusal> {
    let without_shadow = || admit(&Judge { node, peer, place: Place::BusyShard, has_waited });
    let thread = match Arc::clone(&node.slow_lane.threads).try_acquire_owned() {
        Ok(thread) => thread,
        Err(_) => match without_shadow() {
            Err(Refusal::SlowPolicy) => node.slow_lane.thread(give_up).await?,
            admission => return admission,
        },
    };
    let judged = tokio::task::spawn_blocking({
        let (node, admit) = (Arc::clone(node), admit.clone());
        move || {
            // Held to the end, even if nobody waits for it.
            let _thread = thread;
            admit(&Judge { node: &node, peer, place: Place::SlowLane, has_waited })
        }
    });
    match tokio::time::timeout_at(give_up, judged).await {
        Ok(judged) => judged.map_err(|error| Refusal::Internal(format!("the request was not judged: {error}")))?,
        Err(_) => match without_shadow() {
            Err(Refusal::SlowPolicy) => Err(Refusal::Timeout),
            admission => admission,
        },
    }
}

/// Waits for news of plugins.
async fn ready(node: &Node) -> Result<(), Refusal> {
    let mut changes = node.plugins_changed.clone();
    changes.mark_unchanged();
    match tokio::time::timeout(READY_LOOK, changes.changed()).await {
        Ok(Err(_)) => Err(Refusal::Stopped),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}
