//! What can be told of a plugin's file without compiling it: its form, its manifest, and whether it is too much work.
//!
//! One pass over the bytes, in time and memory bounded by their number. Compilers have inputs that they take far longer
//! over than their size suggests: a loop has to carry every local that is used in it, so a few thousand uses inside a
//! thousand nested loops, which are 20 KB, keep a compiler busy for half a minute. Such a file is refused here, by a sentence
//! about the function; what gets past is stopped by the limits of the process that compiles (see `compile`). Whether the
//! code is valid is for the compiler to say.

use std::collections::BTreeSet;

use wasmparser::{FunctionBody, MemoryType, Operator, Parser, Payload, TableType};

use super::limits::{MEMORIES_MAX, MEMORY_BYTES_MAX, TABLE_ELEMENTS_MAX, TABLES_MAX};
use super::manifest;

/// A component of CPython with its libraries has 18 MB.
pub(super) const FILE_BYTES_MAX: usize = 64 << 20;
/// Core modules and components in one file. A composed component of many libraries has some thirty.
const MODULES_MAX: usize = 128;
/// CPython has some 15,000.
const FUNCTIONS_MAX: usize = 100_000;
const FUNCTION_BYTES_MAX: usize = 2 << 20;
/// The interpreter loops of CPython and SpiderMonkey have some thousands.
const LOCALS_MAX: u64 = 20_000;
/// A switch of many cases is as many nested blocks.
const NESTING_MAX: usize = 10_000;
/// Interfaces of our package in one file. There are six.
const INTERFACES_MAX: usize = 64;
/// Wasm's own limit of a page.
const PAGE_BYTES: u64 = 64 * 1024;

/// Values that a function or a block may take, since each branch to it hands over as many. Compilers emit a dozen.
const PARAMETERS_MAX: usize = 100;
/// And hand back. Compilers emit one.
const RESULTS_MAX: usize = 32;

/// Uses of locals, each as often as there are loops around it, that a function may have whatever its size. Measured: 125,000
/// in 6 KB took 0.5 s to compile, 2,000,000 in 18 KB 21 s; so many without the loops took 0.05 s.
const LOOPED_USES_FREE: u64 = 50_000;
/// The same for each byte of its body. What compilers emit stays below 3.
const LOOPED_USES_PER_BYTE: u64 = 16;

/// How the file has to be treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Component,
    /// A core module with the interface in a section of its own, to be made a component.
    CoreModule,
}

pub(super) struct Inspected {
    pub(super) form: Form,
    /// The manifest's section.
    pub(super) manifest: Vec<u8>,
    /// The names of the interfaces that it exports, of those of our package.
    pub(super) interfaces: BTreeSet<String>,
}

/// What is counted over the whole file.
#[derive(Default)]
struct Totals {
    modules: usize,
    functions: usize,
    /// Number of the function that is looked at, in its module.
    function: usize,
    memories: usize,
    tables: usize,
    manifest: Option<Vec<u8>>,
    /// How many modules and components are around what is looked at.
    depth: usize,
    interfaces: BTreeSet<String>,
}

/// Looks at the file. The error is one sentence.
pub(super) fn inspect(bytes: &[u8]) -> Result<Inspected, String> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("the file has {} bytes, {FILE_BYTES_MAX} at most", bytes.len()));
    }
    let form = if Parser::is_component(bytes) {
        Form::Component
    } else if Parser::is_core_wasm(bytes) {
        Form::CoreModule
    } else {
        return Err("the file is no wasm component: it does not begin as one".to_owned());
    };
    let mut totals = Totals::default();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(|error| broken(&error))?;
        totals.add(payload)?;
    }
    let manifest = totals.manifest.ok_or_else(|| {
        format!("the file has no section \"{}\": build it with `kuorum plugin build`", manifest::SECTION)
    })?;
    Ok(Inspected { form, manifest, interfaces: totals.interfaces })
}

/// wasmparser's sentences say what and where ("unexpected end-of-file (at offset 0x1f)").
pub(super) fn broken(error: &wasmparser::BinaryReaderError) -> String {
    format!("the file is damaged or cut short: {error}")
}

fn at_most<T: PartialOrd + std::fmt::Display>(what: &str, count: T, max: T) -> Result<(), String> {
    if count > max {
        return Err(format!("it is too complex: {count} {what}, {max} at most"));
    }
    Ok(())
}

