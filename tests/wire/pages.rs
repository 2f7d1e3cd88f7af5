//! The pages that probes and other members read, compared with etcd's.

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use kuorum_tests::clock::Deadline;
use kuorum_tests::member::Member;
use kuorum_tests::subject::Subject;

use crate::block_on;

/// Ids have more digits than this; versions, codes and lengths have fewer.
const ID_DIGITS_MIN: usize = 12;
/// etcd that has not decided on its versions by then never will, and the comparison says so.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// What both sides must agree on: the status line, the headers that say something, the body.
fn page(member: &Member, port: u16, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (head, body) = read(&mut BufReader::new(stream));
    let mut headers: Vec<String> = head.lines().skip(1).map(str::to_lowercase).collect();
    headers.retain(|header| {
        let name = header.split(':').next().unwrap_or_default();
        ["content-type", "allow", "x-content-type-options", "x-etcd-cluster-id"].contains(&name)
    });
    headers.sort();
    let status = head.lines().next().unwrap_or_default();
    // etcd lists its checks in the order of a Go map.
    let mut body: Vec<&str> = body.lines().collect();
    body.sort_unstable();
    let text = format!("{status}\n{}\n\n{}", headers.join("\n"), body.join("\n"));
    let text = text.replace(&format!(":{}", member.client_port), ":CLIENT");
    without_ids(&text.replace(&format!(":{}", member.peer_port), ":PEER"))
}

/// Head and body. By the announced length: etcd takes five seconds to close a connection on its peer port.
fn read(stream: &mut impl BufRead) -> (String, String) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(stream.read_line(&mut head).expect("a head is text"), 0, "no whole head: {head:?}");
    }
    let lower = head.to_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("an answer has a length");
    let mut body = vec![0; length.parse().expect("a length is a number")];
    stream.read_exact(&mut body).expect("a body is as long as its head says");
    (head.trim_end().to_owned(), String::from_utf8(body).expect("a body is text"))
}

/// Numbers of an id's length, decimal or hexadecimal, differ between members.
fn without_ids(text: &str) -> String {
    let mut out = String::new();
    let mut digits = String::new();
    for letter in text.chars().chain(['\n']) {
        if letter.is_ascii_hexdigit() {
            digits.push(letter);
            continue;
        }
        let is_id = digits.len() >= ID_DIGITS_MIN;
        out.push_str(if is_id { "ID" } else { &digits });
        out.push(letter);
        digits.clear();
    }
    out
}

#[test]
fn ids_alone_are_hidden() {
    assert_eq!(without_ids(r#"{"id":5485004264193368478,"v":"3.7.0"}"#), "{\"id\":ID,\"v\":\"3.7.0\"}\n");
    assert_ne!(without_ids("HTTP/1.1 200"), without_ids("HTTP/1.1 404"));
}

#[test]
fn pages_are_those_of_etcd() {
    let client = ["/health", "/livez", "/readyz", "/readyz?verbose", "/livez/serializable_read", "/version", "/foo"];
    let peer = ["/members", "/version", "/health", "/metrics", "/foo"];
    block_on(async {
        let kuorum = Member::started(&Subject::kuorum(), &[]).await;
        let etcd = Member::started(&Subject::etcd(), &[]).await;
        // It raises the version of its storage a moment after it has started.
        let deadline = Deadline::after(SETTLED_WITHIN);
        while !page(&etcd, etcd.client_port, "GET /version").contains(r#""storage":"3.7.0""#) && !deadline.has_passed()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for method in ["GET", "POST"] {
            for path in client {
                let request = format!("{method} {path}");
                let of = |member: &Member| page(member, member.client_port, &request);
                assert_eq!(of(&kuorum), of(&etcd), "{request} on a client URL");
            }
            for path in peer {
                let request = format!("{method} {path}");
                let of = |member: &Member| page(member, member.peer_port, &request);
                assert_eq!(of(&kuorum), of(&etcd), "{request} on a peer URL");
            }
        }
    });
}
