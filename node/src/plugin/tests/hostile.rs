//! What strangers may send: each ends in its error or in its failure, in bounded time, and the next plugin is served.

use std::fmt::Write as _;
use std::time::Duration;

use super::*;

fn trap_of(test: &TestHost, guest: &Guest) -> String {
    match ask(&test.prepare(guest).unwrap()) {
        Err(failure @ Failure::Trapped { .. }) => failure.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_endless_loop_runs_out_of_fuel_or_of_time() {
    let test = TestHost::new();
    let mut guest = Guest::new("endless").check("(loop $again (br $again))");
    guest.limits.fuel = Some(1_000_000);
    guest.limits.deadline_ms = Some(10_000);
    assert_eq!(ask(&test.prepare(&guest).unwrap()).unwrap_err(), Failure::OutOfFuel { fuel: 1_000_000 });
    guest.limits.fuel = Some(5_000_000_000);
    guest.limits.deadline_ms = Some(20);
    let began = engine::now();
    assert_eq!(ask(&test.prepare(&guest).unwrap()).unwrap_err(), Failure::OutOfTime { deadline_ms: 20 });
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn an_endless_loop_in_validate_config_ends_the_preparation() {
    let test = TestHost::new();
    let guest = Guest::new("endless-config").validate("(loop $again (br $again))");
    let refusal = test.refusal(&guest);
    assert!(refusal.starts_with("the plugin does not start: it "), "{refusal}");
}

#[test]
fn a_memory_bomb_meets_its_limit() {
    let test = TestHost::new();
    let bomb = "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    let text = trap_of(&test, &Guest::new("memory-bomb").check(bomb));
    assert!(text.contains("its limit is 33554432"), "{text}");
}

#[test]
fn deep_recursion_ends_at_the_stacks_end() {
    let test = TestHost::new();
    let guest = Guest::new("recursion")
        .check("(drop (call $deeper (i32.const 0)))")
        .items("(func $deeper (param i32) (result i32) (i32.add (call $deeper (local.get 0)) (i32.const 1)))");
    let text = trap_of(&test, &guest);
    assert!(text.contains("call stack exhausted"), "{text}");
}

#[test]
fn a_huge_table_is_refused_or_does_not_grow() {
    let test = TestHost::new();
    let refusal = test.refusal(&Guest::new("huge-table").items("(table 4000000000 funcref)"));
    assert_eq!(refusal, "it is too complex: 4000000000 table elements from the start, 100000 at most");
    let guest = Guest::new("growing-table")
        .items("(table $t 1 funcref)")
        .check("(if (i32.eq (table.grow $t (ref.null func) (i32.const 200000)) (i32.const -1)) (then unreachable))");
    let text = trap_of(&test, &guest);
    assert!(text.contains("the limit is 100000"), "{text}");
}

#[test]
fn a_compile_bomb_is_refused_before_it_is_compiled() {
    let test = TestHost::new();
    // Locals that change inside many loops: half a minute of a compiler.
    let (locals, loops) = (1_000, 1_000);
    let mut body = "(local i32)".repeat(locals);
    body.push_str(&"(loop ".repeat(loops));
    for local in 0..locals {
        write!(body, "(local.set {local} (i32.add (local.get {local}) (i32.const 1)))").unwrap();
    }
    body.push_str(&"(br_if 0 (local.get 0)))".repeat(loops));
    let guest = Guest::new("compile-bomb").items(&format!("(func {body})"));
    let file = guest.file();
    assert!(file.len() < 20_000, "{}", file.len());
    let began = engine::now();
    let refusal = test.refusal(&guest);
    assert!(refusal.contains("is too complex: its ") && refusal.contains("use locals 2500500 times"), "{refusal}");
    assert!(began.elapsed() < Duration::from_secs(2));
    // A branch hands over as many values as its target takes.
    let values = "i32 ".repeat(1_000);
    let refusal = test.refusal(&Guest::new("compile-bomb").items(&format!("(type (func (param {values})))")));
    assert_eq!(refusal, "it is too complex: 1000 parameters of a function or block, 100 at most");
}

#[test]
fn a_trap_in_the_start_function_is_told() {
    let test = TestHost::new();
    let guest = Guest::new("start-trap").items("(func $start unreachable) (start $start)");
    let refusal = test.refusal(&guest);
    assert!(refusal.starts_with("the plugin does not start: it trapped: "), "{refusal}");
    assert!(refusal.contains("unreachable"), "{refusal}");
}

/// A component as text, with the manifest of a plugin that answers nothing.
fn prepare_text(test: &TestHost, text: &str) -> String {
    let revision = Revision { component: wat::parse_str(text).unwrap().into(), ..Guest::new("text").revision() };
    test.host.prepare(&revision).err().expect("the plugin was taken").to_string()
}

#[test]
fn another_world_is_refused() {
    let test = TestHost::new();
    let manifest = r#"(@custom "kuorum-manifest" "{\"name\":\"text\",\"version\":\"1\"}")"#;
    let refusal = prepare_text(&test, &format!("(component {manifest})"));
    assert_eq!(
        refusal,
        "the component does not export kuorum:policy/lifecycle@0.1.0: it is no plugin of this interface"
    );
    let lifecycle = r#"(instance $i) (export "kuorum:policy/lifecycle@0.1.0" (instance $i))"#;
    let refusal = prepare_text(&test, &format!("(component {manifest} {lifecycle})"));
    assert_eq!(refusal, "the component answers no kind of question");
    let compaction = r#"(export "kuorum:policy/compaction@0.1.0" (instance $i))"#;
    let wasi = r#"(import "wasi:cli/environment@0.2.0" (instance (export "f" (func))))"#;
    let refusal = prepare_text(&test, &format!("(component {manifest} {wasi} {lifecycle} {compaction})"));
    assert_eq!(refusal, "the component imports wasi:cli/environment@0.2.0, which this host does not have");
    let refusal = prepare_text(&test, &format!("(component {manifest} {lifecycle} {compaction})"));
    assert!(refusal.contains("the component: ") && refusal.contains("validate-config"), "{refusal}");
}

#[test]
fn a_file_that_is_cut_short_or_is_something_else_is_refused() {
    let test = TestHost::new();
    let mut revision = Guest::new("truncated").revision();
    let whole = revision.component.clone();
    for bytes in [whole.len() - 1, whole.len() / 2, 9] {
        revision.component = whole.slice(..bytes);
        let refusal = test.host.prepare(&revision).err().unwrap().to_string();
        assert!(refusal.contains("damaged or cut short") || refusal.contains("no section"), "{bytes}: {refusal}");
    }
    revision.component = Bytes::from_static(b"#!/bin/sh\n");
    let refusal = test.host.prepare(&revision).err().unwrap().to_string();
    assert_eq!(refusal, "the file is no wasm component: it does not begin as one");
    revision.component = Bytes::from_static(b"\0asm\x01\0\0\0");
    let refusal = test.host.prepare(&revision).err().unwrap().to_string();
    assert!(refusal.contains("no section \"kuorum-manifest\""), "{refusal}");
}

#[test]
fn a_damaged_cache_entry_is_compiled_again() {
    let test = TestHost::new();
    let guest = Guest::new("damaged-entry");
    test.prepare(&guest).unwrap();
    let dir = test.dir.path().join("plugins");
    let entry = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&entry).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0x40;
    std::fs::write(&entry, damaged).unwrap();
    assert_eq!(ask(&test.prepare(&guest).unwrap()).unwrap().verdict, Verdict::Allow);
    assert_eq!(std::fs::read(&entry).unwrap().len(), whole.len());
    assert!(matches!(test.host.cache.get(&guest.file()).unwrap(), Lookup::Found(_)));
}

#[test]
fn a_flood_of_host_calls_ends_the_call() {
    let test = TestHost::new();
    let flood = "(loop $again (call $get (i32.const 0) (i32.const 0) (i32.const 512)) (br $again))";
    let text = trap_of(&test, &Guest::new("call-flood").check(flood));
    assert!(text.contains("it called the host more than 10000 times"), "{text}");
    // What is handed over costs the plugin nothing, however long it is.
    let flood = "(loop $again
        (call $log (i32.const 2) (i32.const 0) (i32.const 4000) (i32.const 0) (i32.const 0)) (br $again))";
    let text = trap_of(&test, &Guest::new("byte-flood").check(flood));
    assert!(text.contains("its calls of the host moved more than 16 MiB"), "{text}");
}

#[test]
fn a_flood_of_log_lines_is_cut_and_counted() {
    let test = TestHost::new();
    let flood = "(loop $again
        (call $log (i32.const 2) (i32.const 256) (i32.const 0) (i32.const 0) (i32.const 0))
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $again (i32.lt_u (local.get $i) (i32.const 1000))))";
    ask(&test.prepare(&Guest::new("log-flood").check(flood)).unwrap()).unwrap();
    let text = metrics::get().render();
    let line = "plugin_log_lines_dropped_total{plugin=\"log-flood\"} ";
    let dropped = text.lines().find_map(|shown| shown.strip_prefix(line)).unwrap();
    // A second may have ended meanwhile.
    assert!(dropped == "900" || dropped == "800", "{dropped}");
}

