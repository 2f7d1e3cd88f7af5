//! Damage to the log (case 55; etcd#15069, #16596, #11488, #5230).
//!
//! A torn tail is what a power cut leaves: the member starts without the torn record. Damage with valid records behind
//! it is corruption: the member refuses to start and says where, and never serves without what is missing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_tests::client::Client;
use kuorum_tests::member::Member;
use kuorum_tests::subject::Subject;

use crate::block_on;

const KEYS: i64 = 100;
/// Disks tear at sectors.
const SECTOR: usize = 512;
/// A refusal that takes longer hangs.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

/// A killed member that had acknowledged a hundred puts, with its newest log segment.
async fn killed_member() -> (Member, PathBuf) {
    let mut member = Member::started(&Subject::kuorum(), &[]).await;
    let mut client = member.ready().await;
    for number in 0..KEYS {
        put(&mut client, &format!("k{number:03}"), &"v".repeat(200)).await;
    }
    member.kill();
    let segment = newest_segment(&member.data_dir().join("member").join("wal"));
    (member, segment)
}

async fn put(client: &mut Client, key: &str, value: &str) {
    let put = pb::PutRequest {
        key: Bytes::from(key.to_owned()),
        value: Bytes::from(value.to_owned()),
        ..pb::PutRequest::default()
    };
    client.kv.put(put).await.expect("a ready member takes a put");
}

async fn count(client: &mut Client) -> i64 {
    let range = pb::RangeRequest {
        key: Bytes::from_static(b"k"),
        range_end: Bytes::from_static(b"l"),
        count_only: true,
        ..pb::RangeRequest::default()
    };
    client.kv.range(range).await.expect("a ready member reads").into_inner().count
}

/// The segment written last. Those kept ready for later hold no entry.
fn newest_segment(directory: &Path) -> PathBuf {
    let mut segments: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wal"))
        .collect();
    segments.sort();
    segments.pop().unwrap_or_else(|| panic!("no segment in {}", directory.display()))
}

/// The end of what was written: segments are allocated ahead and zero behind it.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Zeroes the segment from `cut` on and starts the member on what is left.
async fn start_torn(member: &mut Member, segment: &Path, cut: impl Fn(usize) -> usize) -> Result<Client, String> {
    let mut bytes = std::fs::read(segment).unwrap();
    let end = used(&bytes);
    bytes[cut(end)..end].fill(0);
    std::fs::write(segment, &bytes).unwrap();
    member.start();
    member.ready_within(Duration::from_secs(60)).await
}

#[test]
fn a_tail_torn_at_a_sector_is_cut_off() {
    block_on(async {
        let (mut member, segment) = killed_member().await;
        let client = start_torn(&mut member, &segment, |end| (end - 1) / SECTOR * SECTOR).await;
        let mut client = client.unwrap_or_else(|problem| panic!("torn tail: {problem}"));
        // A sector holds two of these records and a part of a third.
        let left = count(&mut client).await;
        assert!(left >= KEYS - 3, "{left} of {KEYS} keys are left");
        put(&mut client, "z", "1").await;
    });
}

/// etcd refuses a tail that was not torn at a sector; Kuorum loses the torn record and nothing else.
#[test]
fn a_tail_torn_anywhere_is_cut_off() {
    block_on(async {
        let (mut member, segment) = killed_member().await;
        let client = start_torn(&mut member, &segment, |end| end - 60).await;
        if member.subject.is_etcd {
            assert!(client.is_err(), "etcd has learned to start on a torn tail");
            return;
        }
        let mut client = client.unwrap_or_else(|problem| panic!("torn tail: {problem}"));
        let left = count(&mut client).await;
        assert!(left >= KEYS - 1, "{left} of {KEYS} keys are left");
        put(&mut client, "z", "1").await;
        // What was written after the cut is read back as well.
        member.kill();
        member.start();
        let mut client = member.ready().await;
        assert_eq!(count(&mut client).await, left);
    });
}

#[test]
fn a_flipped_bit_in_the_middle_is_refused() {
    block_on(async {
        let (mut member, segment) = killed_member().await;
        let mut bytes = std::fs::read(&segment).unwrap();
        let position = bytes.windows(4).position(|window| window == b"k050").expect("the log holds keys as they are");
        bytes[position + 20] ^= 0xff;
        std::fs::write(&segment, &bytes).unwrap();
        member.start();
        match member.ready_within(REFUSED_WITHIN).await {
            // Repaired from another copy: then nothing may be missing.
            Ok(mut client) => assert_eq!(count(&mut client).await, KEYS),
            Err(_) => {
                let status = member.exited_within(REFUSED_WITHIN);
                let status = status.expect("a member with a corrupt log hangs instead of refusing");
                assert!(!status.success(), "a corrupt log ended with {status}");
                if !member.subject.is_etcd {
                    let name = segment.file_name().unwrap().to_string_lossy().into_owned();
                    assert!(member.log().contains(&name), "the refusal does not name {name}");
                }
            }
        }
    });
}
