//! What arrives on the client port without being gRPC.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use kuorum_tests::random::Random;
use kuorum_tests::side::Side;
use kuorum_tests::subject::Subject;

use crate::block_on;

const IDLE_CONNECTIONS: usize = 1_000;
/// How long an answer to junk is awaited; none is fine too.
const ANSWER_WAIT: Duration = Duration::from_millis(300);
const SEED: u64 = 20_260_801;

fn connect(side: &Side) -> TcpStream {
    let stream = TcpStream::connect(side.member.endpoint()).expect("the port takes connections");
    stream.set_read_timeout(Some(ANSWER_WAIT)).expect("a timeout can be set");
    stream.set_write_timeout(Some(ANSWER_WAIT)).expect("a timeout can be set");
    stream
}

/// Sends bytes and reads what comes back, if anything. The member may close the connection at any moment.
fn send(side: &Side, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(side);
    let mut answer = Vec::new();
    if stream.write_all(bytes).is_ok() {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            answer.extend_from_slice(&buffer[..count]);
            if answer.len() > 1 << 20 {
                break;
            }
        }
    }
    answer
}

async fn lives(side: &mut Side, after: &str) {
    let answer = side.answer("put alive 1").await;
    assert!(answer.starts_with("put rev="), "after {after}: {answer}");
}

#[test]
fn garbage_on_the_client_port_is_survived() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        let mut random = Random::new(SEED);
        for length in [1_usize, 3, 24, 100, 1_000, 65_536] {
            let garbage: Vec<u8> = (0..length).map(|_| (random.number() & 0xff) as u8).collect();
            send(&side, &garbage);
        }
        // An HTTP/2 preface, then nonsense in place of frames; and frames that claim the longest length.
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        send(&side, &[preface.as_slice(), &[0xff; 200]].concat());
        send(&side, &[preface.as_slice(), &[0xff, 0xff, 0xff, 0x01, 0x05, 0, 0, 0, 1]].concat());
        // A TLS hello where no TLS is spoken.
        send(&side, &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03]);
        lives(&mut side, "garbage").await;
    });
}

#[test]
fn http_1_junk_is_answered_with_an_error() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        let status = |answer: Vec<u8>| String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
        let missing = status(send(&side, b"GET /no/such/page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert!(missing.contains(" 404"), "{missing}");
        let refused = status(send(&side, b"DELETE /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert!(refused.contains(" 405"), "{refused}");
        let healthy = status(send(&side, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert!(healthy.contains(" 200"), "{healthy}");
        for junk in [
            b"GET /health HTTP/9.9\r\n\r\n".as_slice(),
            b"NONSENSE\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\nConnection: close\r\n\r\nnotjson",
        ] {
            send(&side, junk);
        }
        let long_header = format!("GET /health HTTP/1.1\r\nX: {}\r\n\r\n", "y".repeat(2 << 20));
        send(&side, long_header.as_bytes());
        lives(&mut side, "HTTP/1 junk").await;
    });
}

#[test]
fn a_thousand_idle_connections_are_held() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        let idle: Vec<TcpStream> = (0..IDLE_CONNECTIONS).map(|_| connect(&side)).collect();
        lives(&mut side, "idle connections were opened").await;
        drop(idle);
        lives(&mut side, "idle connections were closed").await;
    });
}
