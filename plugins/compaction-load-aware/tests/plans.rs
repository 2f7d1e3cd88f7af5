//! What is planned, and the reason that the operator reads.

use compaction_load_aware::LoadAware;
use kuorum_plugin_sdk::{
    Ctx,
    compaction::{Compaction, Input, Mark, MemberSpace, Plan},
    testing,
};

const MINUTE_MS: u64 = 60_000;

/// 10:00 UTC of some day.
const TEN_MS: u64 = 1_700_000_000_000 / (24 * 60 * MINUTE_MS) * (24 * 60 * MINUTE_MS) + 10 * 60 * MINUTE_MS;

/// An hour of a hundred revisions a minute, now at revision 6000.
fn busy_hour() -> Input {
    let mark = |minute: u64| Mark {
        revision: 100 * i64::try_from(minute).expect("60 minutes"),
        at_ms: TEN_MS - (60 - minute) * MINUTE_MS,
    };
    let ctx = Ctx { now_ms: TEN_MS, revision: 6000, compact_revision: 10, ..Ctx::default() };
    Input { ctx, timeline: (0..=60).map(mark).collect(), quota_bytes: 1000, ..Input::default() }
}

fn member(member: u64, db_bytes: u64, in_use_bytes: u64) -> MemberSpace {
    MemberSpace { member, leader: false, healthy: true, db_bytes, in_use_bytes, disk_free_bytes: 1000 }
}

fn plan(config: &str, input: &Input) -> Plan {
    let mut plugin: LoadAware = testing::plugin(config);
    plugin.plan_compaction(input).expect("plans have no way to fail")
}

#[track_caller]
fn check(config: &str, input: &Input, compact_to: Option<i64>, reason: &str) {
    let plan = plan(config, input);
    assert_eq!((plan.compact_to, plan.reason.as_str()), (compact_to, reason));
}

#[test]
fn minutes_and_revisions_are_kept_whichever_is_more() {
    let minutes = r#"{"keep": {"minutes": 30, "revisions": 1000}}"#;
    check(minutes, &busy_hour(), Some(3000), "revisions up to 3000 are not needed");
    let revisions = r#"{"keep": {"minutes": 10, "revisions": 4000}}"#;
    check(revisions, &busy_hour(), Some(2000), "revisions up to 2000 are not needed");
    let all = r#"{"keep": {"minutes": 90, "revisions": 0}}"#;
    check(all, &busy_hour(), None, "all history is kept");
}

#[test]
fn what_is_compacted_is_not_compacted_again() {
    let mut input = busy_hour();
    input.ctx.compact_revision = 3000;
    check(r#"{"keep": {"minutes": 30, "revisions": 0}}"#, &input, None, "all history is kept");
}

#[test]
fn work_waits_for_its_window_and_for_quiet() {
    let config = |windows: &str| {
        format!(
            r#"{{"keep": {{"minutes": 30, "revisions": 0}}, "windows": {windows}, "quiet": {{"writes_per_s_max": 100, "p99_write_us_max": 5000}}}}"#
        )
    };
    let mut input = busy_hour();
    let night = config(r#"[{"from": "22:00", "to": "05:30"}]"#);
    check(&night, &input, None, "it is outside the windows");
    let morning = config(r#"[{"from": "22:00", "to": "05:30"}, {"from": "10:00", "to": "10:01"}]"#);
    check(&morning, &input, Some(3000), "revisions up to 3000 are not needed");

    input.writes_per_s = 101;
    check(&morning, &input, None, "101 writes a second are not quiet");
    input.writes_per_s = 100;
    input.p99_write_us = 5001;
    check(&morning, &input, None, "writes take 5001 us, which is not quiet");
}

#[test]
fn a_window_goes_past_midnight() {
    let config = r#"{"keep": {"minutes": 30, "revisions": 0}, "windows": [{"from": "09:59", "to": "09:00"}]}"#;
    check(config, &busy_hour(), Some(3000), "revisions up to 3000 are not needed");
}

#[test]
fn the_slowest_watcher_is_respected_up_to_a_bound() {
    let config = r#"{"keep": {"minutes": 30, "revisions": 0}, "watcher_lag_revisions_max": 5000}"#;
    let mut input = Input { slowest_watcher: Some(1000), ..busy_hour() };
    check(config, &input, Some(999), "revisions up to 999 are not needed");
    input.slowest_watcher = Some(999);
    check(config, &input, Some(3000), "revisions up to 3000 are not needed");
    check(r#"{"keep": {"minutes": 30, "revisions": 0}}"#, &input, Some(3000), "revisions up to 3000 are not needed");
}

#[test]
fn near_the_quota_nothing_is_waited_for_but_a_backup() {
    let config = r#"{"keep": {"minutes": 30, "revisions": 0}, "windows": [{"from": "01:00", "to": "02:00"}],
        "watcher_lag_revisions_max": 5000,
        "emergency": {"quota_percent": 85, "keep": {"minutes": 5, "revisions": 0}}}"#;
    let mut input = Input { slowest_watcher: Some(1000), ..busy_hour() };
    input.members = vec![member(1, 849, 849), member(2, 10, 10)];
    check(config, &input, None, "it is outside the windows");
    input.members[1].db_bytes = 850;
    check(config, &input, Some(5500), "revisions up to 5500 are not needed, and the quota is near");
    input.backup_floor = Some(2000);
    check(config, &input, Some(1999), "revisions up to 1999 are not needed, and the quota is near");
}

#[test]
fn members_with_the_most_to_free_are_defragmented_first() {
    let config = r#"{"keep": {"minutes": 30, "revisions": 0}, "defragment_free_percent": 40}"#;
    let mut input = busy_hour();
    input.members =
        vec![member(1, 100, 60), member(2, 100, 61), member(3, 100, 10), member(4, 100, 0), member(5, 0, 0)];
    input.members[3].healthy = false;
    let planned = plan(config, &input);
    assert_eq!(planned.defragment, [3, 1]);
    assert_eq!(planned.reason, "revisions up to 3000 are not needed; members to defragment: 2");
    assert_eq!(planned.next_call_in_ms, 60_000);

    input.members[2].disk_free_bytes = 10;
    assert_eq!(plan(config, &input).defragment, [1]);
}

#[test]
fn a_wrong_configuration_is_told_by_field() {
    let errors = testing::config_errors::<LoadAware>;
    assert_eq!(errors("{}"), [".: missing field `keep` at line 1 column 2"]);
    let window = r#"{"keep": {"minutes": 1, "revisions": 1}, "windows": [{"from": "24:00", "to": "01:00"}]}"#;
    let [error] = &errors(window)[..] else { panic!() };
    assert!(
        error.starts_with("windows[0].from: \"24:00\" is no time of day: write hours:minutes, as 05:30"),
        "{error}"
    );
    let many = r#"{"keep": {"minutes": 1, "revisions": 1}, "check_seconds": 0, "defragment_free_percent": 100,
        "windows": [{"from": "01:00", "to": "01:00"}],
        "emergency": {"quota_percent": 0, "keep": {"minutes": 2, "revisions": 0}}}"#;
    assert_eq!(
        errors(many),
        [
            "windows[0]: a window must not end where it begins",
            "defragment_free_percent: from 1 to 99 percent",
            "check_seconds: from 1 to 3600 seconds",
            "emergency.quota_percent: from 1 to 100 percent",
            "emergency.keep: an emergency must not keep more than `keep` does",
        ]
    );
}
