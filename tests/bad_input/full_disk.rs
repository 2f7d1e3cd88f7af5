//! A disk that takes no more. With root a small file system is mounted; where that is not allowed the process gets a
//! bound on the size of its files instead, which fails writes in the same places.

use std::ffi::OsString;
use std::time::Duration;

use kuorum_tests::member::Member;
use kuorum_tests::small_disk::SmallDisk;
use kuorum_tests::subject::Subject;

use crate::block_on;

/// Room for one preallocated log segment of 64 MiB and some data.
const DISK_MIB: u64 = 150;
/// Below the size of any segment: the first write behind it fails.
const FILE_BYTES: u64 = 48 << 20;
/// Writes until the disk must be full.
const WRITES: usize = 800;
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// What lies on the small disk.
#[derive(Clone, Copy)]
enum Small {
    DataDirectory,
    LogAlone,
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    block_on(fills(Small::DataDirectory));
}

#[test]
fn a_full_disk_under_the_log_alone_is_said_and_loses_nothing() {
    block_on(fills(Small::LogAlone));
}

async fn fills(small: Small) {
    let subject = Subject::kuorum();
    let mut member = Member::new(&subject, &["--quota-backend-bytes=8000000000"]);
    let disk = SmallDisk::mount(member.home().join("disk"), DISK_MIB);
    match (&disk, small) {
        (Some(disk), Small::DataDirectory) => member.set_data_dir(disk.path().join("data")),
        (Some(disk), Small::LogAlone) => {
            member.flags.push(format!("--wal-dir={}", disk.path().join("wal").display()));
        }
        (None, Small::DataDirectory | Small::LogAlone) => {
            eprintln!("mounting is refused: files are bounded to {FILE_BYTES} bytes instead");
            member.wrapper = vec![OsString::from("prlimit"), format!("--fsize={FILE_BYTES}").into()];
        }
    }
    member.start();
    let acknowledged = fill(&mut member).await;
    eprintln!("{acknowledged} writes were acknowledged");
    // Refusing or stopping are both right, as long as it is said and what was promised is kept.
    if member.exited_within(Duration::from_secs(2)).is_none() {
        member.signal("TERM");
        if member.exited_within(ENDED_WITHIN).is_none() {
            panic!("a member on a full disk hangs after SIGTERM\n{}", member.log_tail());
        }
    }
    let log = member.log().to_lowercase();
    let is_said = ["no space", "full", "file too large", "file size"].iter().any(|words| log.contains(words));
    assert!(is_said || subject.is_etcd, "nobody says that the disk is full\n{}", member.log_tail());
    match &disk {
        Some(disk) => disk.resize(8 * DISK_MIB),
        None => member.wrapper.clear(),
    }
    member.start();
    let mut client = member.ready().await;
    let range = kuorum_proto::etcdserverpb::RangeRequest {
        key: bytes::Bytes::from_static(b"f"),
        range_end: bytes::Bytes::from_static(b"g"),
        count_only: true,
        ..Default::default()
    };
    let count = client.kv.range(range).await.unwrap().into_inner().count;
    assert!(count >= i64::try_from(acknowledged).unwrap(), "{count} of {acknowledged} writes are left");
    member.kill();
    // The file system must be idle before it can go.
    drop(member);
    drop(disk);
}

/// Writes until a write fails; returns how many were acknowledged. A member that does not even start has said so.
async fn fill(member: &mut Member) -> usize {
    let Ok(client) = member.ready_within(Duration::from_secs(30)).await else {
        return 0;
    };
    let mut kv = client.kv.clone();
    for number in 0..WRITES {
        let put = kuorum_proto::etcdserverpb::PutRequest {
            key: format!("f{number}").into(),
            value: vec![b'z'; 400_000].into(),
            ..Default::default()
        };
        match tokio::time::timeout(Duration::from_secs(30), kv.put(put)).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return number,
            Err(_) => panic!("a write to a full disk hangs\n{}", member.log_tail()),
        }
    }
    panic!("{WRITES} writes did not fill the disk");
}
