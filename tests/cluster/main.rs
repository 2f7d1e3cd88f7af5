//! Several members: they agree, survive the loss of some, and refuse what can't be agreed on.
//!
//! `agreement` is what clients see of a cluster that is whole, `catch_up` of members that lack much, `loss` of one that has
//! lost members, `faults` what many of them see together while members and links fail, `membership` what they see while
//! members change, `strangers` what is refused at the peer URL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agreement;
mod catch_up;
mod faults;
mod loss;
mod membership;
mod strangers;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::client::Client;

/// Runs a test on a runtime of one thread.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built").block_on(test)
}

async fn put(client: &mut Client, key: &str, value: &str) -> Result<i64, tonic::Status> {
    let (key, value) = (Bytes::from(key.to_owned()), Bytes::from(value.to_owned()));
    let answer = client.kv.put(pb::PutRequest { key, value, ..pb::PutRequest::default() }).await?;
    Ok(answer.into_inner().header.map_or(0, |header| header.revision))
}

/// The value of a key, "" when there is none.
async fn get(client: &mut Client, key: &str, serializable: bool) -> Result<String, tonic::Status> {
    let key = Bytes::from(key.to_owned());
    let answer = client.kv.range(pb::RangeRequest { key, serializable, ..pb::RangeRequest::default() }).await?;
    let value = answer.into_inner().kvs.pop().map(|kv| String::from_utf8_lossy(&kv.value).into_owned());
    Ok(value.unwrap_or_default())
}

/// A watcher of one key, through one member.
struct Watching {
    /// Dropping it would end the client's half of the stream.
    _requests: tokio::sync::mpsc::Sender<pb::WatchRequest>,
    responses: tonic::Streaming<pb::WatchResponse>,
    waiting: std::collections::VecDeque<i64>,
}

impl Watching {
    async fn open(client: &mut Client, key: &str, start_revision: i64) -> Watching {
        let (requests, outgoing) = tokio::sync::mpsc::channel(1);
        let create = pb::WatchCreateRequest {
            key: Bytes::from(key.to_owned()),
            start_revision,
            ..pb::WatchCreateRequest::default()
        };
        let request_union = Some(pb::watch_request::RequestUnion::CreateRequest(create));
        requests.send(pb::WatchRequest { request_union }).await.expect("the receiver is here");
        let stream = client.watch.watch(tokio_stream::wrappers::ReceiverStream::new(outgoing)).await;
        let responses = stream.expect("a watch is taken").into_inner();
        Watching { _requests: requests, responses, waiting: std::collections::VecDeque::new() }
    }

    /// The revision of the next event, which hangs if it has not come by then.
    async fn next_revision(&mut self) -> i64 {
        loop {
            if let Some(revision) = self.waiting.pop_front() {
                return revision;
            }
            let response = tokio::time::timeout(std::time::Duration::from_secs(60), self.responses.message()).await;
            let response = response.expect("events come").expect("the stream goes on").expect("the stream goes on");
            assert!(!response.canceled, "{response:?}");
            self.waiting.extend(response.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision));
        }
    }
}
