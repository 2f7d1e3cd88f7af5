//! What must look the same before and after a restart: leases, alarms, compactions, members, and the way a member
//! stops.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use kuorum_tests::member::Member;
use kuorum_tests::side::Side;
use kuorum_tests::subject::Subject;

use crate::block_on;

/// A stop that takes longer hangs.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
const SIGTERM: i32 = 15;
/// Puts until a quota of 8 MiB must be full, whatever the store adds to a byte.
const QUOTA_PUTS: usize = 60;

/// Answers to `questions`, one a line.
async fn answers(side: &mut Side, questions: &[&str]) -> Vec<String> {
    let mut answers = Vec::new();
    for question in questions {
        answers.push(format!("{question}: {}", side.answer(question).await));
    }
    answers
}

async fn prepare(side: &mut Side, lines: &[&str]) {
    for line in lines {
        let answer = side.answer(line).await;
        assert!(!answer.starts_with("error"), "{line}: {answer}");
    }
}

/// Asks before and after a kill; both times the same must be said.
async fn same_after_restart(side: &mut Side, questions: &[&str]) {
    let before = answers(side, questions).await;
    side.restart().await;
    let after = answers(side, questions).await;
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before, after, "before and after a restart");
    }
}

#[test]
fn leases_survive_with_their_keys() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        prepare(
            &mut side,
            &[
                "grant L1 ttl=600",
                "grant L2 ttl=700",
                "put a 1 lease=L1",
                "put b 1 lease=L1",
                "put c 1 lease=L2",
                "put b 2",
            ],
        )
        .await;
        let questions = ["leases", "ttl L1 keys", "ttl L2 keys", "ttl L3 keys", "range a..d", "keepalive L1"];
        same_after_restart(&mut side, &questions).await;
        assert_eq!(side.answer("revoke L1").await, "revoke rev=r5");
        assert_eq!(side.answer("range a").await, "range rev=r5 count=0 []");
    });
}

#[test]
fn a_lease_still_expires_after_a_restart() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        prepare(&mut side, &["grant L1 ttl=3", "put a 1 lease=L1"]).await;
        side.restart().await;
        prepare(&mut side, &["watch S1 a rev=r2"]).await;
        let deadline = kuorum_tests::clock::Deadline::after(Duration::from_secs(30));
        while side.events("S1") == "no events" && !deadline.has_passed() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(side.events("S1"), "watch 0 DELETE a m=r2");
    });
}

#[test]
fn alarms_survive_and_still_refuse() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        prepare(&mut side, &["put a 1", "alarm activate nospace own"]).await;
        let questions = ["alarm get none 0", "put b 1", "range a", "grant L1 ttl=60", "status"];
        same_after_restart(&mut side, &questions).await;
        prepare(&mut side, &["alarm deactivate nospace own", "put b 1"]).await;
        same_after_restart(&mut side, &["alarm get none 0", "range a..c"]).await;
    });
}

#[test]
fn compactions_survive() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        prepare(&mut side, &["put a 1", "put b 1", "put a 2", "delete b", "put a 3", "compact r4 physical"]).await;
        let questions = [
            "range a rev=r3",
            "range a..c rev=r4",
            "compact r4",
            "compact r2",
            "compact r99",
            "hashkv",
            "hashkv r4",
            "hashkv r3",
            "range a..c",
        ];
        // The hash of the compacted revision itself is remembered by the process that compacted, in etcd too.
        let kept: Vec<&str> = questions.iter().copied().filter(|line| *line != "hashkv r4").collect();
        same_after_restart(&mut side, &kept).await;
        assert_eq!(side.answer("watch S1 b rev=r4").await, "watch 0 rev=r5 created");
        prepare(&mut side, &["wait 300"]).await;
        assert_eq!(side.events("S1"), "watch 0 DELETE b m=r4");
        assert_eq!(side.answer("watch S1 b rev=r3").await, "watch 1 rev=r5 created");
        prepare(&mut side, &["wait 300"]).await;
        assert!(side.events("S1").ends_with("watch 1 watch 1 rev=0 canceled compacted=r4"));
    });
}

/// Case 42: the quota raises the alarm, the alarm sticks, and only disarming frees the store.
#[test]
fn a_full_quota_raises_an_alarm_that_only_disarming_clears() {
    const REFUSED: &str = "error ResourceExhausted \"etcdserver: mvcc: database space exceeded\"";
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &["--quota-backend-bytes", "8388608"]).await;
        prepare(&mut side, &["grant L1 ttl=600", "put small s", "put leased x lease=L1"]).await;
        let mut last = String::new();
        for number in 0..QUOTA_PUTS {
            last = side.answer(&format!("put big{} z*400000", number % 4)).await;
            if last.starts_with("error") {
                break;
            }
        }
        assert_eq!(last, REFUSED, "after {QUOTA_PUTS} puts at most");
        assert!(side.answer("alarm get none 0").await.ends_with("[nospace own]"));
        for refused in ["put t 1", "txn then [put q 1]", "txn then [txn then [put q 1]]", "grant L2 ttl=60"] {
            assert_eq!(side.answer(refused).await, REFUSED, "{refused}");
        }
        prepare(
            &mut side,
            &[
                "range small",
                "txn then [range small]",
                "delete small",
                "txn if [version leased > 0] then [delete big3]",
                "keepalive L1",
                "revoke L1",
                "watch S1 a",
                "compact h physical",
                "defragment",
            ],
        )
        .await;
        assert_eq!(side.answer("put t 1").await, REFUSED, "the alarm sticks");
        same_after_restart(&mut side, &["alarm get none 0", "put t 1"]).await;
        prepare(&mut side, &["alarm deactivate nospace own", "put t 1"]).await;
    });
}

#[test]
fn a_full_quota_is_free_again_without_a_restart() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &["--quota-backend-bytes", "8388608"]).await;
        // More often than once: what was freed can be used.
        for _ in 0..3 {
            let mut number = 0;
            while !side.answer("put big z*400000").await.starts_with("error") {
                number += 1;
                assert!(number <= QUOTA_PUTS, "no alarm");
            }
            assert!(number > 5, "{number} puts");
            prepare(
                &mut side,
                &["compact h physical", "defragment", "alarm deactivate nospace own", "wait 300", "put t 1"],
            )
            .await;
        }
    });
}

#[test]
fn sigterm_stops_cleanly() {
    block_on(async {
        let mut side = Side::started(&Subject::kuorum(), &[]).await;
        prepare(&mut side, &["put a 1", "watch S1 a"]).await;
        let is_etcd = side.member.subject.is_etcd;
        side.member.signal("TERM");
        let status = side.member.exited_within(STOPPED_WITHIN);
        let status = status.unwrap_or_else(|| panic!("hangs after SIGTERM\n{}", side.member.log_tail()));
        // etcd ends itself with the signal once it has stopped.
        let is_clean = status.success() || (is_etcd && status.signal() == Some(SIGTERM));
        assert!(is_clean, "SIGTERM ended with {status}");
        side.restart().await;
        assert_eq!(side.answer("range a").await, "range rev=r1 count=1 [a=1 c=r1 m=r1 v=1]");
    });
}

#[test]
fn a_member_killed_before_its_first_write_starts_again() {
    block_on(async {
        for round in 0..20 {
            let mut member = Member::new(&Subject::kuorum(), &[]);
            // Each round meets the making of the directory at another place.
            for kill in 0..3 {
                member.start();
                tokio::time::sleep(Duration::from_millis(3 * round + 10 * kill)).await;
                member.kill();
            }
            member.start();
            member.ready().await;
        }
    });
}
