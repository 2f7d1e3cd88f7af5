//! Calls of more than one message. Each is a state that is asked for the next message when the client has room for it,
//! so a client that does not read makes nothing pile up here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use hyper::Response;
use kuorum_proto::etcdserverpb::{LeaseKeepAliveRequest, RangeRequest, WatchRequest};
use kuorum_proto::kuorum::v1::{PluginLoadRequest, PluginTailRequest, PluginUploadRequest, PluginUploadResponse};
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{Body, close, within};
use crate::metrics;
use crate::refusal::Refusal;
use crate::rpc::call::{Call, Tally};
use crate::rpc::plugin::{Following, Loading, Upload};
use crate::rpc::range_stream::RangeStream;
use crate::rpc::reply::{self, Reply};
use crate::rpc::status::Fault;
use crate::rpc::{Node, health, lease};
use crate::watch::{WatchRequests, WatchResponses};

/// Resolves when a stream has to end though neither side wants it to.
type CutShort = Pin<Box<dyn Future<Output = Fault> + Send>>;

/// What one step of a stream gives: a message, or that the call is over.
type Step = Result<Option<Bytes>, Fault>;

/// A stream that can be asked for its next message.
trait Steps: Send + 'static {
    fn step(&mut self, tally: &Tally) -> impl Future<Output = Step> + Send;
}

/// Sends what the stream gives, counts it, and ends with its fault, if it has one.
fn respond<S: Steps>(steps: S, tally: Tally) -> Response<Reply> {
    let messages = stream::unfold(Some((steps, tally)), |state: Option<(S, Tally)>| async move {
        let (mut steps, mut tally) = state?;
        match steps.step(&tally).await {
            Ok(Some(message)) => {
                tally.sent(message.len());
                Some((Ok(message), Some((steps, tally))))
            }
            Ok(None) => {
                tally.end(Code::Ok);
                None
            }
            Err(fault) => Some((Err(close(&mut tally, &fault)), None)),
        }
    });
    reply::stream(messages.boxed())
}

/// Refuses a stream before its first message.
fn refuse(mut tally: Tally, fault: &Fault) -> Response<Reply> {
    let status: Status = close(&mut tally, fault);
    reply::refused(&status)
}

fn cut_short(call: &Call) -> CutShort {
    Box::pin(Call::cut_short(Arc::clone(&call.front), call.requires_leader(), call.deadline))
}

/// The next message of a stream, decoded; `None` when the client has sent its last.
async fn next<Q: Message + Default>(messages: &mut Body, tally: &Tally) -> Result<Option<Q>, Fault> {
    let Some(message) = messages.next().await? else { return Ok(None) };
    metrics::get().client.received_bytes.increment(message.len() as u64);
    tally.received();
    // Copied, since what a watch or a lease keeps would otherwise hold on to the connection's buffers.
    let request = Q::decode(Bytes::copy_from_slice(&message)).map_err(|_| Fault::UndecodableMessage)?;
    Ok(Some(request))
}

/// The one message that a stream of answers is asked with.
async fn first<Q: Message + Default>(messages: &mut Body, tally: &Tally) -> Result<Q, Fault> {
    next(messages, tally).await?.ok_or(Fault::NoMessage)
}

pub(super) async fn range(call: Call, mut messages: Body) -> Response<Reply> {
    let tally = Tally::start(call.method);
    let opened = within(call.deadline, async {
        call.check()?;
        let request: RangeRequest = first(&mut messages, &tally).await?;
        Ok(RangeStream::open(Arc::clone(&call.front.node), request).await?)
    });
    match opened.await {
        Ok(range) => respond(RangeSteps { range, deadline: call.deadline }, tally),
        Err(fault) => refuse(tally, &fault),
    }
}

struct RangeSteps {
    range: RangeStream,
    deadline: Option<Instant>,
}

impl Steps for RangeSteps {
    async fn step(&mut self, _tally: &Tally) -> Step {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(Fault::DeadlineExceeded);
        }
        Ok(self.range.next().await?.map(|chunk| chunk.encode_to_vec().into()))
    }
}

pub(super) async fn watch(call: Call, messages: Body) -> Response<Reply> {
    let tally = Tally::start(call.method);
    if let Err(fault) = call.check() {
        return refuse(tally, &fault);
    }
    let (requests, responses) = call.front.node.watch.open();
    respond(WatchSteps { requests, responses, messages, half_closed: false, cut_short: cut_short(&call) }, tally)
}

struct WatchSteps {
    requests: WatchRequests,
    responses: WatchResponses,
    messages: Body,
    /// The client has asked its last; it still wants to hear.
    half_closed: bool,
    cut_short: CutShort,
}

impl WatchSteps {
    async fn request(
        requests: &WatchRequests,
        messages: &mut Body,
        tally: &Tally,
    ) -> Result<Option<WatchRequest>, Fault> {
        requests.ready().await;
        next(messages, tally).await
    }
}

impl Steps for WatchSteps {
    async fn step(&mut self, tally: &Tally) -> Step {
        loop {
            tokio::select! {
                fault = &mut self.cut_short => return Err(fault),
                request = Self::request(&self.requests, &mut self.messages, tally), if !self.half_closed => {
                    match request? {
                        Some(request) => crate::rpc::watch::handle(&self.requests, request),
                        None => self.half_closed = true,
                    }
                }
                response = self.responses.next() => {
                    return response.ok_or_else(|| Refusal::Stopped.into()).map(Some);
                }
            }
        }
    }
}

