//! What is written to standard output: lines, tables, JSON.

use std::io::{self, Write as _};

use bytes::Bytes;
use kuorum_proto::kuorum::v1::{
    Plugin, PluginAck, PluginHealth, PluginLimits, PluginMode, PluginRevision, PluginStanding,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Columns stand this far apart.
const GAP: usize = 2;

/// What others wrote, fit for a line of a terminal: without the letters that end the line or move what follows.
pub(super) fn fit(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A line on standard error.
pub(super) fn say(text: &str) {
    eprintln!("{}", fit(text));
}

/// A line for people.
pub(super) fn line(text: &str) {
    try_line(&fit(text));
}

/// Why lines could not be written, unless it was that a reader has closed the pipe: it has seen enough.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Whether all that was to be written is, or nobody wants it.
pub(super) fn written() -> io::Result<()> {
    FAILURE.lock().take().map_or(Ok(()), Err)
}

/// Returns whether the line was written; if not, [`written`] says why.
pub(super) fn try_line(text: &str) -> bool {
    let mut out = io::stdout();
    let outcome = writeln!(out, "{text}").and_then(|()| out.flush());
    let is_written = outcome.is_ok();
    if let Err(error) = outcome
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        FAILURE.lock().get_or_insert(error);
    }
    is_written
}

/// One object, on one line, with every letter as it is: programs read it.
pub(super) fn json(value: &Value) {
    try_line(&value.to_string());
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

pub(super) fn health_text(health: PluginHealth) -> &'static str {
    match health {
        PluginHealth::Preparing => "preparing",
        PluginHealth::Failed => "failed",
        PluginHealth::Ok => "ok",
        PluginHealth::Quarantined => "quarantined",
        PluginHealth::Tried => "tried",
    }
}

pub(super) fn standing_of<'a>(
    standings: &'a [PluginStanding],
    name: &str,
    revision: u64,
) -> Option<&'a PluginStanding> {
    standings.iter().find(|standing| standing.name == name && standing.revision == revision)
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

/// Prefixes of keys; the empty one stands for all of them.
pub(super) fn prefixes_text(prefixes: &[Bytes]) -> String {
    let text = |prefix: &Bytes| if prefix.is_empty() { "all keys".to_owned() } else { key_text(prefix) };
    if prefixes.is_empty() { "nothing".to_owned() } else { prefixes.iter().map(text).collect::<Vec<_>>().join(" ") }
}

/// How a member is called where people read it.
pub(super) fn member_label(id: u64, name: &str, is_learner: bool) -> String {
    let name = if name.is_empty() { format!("{id:x}") } else { name.to_owned() };
    if is_learner { format!("{name} (learner)") } else { name }
}

/// A plugin; how its revisions stand on the member that answered, if it said so.
pub(super) fn plugin(plugin: &Plugin, standings: &[PluginStanding]) -> Value {
    let slot = |slot: &Option<PluginRevision>| {
        let Some(kept) = slot else { return Value::Null };
        let mut shown = revision(kept);
        if let Some(known) = standing_of(standings, &plugin.name, kept.number) {
            shown["here"] = standing(known);
        }
        shown
    };
    json!({
        "name": plugin.name,
        "current": slot(&plugin.current),
        "candidate": slot(&plugin.candidate),
        "previous": slot(&plugin.previous),
    })
}

fn limits(limits: Option<PluginLimits>) -> Value {
    let PluginLimits { fuel, memory_bytes, deadline_ms } = limits.unwrap_or_default();
    json!({ "fuel": fuel, "memory_bytes": memory_bytes, "deadline_ms": deadline_ms })
}

pub(super) fn keys(keys: &[Bytes]) -> Vec<String> {
    keys.iter().map(|key| key_text(key)).collect()
}

fn standing(standing: &PluginStanding) -> Value {
    json!({
        "health": health_text(standing.health()),
        "failures": standing.failures,
        "kinds": standing.kinds,
        "version": standing.version,
        "description": standing.description,
        "kv_read_asked": keys(&standing.kv_read_asked),
        "limits": limits(standing.limits),
    })
}

fn revision(revision: &PluginRevision) -> Value {
    let ack = |ack: &PluginAck| {
        json!({
            "id": format!("{:x}", ack.member_id),
            "ready": ack.failure.is_empty(),
            "failure": ack.failure,
            "unusable": ack.unusable,
        })
    };
    json!({
        "revision": revision.number,
        "mode": mode_text(revision.mode()),
        "sha256": hex(&revision.sha256),
        "component_bytes": revision.component_bytes,
        "config": serde_json::from_str(&revision.config).unwrap_or_else(|_| Value::String(revision.config.clone())),
        "kv_read": keys(&revision.kv_read),
        "limits": limits(revision.limits),
        "identity": hex(&revision.identity),
        "signature": hex(&revision.signature),
        "acks": revision.acks.iter().map(ack).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_of_everything_looks_unlike_one_of_nothing() {
        let shown = |prefixes: &[&'static str]| {
            prefixes_text(&prefixes.iter().map(|prefix| Bytes::from_static(prefix.as_bytes())).collect::<Vec<_>>())
        };
        assert_eq!((shown(&[]).as_str(), shown(&[""]).as_str()), ("nothing", "all keys"));
        assert_eq!(shown(&["/a/", "hex:"]), "/a/ hex:6865783a");
    }
}
