//! The KV service: reads from the store, writes through the log.

use std::sync::Arc;

use kuorum_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    RangeRequest, TxnRequest, TxnResponse,
};

use super::range_answer::{EncodedKvs, RangeAnswer};
use super::{Node, refusal_of, unexpected};
use crate::admission::shape;
use crate::apply::{self, Reply};
use crate::metrics;
use crate::mvcc::found::RangeEnd;
use crate::mvcc::query::RangeQuery;
use crate::mvcc::revision::Revision;
use crate::refusal::Refusal;

/// Keys from which a read leaves the shard, so that the other requests there need not wait for it: about 0.4 ms of
/// reading, twenty times what the detour costs.
const KEYS_ON_SHARD_MAX: i64 = 1_000;

pub(crate) async fn range(node: Arc<Node>, request: RangeRequest) -> Result<RangeAnswer, Refusal> {
    let serializable = request.serializable;
    let query = node.gate.range(request)?;
    if !serializable {
        node.consensus.read_barrier().await?;
    }
    // On the shard what is quickly read, elsewhere what is not.
    if !may_be_large(&query) || count(&node, &query)? <= KEYS_ON_SHARD_MAX {
        return read(&node, &query);
    }
    let read = tokio::task::spawn_blocking(move || read(&node, &query));
    read.await.map_err(|error| Refusal::Internal(format!("the read was given up: {error}")))?
}

fn may_be_large(query: &RangeQuery) -> bool {
    !query.range_end.is_empty() && !query.count_only && (query.limit <= 0 || query.limit > KEYS_ON_SHARD_MAX)
}

/// How many keys the range holds now, which is what it costs to read it, whatever the revision.
fn count(node: &Node, query: &RangeQuery) -> Result<i64, Refusal> {
    let count = RangeQuery {
        key: query.key.clone(),
        range_end: query.range_end.clone(),
        count_only: true,
        ..RangeQuery::default()
    };
    node.store.range(&count).map(|answer| answer.count).map_err(refusal_of)
}

fn read(node: &Node, query: &RangeQuery) -> Result<RangeAnswer, Refusal> {
    let metrics = metrics::get();
    metrics.mvcc.ranges.increment(1);
    let started = tokio::time::Instant::now();
    let answer = if query.is_plain() {
        let mut kvs = EncodedKvs::default();
        let end = node.store.visit(query, &mut kvs).map_err(refusal_of)?;
        RangeAnswer::new(node.facts.header(end.revision.0), kvs, end)
    } else {
        let answer = node.store.range(query).map_err(refusal_of)?;
        let header = node.facts.header(answer.revision.0);
        let end = RangeEnd { more: answer.more, count: answer.count, revision: answer.revision };
        RangeAnswer::new(header, EncodedKvs::of(&answer.kvs), end)
    };
    metrics.server.range_seconds.record(started.elapsed().as_secs_f64());
    Ok(answer)
}

pub(crate) async fn put(node: Arc<Node>, request: PutRequest) -> Result<PutResponse, Refusal> {
    let command = node.admitted(node.gate.put(request)).await?;
    match node.consensus.propose(command).await? {
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

pub(crate) async fn txn(node: Arc<Node>, request: TxnRequest) -> Result<TxnResponse, Refusal> {
    let mut response = if shape::is_read_only(&request) {
        node.gate.read_only_txn(&request)?;
        if !shape::is_serializable(&request) {
            node.consensus.read_barrier().await?;
        }
        apply::read_only_txn(&node.store, &request).map_err(refusal_of)?
    } else {
        let command = node.admitted(node.gate.txn(request)).await?;
        match node.consensus.propose(command).await? {
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
