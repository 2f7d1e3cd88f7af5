//! Plugins as text.

use wit_component::StringEncoding;
use wit_parser::Resolve;

use super::*;

/// A plugin to be: the parts of its core module and of its manifest that a test sets.
#[derive(Clone)]
pub(in crate::plugin) struct Guest {
    name: &'static str,
    world: &'static str,
    /// Body of what answers the question; the result lies in memory from byte 64 on, and is zero: allow, or an empty plan.
    answer: String,
    /// Body of `validate-config`; its result lies from byte 16 on, and is zero: taken.
    validate: String,
    /// Whatever else stands in the module.
    items: String,
    manifest: Vec<(&'static str, String)>,
    pub(in crate::plugin) limits: AskedLimits,
    grants: Vec<&'static str>,
}

impl Guest {
    /// Allows puts below "/a/", and denies nothing.
    pub(in crate::plugin) fn new(name: &'static str) -> Guest {
        let admission = r#""match":[{"ops":["put"],"prefix":"/a/"}]"#.to_owned();
        Guest { manifest: vec![("admission", format!("{{{admission}}}"))], ..Guest::of("admission-check", name) }
    }

    /// Plans nothing.
    pub(in crate::plugin) fn compaction(name: &'static str) -> Guest {
        Guest::of("compaction-policy", name)
    }

    /// Answers a kind that this release does not ask.
    pub(in crate::plugin) fn quota(name: &'static str) -> Guest {
        Guest::of("quota-policy", name)
    }

    fn of(world: &'static str, name: &'static str) -> Guest {
        Guest {
            name,
            world,
            answer: String::new(),
            validate: String::new(),
            items: String::new(),
            manifest: Vec::new(),
            limits: AskedLimits::default(),
            grants: Vec::new(),
        }
    }

    pub(in crate::plugin) fn check(mut self, body: &str) -> Guest {
        body.clone_into(&mut self.answer);
        self
    }

    pub(in crate::plugin) fn validate(mut self, body: &str) -> Guest {
        body.clone_into(&mut self.validate);
        self
    }

    pub(in crate::plugin) fn items(mut self, items: &str) -> Guest {
        items.clone_into(&mut self.items);
        self
    }

