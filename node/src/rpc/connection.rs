//! One client connection: HTTP/2 is gRPC, HTTP/1.1 is pages.
//!
//! Bounds on what a client can make this process hold: nothing is kept of a connection but its socket until it has sent
//! a byte; a request line with headers must be there within seconds; HTTP/2 windows bound the bytes in flight. Pings
//! are answered however often they come: etcd sends away clients that ping more often than every five seconds, which
//! the clients whose users complained about it don't deserve.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tower::Service as _;

use super::grpc;
use super::listen::Role;
use super::reply::Reply;
use super::shards::{Front, becomes_true};
use crate::http;
use crate::transport::MAGIC;

/// How long a client may stay silent before its first byte (grpc-go: connectionTimeout).
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the head of an HTTP/1.1 request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two looks at the first bytes of a connection that came in pieces.
const MAGIC_LOOK: Duration = Duration::from_millis(10);
/// Bytes of one call that may be on their way to this process: the largest message with the default limit, so that it
/// needs no second round trip.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
/// Bytes of one connection that may be on their way to this process.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes of all headers of one request.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// Calls of one connection that may be canceled by the client before this process has looked at them. hyper's own limit
/// of 20 sends away honest clients that give up a burst of calls; without one, a client could keep a core busy.
const CANCELED_UNSEEN_MAX: usize = 1024;

/// The pages of each kind of listener. Cheap to clone.
#[derive(Clone)]
pub(super) struct Pages {
    client: Router,
    metrics: Router,
    peer: Router,
}

impl Pages {
    pub(super) fn new(front: &Front) -> Pages {
        let node = &front.node;
        Pages {
            client: http::client_pages(Arc::clone(node), &front.options),
            metrics: http::metrics_pages(Arc::clone(node)),
            peer: http::peer_pages(Arc::clone(node)),
        }
    }
}

/// Serves a connection until either side closes it. `permit` counts it.
pub(super) async fn serve(
    front: Arc<Front>,
    pages: Pages,
    socket: TcpStream,
    role: Role,
    permit: OwnedSemaphorePermit,
) {
    if !matches!(tokio::time::timeout(FIRST_BYTE_TIMEOUT, socket.readable()).await, Ok(Ok(()))) {
        return;
    }
    if role == Role::Peer && is_member(&socket).await {
        // On a thread of its own from here on: members write without end, and must not wait for clients.
        if let Ok(socket) = socket.into_std()
            && socket.set_nonblocking(false).is_ok()
        {
            front.node.peers.accept(socket, permit);
        }
        return;
    }
    let builder = builder(&front, role);
    let pages = match role {
        Role::Client | Role::Grpc | Role::ClientPages => pages.client,
        Role::Metrics => pages.metrics,
        Role::Peer => pages.peer,
    };
    // It has none when it is closed already.
    let Ok(peer) = socket.peer_addr() else { return };
    let service = {
        let front = Arc::clone(&front);
        service_fn(move |request: Request<Incoming>| {
            let answer = route(&front, &pages, peer, request);
            async move { Ok::<_, Infallible>(answer.await) }
        })
    };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let closed = tokio::select! {
        closed = connection.as_mut() => closed,
        () = becomes_true(front.stopping.clone()) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = closed {
        // A client that goes away or talks nonsense is no fault of this process.
        crate::debug!("a client connection ended in disorder", error = error.to_string());
    }
}

/// Whether a connection to the peer URL is another member's, and not one for a page.
async fn is_member(socket: &TcpStream) -> bool {
    let mut head = [0; MAGIC.len()];
    let begins = async {
        loop {
            match socket.peek(&mut head).await {
                Ok(count) if count > 0 && MAGIC.starts_with(&head[..count]) => {
                    if count == MAGIC.len() {
                        return true;
                    }
                }
                Ok(_) | Err(_) => return false,
            }
            // What is here already makes the socket readable: more can only be waited for.
            tokio::time::sleep(MAGIC_LOOK).await;
        }
    };
    tokio::time::timeout(HEAD_TIMEOUT, begins).await.unwrap_or(false)
}

/// HTTP/2 is taken for gRPC whatever it asks for, as etcd's port does; everything else for a page.
fn route(front: &Arc<Front>, pages: &Router, peer: SocketAddr, request: Request<Incoming>) -> grpc::Answer {
    if request.version() == Version::HTTP_2 {
        return grpc::answer(Arc::clone(front), peer, request);
    }
    let mut pages = pages.clone();
    Box::pin(async move {
        let Ok(response): Result<Response<axum::body::Body>, Infallible> = pages.call(request).await;
        response.map(Reply::Page)
    })
}

fn builder(front: &Front, role: Role) -> Builder<TokioExecutor> {
    let options = &front.options;
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(CANCELED_UNSEEN_MAX)
        .max_concurrent_streams(options.concurrent_streams_max)
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout);
    match role {
        Role::Client => builder,
        Role::Grpc => builder.http2_only(),
        Role::ClientPages | Role::Metrics | Role::Peer => builder.http1_only(),
    }
}
