//! What is refused at the peer URL, and what a member says of it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::member::Member;
use kuorum_tests::subject::Subject;

use crate::{block_on, put};

const SAID_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

fn says(member: &Member, words: &str) {
    let deadline = Deadline::after(SAID_WITHIN);
    while !member.log().contains(words) {
        assert!(!deadline.has_passed(), "never said {words:?}: {}", member.log_tail());
        std::thread::sleep(POLL);
    }
}

#[test]
fn a_member_with_another_token_is_kept_out_and_told_why() {
    block_on(async {
        let mut cluster = Cluster::new(&Subject::kuorum(), 3, &[]);
        cluster.members[2].flags.push("--initial-cluster-token=another".to_owned());
        for member in &mut cluster.members {
            member.start();
        }
        for number in 0..2 {
            cluster.members[number].ready().await;
        }
        says(&cluster.members[2], "cluster ID mismatch");
        says(&cluster.members[2], "give all members the same --initial-cluster and --initial-cluster-token");
        put(&mut cluster.client(0), "k", "v").await.unwrap();
        assert!(cluster.members[2].is_running());
    });
}

/// What a member acknowledged must not be voted away by the same member without a memory.
#[test]
fn a_member_that_lost_its_directory_is_sent_away() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let follower = cluster.follower().await;
        for number in 0..3 {
            // Each has introduced itself once the others know its name.
            put(&mut cluster.client(number), "k", "v").await.unwrap();
        }
        cluster.aligned().await;
        for member in &mut cluster.members {
            member.kill();
        }
        std::fs::remove_dir_all(cluster.members[follower].data_dir()).unwrap();
        // First alone: with the others there it would hear at once that it is known.
        cluster.members[follower].start();
        let deadline = Deadline::after(SAID_WITHIN);
        while !cluster.members[follower].log().contains("a peer can't be reached") {
            assert!(!deadline.has_passed());
            tokio::time::sleep(POLL).await;
        }
        for number in (0..3).filter(|number| *number != follower) {
            cluster.members[number].start();
        }
        let member = &mut cluster.members[follower];
        let exit = member.exited_within(SAID_WITHIN).expect("it gives up");
        assert!(!exit.success());
        let log = member.log();
        assert!(log.contains("another data directory than the one it joined with"), "{log}");
        assert!(log.contains("remove the member from the cluster and add it anew"), "{log}");
        let leader = cluster.leader().await;
        put(&mut cluster.client(leader), "k", "without it").await.unwrap();
    });
}

#[test]
fn garbage_and_silence_on_the_peer_port_harm_nobody() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        let address = |cluster: &Cluster, number: usize| format!("127.0.0.1:{}", cluster.members[number].peer_port);
        let mut silent = Vec::new();
        for number in 0..3 {
            for bytes in [
                &b"kuorum\0\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..],
                b"kuorum\0\x01\x02\0\0\0\0\0\0\0\0\0",
                b"kuorum\0\x02",
                b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
                b"GET /members HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                &[0xa5; 4096],
            ] {
                let mut connection = TcpStream::connect(address(&cluster, number)).unwrap();
                connection.write_all(bytes).unwrap();
                // Whatever is answered, the connection ends; it may have ended by now.
                drop(connection.shutdown(std::net::Shutdown::Write));
                connection.set_read_timeout(Some(SAID_WITHIN)).unwrap();
                drop(connection.read_to_end(&mut Vec::new()));
            }
            for beginning in [&b""[..], b"kuo", b"kuorum\0\x01", b"kuorum\0\x01\x24\0\0\0"] {
                let mut connection = TcpStream::connect(address(&cluster, number)).unwrap();
                connection.write_all(beginning).unwrap();
                silent.push(connection);
            }
        }
        for number in 0..3 {
            put(&mut cluster.client(number), "k", "v").await.unwrap();
        }
        cluster.aligned().await;
        drop(silent);
        for member in &mut cluster.members {
            assert!(member.is_running());
        }
    });
}

#[test]
fn a_directory_of_another_member_is_refused_at_start() {
    block_on(async {
        let mut cluster = Cluster::started(&Subject::kuorum(), 3, &[]).await;
        put(&mut cluster.client(0), "k", "v").await.unwrap();
        for member in &mut cluster.members {
            member.kill();
        }
        let theirs = cluster.members[1].data_dir().to_path_buf();
        cluster.members[0].set_data_dir(theirs);
        cluster.members[0].start();
        let exit = cluster.members[0].exited_within(SAID_WITHIN).expect("it refuses to start");
        assert!(!exit.success());
        let log = cluster.members[0].log();
        assert!(log.contains("is that of another member"), "{log}");
    });
}
