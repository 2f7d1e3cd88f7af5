//! `list`, `inspect`, `tail`: how plugins stand.

use anyhow::Context as _;
use kuorum_proto::kuorum::v1::{
    Plugin, PluginInspectRequest, PluginInspectResponse, PluginListRequest, PluginMember, PluginRevision,
    PluginTailRequest,
};
use serde_json::json;

use super::arguments::Output;
use super::connection::{Connection, told};
use super::output::{self, hex, key_text, member_label, mode_text};

/// Digits of a hash in a table.
const HASH_SHOWN_DIGITS: usize = 12;

pub(super) async fn list(connection: &mut Connection, output: Output) -> anyhow::Result<bool> {
    let request = PluginListRequest { serializable: false };
    let response = connection.answer(async |client| client.list(request).await).await?;
    match output {
        Output::Json => output::json(&json!({
            "policy_epoch": response.policy_epoch,
            "plugins": response.plugins.iter().map(output::plugin).collect::<Vec<_>>(),
        })),
        Output::Table => {
            let head = ["NAME", "CURRENT", "CANDIDATE", "PREVIOUS"].map(str::to_owned).to_vec();
            output::table(std::iter::once(head).chain(response.plugins.iter().map(row)).collect());
            output::line(&format!("policy epoch {}", response.policy_epoch));
        }
    }
    Ok(true)
}

fn row(plugin: &Plugin) -> Vec<String> {
    let with_mode = |revision: &Option<PluginRevision>| {
        let shown = revision.as_ref().map(|revision| format!("{} {}", revision.number, mode_text(revision.mode())));
        shown.unwrap_or_else(|| "-".to_owned())
    };
    let previous = plugin.previous.as_ref().map_or_else(|| "-".to_owned(), |revision| revision.number.to_string());
    vec![plugin.name.clone(), with_mode(&plugin.current), with_mode(&plugin.candidate), previous]
}

pub(super) async fn inspect(connection: &mut Connection, output: Output, name: &str) -> anyhow::Result<bool> {
    let request = PluginInspectRequest { name: name.to_owned(), serializable: false };
    let response = connection.answer(async |client| client.inspect(request).await).await?;
    let PluginInspectResponse { policy_epoch, plugin, members } = response;
    let plugin = plugin.context("the answer holds no plugin")?;
    if output == Output::Json {
        let member = |member: &PluginMember| json!({ "id": format!("{:x}", member.id), "name": member.name, "is_learner": member.is_learner });
        output::json(&json!({
            "policy_epoch": policy_epoch,
            "plugin": output::plugin(&plugin),
            "members": members.iter().map(member).collect::<Vec<_>>(),
        }));
        return Ok(true);
    }
    output::line(&format!("{} (policy epoch {policy_epoch})", plugin.name));
    let slots = [("current", &plugin.current), ("candidate", &plugin.candidate), ("previous", &plugin.previous)];
    for (what, revision) in slots {
        if let Some(revision) = revision {
            describe(what, revision, &members);
        }
    }
    Ok(true)
}

fn describe(what: &str, revision: &PluginRevision, members: &[PluginMember]) {
    let short = |hash: &[u8]| hex(hash).chars().take(HASH_SHOWN_DIGITS).collect::<String>();
    let limits = revision.limits.unwrap_or_default();
    let limit = |value: u64| if value == 0 { "default".to_owned() } else { value.to_string() };
    let mut rows = vec![
        vec![format!("{what} revision {}", revision.number), mode_text(revision.mode()).to_owned()],
        vec!["  component".to_owned(), format!("{} ({} bytes)", short(&revision.sha256), revision.component_bytes)],
        vec!["  identity".to_owned(), short(&revision.identity)],
        vec!["  configuration".to_owned(), revision.config.clone()],
        vec!["  may read".to_owned(), revision.kv_read.iter().map(|key| key_text(key)).collect::<Vec<_>>().join(" ")],
        vec![
            "  limits".to_owned(),
            format!(
                "fuel {}, memory {} bytes, deadline {} ms",
                limit(limits.fuel),
                limit(limits.memory_bytes),
                limit(limits.deadline_ms)
            ),
        ],
    ];
    for member in members {
        let ack = revision.acks.iter().find(|ack| ack.member_id == member.id);
        let state = match ack.map(|ack| ack.failure.as_str()) {
            Some("") => "ready".to_owned(),
            Some(failure) => format!("failed: {failure}"),
            None => "has not answered".to_owned(),
        };
        rows.push(vec![format!("  {}", member_label(member.id, &member.name, member.is_learner)), state]);
    }
    output::table(rows);
}

pub(super) async fn tail(connection: &mut Connection, output: Output, name: &str) -> anyhow::Result<bool> {
    let request = PluginTailRequest { name: name.to_owned() };
    let mut lines = connection.answer(async |client| client.tail(request).await).await?;
    while let Some(line) = lines.message().await.map_err(|status| told(&status))? {
        match output {
            Output::Json => output::json(&json!({ "text": line.text })),
            Output::Table => output::line(&line.text),
        }
    }
    Ok(true)
}
