//! `/metrics`: sets the gauges whose values other modules own, then shows everything.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};

use crate::metrics;
use crate::rpc::Node;

const FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8; escaping=underscores");

/// etcd's compacted revision while nothing has been compacted.
const NEVER_COMPACTED: i64 = -1;

pub(super) async fn metrics(State(node): State<Arc<Node>>) -> Response<Body> {
    sample(&node);
    let mut response = Response::new(metrics::get().render().into());
    response.headers_mut().insert(CONTENT_TYPE, FORMAT);
    response
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats; revisions and sizes beyond 2^53 don't occur")]
fn sample(node: &Node) {
    let metrics = metrics::get();
    let raft = node.consensus.status();
    let server = &metrics.server;
    server.has_leader.set(flag(raft.leader.is_some()));
    let epoch = node.plugins.epoch().get();
    if epoch > 0 || node.roster.has_plugins() {
        metrics.policies().epoch.set(epoch as f64);
        node.roster.show_quarantined();
    }
    server.is_leader.set(flag(raft.is_leader));
    server.is_learner.set(flag(node.is_learner()));
    server.leader_changes_seen.absolute(raft.leader_changes);
    server.proposals_pending.set(raft.pending as f64);
    server.proposals_committed.set(raft.committed as f64);
    server.proposals_applied.set(raft.applied as f64);
    let mvcc = &metrics.mvcc;
    let sizes = node.sizes();
    mvcc.db_bytes.set(sizes.allocated_bytes as f64);
    mvcc.db_in_use_bytes.set(sizes.allocated_in_use_bytes() as f64);
    mvcc.keys.set(node.store.get().key_count() as f64);
    mvcc.current_revision.set(node.store.get().revision().0 as f64);
    let compacted = node.store.get().compacted().0;
    mvcc.compact_revision.set(if compacted <= 0 { NEVER_COMPACTED } else { compacted } as f64);
}

fn flag(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}
