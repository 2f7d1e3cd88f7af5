//! `load`: a component goes into the cluster, becomes a revision, and is prepared by the members.
//!
//! What can be told of the file without compiling it is told before anything is uploaded.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use kuorum_proto::kuorum::v1::{
    PluginLoadProgress, PluginLoadRequest, PluginPreparation, PluginUploadBegin, PluginUploadRequest,
    plugin_upload_request,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::arguments::{Configuration, Load, Output};
use super::connection::Connection;
use super::output::{self, hex, member_label};
use crate::plugin::{AskedLimits, Manifest};
use crate::policy::plugins::{CONFIG_BYTES_MAX, Refused, SIGNATURE_BYTES, check_json};

/// Bytes of a message: as many as the member puts into one entry.
const MESSAGE_BYTES: usize = 256 << 10;
const MIB: usize = 1 << 20;

pub(super) async fn load(connection: &mut Connection, output: Output, load: &Load) -> anyhow::Result<bool> {
    let component = read(&load.component)?;
    let (manifest, not_granted) = check(&component, load)?;
    if output == Output::Table && !not_granted.is_empty() {
        output::say(&format!(
            "{} asks to read what it is not granted (--kv-read): {}",
            manifest.name,
            output::prefixes_text(&not_granted)
        ));
    }
    let config = load.config.text()?;
    let signature = match &load.signature {
        Some(path) => read_signature(path)?,
        None => Bytes::new(),
    };
    let sha256 = Bytes::copy_from_slice(&Sha256::digest(&component));
    let uploaded = upload(connection, output, component, &sha256).await?;
    let request = PluginLoadRequest {
        name: manifest.name,
        sha256: sha256.clone(),
        config,
        kv_read: load.kv_read.clone(),
        limits: Some(load.limits),
        signature,
        wait_ms: u64::try_from(load.wait.as_millis()).unwrap_or(u64::MAX),
    };
    let last = follow(connection, output, request).await?;
    let ready = last.members.iter().all(is_ready);
    match output {
        Output::Json => output::json(&json!({
            "name": last.name,
            "revision": last.revision,
            "was_there": last.was_there,
            "sha256": hex(&sha256),
            "identity": hex(&last.identity),
            "uploaded": uploaded,
            "kv_read_not_granted": output::keys(&not_granted),
            "policy_epoch": last.policy_epoch,
            "ready": ready,
            "members": last.members.iter().map(member).collect::<Vec<_>>(),
        })),
        Output::Table if ready => {
            output::line(&format!("{}: revision {} is ready on every member", last.name, last.revision));
        }
        Output::Table => {}
    }
    if !ready {
        let members = last.members.iter().filter(|member| !is_ready(member));
        let lacking: Vec<String> = members.map(|member| format!("{} {}", label(member), state(member))).collect();
        eprintln!(
            "kuorum plugin load: revision {} of {} is not ready on every member: {}",
            last.revision,
            last.name,
            lacking.join("; ")
        );
    }
    Ok(ready)
}

impl Configuration {
    /// As it is given to the plugin; empty when there is none.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let text = match self {
            Configuration::None => String::new(),
            Configuration::Text(text) => text.clone(),
            Configuration::File(path) => {
                fs::read_to_string(path).with_context(|| format!("configuration {}", path.display()))?
            }
        };
        if text.len() > CONFIG_BYTES_MAX {
            bail!(Refused::ConfigTooLarge);
        }
        if !text.is_empty() {
            check_json(&text).map_err(anyhow::Error::msg)?;
        }
        Ok(text)
    }
}

pub(super) fn read(path: &Path) -> anyhow::Result<Bytes> {
    let component = fs::read(path).with_context(|| format!("component {}", path.display()))?;
    if component.is_empty() {
        bail!("component {} is empty", path.display());
    }
    Ok(component.into())
}

fn read_signature(path: &Path) -> anyhow::Result<Bytes> {
    let named = || format!("signature {}", path.display());
    let signature = fs::read(path).with_context(named)?;
    if signature.len() != SIGNATURE_BYTES {
        bail!("{}: {}", named(), Refused::BadSignature(signature.len()));
    }
    Ok(signature.into())
}