#[test]
fn a_configuration_that_the_plugin_does_not_take_is_told_field_by_field() {
    let test = TestHost::new();
    // Two errors: of "colour" that it is "odd", and without a path.
    let guest = Guest::new("bad-config").items(r#"(data (i32.const 256) "colourodd")"#).validate(
        "(i32.store8 (i32.const 16) (i32.const 1))
            (i32.store (i32.const 20) (i32.const 300))
            (i32.store (i32.const 24) (i32.const 2))
            (i32.store (i32.const 300) (i32.const 256)) (i32.store (i32.const 304) (i32.const 6))
            (i32.store (i32.const 308) (i32.const 262)) (i32.store (i32.const 312) (i32.const 3))
            (i32.store (i32.const 316) (i32.const 0)) (i32.store (i32.const 320) (i32.const 0))
            (i32.store (i32.const 324) (i32.const 262)) (i32.store (i32.const 328) (i32.const 3))",
    );
    assert_eq!(test.refusal(&guest), "the plugin does not take its configuration: colour: odd; odd");
}

#[test]
fn what_was_not_asked_for_is_not_granted() {
    let test = TestHost::new();
    let mut revision = Guest::new("greedy").revision();
    revision.grants = vec![b"/secret/".to_vec()];
    let refusal = test.host.prepare(&revision).err().unwrap().to_string();
    assert_eq!(refusal, "the grant \"/secret/\" is not among what kv_read asks for");
    let mut guest = Guest::new("greedy");
    guest.limits.memory_bytes = Some(1 << 40);
    assert!(test.refusal(&guest).starts_with("limits.memory_bytes is 1099511627776"));
    let mut revision = Guest::new("greedy").revision();
    revision.name = "other".to_owned();
    let refusal = test.host.prepare(&revision).err().unwrap().to_string();
    assert_eq!(refusal, "the manifest names the plugin greedy, and it was loaded as other");
}

#[test]
fn a_plugin_that_goes_on_failing_is_quarantined() {
    let test = TestHost::new();
    let prepared = test.prepare(&Guest::new("broken").check("unreachable")).unwrap();
    for failures in 1..=5 {
        assert!(matches!(ask(&prepared), Err(Failure::Trapped { .. })), "{failures}");
    }
    assert_eq!(ask(&prepared), Err(Failure::Quarantined));
    assert_eq!(prepared.health(), Health::Quarantined);
    let shown = metrics::get().render();
    assert!(shown.lines().any(|line| line == "plugin_traps_total{plugin=\"broken\"} 5"));
}

#[test]
fn a_trap_takes_its_memory_with_it() {
    let test = TestHost::new();
    // Remembers in its memory that it was called, and traps in the second call.
    let body = "(if (i32.load (i32.const 1024)) (then unreachable)) (i32.store (i32.const 1024) (i32.const 1))";
    let prepared = test.prepare(&Guest::new("remembers").check(body)).unwrap();
    for _ in 0..3 {
        assert!(ask(&prepared).is_ok());
        assert!(matches!(ask(&prepared), Err(Failure::Trapped { .. })));
    }
}
