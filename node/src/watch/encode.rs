//! Watch responses as bytes. An event is encoded once, whoever gets it; a response is a small head and copies of
//! events.

use bytes::{BufMut, Bytes};
use kuorum_proto::etcdserverpb::{ResponseHeader, WatchResponse};
use kuorum_proto::mvccpb::{Event, KeyValue, event};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use crate::mvcc::query::ChangeKind;

/// Tag of `events` in `WatchResponse`.
const EVENTS_TAG: u32 = 11;

/// An event as it stands in a response: field key, length, event.
pub(super) fn event(kind: ChangeKind, kv: &KeyValue, previous: Option<&KeyValue>) -> Bytes {
    let kind = match kind {
        ChangeKind::Put => event::EventType::Put,
        ChangeKind::Delete => event::EventType::Delete,
    };
    let event = Event { r#type: kind.into(), kv: Some(kv.clone()), prev_kv: previous.cloned() };
    let length = event.encoded_len();
    let mut bytes = Vec::with_capacity(length + 1 + encoded_len_varint(length as u64));
    encode_key(EVENTS_TAG, WireType::LengthDelimited, &mut bytes);
    encode_varint(length as u64, &mut bytes);
    event.encode_raw(&mut bytes);
    bytes.into()
}

/// A response without events.
pub(super) fn control(response: &WatchResponse) -> Bytes {
    response.encode_to_vec().into()
}

/// A response with events, split when it is to be fragmented.
///
/// A fragment ends before the event that would take it to `fragment_bytes`, but holds one event at least; every
/// fragment except the last says so (etcd: sendFragments).
pub(super) fn with_events(
    header: &ResponseHeader,
    watch_id: i64,
    events: &[Bytes],
    fragment_bytes: Option<usize>,
) -> Vec<Bytes> {
    let head = |fragment: bool| WatchResponse { header: Some(*header), watch_id, fragment, ..WatchResponse::default() };
    let size =
        |head: &WatchResponse, events: &[Bytes]| head.encoded_len() + events.iter().map(Bytes::len).sum::<usize>();
    let whole = head(false);
    let Some(limit) = fragment_bytes.filter(|limit| events.len() > 1 && size(&whole, events) >= *limit) else {
        return vec![join(&whole, events)];
    };
    let mut responses = Vec::new();
    let mut rest = events;
    while !rest.is_empty() {
        let fragment = head(true);
        let mut used = fragment.encoded_len();
        let fits = |event: &&Bytes| {
            used += event.len();
            used < limit
        };
        let taken = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at(taken);
        responses.push(join(if later.is_empty() { &whole } else { &fragment }, now));
        rest = later;
    }
    responses
}

fn join(head: &WatchResponse, events: &[Bytes]) -> Bytes {
    let length = head.encoded_len() + events.iter().map(Bytes::len).sum::<usize>();
    let mut bytes = Vec::with_capacity(length);
    head.encode_raw(&mut bytes);
    for event in events {
        bytes.put_slice(event);
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &str, value_bytes: usize) -> KeyValue {
        KeyValue {
            key: key.to_owned().into(),
            value: vec![b'v'; value_bytes].into(),
            mod_revision: 7,
            ..KeyValue::default()
        }
    }

    fn decode(responses: &[Bytes]) -> Vec<WatchResponse> {
        responses.iter().map(|bytes| WatchResponse::decode(bytes.clone()).unwrap()).collect()
    }

    #[test]
    fn a_response_decodes_to_what_went_in() {
        let header = ResponseHeader { revision: 9, cluster_id: 1, member_id: 2, raft_term: 3 };
        let events =
            [event(ChangeKind::Put, &kv("a", 3), None), event(ChangeKind::Delete, &kv("b", 0), Some(&kv("b", 1)))];
        let [response] = &decode(&with_events(&header, 5, &events, None))[..] else { panic!("one response") };
        assert_eq!((response.header, response.watch_id, response.events.len()), (Some(header), 5, 2));
        assert_eq!(response.events[1].prev_kv, Some(kv("b", 1)));
    }

    #[test]
    fn fragments_stay_below_the_limit_and_all_but_the_last_say_so() {
        let header = ResponseHeader::default();
        let events: Vec<Bytes> = (0..5).map(|_| event(ChangeKind::Put, &kv("a", 400), None)).collect();
        let responses = with_events(&header, 0, &events, Some(1_000));
        assert!(responses.iter().all(|response| response.len() < 1_000));
        let decoded = decode(&responses);
        assert_eq!(decoded.iter().map(|response| response.events.len()).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(decoded.iter().map(|response| response.fragment).collect::<Vec<_>>(), [true, true, false]);
    }

    #[test]
    fn an_event_larger_than_the_limit_travels_alone() {
        let events: Vec<Bytes> = [2_000, 10].map(|size| event(ChangeKind::Put, &kv("a", size), None)).into();
        let decoded = decode(&with_events(&ResponseHeader::default(), 0, &events, Some(1_000)));
        assert_eq!(decoded.iter().map(|response| response.events.len()).collect::<Vec<_>>(), [1, 1]);
    }
}
