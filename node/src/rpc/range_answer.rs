//! The answer to a Range, encoded while it is read: a key-value is copied once, from where it lies into the bytes that
//! are sent.
//!
//! The fields stand in the order of their numbers, as encoders write them: header, kvs, more, count. Large answers come
//! in pieces, so that nothing is copied when they grow.

use bytes::{BufMut, Bytes, BytesMut};
use kuorum_proto::etcdserverpb::ResponseHeader;
use kuorum_proto::mvccpb::KeyValue;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint};

use crate::mvcc::found::{Found, RangeEnd, Sink};
use crate::mvcc::revision::Revision;

/// Field numbers of RangeResponse and KeyValue.
const HEADER: u32 = 1;
const KVS: u32 = 2;
const MORE: u32 = 3;
const COUNT: u32 = 4;
const KV_KEY: u32 = 1;
const KV_CREATE_REVISION: u32 = 2;
const KV_MOD_REVISION: u32 = 3;
const KV_VERSION: u32 = 4;
const KV_VALUE: u32 = 5;
const KV_LEASE: u32 = 6;

/// A piece is sent off at this size: larger ones gain nothing, and each costs an allocation.
const PIECE_BYTES: usize = 64 << 10;
/// Key-values up to this size are copied behind the header rather than sent as a piece of their own.
const JOINED_BYTES_MAX: usize = 4 << 10;
/// Room taken with the first key-value for what follows it, so that a single one needs no second allocation.
const END_BYTES: usize = 32;

/// Key-values as they stand in a RangeResponse.
#[derive(Default)]
pub(crate) struct EncodedKvs {
    full: Vec<Bytes>,
    last: BytesMut,
}

impl Sink for EncodedKvs {
    fn restart(&mut self) {
        *self = EncodedKvs::default();
    }

    fn push(&mut self, found: Found<'_>) {
        let numbers = numbers(&found);
        let bytes = kv_bytes(&found, &numbers);
        let needed = 1 + encoded_len_varint(bytes as u64) + bytes;
        self.make_room(needed);
        let out = &mut self.last;
        put_length(KVS, bytes, out);
        put_bytes(KV_KEY, found.key, out);
        let (before_value, after) = numbers.split_at(3);
        before_value.iter().for_each(|(field, number)| put_number(*field, *number, out));
        put_bytes(KV_VALUE, found.value, out);
        after.iter().for_each(|(field, number)| put_number(*field, *number, out));
    }
}

impl EncodedKvs {
    /// Key-values that were sorted or filtered first.
    pub(crate) fn of(kvs: &[KeyValue]) -> EncodedKvs {
        let mut encoded = EncodedKvs::default();
        for kv in kvs {
            encoded.push(Found {
                key: &kv.key,
                created: Revision(kv.create_revision),
                modified: Revision(kv.mod_revision),
                version: kv.version,
                lease: kv.lease,
                value: &kv.value,
            });
        }
        encoded
    }

    fn make_room(&mut self, bytes: usize) {
        let used = self.last.len();
        if used + bytes <= self.last.capacity() {
            return;
        }
        if used + bytes <= PIECE_BYTES {
            self.last.reserve((bytes + END_BYTES).max(used));
            return;
        }
        let next = BytesMut::with_capacity((bytes + END_BYTES).max(PIECE_BYTES));
        let full = std::mem::replace(&mut self.last, next);
        if !full.is_empty() {
            self.full.push(full.freeze());
        }
    }
}

/// A RangeResponse, encoded.
pub(crate) struct RangeAnswer {
    head: ResponseHeader,
    kvs: EncodedKvs,
    end: RangeEnd,
}

impl RangeAnswer {
    pub(crate) fn new(head: ResponseHeader, kvs: EncodedKvs, end: RangeEnd) -> RangeAnswer {
        RangeAnswer { head, kvs, end }
    }

