//! The KV service: reads from the store, writes through the log.

use std::net::SocketAddr;
use std::sync::Arc;

use kuorum_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, TxnRequest, TxnResponse,
};

use super::judged::{self, Judge};
use super::range_answer::{EncodedKvs, RangeAnswer};
use super::{Node, refusal_of, unexpected};
use crate::admission::shape;
use crate::apply::{self, Reply};
use crate::metrics;
use crate::mvcc::found::RangeEnd;
use crate::mvcc::query::RangeQuery;
use crate::mvcc::revision::Revision;
use crate::mvcc::{ReadError, Store};
use crate::refusal::Refusal;

/// Keys from which a read leaves the shard, so that the other requests there need not wait for it: about 0.4 ms of
/// reading, twenty times what the detour costs.
const KEYS_ON_SHARD_MAX: usize = 1_000;

pub(crate) async fn range(node: Arc<Node>, request: RangeRequest) -> Result<RangeAnswer, Refusal> {
    let serializable = request.serializable;
    if !serializable && node.is_learner() {
        return Err(Refusal::NotForLearner);
    }
    let query = node.gate.range(request)?;
    if !serializable {
        node.consensus.read_barrier().await?;
    }
    let metrics = metrics::get();
    metrics.mvcc.ranges.increment(1);
    let started = tokio::time::Instant::now();
    let facts = Arc::clone(&node.facts);
    let read = move |store: &Store, keys_max| {
        let (kvs, end) = read(store, &query, keys_max)?;
        Ok(RangeAnswer::new(facts.header(end.revision.0), kvs, end))
    };
    let answer = small_here(&node, read).await?;
    metrics.server.range_seconds.record(started.elapsed().as_secs_f64());
    Ok(answer)
}

fn read(store: &Store, query: &RangeQuery, keys_max: Option<usize>) -> Result<(EncodedKvs, RangeEnd), ReadError> {
    let mut kvs = EncodedKvs::default();
    if query.is_plain() {
        let end = store.visit_within(query, keys_max, &mut kvs)?;
        return Ok((kvs, end));
    }
    let answer = store.range_within(query, keys_max)?;
    let end = RangeEnd { more: answer.more, count: answer.count, revision: answer.revision };
    Ok((EncodedKvs::of(&answer.kvs), end))
}

/// Reads on the shard what is quickly read, elsewhere what is not. The read is told how many keys it may look at, and
/// is asked again without a bound when that is too few.
pub(super) async fn small_here<T: Send + 'static>(
    node: &Node,
    read: impl Fn(&Store, Option<usize>) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, Refusal> {
    match read(&node.store.get(), Some(KEYS_ON_SHARD_MAX)) {
        Err(ReadError::Large) => {}
        answer => return answer.map_err(refusal_of),
    }
    let store = node.store.get();
    let answer = tokio::task::spawn_blocking(move || read(&store, None).map_err(refusal_of));
    answer.await.map_err(|error| Refusal::Internal(format!("the read was given up: {error}")))?
}

pub(crate) async fn put(node: Arc<Node>, request: PutRequest, peer: SocketAddr) -> Result<PutResponse, Refusal> {
    let admit = move |judge: &Judge<'_>| judge.node.gate.put(request.clone(), |put| judge.ask_put(put));
    match judged::agreed(&node, peer, admit).await? {
        Reply::Put(mut response) => {
            node.complete(&mut response.header);
            Ok(response)
        }
        other => Err(unexpected("a put", &other)),
    }
}

pub(crate) async fn delete_range(node: Arc<Node>, request: DeleteRangeRequest) -> Result<DeleteRangeResponse, Refusal> {
    let command = node.gate.delete_range(request)?;
    match node.consensus.propose(command).await? {
        Reply::DeleteRange(mut response) => {
            node.complete(&mut response.header);
            Ok(response)
        }
        other => Err(unexpected("a delete", &other)),
    }
}

pub(crate) async fn txn(node: Arc<Node>, request: TxnRequest, peer: SocketAddr) -> Result<TxnResponse, Refusal> {
    let mut response = if shape::is_read_only(&request) {
        node.gate.read_only_txn(&request)?;
        if !shape::is_serializable(&request) {
            node.consensus.read_barrier().await?;
        }
        small_here(&node, move |store, keys_max| apply::read_only_txn(store, &request, keys_max)).await?
    } else {
        let admit = move |judge: &Judge<'_>| judge.node.gate.txn(request.clone(), |txn| judge.ask_txn(txn));
        match judged::agreed(&node, peer, admit).await? {
            Reply::Txn(response) => response,
            other => return Err(unexpected("a transaction", &other)),
        }
    };
    node.complete(&mut response.header);
    Ok(response)
}

pub(crate) async fn compact(node: Arc<Node>, request: CompactionRequest) -> Result<CompactionResponse, Refusal> {
    let physical = request.physical.then_some(Revision(request.revision));
    let command = node.gate.compact(request)?;
    let mut response = match node.consensus.propose(command).await? {
        Reply::Compact(response) => response,
        other => return Err(unexpected("a compaction", &other)),
    };
    if let Some(revision) = physical {
        node.upkeep.compaction_done(revision).await?;
    }
    node.complete(&mut response.header);
    Ok(response)
}
