//! What is refused, with what the client sees.

use admission_guard::Guard;
use kuorum_plugin_sdk::{
    admission::{Admission, Code, DeleteOp, LeaseGrantOp, Op, PutOp, Request, Space, Verdict},
    testing,
};

fn guard(config: &str) -> Guard {
    testing::plugin(config)
}

fn put(key: &str, value_bytes: usize) -> Op {
    PutOp::new(key, vec![b'v'; value_bytes]).into()
}

fn delete(key: &str, range_end: Option<&str>) -> Op {
    Op::Delete(DeleteOp { key: key.into(), range_end: range_end.map(Into::into) })
}

/// A request of alice, whose member is nearly out of space.
fn request(ops: Vec<Op>) -> Request {
    let space = Space { db_bytes: 90, in_use_bytes: 90, quota_bytes: 100 };
    Request { user: Some("alice".into()), roles: vec!["writer".into()], space, ops, ..Request::default() }
}

#[track_caller]
fn check(guard: &mut Guard, request: &Request, expected: Result<(), (Code, &str)>) {
    let verdict = match guard.check(request).expect("the guard has no way to fail") {
        Verdict::Allow => Ok(()),
        Verdict::Deny(denial) => Err((denial.code, denial.message)),
        Verdict::Warn(message) => panic!("the guard never warns: {message}"),
    };
    assert_eq!(verdict, expected.map_err(|(code, message)| (code, message.to_string())));
}

#[test]
fn nothing_is_refused_until_it_is_configured() {
    let ops = vec![put("/a", 1 << 20), delete("", Some("\0"))];
    check(&mut guard("{}"), &request(ops), Ok(()));
}

#[test]
fn a_range_outside_the_allowed_prefixes_is_not_deleted() {
    let mut guard = guard(r#"{"range_deletes": {"allowed_within": ["/tmp/"]}}"#);
    check(&mut guard, &request(vec![delete("/tmp/a", Some("/tmp/b"))]), Ok(()));
    check(&mut guard, &request(vec![delete("/etc/a", None)]), Ok(()));
    let refused = "the range from \"/tmp/a\" on is wider than a transaction may delete";
    check(&mut guard, &request(vec![delete("/tmp/a", Some("\0"))]), Err((Code::PermissionDenied, refused)));
    assert_eq!(testing::metrics::counter(r#"refusals{reason="range-delete"}"#), 1);
}

#[test]
fn a_protected_prefix_is_kept_from_all_but_the_excepted() {
    let config = r#"{"protected": [
        {"prefix": "/crd/", "refuse": ["delete"], "except_roles": ["admin"]},
        {"prefix": "/boot/", "refuse": ["put", "delete"], "except_users": ["root"]}
    ]}"#;
    let mut guard = guard(config);
    check(&mut guard, &request(vec![put("/crd/a", 1)]), Ok(()));
    let refused = r#"a delete at "/c" is refused: "/crd/" is protected"#;
    check(&mut guard, &request(vec![delete("/c", Some("/d"))]), Err((Code::PermissionDenied, refused)));
    let admin = Request { roles: vec!["admin".into()], ..request(vec![delete("/crd/a", None)]) };
    check(&mut guard, &admin, Ok(()));

    let refused = r#"a put at "/boot/a" is refused: "/boot/" is protected"#;
    check(&mut guard, &request(vec![put("/boot/a", 1)]), Err((Code::PermissionDenied, refused)));
    check(&mut guard, &Request { user: Some("root".into()), ..request(vec![put("/boot/a", 1)]) }, Ok(()));
}

#[test]
fn the_longest_prefix_says_how_long_a_value_may_be() {
    let config = r#"{"value_bytes_max": [{"prefix": "", "bytes": 10}, {"prefix": "/long/", "bytes": 20}]}"#;
    let mut guard = guard(config);
    check(&mut guard, &request(vec![put("/a", 10), put("/long/a", 20)]), Ok(()));
    let refused = r#"the value of "/a" has 11 bytes, and 10 are allowed"#;
    check(&mut guard, &request(vec![put("/long/a", 20), put("/a", 11)]), Err((Code::InvalidArgument, refused)));
}

#[test]
fn a_user_is_slowed_down_only_while_space_is_short() {
    let mut guard = guard(
        r#"{"rates": {"above_space_percent": 80, "each_user": {"puts_per_s": 2, "burst": 3},
            "users": {"batch": {"puts_per_s": 1, "burst": 1}}}}"#,
    );
    let mut puts = request(vec![put("/a", 1), put("/b", 1)]);
    check(&mut guard, &puts, Ok(()));
    let refused = r#"too many puts a second of user "alice" while space is short"#;
    check(&mut guard, &puts, Err((Code::ResourceExhausted, refused)));
    check(&mut guard, &Request { user: Some("bob".into()), ..puts.clone() }, Ok(()));
    check(&mut guard, &Request { user: None, ..puts.clone() }, Ok(()));
    check(&mut guard, &Request { user: Some("batch".into()), ..puts.clone() }, Ok(()));

    let roomy = Space { db_bytes: 79, ..puts.space };
    check(&mut guard, &Request { space: roomy, ..puts.clone() }, Ok(()));
    let unlimited = Space { quota_bytes: 0, ..puts.space };
    check(&mut guard, &Request { space: unlimited, ..puts.clone() }, Ok(()));
    let others = vec![delete("/a", None), Op::LeaseGrant(LeaseGrantOp { id: 0, ttl_s: 60 })];
    check(&mut guard, &Request { ops: others, ..puts.clone() }, Ok(()));

    puts.ctx.now_ms += 500;
    check(&mut guard, &puts, Ok(()));
}

