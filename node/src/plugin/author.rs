//! What the author of a plugin needs of the host: a component made from a core module and a manifest, a look at what it
//! says, instances to be asked one by one, and a store for them to read.
//!
//! The commands of `cli::plugin` call this; a node never does. The rules are those by which a node takes plugins, so that
//! what passes here is refused by no member for its form.

use std::collections::BTreeMap;

use bytes::Bytes;
use wasmparser::{Parser, Payload};

use super::admission::{Judged, Question, guest_of};
use super::compaction::{Input, Planned};
use super::instance::{Failure, Started};
use super::kv::{KvError, KvReader, KvRow};
use super::manifest::{self, Manifest};
use super::{Kind, Prepared, check_kinds, compile, foreign_import, inspect, is_ours, kinds_of};

/// The id of a custom section.
const CUSTOM: u8 = 0;

/// A component made from a core module that has the interface embedded, with the manifest in its section.
pub(crate) fn component_of(module: &[u8], manifest: &str) -> Result<Vec<u8>, String> {
    if Parser::is_component(module) {
        return Err("the file is a component already: what is wanted is the core module".to_owned());
    }
    if !Parser::is_core_wasm(module) {
        return Err("the file is no wasm module: it does not begin as one".to_owned());
    }
    let mut component = compile::encoded_component(module)?;
    let name = manifest::SECTION.as_bytes();
    let mut section = Vec::with_capacity(manifest.len() + name.len() + 2);
    write_leb128(&mut section, name.len());
    section.extend_from_slice(name);
    section.extend_from_slice(manifest.as_bytes());
    component.push(CUSTOM);
    write_leb128(&mut component, section.len());
    component.extend_from_slice(&section);
    Ok(component)
}

