//! What a plain thread of the leader has other members do: tell how they are off, defragment. It waits for the answer, for
//! a bounded time; a shard does the asking, by the questions of [`super::leader`].

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use kuorum_proto::etcdserverpb::{DefragmentRequest, DefragmentResponse};
use kuorum_proto::kuorum::v1::{SpaceRequest, SpaceResponse};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Node;
use super::leader::What;
use crate::cluster::MemberId;
use crate::maintenance::planning::Neighbours;
use crate::metrics;
use crate::refusal::Refusal;

/// Errands that may wait; one thread has one at a time.
const ERRANDS_MAX: usize = 4;
/// A member that does not tell how it is off within this time counts as unhealthy.
const SPACE_PATIENCE: Duration = Duration::from_secs(2);
/// A store of 8 GiB, the largest that is advised, takes some minutes on a slow disk.
const DEFRAGMENT_PATIENCE: Duration = Duration::from_secs(600);
/// What the asking itself may take beside: the shard is busy, or stops.
const SLACK: Duration = Duration::from_secs(1);

enum Errand {
    Spaces(Vec<MemberId>, Sender<Vec<(MemberId, SpaceResponse)>>),
    Defragment(MemberId, Sender<Result<(), Refusal>>),
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Errands(Arc<Inner>);

struct Inner {
    waiting: mpsc::Sender<Errand>,
    /// Until a shard takes it.
    to_run: Mutex<Option<mpsc::Receiver<Errand>>>,
}

impl Errands {
    pub(crate) fn new() -> Errands {
        let (waiting, to_run) = mpsc::channel(ERRANDS_MAX);
        Errands(Arc::new(Inner { waiting, to_run: Mutex::new(Some(to_run)) }))
    }

    /// Runs errands until the node ends. For one shard to run.
    pub(super) async fn run_all(self, node: Arc<Node>) {
        let Some(mut to_run) = self.0.to_run.lock().take() else { return };
        while let Some(errand) = to_run.recv().await {
            tokio::spawn(run(Arc::clone(&node), errand));
        }
    }

    /// Has an errand run, and waits.
    fn send<A>(&self, patience: Duration, errand: impl FnOnce(Sender<A>) -> Errand) -> Result<A, Refusal> {
        let (done, answer) = crossbeam_channel::bounded(1);
        self.0.waiting.try_send(errand(done)).map_err(|_| Refusal::TooManyRequests)?;
        answer.recv_timeout(patience + SLACK).map_err(|_| Refusal::Timeout)
    }
}

impl Neighbours for Errands {
    fn spaces(&self, members: Vec<MemberId>) -> Vec<(MemberId, SpaceResponse)> {
        // Nobody answers when not even the shard does.
        self.send(SPACE_PATIENCE, |done| Errand::Spaces(members, done)).unwrap_or_default()
    }

    fn defragment(&self, member: MemberId) -> Result<(), Refusal> {
        self.send(DEFRAGMENT_PATIENCE, |done| Errand::Defragment(member, done))?
    }
}

async fn run(node: Arc<Node>, errand: Errand) {
    match errand {
        Errand::Spaces(members, done) => {
            let mut asked = JoinSet::new();
            for member in members {
                let node = Arc::clone(&node);
                asked.spawn(async move {
                    let space = ask(&node, member, What::Space, &SpaceRequest {}, space_here);
                    Some((member, timeout(SPACE_PATIENCE, space).await.ok()?.ok()?))
                });
            }
            // The thread has given up at this very moment.
            done.send(asked.join_all().await.into_iter().flatten().collect()).ok();
        }
        Errand::Defragment(member, done) => {
            let request = DefragmentRequest::default();
            let defragment = ask(&node, member, What::Defragment, &request, defragment_here);
            let answer = timeout(DEFRAGMENT_PATIENCE, defragment).await;
            done.send(answer.unwrap_or(Err(Refusal::Timeout)).map(|_| ())).ok();
        }
    }
}

/// Has a member answer: `here` if it is this one.
async fn ask<Q: Message, A: Message + Default>(
    node: &Node,
    member: MemberId,
    what: What,
    request: &Q,
    here: impl AsyncFn(&Node, &Q) -> Result<A, Refusal>,
) -> Result<A, Refusal> {
    if member == node.facts.member_id {
        return here(node, request).await;
    }
    let answer = node.questions.ask(&node.peers, member, what, request).await?;
    A::decode(answer).map_err(|error| Refusal::Internal(error.to_string()))
}

pub(super) async fn space_here(node: &Node, _: &SpaceRequest) -> Result<SpaceResponse, Refusal> {
    let sizes = node.sizes();
    Ok(SpaceResponse {
        db_bytes: sizes.allocated_bytes,
        in_use_bytes: sizes.allocated_in_use_bytes(),
        disk_free_bytes: node.gate.disk_free_bytes(),
        is_defragmenting: node.upkeep.is_defragmenting(),
        slowest_watcher: node.watch.slowest_watcher().map_or(0, |revision| revision.0),
        p99_write_us: metrics::get().recent.writes.p99_us(),
    })
}

pub(super) async fn defragment_here(node: &Node, _: &DefragmentRequest) -> Result<DefragmentResponse, Refusal> {
    node.upkeep.defragment().await?;
    Ok(DefragmentResponse::default())
}
