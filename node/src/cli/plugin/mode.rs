//! `shadow`, `activate`, `off`, `rollback`, `remove`: what a plugin may do.

use anyhow::Context as _;
use kuorum_proto::kuorum::v1::{
    Plugin, PluginChangeResponse, PluginListRequest, PluginMode, PluginRemoveRequest, PluginRollbackRequest,
    PluginSetModeRequest,
};
use serde_json::json;

use super::arguments::{Change, Output, SetMode};
use super::connection::Connection;
use super::output::{self, mode_text};

pub(super) async fn set(connection: &mut Connection, output: Output, set: &SetMode) -> anyhow::Result<bool> {
    let Change { name, expected_epoch, allow_missing_members } = &set.change;
    let expected_policy_epoch = match (set.mode, *expected_epoch) {
        // Whoever switches a plugin off is not to be kept from it by what others do.
        (PluginMode::Off, epoch) | (_, epoch @ Some(_)) => epoch,
        (PluginMode::Shadow | PluginMode::Enforce, None) => Some(epoch(connection).await?),
    };
    let request = PluginSetModeRequest {
        name: name.clone(),
        mode: set.mode.into(),
        revision: set.revision,
        expected_policy_epoch,
        allow_missing_members: *allow_missing_members,
    };
    let response = connection.answer(async |client| client.set_mode(request).await).await?;
    show(output, response)
}

pub(super) async fn roll_back(connection: &mut Connection, output: Output, change: &Change) -> anyhow::Result<bool> {
    let epoch = match change.expected_epoch {
        Some(epoch) => epoch,
        None => epoch(connection).await?,
    };
    let request = PluginRollbackRequest {
        name: change.name.clone(),
        expected_policy_epoch: Some(epoch),
        allow_missing_members: change.allow_missing_members,
    };
    let response = connection.answer(async |client| client.rollback(request).await).await?;
    show(output, response)
}

pub(super) async fn remove(connection: &mut Connection, output: Output, name: &str) -> anyhow::Result<bool> {
    let request = PluginRemoveRequest { name: name.to_owned() };
    let response = connection.answer(async |client| client.remove(request).await).await?;
    match output {
        Output::Json => output::json(&json!({ "name": name, "policy_epoch": response.policy_epoch })),
        Output::Table => output::line(&format!("{name} is removed")),
    }
    Ok(true)
}

async fn epoch(connection: &mut Connection) -> anyhow::Result<u64> {
    let request = PluginListRequest { serializable: false };
    let plugins = connection.answer(async |client| client.list(request).await).await?;
    Ok(plugins.policy_epoch)
}

fn show(output: Output, response: PluginChangeResponse) -> anyhow::Result<bool> {
    let PluginChangeResponse { policy_epoch, plugin } = response;
    let plugin = plugin.context("the plugin was removed meanwhile")?;
    match output {
        Output::Json => output::json(&json!({ "policy_epoch": policy_epoch, "plugin": output::plugin(&plugin, &[]) })),
        Output::Table => output::line(&format!("{} (policy epoch {policy_epoch})", sentence(&plugin))),
    }
    Ok(true)
}

fn sentence(plugin: &Plugin) -> String {
    let slots = [("", &plugin.current), ("candidate ", &plugin.candidate)];
    let parts = slots.into_iter().filter_map(|(what, revision)| {
        let revision = revision.as_ref()?;
        Some(format!("{what}revision {} {}", revision.number, mode_text(revision.mode())))
    });
    format!("{}: {}", plugin.name, parts.collect::<Vec<_>>().join(", "))
}
