//! The comparison is itself tested: between two real etcds it sees nothing, and one falsified answer it sees and
//! shrinks.

use kuorum_tests::generate;
use kuorum_tests::lockstep::Pair;
use kuorum_tests::script::Script;
use kuorum_tests::shrink::{cut, shrink};
use kuorum_tests::subject::Subject;

use crate::block_on;

fn script() -> Vec<String> {
    let mut lines = generate::lines(1, 150);
    // The falsified answer: a put that says what was there before.
    lines.push("put doctored 1".to_owned());
    lines.push("range d..e".to_owned());
    lines.push("put doctored 2 prev".to_owned());
    lines.extend(generate::lines(2, 50));
    lines
}

#[test]
fn two_etcds_show_no_difference() {
    block_on(async {
        let lines = script();
        let script = Script::of_lines("two etcds", lines.iter().map(String::as_str));
        let mut pair = Pair::started(&Subject::etcd(), &[]).await;
        pair.run(&script).await.unwrap();
    });
}

#[test]
fn a_falsified_answer_is_seen_and_shrunk() {
    block_on(async {
        let lines = script();
        let script = Script::of_lines("doctored", lines.iter().map(String::as_str));
        let etcd = Subject::etcd();
        let doctor = |text: &str| text.replace("prev [doctored=1", "prev [doctored=7");
        let mut pair = Pair::started(&etcd, &[]).await;
        pair.subject.doctor = Some(doctor);
        let difference = pair.run(&script).await.unwrap_err();
        assert_eq!(difference.line, "put doctored 2 prev");
        drop(pair);
        let ending = cut(lines, difference);
        let shrunk = shrink(&etcd, Some(doctor), ending.lines, ending.difference).await;
        assert_eq!(shrunk.lines, ["put doctored 1", "put doctored 2 prev"]);
    });
}

#[test]
fn a_falsified_event_is_seen() {
    block_on(async {
        let lines = ["watch S1 a", "put a 1", "events S1"];
        let script = Script::of_lines("event", lines);
        let mut pair = Pair::started(&Subject::etcd(), &[]).await;
        pair.run(&script).await.unwrap();
        // The same watcher, but one side is told of a put more.
        let missing = Script::parse("event", "watch S1 a\nput a 1\nevents S1\n= no events\n").unwrap();
        let difference = pair.run(&missing).await.unwrap_err();
        assert!(difference.got.contains("PUT a=1"), "{difference}");
    });
}
