//! What the benches reach of this module: its core is private to it. Handed on by `crate::bench`.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use kuorum_proto::etcdserverpb::{ResponseHeader, WatchCreateRequest};
use kuorum_proto::mvccpb::KeyValue;

use crate::bench::{Changes, Member};
use crate::cluster::{ClusterId, Facts, MemberId};
use crate::mvcc::Committed;
use crate::mvcc::query::ChangeKind;
use crate::watch::core::{Core, Event};
use crate::watch::outbox::Outbox;
use crate::watch::{Options, encode};

/// As the node runs it, except that no client is too slow: the benches take responses out between publications.
const OPTIONS: Options = Options {
    fragment_bytes: 2 << 20,
    progress_interval_ms: u64::MAX,
    feed_bytes_max: usize::MAX,
    recent_bytes_max: 16 << 20,
    stream_bytes_max: usize::MAX,
};

/// Watchers, each on a stream of its own, without the watch thread.
pub struct Watchers {
    core: Core,
    responses: Responses,
}

/// What waits for the watchers' clients.
#[derive(Clone, Default)]
pub struct Responses(Vec<Outbox>);

impl Watchers {
    /// None yet, over this member's store.
    pub fn new(member: &Member) -> Watchers {
        let facts = Arc::new(Facts::new(ClusterId(1), MemberId(1)));
        Watchers { core: Core::new(member.store.clone(), facts, OPTIONS), responses: Responses::default() }
    }

    pub fn watch(&mut self, key: Bytes, range_end: Bytes) {
        let stream = self.responses.0.len() as u64;
        let outbox = Outbox::default();
        self.responses.0.push(outbox.clone());
        self.core.handle(Event::Open { stream, outbox });
        let request = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
        self.core.handle(Event::Create { stream, request });
    }

    /// The responses to all watchers so far.
    pub fn responses(&self) -> Responses {
        self.responses.clone()
    }

    /// Matches changes with watchers and puts the encoded responses where their clients find them.
    pub fn publish(&mut self, changes: Changes) {
        let Committed { revision, compacted, changes } = changes.0;
        self.core.handle(Event::Published { revision, compacted, changes });
    }
}

impl Responses {
    /// Takes out all that waits, and says how many.
    pub fn take(&self) -> usize {
        let taken = |outbox: &Outbox| std::iter::from_fn(|| outbox.next().now_or_never().flatten()).count();
        self.0.iter().map(taken).sum()
    }
}

/// A put as it stands in responses.
pub fn encode_event(kv: &KeyValue) -> Bytes {
    encode::event(ChangeKind::Put, kv, None)
}

/// One response with these events.
pub fn encode_response(events: &[Bytes]) -> Vec<Bytes> {
    encode::with_events(&ResponseHeader::default(), 1, events, None)
}