/// Reads the file's manifest; and what it asks to read and is not granted.
fn check(component: &[u8], load: &Load) -> anyhow::Result<(Manifest, Vec<Bytes>)> {
    let Load { component: path, name, kv_read, limits, .. } = load;
    let told = |problem: String| anyhow!("{}: {problem}", path.display());
    let manifest = Manifest::of_file(component).map_err(told)?;
    let name = name.as_ref().unwrap_or(&manifest.name);
    let limits = AskedLimits::set(limits.fuel, limits.memory_bytes, limits.deadline_ms);
    manifest.allow(name, kv_read, &limits).map_err(told)?;
    let not_granted = manifest.not_granted(kv_read).into_iter().map(Bytes::copy_from_slice).collect();
    Ok((manifest, not_granted))
}

/// Returns whether its bytes were needed.
async fn upload(connection: &mut Connection, output: Output, component: Bytes, sha256: &Bytes) -> anyhow::Result<bool> {
    let part = |part| PluginUploadRequest { part: Some(part) };
    let begin = PluginUploadBegin { sha256: sha256.clone(), component_bytes: component.len() as u64 };
    let all = component.len();
    let shows = output == Output::Table && io::stderr().is_terminal();
    let pieces = (0..all).step_by(MESSAGE_BYTES).map(move |from| {
        let to = all.min(from + MESSAGE_BYTES);
        if shows {
            eprint!("\ruploading {} of {} KiB", to >> 10, all >> 10);
        }
        part(plugin_upload_request::Part::Chunk(component.slice(from..to)))
    });
    let begin = std::iter::once(part(plugin_upload_request::Part::Begin(begin)));
    // As long as it takes: the member tells when it stops.
    let answer = connection.client.upload(tokio_stream::iter(begin.chain(pieces))).await;
    if shows {
        eprintln!();
    }
    let answer = answer.map_err(|status| connection.told(&status))?.into_inner();
    if output == Output::Table {
        #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
        let mib = all as f64 / MIB as f64;
        match answer.was_there {
            true => eprintln!("the cluster has the component already ({mib:.1} MiB)"),
            false => eprintln!("uploaded {mib:.1} MiB"),
        }
    }
    Ok(!answer.was_there)
}

/// Follows the members until all have answered or the time is over, and returns how they stood last.
async fn follow(
    connection: &mut Connection,
    output: Output,
    request: PluginLoadRequest,
) -> anyhow::Result<PluginLoadProgress> {
    let mut progress = connection.answer(async |client| client.load(request).await).await?;
    let mut last: Option<PluginLoadProgress> = None;
    while let Some(next) = progress.message().await.map_err(|status| connection.told(&status))? {
        if output == Output::Table {
            tell(last.as_ref(), &next);
        }
        last = Some(next);
    }
    last.context("the member ended the answer before it said anything")
}

/// Says what is new since the message before.
fn tell(before: Option<&PluginLoadProgress>, now: &PluginLoadProgress) {
    if before.is_none() {
        let was_there = if now.was_there { ", which was there already" } else { "" };
        eprintln!("revision {} of {}{was_there}", now.revision, now.name);
    }
    for member in now.members.iter().filter(|member| member.acknowledged) {
        let told = before.is_some_and(|before| before.members.contains(member));
        if !told {
            output::say(&format!("  {} {}", label(member), state(member)));
        }
    }
}

fn is_ready(member: &PluginPreparation) -> bool {
    member.acknowledged && member.failure.is_empty()
}

fn label(member: &PluginPreparation) -> String {
    member_label(member.member_id, &member.member_name, member.is_learner)
}

fn state(member: &PluginPreparation) -> String {
    match (member.acknowledged, member.failure.as_str()) {
        (true, "") => "is ready".to_owned(),
        (true, failure) => format!("can't prepare it: {failure}"),
        (false, _) => "has not answered".to_owned(),
    }
}

fn member(member: &PluginPreparation) -> serde_json::Value {
    let state = match (member.acknowledged, member.failure.is_empty()) {
        (true, true) => "ready",
        (true, false) => "failed",
        (false, _) => "waiting",
    };
    json!({
        "id": format!("{:x}", member.member_id),
        "name": member.member_name,
        "is_learner": member.is_learner,
        "state": state,
        "failure": member.failure,
    })
}
