//! Members that talk over loopback, and whoever else calls the peer URL.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Mutex;

use super::*;
use crate::cluster::{Change, ClusterId, Member};

const PATIENCE: Duration = Duration::from_secs(30);

/// What an inlet is told, in words.
struct Heard(Mutex<Vec<String>>, crossbeam_channel::Sender<String>);

impl Heard {
    fn new() -> (Arc<Heard>, crossbeam_channel::Receiver<String>) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        (Arc::new(Heard(Mutex::default(), sender)), receiver)
    }

    fn note(&self, words: String) {
        self.0.lock().unwrap().push(words.clone());
        self.1.send(words).ok();
    }
}

impl Inlet for Heard {
    fn frame(&self, from: MemberId, kind: Kind, payload: &[u8]) -> Result<(), String> {
        if payload == b"nonsense" {
            return Err("nonsense".to_owned());
        }
        self.note(format!("{from} {kind:?} {}", String::from_utf8_lossy(payload)));
        Ok(())
    }

    fn unsent(&self, to: MemberId, kind: Kind, payload: &[u8]) {
        self.note(format!("unsent {to} {kind:?} {}", String::from_utf8_lossy(payload)));
    }

    fn converse(&self, from: MemberId, mut connection: Conversation) {
        while let Ok((kind, payload)) = connection.receive(PATIENCE) {
            self.note(format!("{from} {kind:?} {}", String::from_utf8_lossy(payload)));
            if kind == Kind::End {
                return connection.refuse("no, thank you");
            }
        }
    }

    fn lost(&self, member: MemberId) {
        self.note(format!("lost {member}"));
    }

    fn unheard(&self, member: MemberId) {
        self.note(format!("unheard {member}"));
    }

    fn refused(&self, by: MemberId, reason: Reason, _: &str) {
        self.note(format!("refused by {by}: {reason:?}"));
    }
}

/// One end: its connections, what it hears, and the thread that accepts for it.
struct End {
    peers: Peers,
    members: Members,
    heard: crossbeam_channel::Receiver<String>,
    url: String,
}

fn member(id: u64, url: &str, data_dir: u64) -> Member {
    Member {
        id: MemberId(id),
        name: String::new(),
        peer_urls: vec![url.to_owned()],
        client_urls: Vec::new(),
        is_learner: false,
        data_dir,
    }
}

impl End {
    fn new(cluster: u64, id: u64, data_dir: u64, listener: TcpListener, members: &Members) -> End {
        let (inlet, heard) = Heard::new();
        let identity = Identity { cluster_id: ClusterId(cluster), member_id: MemberId(id) };
        let url = format!("http://{}", listener.local_addr().unwrap());
        let peers = Peers::new(identity, data_dir, vec![url.clone()], members.clone(), inlet);
        std::thread::spawn({
            let peers = peers.clone();
            // Ends with the process: a test has no use for the thread's end.
            move || listener.incoming().for_each(|connection| peers.accept(connection.unwrap(), ()))
        });
        End { peers, members: members.clone(), heard, url }
    }

    fn send(&self, to: u64, words: &str) -> bool {
        let write = |out: &mut Vec<u8>| out.extend_from_slice(words.as_bytes());
        self.peers.send(MemberId(to), Stream::Messages, false, Kind::Message, write)
    }