impl Totals {
    fn add(&mut self, payload: Payload<'_>) -> Result<(), String> {
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                self.modules += 1;
                self.depth += 1;
                at_most("modules", self.modules, MODULES_MAX)
            }
            Payload::End(_) => {
                self.depth = self.depth.saturating_sub(1);
                Ok(())
            }
            Payload::ComponentExportSection(exports) if self.depth == 0 => {
                exports.into_iter().try_for_each(|export| self.add_export(export.map(|export| export.name.name)))
            }
            // A core module names the functions of an interface one by one.
            Payload::ExportSection(exports) if self.depth == 0 => {
                exports.into_iter().try_for_each(|export| self.add_export(export.map(|export| export.name)))
            }
            Payload::TypeSection(types) => {
                for ty in types.into_iter_err_on_gc_types() {
                    let ty = ty.map_err(|error| broken(&error))?;
                    at_most("parameters of a function or block", ty.params().len(), PARAMETERS_MAX)?;
                    at_most("results of a function or block", ty.results().len(), RESULTS_MAX)?;
                }
                Ok(())
            }
            Payload::FunctionSection(functions) => {
                self.functions += functions.count() as usize;
                self.function = 0;
                at_most("functions", self.functions, FUNCTIONS_MAX)
            }
            Payload::CodeSectionEntry(body) => {
                let number = self.function;
                self.function += 1;
                check_function(&body).map_err(|problem| format!("function {number} is too complex: {problem}"))
            }
            Payload::MemorySection(memories) => {
                for memory in memories {
                    self.add_memory(&memory.map_err(|error| broken(&error))?)?;
                }
                Ok(())
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    self.add_table(&table.map_err(|error| broken(&error))?.ty)?;
                }
                Ok(())
            }
            Payload::CustomSection(section) if section.name() == manifest::SECTION => {
                // The outermost goes first in the file, or is the only one; a second one can't be told from a mistake.
                match self.manifest.replace(section.data().to_vec()) {
                    Some(first) if first != section.data() => {
                        Err(format!("the file has two different sections \"{}\"", manifest::SECTION))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn add_export(&mut self, name: Result<&str, wasmparser::BinaryReaderError>) -> Result<(), String> {
        let name = name.map_err(|error| broken(&error))?;
        let interface = name.split('#').next().unwrap_or(name);
        if interface.starts_with(super::PACKAGE) {
            self.interfaces.insert(interface.to_owned());
        }
        at_most("interfaces", self.interfaces.len(), INTERFACES_MAX)
    }

    fn add_memory(&mut self, memory: &MemoryType) -> Result<(), String> {
        self.memories += 1;
        at_most("memories", self.memories, MEMORIES_MAX as usize)?;
        let page_bytes = memory.page_size_log2.map_or(PAGE_BYTES, |log2| 1_u64.checked_shl(log2).unwrap_or(PAGE_BYTES));
        at_most("bytes of memory from the start", memory.initial.saturating_mul(page_bytes), MEMORY_BYTES_MAX)
    }

    fn add_table(&mut self, table: &TableType) -> Result<(), String> {
        self.tables += 1;
        at_most("tables", self.tables, TABLES_MAX as usize)?;
        at_most("table elements from the start", table.initial, TABLE_ELEMENTS_MAX as u64)
    }
}

/// The error is the part of a sentence behind the function's number.
fn check_function(body: &FunctionBody<'_>) -> Result<(), String> {
    let excess = |what: &str, count: u64, max: u64| Err(format!("{count} {what}, {max} at most"));
    let bytes = body.range().len();
    if bytes > FUNCTION_BYTES_MAX {
        return excess("bytes", bytes as u64, FUNCTION_BYTES_MAX as u64);
    }
    let mut locals = 0_u64;
    for group in body.get_locals_reader().map_err(|error| broken(&error))? {
        locals += u64::from(group.map_err(|error| broken(&error))?.0);
    }
    if locals > LOCALS_MAX {
        return excess("locals", locals, LOCALS_MAX);
    }
    let Flow { nesting, looped_uses } = flow_of(body)?;
    if nesting > NESTING_MAX {
        return excess("nested blocks", nesting as u64, NESTING_MAX as u64);
    }
    let looped_uses_max = LOOPED_USES_FREE + LOOPED_USES_PER_BYTE * bytes as u64;
    if looped_uses > looped_uses_max {
        return Err(format!(
            "its {bytes} bytes use locals {looped_uses} times, counted once for each loop around, {looped_uses_max} at most"
        ));
    }
    Ok(())
}

/// How a function's control flow looks.
#[derive(Default)]
struct Flow {
    nesting: usize,
    looped_uses: u64,
}

fn flow_of(body: &FunctionBody<'_>) -> Result<Flow, String> {
    let mut flow = Flow::default();
    // Whether each block around is a loop. As long as the code is deep, and no longer than it has bytes.
    let mut around = Vec::new();
    let mut loops = 0_u64;
    for operator in body.get_operators_reader().map_err(|error| broken(&error))? {
        match operator.map_err(|error| broken(&error))? {
            Operator::Block { .. } | Operator::If { .. } | Operator::TryTable { .. } => around.push(false),
            Operator::Loop { .. } => {
                around.push(true);
                loops += 1;
            }
            Operator::End => loops -= u64::from(around.pop().unwrap_or(false)),
            Operator::LocalGet { .. } | Operator::LocalSet { .. } | Operator::LocalTee { .. } => {
                flow.looped_uses = flow.looped_uses.saturating_add(loops);
            }
            _ => {}
        }
        flow.nesting = flow.nesting.max(around.len());
    }
    Ok(flow)
}
