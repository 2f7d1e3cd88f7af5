//! gRPC: from an HTTP/2 request to a handler and back.
//!
//! Finds the method, reads and decodes its message, keeps the deadline, counts, and turns what comes back into a
//! response or a status. What a method does is in the services.

mod streams;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Method as HttpMethod, Request, Response, StatusCode};
use kuorum_proto::etcdserverpb::TxnRequest;
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::call::{Call, Tally};
use super::frame::Messages;
use super::method::Method;
use super::reply::{self, Reply};
use super::shards::Front;
use super::status::Fault;
use super::{Node, auth, cluster, health, kv, lease, maintenance, plugin};
use crate::metrics;
use crate::refusal::Refusal;

/// A response on its way. Boxed, since a shard holds one for every open stream and they differ much in size.
pub(super) type Answer = Pin<Box<dyn Future<Output = Response<Reply>> + Send>>;

type Body = Messages<Incoming>;

const AUTH_ABSENT: &str = "authentication can't be switched on and has no users or roles in this release";
const ELECTION_ABSENT: &str = "the election service is not in this release; clients can elect with transactions";
const LOCK_ABSENT: &str = "the lock service is not in this release; clients can lock with transactions";
const SNAPSHOT_ABSENT: &str = "snapshots are not in this release";
const DOWNGRADE_ABSENT: &str = "downgrades are not in this release";

/// Answers one request.
pub(super) fn answer(front: Arc<Front>, peer: SocketAddr, request: Request<Incoming>) -> Answer {
    let (head, body) = request.into_parts();
    if let Err((code, fault)) = check_protocol(&head.method, head.headers.get(CONTENT_TYPE).map(|v| v.as_bytes())) {
        return now(reply::not_grpc(code, &fault.status()));
    }
    let call = Method::at(head.uri.path())
        .map_err(Fault::NoMethod)
        .and_then(|method| Call::new(front, peer, method, &head.headers));
    match call {
        Ok(call) => {
            let messages = Messages::new(body, call.encoding.clone(), call.front.options.message_bytes_max);
            dispatch(call, messages)
        }
        Err(fault) => now(reply::refused(&fault.status())),
    }
}

fn check_protocol(method: &HttpMethod, content_type: Option<&[u8]>) -> Result<(), (StatusCode, Fault)> {
    let content_type = content_type.unwrap_or_default();
    if !content_type.starts_with(b"application/grpc") {
        let content_type = String::from_utf8_lossy(content_type).into_owned();
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, Fault::NotGrpc { content_type }));
    }
    if method != HttpMethod::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, Fault::NotPost { method: method.to_string() }));
    }
    Ok(())
}

fn now(response: Response<Reply>) -> Answer {
    Box::pin(std::future::ready(response))
}

fn dispatch(call: Call, messages: Body) -> Answer {
    let peer = call.peer;
    match call.method {
        Method::Range => unary(call, messages, kv::range),
        Method::Put => unary(call, messages, move |node, request| kv::put(node, request, peer)),
        Method::Txn => unary_decoded(call, messages, decode_txn, move |node, request| kv::txn(node, request, peer)),
        Method::DeleteRange => unary(call, messages, kv::delete_range),
        Method::Compact => unary(call, messages, kv::compact),
        Method::RangeStream => Box::pin(streams::range(call, messages)),
        Method::Watch => Box::pin(streams::watch(call, messages)),
        Method::LeaseGrant => unary(call, messages, move |node, request| lease::grant(node, request, peer)),
        Method::LeaseRevoke => unary(call, messages, lease::revoke),
        Method::LeaseKeepAlive => Box::pin(streams::keep_alive(call, messages)),
        Method::LeaseTimeToLive => unary(call, messages, lease::time_to_live),
        Method::LeaseLeases => unary(call, messages, lease::leases),
        Method::MemberList => unary(call, messages, cluster::member_list),
        Method::Alarm => unary(call, messages, maintenance::alarm),
        Method::Status => unary(call, messages, maintenance::status),
        Method::Defragment => unary(call, messages, maintenance::defragment),
        Method::Hash => unary(call, messages, maintenance::hash),
        Method::HashKv => unary(call, messages, maintenance::hash_kv),
        Method::MoveLeader => unary(call, messages, maintenance::move_leader),
        Method::AuthStatus => unary(call, messages, auth::status),
        Method::HealthCheck => unary(call, messages, health::check),
        Method::HealthList => unary(call, messages, health::list),
        Method::HealthWatch => Box::pin(streams::health(call, messages)),
        Method::MemberAdd => unary(call, messages, cluster::member_add),
        Method::MemberRemove => unary(call, messages, cluster::member_remove),
        Method::MemberUpdate => unary(call, messages, cluster::member_update),
        Method::MemberPromote => unary(call, messages, cluster::member_promote),
        Method::PluginUpload => Box::pin(streams::upload(call, messages)),
        Method::PluginLoad => Box::pin(streams::load(call, messages)),
        Method::PluginList => unary(call, messages, plugin::list),
        Method::PluginInspect => unary(call, messages, plugin::inspect),
        Method::PluginSetMode => unary(call, messages, move |node, request| plugin::set_mode(node, request, peer)),
        Method::PluginRollback => unary(call, messages, move |node, request| plugin::rollback(node, request, peer)),
        Method::PluginRemove => unary(call, messages, move |node, request| plugin::remove(node, request, peer)),
        Method::PluginTail => Box::pin(streams::tail(call, messages)),
        Method::Snapshot => absent(&call, SNAPSHOT_ABSENT),
        Method::Downgrade => absent(&call, DOWNGRADE_ABSENT),
        Method::AuthEnable
        | Method::AuthDisable
        | Method::Authenticate
        | Method::UserAdd
        | Method::UserGet
        | Method::UserList
        | Method::UserDelete
        | Method::UserChangePassword
        | Method::UserGrantRole
        | Method::UserRevokeRole
        | Method::RoleAdd
        | Method::RoleGet
        | Method::RoleList
        | Method::RoleDelete
        | Method::RoleGrantPermission
        | Method::RoleRevokePermission => absent(&call, AUTH_ABSENT),
        Method::Campaign | Method::Proclaim | Method::Leader | Method::Observe | Method::Resign => {
            absent(&call, ELECTION_ABSENT)
        }
        Method::Lock | Method::Unlock => absent(&call, LOCK_ABSENT),
    }
}

