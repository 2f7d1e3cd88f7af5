//! The Watch service: hands requests to the hub. Its answers come encoded and are only passed on.

use kuorum_proto::etcdserverpb::WatchRequest;
use kuorum_proto::etcdserverpb::watch_request::RequestUnion;

use crate::watch::WatchRequests;

/// Does what the client asks. A request that asks for nothing is passed over, as in etcd.
pub(crate) fn handle(requests: &WatchRequests, request: WatchRequest) {
    match request.request_union {
        Some(RequestUnion::CreateRequest(create)) => requests.create(create),
        Some(RequestUnion::CancelRequest(cancel)) => requests.cancel(cancel.watch_id),
        Some(RequestUnion::ProgressRequest(_)) => requests.progress(),
        None => {}
    }
}
