//! Random requests from a printed seed. A difference is shrunk, printed and written to `target/parity/<seed>.txt`; once
//! understood it is kept under `cases/`.

use kuorum_tests::generate;
use kuorum_tests::lockstep::Pair;
use kuorum_tests::random::seed;
use kuorum_tests::script::Script;
use kuorum_tests::shrink::{cut, report, shrink};
use kuorum_tests::subject::Subject;

use crate::block_on;

/// How many requests; the seed counts up by one an episode.
const REQUESTS_VARIABLE: &str = "KUORUM_RANDOM_REQUESTS";
const REQUESTS: usize = 20_000;
/// Requests to one pair of servers: few enough to be shrunk in a minute.
const EPISODE: usize = 1_000;

#[test]
fn random_requests_are_answered_as_by_etcd() {
    let requests = std::env::var(REQUESTS_VARIABLE)
        .map_or(REQUESTS, |text| text.parse().unwrap_or_else(|_| panic!("{REQUESTS_VARIABLE}={text} is not a number")));
    let first = seed("random_requests_are_answered_as_by_etcd");
    for episode in 0..requests.div_ceil(EPISODE) {
        let seed = first + u64::try_from(episode).unwrap();
        block_on(run_episode(seed, requests.min(EPISODE)));
    }
}

async fn run_episode(seed: u64, count: usize) {
    let subject = Subject::kuorum();
    let lines = generate::lines(seed, count);
    let script = Script::of_lines(&format!("seed {seed}"), lines.iter().map(String::as_str));
    let mut pair = Pair::started(&subject, &[]).await;
    let Err(difference) = pair.run(&script).await else {
        return;
    };
    drop(pair);
    eprintln!("{difference}\nshrinking");
    let ending = cut(lines, difference);
    let shrunk = shrink(&subject, None, ending.lines, ending.difference).await;
    let path = report(seed, &shrunk);
    panic!(
        "KUORUM_SEED={seed}: {} lines show a difference, kept in {}:\n{}\n{}",
        shrunk.lines.len(),
        path.display(),
        shrunk.lines.join("\n"),
        shrunk.difference
    );
}
