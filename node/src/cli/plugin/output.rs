//! What is written to standard output: lines, tables, JSON.

use std::io::{self, Write as _};

use kuorum_proto::kuorum::v1::{Plugin, PluginAck, PluginMode, PluginRevision};
use serde_json::{Value, json};

/// Columns stand this far apart.
const GAP: usize = 2;

pub(super) fn line(text: &str) {
    // A reader that has closed the pipe has seen enough.
    writeln!(io::stdout(), "{text}").ok();
}

/// One object, on one line.
pub(super) fn json(value: &Value) {
    line(&value.to_string());
}

/// Rows of equal length, the columns one below the other.
pub(super) fn table(rows: Vec<Vec<String>>) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}", width = width + GAP));
        line(cells.collect::<String>().trim_end());
    }
}

pub(super) fn mode_text(mode: PluginMode) -> &'static str {
    match mode {
        PluginMode::Off => "off",
        PluginMode::Shadow => "shadow",
        PluginMode::Enforce => "enforce",
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key as `--kv-read` takes it.
pub(super) fn key_text(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.starts_with("hex:") && !text.contains(char::is_control) => text.to_owned(),
        Ok(_) | Err(_) => format!("hex:{}", hex(key)),
    }
}

/// How a member is called where people read it.
pub(super) fn member_label(id: u64, name: &str, is_learner: bool) -> String {
    let name = if name.is_empty() { format!("{id:x}") } else { name.to_owned() };
    if is_learner { format!("{name} (learner)") } else { name }
}

pub(super) fn plugin(plugin: &Plugin) -> Value {
    let slot = |slot: &Option<PluginRevision>| slot.as_ref().map_or(Value::Null, revision);
    json!({
        "name": plugin.name,
        "current": slot(&plugin.current),
        "candidate": slot(&plugin.candidate),
        "previous": slot(&plugin.previous),
    })
}

fn revision(revision: &PluginRevision) -> Value {
    let limits = revision.limits.unwrap_or_default();
    let ack = |ack: &PluginAck| json!({ "id": format!("{:x}", ack.member_id), "ready": ack.failure.is_empty(), "failure": ack.failure });
    json!({
        "revision": revision.number,
        "mode": mode_text(revision.mode()),
        "sha256": hex(&revision.sha256),
        "component_bytes": revision.component_bytes,
        "config": serde_json::from_str(&revision.config).unwrap_or_else(|_| Value::String(revision.config.clone())),
        "kv_read": revision.kv_read.iter().map(|key| key_text(key)).collect::<Vec<_>>(),
        "limits": {
            "fuel": limits.fuel,
            "memory_bytes": limits.memory_bytes,
            "deadline_ms": limits.deadline_ms,
        },
        "identity": hex(&revision.identity),
        "acks": revision.acks.iter().map(ack).collect::<Vec<_>>(),
    })
}
