//! Several members: they agree, survive the loss of some, and refuse what can't be agreed on.
//!
//! `agreement` is what clients see of a cluster that is whole, `loss` of one that has lost members, `membership` of one whose
//! members change, `strangers` what is refused at the peer URL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agreement;
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