    /// Waits until this is heard.
    fn hears(&self, words: &str) {
        let mut others = Vec::new();
        while let Ok(heard) = self.heard.recv_timeout(PATIENCE) {
            if heard == words {
                return;
            }
            others.push(heard);
        }
        panic!("never heard {words:?}, but {others:?}");
    }
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Members 1 and 2 of one cluster; 2 says that its data directory is `data_dir`, and 1 knows it by 7.
fn pair(clusters: [u64; 2], data_dir: u64) -> [End; 2] {
    let ((first, first_url), (second, second_url)) = (listener(), listener());
    let members = Members::new(vec![member(1, &first_url, 0), member(2, &second_url, 7)]);
    let ends = [End::new(clusters[0], 1, 6, first, &members), End::new(clusters[1], 2, data_dir, second, &members)];
    for end in &ends {
        end.peers.follow_members().unwrap();
    }
    ends
}

#[test]
fn members_hear_each_other_in_order_and_urgent_words_first() {
    let [first, second] = pair([5, 5], 7);
    for number in 0..1_000 {
        assert!(first.send(2, &number.to_string()));
    }
    for number in 0..1_000 {
        second.hears(&format!("1 Message {number}"));
    }
    second.send(1, "back");
    first.hears("2 Message back");
    assert!(!first.send(3, "nobody"));
}

#[test]
fn a_member_that_comes_back_is_found_again() {
    let [first, second] = pair([5, 5], 7);
    first.send(2, "before");
    second.hears("1 Message before");
    second.peers.stop();
    first.hears("unheard 2");
    first.hears("lost 2");
    // Another process at the same place.
    let (other, other_url) = listener();
    let second = End::new(5, 2, 7, other, &Members::new(Vec::new()));
    first.members.change(&Change::Update { id: MemberId(2), peer_urls: vec![other_url] }).unwrap();
    first.peers.follow_members().unwrap();
    loop {
        first.send(2, "after");
        if second.heard.recv_timeout(Duration::from_millis(50)).is_ok_and(|heard| heard == "1 Message after") {
            break;
        }
    }
}

#[test]
fn strangers_and_members_with_another_directory_are_refused_with_a_reason() {
    let [first, second] = pair([5, 6], 7);
    first.hears("refused by 2: Stranger");
    second.hears("refused by 1: Stranger");
    let [_first, second] = pair([5, 5], 8);
    second.hears("refused by 1: Wiped");
}

#[test]
fn a_caller_that_is_not_known_yet_is_answered_where_it_says_that_it_is() {
    let ((first, first_url), (second, second_url)) = (listener(), listener());
    let known = Members::new(vec![member(1, &first_url, 0), member(2, &second_url, 0)]);
    let first = End::new(5, 1, 6, first, &known);
    let second = End::new(5, 2, 7, second, &Members::new(Vec::new()));
    assert!(!second.send(1, "nobody has called yet"));
    first.peers.follow_members().unwrap();
    first.send(2, "welcome");
    second.hears("1 Message welcome");
    second.send(1, "thanks");
    first.hears("2 Message thanks");
    assert!(first.peers.connected_for(MemberId(2)).is_some());
    // Its log tells of others, but not yet of the one that calls.
    second.members.put(member(2, &second.url, 0));
    second.peers.follow_members().unwrap();
    second.send(1, "still here");
    first.hears("2 Message still here");
    second.members.put(member(1, &first.url, 0));
    second.members.change(&Change::Remove(MemberId(1))).unwrap();
    second.peers.follow_members().unwrap();
    assert!(!second.send(1, "gone"));
    first.hears("refused by 2: Removed");
}

#[test]
fn a_transfer_has_a_connection_of_its_own_and_both_sides_speak_on_it() {
    let [first, second] = pair([5, 5], 7);
    let mut transfer = first.peers.converse(MemberId(2)).unwrap();
    transfer.send(Kind::Rows, |out| out.extend_from_slice(b"row")).unwrap();
    second.hears("1 Rows row");
    first.send(2, "meanwhile");
    second.hears("1 Message meanwhile");
    transfer.send(Kind::End, |_| ()).unwrap();
    assert_eq!(transfer.receive(PATIENCE).unwrap(), (Kind::Refused, &b"no, thank you"[..]));
    assert!(first.peers.converse(MemberId(3)).is_err());
}

#[test]
fn refusals_say_what_to_do() {
    let members = Members::new(vec![member(1, "", 0), member(2, "", 7)]);
    let identity = Identity { cluster_id: ClusterId(5), member_id: MemberId(1) };
    let hello = |cluster, from, to, data_dir| Hello {
        stream: Stream::Messages,
        cluster: ClusterId(cluster),
        from: MemberId(from),
        to: MemberId(to),
        data_dir,
        peer_urls: Vec::new(),
    };
    members.put(member(4, "", 0));
    members.change(&Change::Remove(MemberId(4))).unwrap();
    let says = |hello: &Hello| check(identity, &members, hello).err().map(|(_, sentence)| sentence);
    assert_eq!(says(&hello(5, 2, 1, 7)), None);
    assert_eq!(says(&hello(5, 2, 1, 0)), None, "a directory of an older version");
    assert_eq!(says(&hello(5, 9, 1, 7)), None, "a member that was added while this one was away");
    for (hello, words) in [
        (hello(6, 2, 1, 7), "give all members the same --initial-cluster and --initial-cluster-token"),
        (hello(5, 2, 3, 7), "but here is member 1; correct its peer URL"),
        (hello(5, 4, 1, 7), "member 4 has been permanently removed from cluster 5"),
        (hello(5, 2, 1, 8), "remove the member from the cluster and add it anew"),
    ] {
        let sentence = says(&hello).unwrap();
        assert!(sentence.contains(words), "{sentence}");
    }
}

#[test]
fn garbage_ends_its_own_connection_and_no_other() {
    let [first, second] = pair([5, 5], 7);
    first.send(2, "before");
    second.hears("1 Message before");
    let address = second.url.strip_prefix("http://").unwrap();
    let mut hello = MAGIC.to_vec();
    frame::write(&mut hello, Kind::Ping, |_| ());
    let mut nonsense = MAGIC.to_vec();
    let (cluster, from, to) = (ClusterId(5), MemberId(1), MemberId(2));
    let greeting = Hello { stream: Stream::Requests, cluster, from, to, data_dir: 6, peer_urls: Vec::new() };
    frame::write(&mut nonsense, Kind::Hello, |out| greeting.encode(out));
    frame::write(&mut nonsense, Kind::Message, |out| out.extend_from_slice(b"nonsense"));
    for bytes in [&MAGIC[..], &[MAGIC, [0xff; 8]].concat(), &hello, &nonsense] {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(bytes).unwrap();
        let shut = connection.shutdown(std::net::Shutdown::Write);
        // Where the other side was quicker.
        assert!(shut.is_ok() || shut.is_err_and(|error| error.kind() == std::io::ErrorKind::NotConnected));
        // Closed by the other side, perhaps after a refusal or a welcome.
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let ended = connection.read_to_end(&mut Vec::new());
        assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    }
    first.send(2, "after");
    second.hears("1 Message after");
}

#[test]
fn a_request_that_can_not_be_sent_is_given_back() {
    let (listener, url) = listener();
    let (gone, gone_url) = (TcpListener::bind("127.0.0.1:0").unwrap(), String::new());
    let gone_url = gone_url + "http://" + &gone.local_addr().unwrap().to_string();
    drop(gone);
    let members = Members::new(vec![member(1, &url, 0), member(2, &gone_url, 7)]);
    let end = End::new(5, 1, 6, listener, &members);
    end.peers.follow_members().unwrap();
    let sent = end.peers.send(MemberId(2), Stream::Requests, false, Kind::Forward, |_| ());
    assert!(!sent, "there is no connection");
    assert!(end.send(2, "raft may lose this"));
    end.hears("unsent 2 Message raft may lose this");
    end.hears("lost 2");
}