    /// How much of a value it asks for.
    pub(in crate::plugin) fn value(mut self, json: &str) -> Guest {
        let admission = format!(r#"{{"match":[{{"ops":["put"],"prefix":"/a/"}}],"value":{json}}}"#);
        self.manifest = vec![("admission", admission)];
        self
    }

    pub(in crate::plugin) fn kv_read(mut self, prefixes: &[&'static str]) -> Guest {
        self.manifest.push(("kv_read", format!("{prefixes:?}")));
        self.grants = prefixes.to_vec();
        self
    }

    pub(in crate::plugin) fn revision(&self) -> Revision {
        Revision {
            name: self.name.to_owned(),
            number: 1,
            component: self.file().into(),
            config: r#"{"colour":1}"#.to_owned(),
            grants: self.grants.iter().map(|grant| grant.as_bytes().to_vec()).collect(),
            limits: self.limits,
            urgency: Urgency::Whenever,
        }
    }

    /// The core module, with the interface and the manifest embedded.
    pub(in crate::plugin) fn file(&self) -> Vec<u8> {
        let text = self.text();
        let mut module = wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let mut resolve = Resolve::default();
        let wit = include_str!("../../../../plugin-sdk/wit/policy.wit");
        let package = resolve.push_str("policy.wit", wit).unwrap();
        let world = resolve.select_world(&[package], Some(self.world)).unwrap();
        wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        module
    }

    fn text(&self) -> String {
        let (question, parameter) = match self.world {
            "admission-check" => ("admission@0.1.0#check", "(param $request i32)"),
            "quota-policy" => ("quota@0.1.0#evaluate", "(param $input i32)"),
            _ => ("compaction@0.1.0#plan-compaction", "(param $input i32)"),
        };
        let mut manifest = format!(r#"{{"name":"{}","version":"1""#, self.name);
        for (field, json) in &self.manifest {
            manifest.push_str(&format!(r#","{field}":{json}"#));
        }
        let manifest = format!("{manifest}}}").replace('\\', "\\\\").replace('"', "\\\"");
        let Guest { answer, validate, items, .. } = self;
        format!(
            r#"(module
            (@custom "kuorum-manifest" "{manifest}")
            (import "kuorum:policy/kv-read@0.1.0" "get" (func $get (param i32 i32 i32)))
            (import "kuorum:policy/log@0.1.0" "write" (func $log (param i32 i32 i32 i32 i32)))
            {read_import}
            (memory (export "memory") 1)
            (global $heap (mut i32) (i32.const 4096))
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                (global.set $heap (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
                (global.get $heap)
                (global.set $heap (i32.add (global.get $heap) (local.get 3))))
            (func (export "kuorum:policy/lifecycle@0.1.0#validate-config") (param $text i32) (param $bytes i32) (result i32)
                {validate}
                (i32.const 16))
            (func (export "kuorum:policy/lifecycle@0.1.0#configure") (param i32 i32) (result i32)
                (i32.const 16))
            (func (export "kuorum:policy/{question}") {parameter} (result i32) (local $i i32)
                {answer}
                (global.set $heap (i32.const 4096))
                (i32.const 64))
            {items})"#,
            read_import = match self.world {
                "admission-check" =>
                    r#"(import "kuorum:policy/request-values@0.1.0" "read" (func $read (param i32 i32 i32 i32)))"#,
                _ => "",
            },
        )
    }
}

/// A body that denies with `failed-precondition`.
pub(in crate::plugin) fn deny(message: &str) -> String {
    let stores: String = message
        .bytes()
        .enumerate()
        .map(|(index, byte)| format!("(i32.store8 (i32.const {}) (i32.const {byte}))\n", 256 + index))
        .collect();
    // result: ok at 64; verdict: deny at 68; denial: code at 72, message at 76 and 80.
    format!(
        "{stores}
        (i32.store8 (i32.const 68) (i32.const 2))
        (i32.store8 (i32.const 72) (i32.const 2))
        (i32.store (i32.const 76) (i32.const 256))
        (i32.store (i32.const 80) (i32.const {}))",
        message.len()
    )
}

/// Denies with what it was handed of the first put's value. The pointer to the operations is the last but one word of the
/// request; in a put, key and size come before the value.
pub(in crate::plugin) const DENY_WITH_VALUE: &str = "
    (local.set $i (i32.load offset=152 (local.get $request)))
    (i32.store8 (i32.const 68) (i32.const 2))
    (if (i32.load8_u offset=20 (local.get $i)) (then
        (i32.store (i32.const 76) (i32.load offset=24 (local.get $i)))
        (i32.store (i32.const 80) (i32.load offset=28 (local.get $i)))))";

/// Denies with what it read of a value.
pub(in crate::plugin) fn deny_with_read(op: u32, offset: u32, max: u32) -> String {
    format!(
        "(call $read (i32.const {op}) (i32.const {offset}) (i32.const {max}) (i32.const 128))
        (i32.store8 (i32.const 68) (i32.const 2))
        (i32.store (i32.const 76) (i32.load (i32.const 128)))
        (i32.store (i32.const 80) (i32.load (i32.const 132)))"
    )
}

/// A body that reads a key.
pub(in crate::plugin) fn get(key: &str) -> String {
    let stores: String = key
        .bytes()
        .enumerate()
        .map(|(index, byte)| format!("(i32.store8 (i32.const {}) (i32.const {byte}))\n", 256 + index))
        .collect();
    format!("{stores} (call $get (i32.const 256) (i32.const {}) (i32.const 512))", key.len())
}
