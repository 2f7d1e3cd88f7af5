//! Requests that must be refused with the exact status, after each of which the member still answers.

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::side::Side;
use kuorum_tests::subject::Subject;
use pb::request_op::Request;
use prost::Message as _;
use tonic::Code;

use crate::block_on;

/// Deep enough to break a decoder or a recursive check; prost and Go's decoder stop at 100 and 10,000 levels.
const NESTED: usize = 1_000;
/// As deep as any member takes transactions, whatever its budget of operations.
const DEEPEST: usize = 1_024;

async fn lives(side: &mut Side, after: &str) {
    let answer = side.answer("put alive 1").await;
    assert!(answer.starts_with("put rev="), "after {after}: {answer}");
    assert!(side.member.is_running(), "after {after}: the member has ended");
}

#[test]
fn refusals_have_their_status_and_the_member_lives() {
    let puts: Vec<String> = (0..129).map(|number| format!("put p{number} 1")).collect();
    let too_many = format!("txn then [{}]", puts.join("; "));
    let refusals = [
        ("put \"\" 1", "error InvalidArgument \"etcdserver: key is not provided\""),
        ("range \"\"", "error InvalidArgument \"etcdserver: key is not provided\""),
        ("delete \"\"", "error InvalidArgument \"etcdserver: key is not provided\""),
        ("put a z*1600000", "error InvalidArgument \"etcdserver: request is too large\""),
        ("range a..b sort=77/ascend", "error InvalidArgument \"etcdserver: invalid sort option\""),
        ("range a..b sort=key/-3", "error InvalidArgument \"etcdserver: invalid sort option\""),
        ("txn then [nothing]", "error InvalidArgument \"etcdserver: key not found\""),
        ("put a 1 lease=99", "error NotFound \"etcdserver: requested lease not found\""),
        ("revoke 99", "error NotFound \"etcdserver: requested lease not found\""),
        ("compact r9999", "error OutOfRange \"etcdserver: mvcc: required revision is a future revision\""),
        (too_many.as_str(), "error InvalidArgument \"etcdserver: too many operations in txn request\""),
    ];
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        for (request, refusal) in refusals {
            assert_eq!(side.answer(request).await, refusal, "{request}");
            lives(&mut side, request).await;
        }
        let message = side.answer("put a z*3000000").await;
        assert!(message.starts_with("error ResourceExhausted \"grpc: received message larger than max ("), "{message}");
        assert!(message.ends_with("vs. 2097152)\""), "{message}");
        lives(&mut side, "a message of 3 MB").await;
    });
}

#[test]
fn unknown_enum_values_are_survived() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        let mut requests = vec![
            "txn if [9:version a = 1]",
            "txn if [version a 9 1]",
            "watch S1 a filter=77",
            "alarm activate 9 own",
            "alarm deactivate 9 own",
            "downgrade 9 3.6.0",
        ];
        if !side.member.subject.is_etcd {
            // Case 18: this one kills etcd 3.7.3.
            requests.push("alarm 9 none 0");
        }
        for request in requests {
            let answer = side.answer(request).await;
            assert!(!answer.starts_with("no answer"), "{request}: {answer}");
            lives(&mut side, request).await;
        }
    });
}

#[test]
fn a_thousand_nested_txns_are_survived() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        let mut txn = pb::TxnRequest::default();
        for _ in 0..NESTED {
            txn = pb::TxnRequest {
                success: vec![pb::RequestOp { request: Some(Request::RequestTxn(txn)) }],
                ..pb::TxnRequest::default()
            };
        }
        let answer = side.client.kv.clone().txn(txn).await;
        if let Err(status) = answer {
            let is_refusal = matches!(status.code(), Code::InvalidArgument | Code::Internal | Code::ResourceExhausted);
            assert!(is_refusal, "{status:?}");
        }
        lives(&mut side, "nested txns").await;
    });
}

/// Puts at every level, so that each level of the answer has something to say too.
fn nested_puts(levels: usize) -> pb::TxnRequest {
    let mut txn = pb::TxnRequest::default();
    for level in 0..levels {
        let put = pb::PutRequest { key: level.to_string().into(), ..pb::PutRequest::default() };
        let mut success = vec![pb::RequestOp { request: Some(Request::RequestPut(put)) }];
        if level > 0 {
            success.push(pb::RequestOp { request: Some(Request::RequestTxn(txn)) });
        }
        txn = pb::TxnRequest { success, ..pb::TxnRequest::default() };
    }
    txn
}

#[test]
fn the_deepest_txn_that_is_admitted_is_carried_out_and_replayed() {
    // Encoding recurses here as it does in the member, and a test's thread has a small stack.
    let test = || {
        block_on(async {
            let mut side = Side::started(&Subject::kuorum(), &["--max-txn-ops=5000"]).await;
            let mut client = tonic::client::Grpc::new(side.client.channel.clone());
            client.ready().await.unwrap();
            let path = tonic::codegen::http::uri::PathAndQuery::from_static("/etcdserverpb.KV/Txn");
            // Raw, since this side's decoder stops at a hundred levels.
            let request = tonic::Request::new(Bytes::from(nested_puts(DEEPEST).encode_to_vec()));
            client.unary(request, path, raw::RawCodec).await.unwrap();
            let written = format!("count={DEEPEST}");
            assert!(side.answer("range 0..a count_only").await.contains(&written));
            // Too soon for the store to be durable, so that the log is replayed.
            side.restart().await;
            assert!(side.answer("range 0..a count_only").await.contains(&written));
        });
    };
    std::thread::Builder::new().stack_size(64 << 20).spawn(test).unwrap().join().unwrap();
}

#[test]
fn a_body_that_is_no_message_is_refused() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        // The path of a put, the body of something else: a field 1 that claims more bytes than there are.
        let mut client = tonic::client::Grpc::new(side.client.channel.clone());
        client.ready().await.unwrap();
        let codec = raw::RawCodec;
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/etcdserverpb.KV/Put");
        let request = tonic::Request::new(Bytes::from_static(b"\x0a\xff\xff\x01x"));
        let answer = client.unary(request, path, codec).await;
        let status = answer.expect_err("a broken message is refused");
        assert_eq!(status.code(), Code::Internal, "{status:?}");
        lives(&mut side, "a broken message").await;
    });
}

#[test]
fn an_unknown_method_is_unimplemented() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        for path in ["/etcdserverpb.KV/Frobnicate", "/no.such.Service/Put"] {
            let mut client = tonic::client::Grpc::new(side.client.channel.clone());
            client.ready().await.unwrap();
            let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
            let request = tonic::Request::new(Bytes::new());
            let status = client.unary(request, path, raw::RawCodec).await.expect_err("no such method");
            assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
        }
        lives(&mut side, "unknown methods").await;
    });
}

/// Bytes on the wire as they are.
mod raw {
    use bytes::{Buf, BufMut, Bytes};
    use tonic::Status;
    use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

    #[derive(Clone, Copy, Default)]
    pub(super) struct RawCodec;

    impl Codec for RawCodec {
        type Encode = Bytes;
        type Decode = Bytes;
        type Encoder = RawCodec;
        type Decoder = RawCodec;

        fn encoder(&mut self) -> RawCodec {
            RawCodec
        }

        fn decoder(&mut self) -> RawCodec {
            RawCodec
        }
    }

    impl Encoder for RawCodec {
        type Item = Bytes;
        type Error = Status;

        fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
            buffer.put(item);
            Ok(())
        }
    }

    impl Decoder for RawCodec {
        type Item = Bytes;
        type Error = Status;

        fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
            Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
        }
    }
}