    /// The message in pieces, behind `prefix_bytes` that are left free at the front of the first; and how long it is.
    pub(crate) fn pieces(self, prefix_bytes: usize) -> (BytesMut, Vec<Bytes>, usize) {
        let header_bytes = self.head.encoded_len();
        let joined_bytes = self.kvs.last.len().min(JOINED_BYTES_MAX);
        let mut first = BytesMut::with_capacity(prefix_bytes + header_bytes + joined_bytes + END_BYTES);
        first.put_bytes(0, prefix_bytes);
        put_length(HEADER, header_bytes, &mut first);
        self.head.encode_raw(&mut first);
        let EncodedKvs { mut full, mut last } = self.kvs;
        let end = |out: &mut BytesMut| {
            put_number(MORE, self.end.more.into(), out);
            put_number(COUNT, self.end.count.cast_unsigned(), out);
        };
        if full.is_empty() && last.len() <= JOINED_BYTES_MAX {
            first.put_slice(&last);
            end(&mut first);
        } else {
            end(&mut last);
            full.push(last.freeze());
        }
        let bytes = first.len() - prefix_bytes + full.iter().map(Bytes::len).sum::<usize>();
        (first, full, bytes)
    }
}

/// The numbers of a key-value: three before the value, one behind it.
fn numbers(found: &Found<'_>) -> [(u32, u64); 4] {
    [
        (KV_CREATE_REVISION, found.created.0.cast_unsigned()),
        (KV_MOD_REVISION, found.modified.0.cast_unsigned()),
        (KV_VERSION, found.version.cast_unsigned()),
        (KV_LEASE, found.lease.cast_unsigned()),
    ]
}

fn kv_bytes(found: &Found<'_>, numbers: &[(u32, u64)]) -> usize {
    let of_bytes = |bytes: &[u8]| match bytes.len() {
        0 => 0,
        length => 1 + encoded_len_varint(length as u64) + length,
    };
    let of_number = |(_, number): &(u32, u64)| if *number == 0 { 0 } else { 1 + encoded_len_varint(*number) };
    of_bytes(found.key) + of_bytes(found.value) + numbers.iter().map(of_number).sum::<usize>()
}

/// What is empty or zero is left out, as protobuf has it.
fn put_bytes(field: u32, bytes: &[u8], out: &mut BytesMut) {
    if !bytes.is_empty() {
        put_length(field, bytes.len(), out);
        out.put_slice(bytes);
    }
}

fn put_length(field: u32, length: usize, out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

fn put_number(field: u32, number: u64, out: &mut BytesMut) {
    if number != 0 {
        encode_key(field, WireType::Varint, out);
        encode_varint(number, out);
    }
}

#[cfg(test)]
mod tests {
    use kuorum_proto::etcdserverpb::RangeResponse;
    use proptest::prelude::*;

    use super::*;

    fn key_values() -> impl Strategy<Value = KeyValue> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        let large = prop_oneof![bytes(), (1usize..200_000).prop_map(|length| vec![7; length].into())];
        (bytes(), large, any::<(i64, i64, i64, i64)>()).prop_map(
            |(key, value, (create_revision, mod_revision, version, lease))| KeyValue {
                key,
                value,
                create_revision,
                mod_revision,
                version,
                lease,
            },
        )
    }

    proptest! {
        #[test]
        fn an_answer_is_what_the_message_would_be(
            kvs in prop::collection::vec(key_values(), 0..9),
            more: bool,
            count: i64,
            revision: i64,
        ) {
            let header = ResponseHeader { cluster_id: 1, member_id: u64::MAX, revision, raft_term: 3 };
            let message = RangeResponse { header: Some(header), kvs, more, count };
            let end = RangeEnd { more, count, revision: Revision(revision) };
            let kvs = EncodedKvs::of(&message.kvs);
            let (mut first, rest, bytes) = RangeAnswer::new(header, kvs, end).pieces(5);
            rest.iter().for_each(|piece| first.extend_from_slice(piece));
            prop_assert_eq!(&first[..5], &[0; 5]);
            prop_assert_eq!(&first[5..], &message.encode_to_vec()[..]);
            prop_assert_eq!(bytes, first.len() - 5);
        }
    }

    #[test]
    fn what_was_read_before_a_restart_is_forgotten() {
        let found = |key| Found { key, created: Revision(1), modified: Revision(1), version: 1, lease: 0, value: b"v" };
        let mut kvs = EncodedKvs::default();
        (0..1_000).for_each(|_| kvs.push(found(&[b'k'; 100])));
        kvs.restart();
        kvs.push(found(b"a"));
        assert_eq!(kvs.full.len(), 0);
        assert_eq!(&kvs.last[..], b"\x12\x0c\x0a\x01a\x10\x01\x18\x01\x20\x01\x2a\x01v");
    }
}