/// Says that the method is not in this release, without looking at what it was asked.
fn absent(call: &Call, sentence: &'static str) -> Answer {
    let mut tally = Tally::start(call.method);
    now(reply::refused(&close(&mut tally, &Refusal::Unimplemented(sentence).into())))
}

/// Counts the end of a call that failed, and says how.
fn close(tally: &mut Tally, fault: &Fault) -> Status {
    let status = fault.status();
    tally.end(status.code());
    status
}

fn unary<Q, A, E, F, W>(call: Call, messages: Body, handler: F) -> Answer
where
    Q: Message + Default + 'static,
    A: reply::UnaryAnswer,
    E: Into<Fault>,
    F: FnOnce(Arc<Node>, Q) -> W + Send + 'static,
    W: Future<Output = Result<A, E>> + Send,
{
    unary_decoded(call, messages, |_, bytes| Q::decode(bytes).map_err(|_| Fault::UndecodableRequest), handler)
}

/// A call of one message each way. What can't be read or decoded is not counted as a call, in etcd as here.
fn unary_decoded<Q, A, E, F, W>(
    call: Call,
    messages: Body,
    decode: fn(&Node, Bytes) -> Result<Q, Fault>,
    handler: F,
) -> Answer
where
    Q: Send + 'static,
    A: reply::UnaryAnswer,
    E: Into<Fault>,
    F: FnOnce(Arc<Node>, Q) -> W + Send + 'static,
    W: Future<Output = Result<A, E>> + Send,
{
    Box::pin(async move {
        let begun = Instant::now();
        let mut tally = None;
        let exchanged = within(call.deadline, exchange(&call, messages, decode, handler, &mut tally)).await;
        let (response, code) = match exchanged {
            Ok(response) => (response, Code::Ok),
            Err(fault) => {
                let status = fault.status();
                (reply::refused(&status), status.code())
            }
        };
        if let Some(tally) = &mut tally {
            tally.end(code);
        }
        let took = begun.elapsed();
        if took > call.front.options.slow_unary {
            let method = format!("/{}/{}", call.method.service(), call.method.name());
            crate::warn!("request stats", "response type" = method, took = took, code = code.to_string());
        }
        response
    })
}

async fn exchange<Q, A, E, F, W>(
    call: &Call,
    mut messages: Body,
    decode: fn(&Node, Bytes) -> Result<Q, Fault>,
    handler: F,
    tally: &mut Option<Tally>,
) -> Result<Response<Reply>, Fault>
where
    A: reply::UnaryAnswer,
    E: Into<Fault>,
    F: FnOnce(Arc<Node>, Q) -> W,
    W: Future<Output = Result<A, E>>,
{
    let node = &call.front.node;
    let message = messages.next().await?.ok_or(Fault::NoMessage)?;
    metrics::get().client.received_bytes.increment(message.len() as u64);
    let request = decode(node, message)?;
    let tally = tally.insert(Tally::start(call.method));
    tally.received();
    call.check()?;
    let answer = handler(Arc::clone(node), request).await.map_err(E::into)?;
    let (response, bytes) = reply::unary(answer);
    tally.sent(bytes);
    Ok(response)
}

/// Gives up at the deadline, dropping the work that waits.
async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    match deadline {
        None => work.await,
        Some(deadline) => tokio::time::timeout_at(deadline, work).await.unwrap_or(Err(Fault::DeadlineExceeded)),
    }
}

fn decode_txn(node: &Node, bytes: Bytes) -> Result<TxnRequest, Fault> {
    node.gate.decode_txn(bytes).map_err(|refusal| match refusal {
        Refusal::Internal(_) => Fault::UndecodableRequest,
        other => other.into(),
    })
}
