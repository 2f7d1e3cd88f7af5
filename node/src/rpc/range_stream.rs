//! KV.RangeStream: one range in several messages, all read at one revision.
//!
//! The first chunk holds ten keys; each later one twice or half as many as the last, so that chunks come near
//! --max-request-bytes. Header, `more` and `count` stand in the last chunk alone. The revision is pinned by the first
//! chunk, not in the store: a compaction may overtake the stream, which then ends with "compacted", as in etcd. Unlike
//! in etcd, a sort target without an order, which every check lets through, does not make the stream repeat keys: each chunk
//! is sorted in itself, and the chunks follow the keys.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use kuorum_proto::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};
use prost::Message as _;

use super::{Node, kv};
use crate::metrics;
use crate::mvcc::query::{RangeAnswer, RangeQuery, SortOrder, SortTarget};
use crate::mvcc::range;
use crate::refusal::Refusal;

/// From etcd (initialStreamChunkLimit).
const FIRST_CHUNK_KEYS: i64 = 10;

/// A stream under way.
pub(crate) struct RangeStream {
    node: Arc<Node>,
    /// What is left to read; `limit` is that of the next chunk.
    query: RangeQuery,
    /// What each chunk is sorted by, once it is known which keys are in it.
    target: SortTarget,
    /// The client wants no values though they are read.
    strips_values: bool,
    /// Keys that the client still wants.
    wanted: i64,
    sent: i64,
    /// The store's revision when the stream began.
    header_revision: i64,
    ended: bool,
}

impl RangeStream {
    /// Checks the request and, unless it is serializable, waits until this member is up to date.
    pub(crate) async fn open(node: Arc<Node>, request: RangeRequest) -> Result<RangeStream, Refusal> {
        let serializable = request.serializable;
        let mut query = node.gate.range(request)?;
        check(&query)?;
        query.order = SortOrder::None;
        let target = std::mem::replace(&mut query.target, SortTarget::Key);
        // To be sorted by their values, keys must come with them.
        let strips_values = query.keys_only && target == SortTarget::Value;
        query.keys_only &= !strips_values;
        if !serializable {
            node.consensus.read_barrier().await?;
        }
        let wanted = if query.limit > 0 { query.limit } else { i64::MAX };
        query.limit = wanted.min(FIRST_CHUNK_KEYS);
        Ok(RangeStream { node, query, target, strips_values, wanted, sent: 0, header_revision: 0, ended: false })
    }

    /// The next chunk; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<RangeStreamResponse>, Refusal> {
        if self.ended {
            return Ok(None);
        }
        let mut answer = self.read(self.query.clone()).await?;
        if self.header_revision == 0 {
            self.header_revision = answer.revision.0;
            if self.query.revision <= 0 {
                self.query.revision = answer.revision.0;
            }
        }
        if self.query.count_only {
            return Ok(Some(self.last(Vec::new(), false, answer.count)));
        }
        let keys = i64::try_from(answer.kvs.len()).expect("a chunk's keys are counted in i64 throughout");
        self.sent += keys;
        self.wanted -= keys;
        if answer.more {
            self.query.key = after(&answer.kvs.last().ok_or_else(no_progress)?.key);
        }
        range::sort(self.target, SortOrder::None, &mut answer.kvs);
        if self.strips_values {
            answer.kvs.iter_mut().for_each(|kv| kv.value.clear());
        }
        if !answer.more || self.wanted == 0 {
            let remaining = if answer.more { self.count_remaining().await? } else { 0 };
            return Ok(Some(self.last(answer.kvs, answer.more, self.sent + remaining)));
        }
        let chunk = RangeResponse { kvs: answer.kvs, ..RangeResponse::default() };
        let target_bytes = self.node.limits.request_bytes_max;
        self.query.limit = next_limit(self.query.limit, chunk.encoded_len(), target_bytes).min(self.wanted);
        Ok(Some(RangeStreamResponse { range_response: Some(chunk) }))
    }

    fn last(&mut self, kvs: Vec<kuorum_proto::mvccpb::KeyValue>, more: bool, count: i64) -> RangeStreamResponse {
        self.ended = true;
        let header = Some(self.node.facts.header(self.header_revision));
        RangeStreamResponse { range_response: Some(RangeResponse { header, kvs, more, count }) }
    }

    async fn count_remaining(&self) -> Result<i64, Refusal> {
        let query = RangeQuery {
            key: self.query.key.clone(),
            range_end: self.query.range_end.clone(),
            revision: self.query.revision,
            count_only: true,
            ..RangeQuery::default()
        };
        Ok(self.read(query).await?.count)
    }

    async fn read(&self, query: RangeQuery) -> Result<RangeAnswer, Refusal> {
        metrics::get().mvcc.ranges.increment(1);
        kv::small_here(&self.node, move |store, keys_max| store.range_within(&query, keys_max)).await
    }
}

fn check(query: &RangeQuery) -> Result<(), Refusal> {
    let default_order = match query.order {
        SortOrder::None => true,
        SortOrder::Ascend => query.target == SortTarget::Key,
        SortOrder::Descend => false,
    };
    if !default_order {
        return Err(Refusal::Unimplemented("RangeStream does not support custom sort orders"));
    }
    let bounds = [query.min_mod_revision, query.max_mod_revision, query.min_create_revision, query.max_create_revision];
    if bounds != [0; 4] {
        return Err(Refusal::Unimplemented("RangeStream does not support revision filters"));
    }
    Ok(())
}

fn no_progress() -> Refusal {
    Refusal::Internal("a range left keys out but returned none".into())
}

/// The least key above this one.
fn after(key: &Bytes) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// Doubles when the last chunk was under half the target size, halves when it was over twice that (etcd's rule).
fn next_limit(last: i64, chunk_bytes: usize, target_bytes: usize) -> i64 {
    if chunk_bytes < target_bytes / 2 {
        last.saturating_mul(2)
    } else if chunk_bytes > target_bytes.saturating_mul(2) {
        (last / 2).max(1)
    } else {
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_approach_the_target_size_and_never_become_empty() {
        assert_eq!(next_limit(10, 100, 1000), 20);
        assert_eq!(next_limit(10, 500, 1000), 10);
        assert_eq!(next_limit(10, 2000, 1000), 10);
        assert_eq!(next_limit(10, 2001, 1000), 5);
        assert_eq!(next_limit(1, 9000, 1000), 1);
    }

    #[test]
    fn a_sort_target_without_an_order_is_let_through_and_a_real_sort_is_not() {
        let query = |order, target| RangeQuery { order, target, ..RangeQuery::default() };
        assert_eq!(check(&query(SortOrder::None, SortTarget::Mod)), Ok(()));
        assert_eq!(check(&query(SortOrder::Ascend, SortTarget::Key)), Ok(()));
        assert!(check(&query(SortOrder::Ascend, SortTarget::Mod)).is_err());
        assert!(check(&query(SortOrder::Descend, SortTarget::Key)).is_err());
        assert!(check(&RangeQuery { max_mod_revision: 1, ..RangeQuery::default() }).is_err());
    }
}
