//! `list`, `inspect`: how plugins stand.

use anyhow::Context as _;
use kuorum_proto::kuorum::v1::{
    Plugin, PluginInspectRequest, PluginInspectResponse, PluginLimits, PluginListRequest, PluginMember, PluginRevision,
    PluginStanding,
};
use serde_json::json;

use super::arguments::Output;
use super::connection::Connection;
use super::output::{self, hex, member_label, mode_text};

/// Digits of a hash in a table.
const HASH_SHOWN_DIGITS: usize = 12;

pub(super) async fn list(connection: &mut Connection, output: Output) -> anyhow::Result<bool> {
    let request = PluginListRequest { serializable: false };
    let response = connection.answer(async |client| client.list(request).await).await?;
    match output {
        Output::Json => output::json(&json!({
            "policy_epoch": response.policy_epoch,
            "plugins": response.plugins.iter().map(|plugin| output::plugin(plugin, &response.standings)).collect::<Vec<_>>(),
        })),
        Output::Table => {
            let head = ["NAME", "CURRENT", "CANDIDATE", "PREVIOUS", "HEALTH"].map(str::to_owned).to_vec();
            let rows = response.plugins.iter().map(|plugin| row(plugin, &response.standings));
            output::table(std::iter::once(head).chain(rows).collect());
            output::line(&format!("policy epoch {}", response.policy_epoch));
        }
    }
    Ok(true)
}

/// The health is that of the revision which is asked first, on the member that answered; and on how many it has failed.
fn row(plugin: &Plugin, standings: &[PluginStanding]) -> Vec<String> {
    let with_mode = |revision: &Option<PluginRevision>| {
        let shown = revision.as_ref().map(|revision| format!("{} {}", revision.number, mode_text(revision.mode())));
        shown.unwrap_or_else(|| "-".to_owned())
    };
    let previous = plugin.previous.as_ref().map_or_else(|| "-".to_owned(), |revision| revision.number.to_string());
    let shown = plugin.current.as_ref().or(plugin.candidate.as_ref());
    let standing = shown.and_then(|revision| output::standing_of(standings, &plugin.name, revision.number));
    let mut health = standing.map_or("-", |standing| output::health_text(standing.health())).to_owned();
    let failed = shown.map_or(0, |revision| revision.acks.iter().filter(|ack| !ack.failure.is_empty()).count());
    if failed > 0 {
        health.push_str(&format!(", failed on {failed}"));
    }
    vec![plugin.name.clone(), with_mode(&plugin.current), with_mode(&plugin.candidate), previous, health]
}

pub(super) async fn inspect(connection: &mut Connection, output: Output, name: &str) -> anyhow::Result<bool> {
    let request = PluginInspectRequest { name: name.to_owned(), serializable: false };
    let response = connection.answer(async |client| client.inspect(request).await).await?;
    let PluginInspectResponse { policy_epoch, plugin, members, standings, member_id } = response;
    let plugin = plugin.context("the answer holds no plugin")?;
    if output == Output::Json {
        let member = |member: &PluginMember| json!({ "id": format!("{:x}", member.id), "name": member.name, "is_learner": member.is_learner });
        output::json(&json!({
            "policy_epoch": policy_epoch,
            "plugin": output::plugin(&plugin, &standings),
            "members": members.iter().map(member).collect::<Vec<_>>(),
            "asked_member": format!("{member_id:x}"),
        }));
        return Ok(true);
    }
    output::line(&format!("{} (policy epoch {policy_epoch})", plugin.name));
    let slots = [("current", &plugin.current), ("candidate", &plugin.candidate), ("previous", &plugin.previous)];
    for (what, revision) in slots {
        if let Some(revision) = revision {
            let standing = output::standing_of(&standings, &plugin.name, revision.number);
            describe(what, revision, &members, standing);
        }
    }
    Ok(true)
}

fn describe(what: &str, revision: &PluginRevision, members: &[PluginMember], standing: Option<&PluginStanding>) {
    let short = |hash: &[u8]| hex(hash).chars().take(HASH_SHOWN_DIGITS).collect::<String>();
    let mut rows = vec![(format!("{what} revision {}", revision.number), mode_text(revision.mode()).to_owned())];
    let mut row = |what: &str, text: String| rows.push((format!("  {what}"), text));
    if let Some(standing) = standing.filter(|standing| !standing.kinds.is_empty()) {
        row("version", standing.version.clone());
        row("description", standing.description.clone());
        row("kinds", standing.kinds.join(" "));
    }
    row("component", format!("{} ({} bytes)", short(&revision.sha256), revision.component_bytes));
    row("identity", short(&revision.identity));
    row("signature", if revision.signature.is_empty() { "none".to_owned() } else { short(&revision.signature) });
    row("configuration", revision.config.lines().map(str::trim).collect());
    row("may read", output::prefixes_text(&revision.kv_read));
    if let Some(standing) = standing.filter(|standing| !standing.kv_read_asked.is_empty()) {
        row("asks to read", output::prefixes_text(&standing.kv_read_asked));
    }
    row("limits", limits_text(revision, standing));
    if let Some(standing) = standing {
        let failures = match standing.failures {
            0 => String::new(),
            failures => format!(", {failures} failures in a row"),
        };
        row("health here", format!("{}{failures}", output::health_text(standing.health())));
    }
    for member in members {
        let ack = revision.acks.iter().find(|ack| ack.member_id == member.id);
        let state = match ack {
            None => "has not answered".to_owned(),
            Some(ack) if !ack.failure.is_empty() => format!("failed: {}", ack.failure),
            Some(ack) if !ack.unusable.is_empty() => format!("ready, but: {}", ack.unusable),
            Some(_) => "ready".to_owned(),
        };
        row(&member_label(member.id, &member.name, member.is_learner), state);
    }
    output::table(rows.into_iter().map(|(what, text)| vec![what, text]).collect());
}

/// The limits in force; where the member does not know them, those that were set when it was loaded.
fn limits_text(revision: &PluginRevision, standing: Option<&PluginStanding>) -> String {
    let in_force = standing.and_then(|standing| standing.limits);
    let limits = in_force.or(revision.limits).unwrap_or_default();
    let limit = |value: u64| if value == 0 { "default".to_owned() } else { value.to_string() };
    let PluginLimits { fuel, memory_bytes, deadline_ms } = limits;
    format!("fuel {}, memory {} bytes, deadline {} ms", limit(fuel), limit(memory_bytes), limit(deadline_ms))
}