fn write_leb128(bytes: &mut Vec<u8>, mut number: usize) {
    loop {
        let low = u8::try_from(number & 0x7f).expect("seven bits fit");
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

/// What a component states without being compiled: its manifest and its kinds, which fit each other. The error is one
/// sentence.
pub(crate) fn stated(component: &[u8]) -> Result<(Manifest, Vec<Kind>), String> {
    let inspected = inspect::inspect(component)?;
    let manifest = Manifest::parse(&inspected.manifest)?;
    if inspected.form == inspect::Form::CoreModule {
        return Err("the file is a core module, not a component: build it with `kuorum plugin build`".to_owned());
    }
    let outside = outside_of(component)?;
    let kinds = kinds_of(&outside.exports)?;
    if let Some(foreign) = outside.imports.iter().find(|name| !is_ours(name)) {
        return Err(foreign_import(foreign));
    }
    check_kinds(&kinds, &manifest)?;
    Ok((manifest, kinds))
}

/// Names of what a component takes and gives.
#[derive(Default)]
struct Outside {
    imports: Vec<String>,
    exports: Vec<String>,
}

fn outside_of(component: &[u8]) -> Result<Outside, String> {
    let mut outside = Outside::default();
    // Modules and components in the component have imports and exports too.
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(|error| inspect::broken(&error))? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(imports) if depth == 0 => {
                for import in imports {
                    outside.imports.push(import.map_err(|error| inspect::broken(&error))?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(exports) if depth == 0 => {
                for export in exports {
                    outside.exports.push(export.map_err(|error| inspect::broken(&error))?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(outside)
}

/// An instance of a plugin that its author asks as often as he likes. Nothing that it does quarantines the plugin.
pub(crate) struct Trial<'a> {
    prepared: &'a Prepared,
    started: Started,
}

impl Prepared {
    /// A new instance, configured.
    pub(crate) fn trial(&self) -> Result<Trial<'_>, Failure> {
        Ok(Trial { prepared: self, started: self.0.template.start()? })
    }
}

impl Trial<'_> {
    pub(crate) fn prepared(&self) -> &Prepared {
        self.prepared
    }

    pub(crate) fn admission(&mut self, question: &Question<'_>) -> Result<Judged, Failure> {
        let guest = guest_of(&self.prepared.0.template, &mut self.started)?;
        self.prepared.judge_in(&mut self.started.store, &guest, question)
    }

    /// A node asks a new instance each time.
    pub(crate) fn compaction(&mut self, input: &Input<'_>) -> Result<Planned, Failure> {
        self.prepared.plan_in(&mut self.started, input)
    }
}

/// A store of a few keys, the same at every revision.
#[derive(Default)]
pub(crate) struct Keys(BTreeMap<Vec<u8>, KvRow>);

impl Keys {
    /// Of these keys and values, each with its mod revision.
    pub(crate) fn of<'a>(rows: impl IntoIterator<Item = (&'a [u8], &'a [u8], i64)>) -> Keys {
        let row = |(key, value, mod_revision): (&[u8], &[u8], i64)| {
            let row = KvRow {
                key: Bytes::copy_from_slice(key),
                value: Bytes::copy_from_slice(value),
                create_revision: mod_revision,
                mod_revision,
                version: 1,
                lease: 0,
            };
            (key.to_vec(), row)
        };
        Keys(rows.into_iter().map(row).collect())
    }
}

impl KvReader for Keys {
    fn get(&self, key: &[u8], _revision: i64) -> Result<Option<KvRow>, KvError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        keys_only: bool,
        _revision: i64,
    ) -> Result<Vec<KvRow>, KvError> {
        let rows = self.0.values().filter(|row| row.key.starts_with(prefix));
        let rows = rows.filter(|row| after.is_none_or(|after| row.key[..] > *after)).take(limit).cloned();
        let cut = |row: KvRow| if keys_only { KvRow { value: Bytes::new(), ..row } } else { row };
        Ok(rows.map(cut).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Verdict;
    use crate::plugin::tests::guest::{self, Guest};
    use crate::plugin::tests::{TestHost, put, question};

    /// The module of a guest as a compiler would leave it: without a manifest.
    fn module() -> Vec<u8> {
        let mut file = Guest::new("built").file();
        let name = manifest::SECTION.as_bytes();
        let at = file.windows(name.len()).position(|part| part == name).unwrap();
        file[at..at + name.len()].fill(b'x');
        file
    }

    const MANIFEST: &str = r#"{"name":"built","version":"2","admission":{"match":[{"ops":["put"],"prefix":""}]}}"#;

    #[test]
    fn a_module_and_a_manifest_become_a_component() {
        let component = component_of(&module(), MANIFEST).unwrap();
        let (manifest, kinds) = stated(&component).unwrap();
        assert_eq!((manifest.version.as_str(), kinds.as_slice()), ("2", &[Kind::Admission][..]));
        assert!(component_of(b"#!/bin/sh", MANIFEST).unwrap_err().contains("is no wasm module"));
        assert!(component_of(&component, MANIFEST).unwrap_err().contains("is a component already"));
        assert!(stated(&Guest::new("built").file()).unwrap_err().contains("is a core module"));
        let without_rules = r#"{"name":"built","version":"2"}"#;
        let component = component_of(&module(), without_rules).unwrap();
        assert!(stated(&component).unwrap_err().contains("has no [admission]"));
    }

    #[test]
    fn sizes_are_written_as_the_format_has_them() {
        for (number, expected) in [(0, &[0][..]), (127, &[127]), (128, &[0x80, 1]), (16_384, &[0x80, 0x80, 1])] {
            let mut bytes = Vec::new();
            write_leb128(&mut bytes, number);
            assert_eq!(bytes, expected);
        }
    }

    /// Denies from the second question on.
    #[test]
    fn a_plugin_that_remembers_is_seen_through_by_new_instances() {
        let test = TestHost::new();
        let answer = format!(
            "(if (i32.load (i32.const 1024)) (then {})) (i32.store (i32.const 1024) (i32.const 1))",
            guest::deny("again")
        );
        let prepared = test.prepare(&Guest::new("remembers").check(&answer)).unwrap();
        let value = Bytes::from_static(b"v");
        let ops = [put("/a/key", &value)];
        let verdict = |trial: &mut Trial<'_>| trial.admission(&question(&ops)).unwrap().verdict;
        let mut first = prepared.trial().unwrap();
        assert_eq!(verdict(&mut first), Verdict::Allow);
        assert_eq!(verdict(&mut prepared.trial().unwrap()), Verdict::Allow);
        assert!(matches!(verdict(&mut first), Verdict::Deny { .. }));
    }

    #[test]
    fn a_trial_that_traps_quarantines_nothing() {
        let test = TestHost::new();
        let prepared = test.prepare(&Guest::new("traps").check("unreachable")).unwrap();
        let value = Bytes::from_static(b"v");
        let ops = [put("/a/key", &value)];
        for _ in 0..20 {
            let failure = prepared.trial().unwrap().admission(&question(&ops)).unwrap_err();
            assert!(matches!(failure, Failure::Trapped { .. }), "{failure}");
        }
    }
}
