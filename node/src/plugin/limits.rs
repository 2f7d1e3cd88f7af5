//! What a plugin may use: what it asks for, what it gets, and the ceiling over the memory of its instances.
//!
//! Fuel is the budget of processor time, the same on every machine; the deadline is the backstop against what costs time
//! and no fuel. Both are per call. Memory is per instance.

use serde::{Deserialize, Serialize};
use wasmtime::ResourceLimiter;

/// About 10 ms of a slow plugin; a check written in Rust uses some thousands.
pub(super) const FUEL_DEFAULT: u64 = 20_000_000;
/// Some seconds: interpreted languages need a hundred times what a compiled one does.
const FUEL_MAX: u64 = 5_000_000_000;
const MEMORY_BYTES_DEFAULT: u64 = 32 << 20;
/// Components made from Python and JavaScript need 64 to 128 MiB.
pub(super) const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Far beyond what the default fuel lasts: a thread that the machine keeps waiting must not make an innocent plugin fail.
pub(super) const DEADLINE_MS_DEFAULT: u32 = 100;
pub(super) const DEADLINE_MS_MAX: u32 = 10_000;

/// Budget of what runs once when an instance is made: its start functions, `validate-config` and `configure`.
pub(super) const SETUP: Budget = Budget { fuel: FUEL_MAX, deadline_ms: DEADLINE_MS_MAX };

/// Elements of all tables of an instance. CPython has some 10,000.
pub(super) const TABLE_ELEMENTS_MAX: usize = 100_000;
/// Core instances of one component: a composed one of many libraries has about thirty.
pub(super) const CORE_INSTANCES_MAX: u32 = 64;
pub(super) const TABLES_MAX: u32 = 32;
pub(super) const MEMORIES_MAX: u32 = 8;

/// Limits that a manifest asks for, or that an operator sets when loading a plugin; what is left out is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskedLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fuel: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_ms: Option<u32>,
}

impl AskedLimits {
    /// What an operator sets; 0 stands for nothing.
    pub(crate) fn set(fuel: u64, memory_bytes: u64, deadline_ms: u64) -> AskedLimits {
        let set = |limit: u64| (limit != 0).then_some(limit);
        AskedLimits {
            fuel: set(fuel),
            memory_bytes: set(memory_bytes),
            // Past what fits is past what is allowed.
            deadline_ms: set(deadline_ms).map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)),
        }
    }
}

/// The limits in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of one call.
    pub(crate) fuel: u64,
    /// Of one instance.
    pub(crate) memory_bytes: u64,
    /// Of one call.
    pub(crate) deadline_ms: u32,
}

/// What one call may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) fuel: u64,
    pub(super) deadline_ms: u32,
}

impl Limits {
    /// What the operator says goes before what the plugin asks for. The error names the limit.
    pub(super) fn resolve(operator: &AskedLimits, manifest: &AskedLimits) -> Result<Limits, String> {
        let asked = |operator: Option<u64>, manifest: Option<u64>, default| operator.or(manifest).unwrap_or(default);
        let deadline_ms = asked(
            operator.deadline_ms.map(u64::from),
            manifest.deadline_ms.map(u64::from),
            u64::from(DEADLINE_MS_DEFAULT),
        );
        let limits = Limits {
            fuel: within("fuel", asked(operator.fuel, manifest.fuel, FUEL_DEFAULT), FUEL_MAX)?,
            memory_bytes: within(
                "memory_bytes",
                asked(operator.memory_bytes, manifest.memory_bytes, MEMORY_BYTES_DEFAULT),
                MEMORY_BYTES_MAX,
            )?,
            deadline_ms: u32::try_from(within("deadline_ms", deadline_ms, u64::from(DEADLINE_MS_MAX))?)
                .expect("the greatest deadline fits"),
        };
        Ok(limits)
    }

    pub(super) fn budget(&self) -> Budget {
        Budget { fuel: self.fuel, deadline_ms: self.deadline_ms }
    }
}

fn within(name: &str, asked: u64, max: u64) -> Result<u64, String> {
    match asked {
        1.. if asked <= max => Ok(asked),
        _ => Err(format!("limits.{name} is {asked}, and must be from 1 to {max}")),
    }
}

/// Counts what the memories and tables of one store hold, and refuses what goes beyond.
pub(super) struct Ceiling {
    memory_bytes_max: usize,
    memory_bytes: usize,
    table_elements: usize,
    /// The last refusal, for the text of the trap that usually follows.
    refused: Option<String>,
}

impl Ceiling {
    pub(super) fn new(limits: &Limits) -> Ceiling {
        let memory_bytes_max = usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX);
        Ceiling { memory_bytes_max, memory_bytes: 0, table_elements: 0, refused: None }
    }

    pub(super) fn take_refusal(&mut self) -> Option<String> {
        self.refused.take()
    }
}

impl ResourceLimiter for Ceiling {
    fn memory_growing(&mut self, current: usize, desired: usize, _max: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.memory_bytes.saturating_sub(current).saturating_add(desired);
        if total > self.memory_bytes_max {
            self.refused =
                Some(format!("it asked for {total} bytes of memory, and its limit is {}", self.memory_bytes_max));
            return Ok(false);
        }
        self.memory_bytes = total;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _max: Option<usize>) -> wasmtime::Result<bool> {
        let total = self.table_elements.saturating_sub(current).saturating_add(desired);
        if total > TABLE_ELEMENTS_MAX {
            self.refused = Some(format!("it asked for {total} table elements, and the limit is {TABLE_ELEMENTS_MAX}"));
            return Ok(false);
        }
        self.table_elements = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_goes_before_the_manifest_and_both_before_the_default() {
        let manifest = AskedLimits { fuel: Some(5), memory_bytes: Some(1 << 20), deadline_ms: None };
        let operator = AskedLimits { fuel: Some(7), ..AskedLimits::default() };
        let limits = Limits::resolve(&operator, &manifest).unwrap();
        assert_eq!(limits, Limits { fuel: 7, memory_bytes: 1 << 20, deadline_ms: DEADLINE_MS_DEFAULT });
    }

    #[test]
    fn a_limit_beyond_the_greatest_is_named() {
        let asked = AskedLimits { deadline_ms: Some(60_000), ..AskedLimits::default() };
        let error = Limits::resolve(&AskedLimits::default(), &asked).unwrap_err();
        assert_eq!(error, "limits.deadline_ms is 60000, and must be from 1 to 10000");
        let none = AskedLimits { fuel: Some(0), ..AskedLimits::default() };
        assert!(Limits::resolve(&none, &AskedLimits::default()).unwrap_err().starts_with("limits.fuel is 0"));
    }
}
