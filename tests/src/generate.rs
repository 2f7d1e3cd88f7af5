//! Random scripts over a small alphabet, so that requests meet the same keys, revisions, leases and watchers all the
//! time.
//!
//! Left out on purpose: requests that kill etcd or that it answers wrongly (a txn that deletes from a key on and puts
//! inside; a streamed range with a sort target but no order; a compaction at 0), and what depends on the moment (short
//! leases, hashes while a compaction runs in the background). Each of those has a script or test of its own.

use crate::random::Random;

/// Ties in a sorted range are broken by key only as long as etcd's sort is stable, which holds up to twelve keys.
const KEYS: [&str; 10] = ["a", "a\\x00", "b", "b\\xff", "c", "d", "e/1", "e/2", "zz", "\\xff"];
const VALUES: [&str; 8] = ["1", "2", "3", "x", "y", "\"\"", "z*70", "\\x00\\xff"];
const LEASES: [&str; 4] = ["L1", "L2", "L3", "L4"];
const STREAMS: [&str; 3] = ["S1", "S2", "S3"];
/// Watch ids asked for; a second use of a live one is a refusal worth comparing.
const WATCH_IDS: u64 = 6;
/// Nesting of txns; etcd has no bound but the budget of operations.
const TXN_DEPTH_MAX: u64 = 3;

/// `count` lines from a seed.
pub fn lines(seed: u64, count: usize) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut lines: Vec<String> = (0..count).map(|_| line(&mut random)).collect();
    lines.push("events *".to_owned());
    lines.push("hashkv".to_owned());
    lines
}

fn line(random: &mut Random) -> String {
    match random.below(100) {
        0..30 => put(random),
        30..48 => format!("range {}", range(random)),
        48..51 => stream(random),
        51..59 => format!("delete {}{}", keys(random), option(random, 2, " prev")),
        59..77 => txn(random, 0),
        77..84 => lease(random),
        84..86 => format!("compact {} not-zero physical", compaction(random)),
        86..90 => watch(random),
        90..94 => "events *".to_owned(),
        94..97 => format!("hashkv {}", revision(random)),
        _ => bad(random),
    }
}

fn option(random: &mut Random, times: u64, text: &str) -> String {
    match random.one_in(times) {
        true => text.to_owned(),
        false => String::new(),
    }
}

fn key(random: &mut Random) -> &'static str {
    random.pick::<&str>(&KEYS)
}

/// One key, a range (now and then upside down), all from a key on, or everything.
fn keys(random: &mut Random) -> String {
    match random.below(10) {
        0 => "\\x00..".to_owned(),
        1 => format!("{}..", key(random)),
        _ => bounded_keys(random),
    }
}

fn bounded_keys(random: &mut Random) -> String {
    match random.below(2) {
        0 => key(random).to_owned(),
        _ => format!("{}..{}", key(random), key(random)),
    }
}

fn revision(random: &mut Random) -> String {
    match random.below(12) {
        0 => "0".to_owned(),
        1 => "-1".to_owned(),
        2 => "h+1".to_owned(),
        3 => format!("c+{}", random.below(3)),
        4 => format!("c-{}", random.between(1, 3)),
        5 => "1".to_owned(),
        _ => format!("h-{}", random.below(25)),
    }
}

fn compaction(random: &mut Random) -> String {
    match random.below(8) {
        0 => "h+1".to_owned(),
        1 => "c+0".to_owned(),
        2 => "-1".to_owned(),
        3 => "h".to_owned(),
        _ => format!("h-{}", random.below(30)),
    }
}

fn put(random: &mut Random) -> String {
    let key = key(random);
    let mut text = match random.below(12) {
        0 => format!("put {key} \"\" ignore_value"),
        1 => format!("put {key} {} ignore_lease", random.pick(&VALUES)),
        _ => format!("put {key} {}", random.pick(&VALUES)),
    };
    if random.one_in(5) && !text.ends_with("lease") {
        text.push_str(&format!(" lease={}", random.pick(&LEASES)));
    }
    text.push_str(&option(random, 3, " prev"));
    text
}

fn range(random: &mut Random) -> String {
    let mut text = keys(random);
    if random.one_in(3) {
        text.push_str(&format!(" limit={}", random.below(5)));
    }
    if random.one_in(3) {
        text.push_str(&format!(" rev={}", revision(random)));
    }
    if random.one_in(3) {
        let target = random.pick(&["key", "version", "create", "mod", "value"]);
        let order = random.pick(&["none", "ascend", "descend"]);
        text.push_str(&format!(" sort={target}/{order}"));
    }
    text.push_str(&option(random, 4, " serializable"));
    text.push_str(&option(random, 6, " keys_only"));
    text.push_str(&option(random, 8, " count_only"));
    for filter in ["min_mod", "max_mod", "min_create", "max_create"] {
        if random.one_in(10) {
            text.push_str(&format!(" {filter}={}", revision(random)));
        }
    }
    text
}