#[test]
fn a_refused_request_costs_no_other_bucket() {
    let mut guard = guard(
        r#"{"rates": {"above_space_percent": 0, "each_user": {"puts_per_s": 1, "burst": 2},
            "prefixes": [{"prefix": "/a/", "puts_per_s": 1, "burst": 1}]}}"#,
    );
    check(&mut guard, &request(vec![put("/a/1", 1)]), Ok(()));
    let refused = r#"too many puts a second under "/a/" while space is short"#;
    check(&mut guard, &request(vec![put("/a/1", 1)]), Err((Code::ResourceExhausted, refused)));
    check(&mut guard, &request(vec![put("/b/1", 1)]), Ok(()));
}

#[test]
fn a_clock_that_is_set_back_admits_again_at_its_rate() {
    let mut guard = guard(r#"{"rates": {"above_space_percent": 0, "each_user": {"puts_per_s": 1, "burst": 1}}}"#);
    let mut one = request(vec![put("/a", 1)]);
    check(&mut guard, &one, Ok(()));
    one.ctx.now_ms -= 3_600_000;
    let refused = r#"too many puts a second of user "alice" while space is short"#;
    check(&mut guard, &one, Err((Code::ResourceExhausted, refused)));
    one.ctx.now_ms += 1000;
    check(&mut guard, &one, Ok(()));
}

#[test]
fn a_wrong_configuration_is_told_by_field() {
    let errors = testing::config_errors::<Guard>;
    assert_eq!(
        errors(r#"{"protected": [{"prefix": "/a", "refuse": []}]}"#),
        ["protected[0].refuse: name put, delete, or both"]
    );
    assert_eq!(
        errors(r#"{"rates": {"above_space_percent": 101, "each_user": {"puts_per_s": 1, "burst": 0}}}"#),
        [
            "rates.above_space_percent: there are 100 percent at most",
            "rates.each_user.burst: a burst of 0 would refuse every put",
        ]
    );
    let [error] = &errors(r#"{"protected": [{"prefix": "/a", "refuse": ["get"]}]}"#)[..] else { panic!() };
    assert!(error.starts_with("protected[0].refuse[0]: unknown variant `get`"), "{error}");
    let [error] = &errors(r#"{"rate": {}}"#)[..] else { panic!() };
    assert!(error.starts_with("rate: unknown field `rate`"), "{error}");
}