pub(super) async fn keep_alive(call: Call, messages: Body) -> Response<Reply> {
    let tally = Tally::start(call.method);
    if let Err(fault) = call.check() {
        return refuse(tally, &fault);
    }
    let node = Arc::clone(&call.front.node);
    respond(KeepAliveSteps { node, messages, cut_short: cut_short(&call) }, tally)
}

struct KeepAliveSteps {
    node: Arc<Node>,
    messages: Body,
    cut_short: CutShort,
}

impl KeepAliveSteps {
    async fn renew(node: &Node, messages: &mut Body, tally: &Tally) -> Step {
        let Some(request) = next::<LeaseKeepAliveRequest>(messages, tally).await? else { return Ok(None) };
        let response = lease::keep_alive(node, request).await?;
        Ok(Some(response.encode_to_vec().into()))
    }
}

impl Steps for KeepAliveSteps {
    async fn step(&mut self, tally: &Tally) -> Step {
        tokio::select! {
            fault = &mut self.cut_short => Err(fault),
            renewed = Self::renew(&self.node, &mut self.messages, tally) => renewed,
        }
    }
}

pub(super) async fn health(call: Call, mut messages: Body) -> Response<Reply> {
    let tally = Tally::start(call.method);
    let asked = within(call.deadline, async {
        call.check()?;
        first(&mut messages, &tally).await
    });
    match asked.await {
        Ok(request) => {
            let status = Some(health::first(&request).encode_to_vec().into());
            respond(HealthSteps { status, cut_short: cut_short(&call) }, tally)
        }
        Err(fault) => refuse(tally, &fault),
    }
}

struct HealthSteps {
    /// Told once.
    status: Option<Bytes>,
    cut_short: CutShort,
}

impl Steps for HealthSteps {
    async fn step(&mut self, _tally: &Tally) -> Step {
        match self.status.take() {
            Some(status) => Ok(Some(status)),
            None => Err((&mut self.cut_short).await),
        }
    }
}

/// Many messages, one answer.
pub(super) async fn upload(call: Call, mut messages: Body) -> Response<Reply> {
    let mut tally = Tally::start(call.method);
    let received = async {
        call.check()?;
        tokio::select! {
            fault = cut_short(&call) => Err(fault),
            uploaded = receive(Arc::clone(&call.front.node), &mut messages, &tally) => uploaded,
        }
    };
    match received.await {
        Ok(answer) => {
            let (response, bytes) = reply::unary(answer);
            tally.sent(bytes);
            tally.end(Code::Ok);
            response
        }
        Err(fault) => refuse(tally, &fault),
    }
}

/// An upload of which nothing comes for so long is given up, since there is room for few at a time.
const UPLOAD_PAUSE_MAX: Duration = Duration::from_secs(60);

async fn receive(node: Arc<Node>, messages: &mut Body, tally: &Tally) -> Result<PluginUploadResponse, Fault> {
    let mut upload = Upload::begin(node, first(messages, tally).await?).await?;
    while !upload.is_over() {
        let came = tokio::time::timeout(UPLOAD_PAUSE_MAX, next::<PluginUploadRequest>(messages, tally));
        let Some(request) = came.await.map_err(|_| Refusal::Timeout)?? else { break };
        upload.take(request).await?;
    }
    Ok(upload.end().await?)
}

pub(super) async fn load(call: Call, mut messages: Body) -> Response<Reply> {
    let tally = Tally::start(call.method);
    let asked = within(call.deadline, async {
        call.check()?;
        let request: PluginLoadRequest = first(&mut messages, &tally).await?;
        Ok(Loading::begin(Arc::clone(&call.front.node), request, call.peer).await?)
    });
    match asked.await {
        Ok(loading) => respond(LoadSteps { loading, cut_short: cut_short(&call) }, tally),
        Err(fault) => refuse(tally, &fault),
    }
}

struct LoadSteps {
    loading: Loading,
    cut_short: CutShort,
}

impl Steps for LoadSteps {
    async fn step(&mut self, _tally: &Tally) -> Step {
        tokio::select! {
            fault = &mut self.cut_short => Err(fault),
            progress = self.loading.next() => Ok(progress?.map(|progress| progress.encode_to_vec().into())),
        }
    }
}

pub(super) async fn tail(call: Call, mut messages: Body) -> Response<Reply> {
    let tally = Tally::start(call.method);
    let asked = within(call.deadline, async {
        call.check()?;
        let request: PluginTailRequest = first(&mut messages, &tally).await?;
        Ok(Following::begin(Arc::clone(&call.front.node), request)?)
    });
    match asked.await {
        Ok(following) => respond(TailSteps { following, cut_short: cut_short(&call) }, tally),
        Err(fault) => refuse(tally, &fault),
    }
}

struct TailSteps {
    following: Following,
    cut_short: CutShort,
}

impl Steps for TailSteps {
    async fn step(&mut self, _tally: &Tally) -> Step {
        tokio::select! {
            fault = &mut self.cut_short => Err(fault),
            line = self.following.next() => Ok(line.map(|line| line.encode_to_vec().into())),
        }
    }
}