fn stream(random: &mut Random) -> String {
    let mut text = format!("stream {}", keys(random));
    match random.below(8) {
        0 => text.push_str(" sort=mod/descend"),
        1 => text.push_str(&format!(" min_mod={}", revision(random))),
        2 => text.push_str(" count_only"),
        _ => {}
    }
    if random.one_in(3) {
        text.push_str(&format!(" limit={}", random.below(12)));
    }
    if random.one_in(3) {
        text.push_str(&format!(" rev={}", revision(random)));
    }
    text.push_str(&option(random, 4, " serializable"));
    text.push_str(&option(random, 4, " keys_only"));
    text
}

fn txn(random: &mut Random, depth: u64) -> String {
    let compares: Vec<String> = (0..random.below(3)).map(|_| compare(random)).collect();
    let mut text = "txn".to_owned();
    if !compares.is_empty() {
        text.push_str(&format!(" if [{}]", compares.join("; ")));
    }
    text.push_str(&format!(" then [{}]", ops(random, depth)));
    if !random.one_in(3) {
        text.push_str(&format!(" else [{}]", ops(random, depth)));
    }
    text
}

fn ops(random: &mut Random, depth: u64) -> String {
    let ops: Vec<String> = (0..random.below(4)).map(|_| op(random, depth)).collect();
    ops.join("; ")
}

fn op(random: &mut Random, depth: u64) -> String {
    match random.below(20) {
        0..8 => put(random),
        8..13 => format!("range {}", range(random)),
        13..17 => format!("delete {}{}", bounded_keys(random), option(random, 2, " prev")),
        17 if random.one_in(10) => "nothing".to_owned(),
        _ if depth + 1 < TXN_DEPTH_MAX => txn(random, depth + 1),
        _ => put(random),
    }
}

fn compare(random: &mut Random) -> String {
    let result = random.pick(&["=", "!=", "<", ">"]);
    let target = *random.pick(&["version", "create", "mod", "value", "lease"]);
    let value = match target {
        "version" => random.below(4).to_string(),
        "value" => (*random.pick(&VALUES)).to_owned(),
        "lease" => (*random.pick(&["0", "L1", "L2"])).to_owned(),
        _ => revision(random),
    };
    format!("{target} {} {result} {value}", keys(random))
}

fn lease(random: &mut Random) -> String {
    let lease = random.pick(&LEASES);
    match random.below(12) {
        0..4 => format!("grant {lease} ttl={}", random.between(1_000, 9_000)),
        4..6 => format!("revoke {lease}"),
        6..9 => format!("ttl {lease}{}", option(random, 2, " keys")),
        9 => format!("keepalive {lease}"),
        10 => format!("grant auto{} ttl=5000", random.below(3)),
        _ => "leases".to_owned(),
    }
}

fn watch(random: &mut Random) -> String {
    let stream = random.pick(&STREAMS);
    let id = random.below(WATCH_IDS);
    if random.one_in(3) {
        return format!("cancel {stream} {id}");
    }
    let mut text = format!("watch {stream} {}", keys(random));
    match random.below(4) {
        0 | 1 => {}
        2 => text.push_str(&format!(" rev={}", revision(random))),
        _ => text.push_str(&format!(" rev=h-{}", random.below(40))),
    }
    if !random.one_in(3) {
        text.push_str(&format!(" id={id}"));
    }
    text.push_str(&option(random, 2, " prev"));
    text.push_str(&option(random, 6, " noput"));
    text.push_str(&option(random, 6, " nodelete"));
    text.push_str(&option(random, 8, " fragment"));
    text
}

/// Requests that must be refused, each with its code and words.
fn bad(random: &mut Random) -> String {
    let key = key(random);
    match random.below(12) {
        0 => "put \"\" 1".to_owned(),
        1 => "range \"\"".to_owned(),
        2 => "delete \"\"..".to_owned(),
        3 => format!("range {key}.. sort=9/ascend"),
        4 => format!("range {key}.. sort=key/7"),
        5 => format!("put {key} 1 lease=424242"),
        6 => format!("put {key} x ignore_value"),
        7 => format!("put {key} x ignore_lease lease=L1"),
        8 => format!("txn if [version \"\" = 0] then [put {key} 1]"),
        9 => format!("txn then [put {key} 1; put {key} 2]"),
        10 => "grant L9 ttl=9000000001".to_owned(),
        _ => {
            let puts: Vec<String> = (0..129).map(|at| format!("put t{at} 1")).collect();
            format!("txn then [{}]", puts.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Names;
    use crate::request::parse;

    #[test]
    fn every_generated_line_is_a_request_and_a_seed_repeats_itself() {
        let generated = lines(7, 5_000);
        for line in &generated {
            parse(line, &Names::default()).unwrap();
        }
        assert_eq!(generated, lines(7, 5_000));
        assert_ne!(generated, lines(8, 5_000));
    }
}
