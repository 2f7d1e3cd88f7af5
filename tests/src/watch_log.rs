//! One watch stream of a script: what was asked, what came, and the promises that every response must keep.
//!
//! Two servers may cut the same events into different responses, so events are logged per watcher in order, and how
//! they were cut is only checked: a revision is never split unless fragments were asked for, and no header lies behind
//! its events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;
use kuorum_proto::mvccpb;
use pb::watch_request::RequestUnion;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::Client;
use crate::clock::Deadline;
use crate::names::Names;
use crate::render;

/// Requests on their way to the server; the server reads them as they come.
const REQUESTS_MAX: usize = 64;
/// Responses on their way to the script; a stream that has more waits, as a slow client does.
const RESPONSES_MAX: usize = 65_536;

/// What one watcher did since it was last asked.
#[derive(Default)]
struct Watcher {
    lines: Vec<String>,
    last_revision: i64,
    in_fragments: bool,
}

pub(crate) struct WatchLog {
    /// None once the client has ended its half.
    requests: Option<mpsc::Sender<pb::WatchRequest>>,
    responses: mpsc::Receiver<Result<pb::WatchResponse, tonic::Status>>,
    live: BTreeSet<i64>,
    watchers: BTreeMap<i64, Watcher>,
    /// Answers to creations, cancellations and progress requests, not yet taken.
    controls: Vec<pb::WatchResponse>,
    end: Option<String>,
}

impl WatchLog {
    pub(crate) fn open(client: &Client) -> WatchLog {
        let (requests, outgoing) = mpsc::channel(REQUESTS_MAX);
        let (incoming, responses) = mpsc::channel(RESPONSES_MAX);
        let mut watch = client.watch.clone();
        tokio::spawn(async move {
            let mut stream = match watch.watch(ReceiverStream::new(outgoing)).await {
                Ok(answer) => answer.into_inner(),
                Err(status) => {
                    // The script may have closed the stream already; then nobody waits for its end.
                    drop(incoming.send(Err(status)).await);
                    return;
                }
            };
            loop {
                let item = match stream.message().await {
                    Ok(Some(response)) => Ok(response),
                    Ok(None) => Err(tonic::Status::ok("the server ended the stream")),
                    Err(status) => Err(status),
                };
                let is_last = item.is_err();
                if incoming.send(item).await.is_err() || is_last {
                    return;
                }
            }
        });
        WatchLog {
            requests: Some(requests),
            responses,
            live: BTreeSet::new(),
            watchers: BTreeMap::new(),
            controls: Vec::new(),
            end: None,
        }
    }

    pub(crate) async fn send(&mut self, union: RequestUnion) {
        if let Some(requests) = &self.requests {
            let request = pb::WatchRequest { request_union: Some(union) };
            if requests.send(request).await.is_err() {
                self.end.get_or_insert_with(|| "the stream takes no requests".to_owned());
            }
        }
    }

    pub(crate) fn half_close(&mut self) {
        self.requests = None;
    }

    pub(crate) fn is_live(&self, id: i64) -> bool {
        self.live.contains(&id)
    }

    /// Waits for the answer to a request: the first control response that `wanted` accepts.
    pub(crate) async fn control(
        &mut self,
        wait: Duration,
        names: &mut Names,
        wanted: impl Fn(&pb::WatchResponse) -> bool,
    ) -> Option<pb::WatchResponse> {
        let deadline = Deadline::after(wait);
        loop {
            if let Some(position) = self.controls.iter().position(&wanted) {
                return Some(self.controls.remove(position));
            }
            if self.end.is_some() {
                return None;
            }
            match tokio::time::timeout(deadline.left(), self.responses.recv()).await {
                Ok(Some(item)) => self.take(item, names),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Logs all that has arrived.
    pub(crate) fn pull(&mut self, names: &mut Names) {
        while let Ok(item) = self.responses.try_recv() {
            self.take(item, names);
        }
    }

    /// What each watcher received, one line a response or event.
    pub(crate) fn text(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (id, watcher) in &self.watchers {
            lines.extend(watcher.lines.iter().map(|line| format!("watch {id} {line}")));
        }
        lines.extend(self.end.iter().map(|end| format!("end {end}")));
        match lines.is_empty() {
            true => "no events".to_owned(),
            false => lines.join("\n"),
        }
    }

    pub(crate) fn clear(&mut self) {
        for watcher in self.watchers.values_mut() {
            watcher.lines.clear();
        }
    }

    fn take(&mut self, item: Result<pb::WatchResponse, tonic::Status>, names: &mut Names) {
        match item {
            Err(status) => self.end = Some(render::refusal(&status, names)),
            Ok(response) => self.file(response, names),
        }
    }

    fn file(&mut self, response: pb::WatchResponse, names: &mut Names) {
        if let Some(header) = &response.header {
            names.saw(header.revision);
        }
        if response.created && !response.canceled {
            self.live.insert(response.watch_id);
            // An id may be used again after it was canceled; its revisions then start anew.
            self.watchers.entry(response.watch_id).or_default().last_revision = 0;
        }
        if response.canceled {
            self.live.remove(&response.watch_id);
        }
        // A compaction cancels whenever the server gets to it: that belongs into the watcher's own order.
        if response.canceled && !response.created && response.compact_revision != 0 {
            let line = render::watch_control(&response, names);
            let watcher = self.watchers.entry(response.watch_id).or_default();
            watcher.lines.push(line);
            return;
        }
        if response.events.is_empty() {
            self.controls.push(response);
            return;
        }
        let watcher = self.watchers.entry(response.watch_id).or_default();
        watcher.receive(&response, names);
    }
}

impl Watcher {
    fn receive(&mut self, response: &pb::WatchResponse, names: &Names) {
        let revision_of = |event: &mvccpb::Event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision);
        let first = response.events.first().map_or(0, revision_of);
        let last = response.events.last().map_or(0, revision_of);
        let ordered = response.events.is_sorted_by_key(revision_of);
        let continues = self.in_fragments && first == self.last_revision;
        if !ordered || first < self.last_revision {
            self.lines.push("broken promise: revisions fall".to_owned());
        }
        if first == self.last_revision && !continues {
            self.lines.push("broken promise: a revision is split".to_owned());
        }
        let header = response.header.as_ref().map_or(0, |header| header.revision);
        if header < last {
            self.lines.push(format!("broken promise: header {header} is older than event {last}"));
        }
        let lines = response.events.iter().map(|event| render::event(event, names));
        self.lines.extend(lines);
        self.in_fragments = response.fragment;
        self.last_revision = last;
    }
}
