//! The service `kuorum.v1.Plugins`: how operators bring plugins into force.
//!
//! Everything that changes something is proposed, and decided in apply ([`crate::policy::plugins`]). What is kept here is
//! that a component has the SHA-256 it is called by: its last piece is proposed once that is known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kuorum_proto::kuorum::v1::{
    Plugin, PluginChangeResponse, PluginChunk, PluginInspectRequest, PluginInspectResponse, PluginListRequest,
    PluginListResponse, PluginLoad, PluginLoadProgress, PluginLoadRequest, PluginMember, PluginMode, PluginPreparation,
    PluginRemove, PluginRemoveRequest, PluginRemoveResponse, PluginRevision, PluginRollback, PluginRollbackRequest,
    PluginSetMode, PluginSetModeRequest, PluginTailLine, PluginTailRequest, PluginTailWhat, PluginUploadBegin,
    PluginUploadRequest, PluginUploadResponse, plugin_command, plugin_upload_request,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::maintenance::off_shard;
use super::{Node, status, unexpected};
use crate::apply::{Reply, plugin as rows};
use crate::cluster::MemberId;
use crate::plugin::{AskedLimits, Manifest};
use crate::policy::plugins::{self, CHUNK_BYTES, COMPONENT_BYTES_MAX, Outcome, Refused};
use crate::refusal::Refusal;
use crate::roster::tail::Listener;

/// How long a load waits for the members where it does not say: a large component takes some seconds to compile.
const LOAD_WAIT_MS: u64 = 60_000;
const LOAD_WAIT_MS_MAX: u64 = 600_000;

pub(crate) async fn list(node: Arc<Node>, request: PluginListRequest) -> Result<PluginListResponse, Refusal> {
    if !request.serializable {
        node.consensus.read_barrier().await?;
    }
    let plugins = node.plugins.list();
    let standings = node.roster.standings(&plugins);
    Ok(PluginListResponse { policy_epoch: node.plugins.epoch().get(), plugins, standings })
}

pub(crate) async fn inspect(node: Arc<Node>, request: PluginInspectRequest) -> Result<PluginInspectResponse, Refusal> {
    if !request.serializable {
        node.consensus.read_barrier().await?;
    }
    let member = |member: crate::cluster::Member| PluginMember {
        id: member.id.0,
        name: member.name,
        is_learner: member.is_learner,
    };
    let plugin = named(&node, &request.name)?;
    Ok(PluginInspectResponse {
        policy_epoch: node.plugins.epoch().get(),
        standings: node.roster.standings([&plugin]),
        plugin: Some(plugin),
        members: node.members.list().into_iter().map(member).collect(),
        member_id: node.facts.member_id.0,
    })
}

pub(crate) async fn set_mode(
    node: Arc<Node>,
    request: PluginSetModeRequest,
    peer: SocketAddr,
) -> Result<PluginChangeResponse, Refusal> {
    let PluginSetModeRequest { name, mode, revision, expected_policy_epoch, allow_missing_members } = request;
    let set_mode = PluginSetMode { name: name.clone(), mode, revision, expected_policy_epoch, allow_missing_members };
    let (_, policy_epoch) = audited(&node, plugin_command::Change::SetMode(set_mode), peer).await?;
    Ok(PluginChangeResponse { policy_epoch, plugin: node.plugins.get(&name) })
}

pub(crate) async fn rollback(
    node: Arc<Node>,
    request: PluginRollbackRequest,
    peer: SocketAddr,
) -> Result<PluginChangeResponse, Refusal> {
    let PluginRollbackRequest { name, expected_policy_epoch, allow_missing_members } = request;
    let rollback = PluginRollback { name: name.clone(), expected_policy_epoch, allow_missing_members };
    let (_, policy_epoch) = audited(&node, plugin_command::Change::Rollback(rollback), peer).await?;
    Ok(PluginChangeResponse { policy_epoch, plugin: node.plugins.get(&name) })
}

pub(crate) async fn remove(
    node: Arc<Node>,
    request: PluginRemoveRequest,
    peer: SocketAddr,
) -> Result<PluginRemoveResponse, Refusal> {
    let remove = PluginRemove { name: request.name };
    let (_, policy_epoch) = audited(&node, plugin_command::Change::Remove(remove), peer).await?;
    Ok(PluginRemoveResponse { policy_epoch })
}

fn named(node: &Node, name: &str) -> Result<Plugin, Refusal> {
    plugins::check_name(name)?;
    node.plugins.get(name).ok_or_else(|| Refused::NoPlugin(name.to_owned()).into())
}

/// Has a change agreed on, and returns what came of it and the policy epoch after it.
async fn propose(node: &Node, change: plugin_command::Change) -> Result<(Outcome, u64), Refusal> {
    let command = node.admitted(node.gate.plugin(change)).await?;
    match node.consensus.propose(command).await? {
        Reply::Plugin(outcome, epoch) => Ok((outcome, epoch)),
        other => Err(unexpected("a change of the plugins", &other)),
    }
}

/// Has an operator's change agreed on, and writes down who asked for it and what came of it.
async fn audited(node: &Node, change: plugin_command::Change, peer: SocketAddr) -> Result<(Outcome, u64), Refusal> {
    let (what, name, asked) = told(&change);
    plugins::check_name(&name)?;
    let outcome = propose(node, change).await;
    let peer = peer.to_string();
    match &outcome {
        Ok((outcome, epoch)) => {
            let plugin = node.plugins.get(&name);
            let current = plugin.and_then(|plugin| plugin.current).map_or(0, |current| current.number);
            let revision = match outcome {
                Outcome::Revision { number, .. } => *number,
                Outcome::Done if asked != 0 => asked,
                Outcome::Done => current,
            };
            crate::info!(
                "an operator changed a plugin",
                change = what,
                plugin = name,
                revision = revision,
                "policy-epoch" = *epoch,
                remote = peer
            );
        }
        Err(refusal) => {
            // A change that was not answered in time may still come to be.
            let error = status::text(refusal).into_owned();
            crate::info!(
                "a change of a plugin was not confirmed",
                change = what,
                plugin = name,
                revision = asked,
                remote = peer,
                error = error
            );
        }
    }
    outcome
}

/// What a change is called, the plugin's name, and the revision that it names, or 0.
fn told(change: &plugin_command::Change) -> (&'static str, String, u64) {
    use plugin_command::Change;
    match change {
        Change::Load(load) => ("load", load.name.clone(), 0),
        Change::SetMode(set) => {
            let what = match PluginMode::try_from(set.mode) {
                Ok(PluginMode::Off) => "off",
                Ok(PluginMode::Shadow) => "shadow",
                Ok(PluginMode::Enforce) => "activate",
                Err(_) => "an unknown mode",
            };
            (what, set.name.clone(), set.revision)
        }
        Change::Rollback(rollback) => ("rollback", rollback.name.clone(), 0),
        Change::Remove(remove) => ("remove", remove.name.clone(), 0),
        Change::Chunk(_) => ("a piece of a component", String::new(), 0),
        Change::Acknowledge(acknowledge) => ("acknowledgement", acknowledge.name.clone(), acknowledge.revision),
    }
}

/// Looks at the component that is to be loaded, before anything is agreed on: every member will, when it prepares it, and
/// would only find the same.
async fn check_file(node: &Arc<Node>, load: &PluginLoad) -> Result<(), Refusal> {
    // It may have come by way of another member.
    node.consensus.read_barrier().await?;
    let bytes = node.plugins.component_bytes(&load.sha256).ok_or(Refused::NoComponent)?;
    let (store, trusted_keys, load) = (node.store.get(), node.trusted_keys.clone(), load.clone());
    off_shard(move || {
        let component = rows::component(&store, &load.sha256, bytes);
        let component = component.map_err(|error| Refusal::Internal(error.to_string()))?.ok_or(Refused::NoComponent)?;
        let limits = load.limits.unwrap_or_default();
        let limits = AskedLimits::set(limits.fuel, limits.memory_bytes, limits.deadline_ms);
        let manifest = Manifest::of_file(&component).map_err(Refusal::UnfitPlugin)?;
        manifest.allow(&load.name, &load.kv_read, &limits).map_err(Refusal::UnfitPlugin)?;
        trusted_keys.check(&component, &load.signature).map_err(Refusal::NotTrusted)
    })
    .await
}

/// A component on its way into the log.
pub(crate) struct Upload {
    node: Arc<Node>,
    sha256: Bytes,
    component_bytes: u64,
    /// Tells this attempt from others.
    number: u64,
    /// The cluster had it before.
    was_there: bool,
    received_bytes: u64,
    hasher: Sha256,
    /// What does not fill a piece yet.
    rest: BytesMut,
    chunks: u32,
    /// Held while it is under way.
    _permit: OwnedSemaphorePermit,
}

impl Upload {
    pub(crate) async fn begin(node: Arc<Node>, request: PluginUploadRequest) -> Result<Upload, Refusal> {
        let Some(plugin_upload_request::Part::Begin(begin)) = request.part else {
            return Err(Refusal::Invalid("an upload begins with what is uploaded".to_owned()));
        };
        let PluginUploadBegin { sha256, component_bytes } = begin;
        if sha256.len() != Sha256::output_size() {
            return Err(Refused::BadHash.into());
        }
        if component_bytes == 0 || component_bytes > COMPONENT_BYTES_MAX {
            return Err(Refused::BadComponentSize(component_bytes).into());
        }
        let permit = Arc::clone(&node.uploads).try_acquire_owned().map_err(|_| Refusal::TooManyRequests)?;
        // What was removed by way of another member is still there for one that has not heard of that.
        node.consensus.read_barrier().await?;
        let was_there = node.plugins.has_component(&sha256);
        Ok(Upload {
            node,
            sha256,
            component_bytes,
            number: rand::random(),
            was_there,
            received_bytes: 0,
            hasher: Sha256::new(),
            rest: BytesMut::new(),
            chunks: 0,
            _permit: permit,
        })
    }

    /// Whether none of the bytes are needed.
    pub(crate) fn is_over(&self) -> bool {
        self.was_there
    }

    /// The next bytes.
    pub(crate) async fn take(&mut self, request: PluginUploadRequest) -> Result<(), Refusal> {
        let Some(plugin_upload_request::Part::Chunk(bytes)) = request.part else {
            return Err(Refusal::Invalid("an upload goes on with bytes of the component".to_owned()));
        };
        self.received_bytes += bytes.len() as u64;
        if self.received_bytes > self.component_bytes {
            return Err(Refusal::Invalid(format!("more came than the {} bytes announced", self.component_bytes)));
        }
        self.hasher.update(&bytes);
        self.rest.extend_from_slice(&bytes);
        // The last piece is kept back, full or not.
        while self.rest.len() > CHUNK_BYTES {
            let data = self.rest.split_to(CHUNK_BYTES).freeze();
            self.propose(data).await?;
        }
        Ok(())
    }

    /// All bytes have come.
    pub(crate) async fn end(mut self) -> Result<PluginUploadResponse, Refusal> {
        if self.was_there {
            return Ok(PluginUploadResponse { sha256: self.sha256, was_there: true });
        }
        if self.received_bytes != self.component_bytes {
            return Err(Refusal::Invalid(format!(
                "{} bytes of the component came, and {} were announced",
                self.received_bytes, self.component_bytes
            )));
        }
        if std::mem::take(&mut self.hasher).finalize().as_slice() != self.sha256 {
            return Err(Refusal::Invalid("the bytes that came have another SHA-256 than was announced".to_owned()));
        }
        let data = std::mem::take(&mut self.rest).freeze();
        self.propose(data).await?;
        Ok(PluginUploadResponse { sha256: self.sha256, was_there: false })
    }

    async fn propose(&mut self, data: Bytes) -> Result<(), Refusal> {
        let chunk = PluginChunk {
            sha256: self.sha256.clone(),
            upload: self.number,
            component_bytes: self.component_bytes,
            number: self.chunks,
            data,
        };
        self.chunks += 1;
        propose(&self.node, plugin_command::Change::Chunk(chunk)).await.map(|_| ())
    }
}

/// A revision that was made, while the members prepare it.
pub(crate) struct Loading {
    node: Arc<Node>,
    name: String,
    revision: u64,
    was_there: bool,
    deadline: Instant,
    changes: watch::Receiver<()>,
    /// What was told last.
    told: Option<PluginLoadProgress>,
}

impl Loading {
    pub(crate) async fn begin(
        node: Arc<Node>,
        request: PluginLoadRequest,
        peer: SocketAddr,
    ) -> Result<Loading, Refusal> {
        let PluginLoadRequest { name, sha256, config, kv_read, limits, signature, wait_ms } = request;
        let config = if config.is_empty() { "{}".to_owned() } else { config };
        let load = PluginLoad { name: name.clone(), sha256, config, kv_read, limits, signature };
        plugins::check_load(&load)?;
        plugins::check_json(&load.config).map_err(Refusal::Invalid)?;
        check_file(&node, &load).await?;
        // Before the proposal, so that no answer of a member is missed.
        let changes = node.plugins_changed.clone();
        let wait_ms = if wait_ms == 0 { LOAD_WAIT_MS } else { wait_ms.min(LOAD_WAIT_MS_MAX) };
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        match audited(&node, plugin_command::Change::Load(load), peer).await? {
            (Outcome::Revision { number: revision, was_there }, _) => {
                Ok(Loading { node, name, revision, was_there, deadline, changes, told: None })
            }
            (Outcome::Done, epoch) => Err(unexpected("a load", &Reply::Plugin(Outcome::Done, epoch))),
        }
    }

    /// How the members stand, once that is something new; `None` when all have answered or the time is over.
    pub(crate) async fn next(&mut self) -> Result<Option<PluginLoadProgress>, Refusal> {
        loop {
            if self.told.as_ref().is_some_and(|told| told.complete) {
                return Ok(None);
            }
            let progress = self.look()?;
            if self.told.as_ref() != Some(&progress) {
                self.told = Some(progress.clone());
                return Ok(Some(progress));
            }
            let changed = tokio::time::timeout_at(self.deadline, self.changes.changed());
            match changed.await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Refusal::Stopped),
                Err(_) => return Ok(None),
            }
        }
    }

    fn look(&self) -> Result<PluginLoadProgress, Refusal> {
        let Plugin { current, candidate, .. } = named(&self.node, &self.name)?;
        let kept = [candidate, current].into_iter().flatten().find(|kept| kept.number == self.revision);
        let revision = kept.ok_or_else(|| Refused::NoRevision { name: self.name.clone(), revision: self.revision })?;
        let members: Vec<PluginPreparation> = preparations(&self.node, &revision);
        Ok(PluginLoadProgress {
            name: self.name.clone(),
            revision: self.revision,
            identity: revision.identity,
            was_there: self.was_there,
            policy_epoch: self.node.plugins.epoch().get(),
            complete: members.iter().all(|member| member.acknowledged),
            members,
        })
    }
}

fn preparations(node: &Node, revision: &PluginRevision) -> Vec<PluginPreparation> {
    let ack_of = |id: MemberId| revision.acks.iter().find(|ack| ack.member_id == id.0);
    let preparation = |member: crate::cluster::Member| {
        let ack = ack_of(member.id);
        PluginPreparation {
            member_id: member.id.0,
            member_name: member.name,
            is_learner: member.is_learner,
            acknowledged: ack.is_some(),
            failure: ack.map(|ack| ack.failure.clone()).unwrap_or_default(),
        }
    };
    node.members.list().into_iter().map(preparation).collect()
}

/// What a plugin decides and says on this member, while somebody follows it.
pub(crate) struct Following {
    node: Arc<Node>,
    listener: Listener,
}

impl Following {
    pub(crate) fn begin(node: Arc<Node>, request: PluginTailRequest) -> Result<Following, Refusal> {
        named(&node, &request.name)?;
        let listener = node.roster.tail().listen(request.name);
        Ok(Following { node, listener })
    }

    /// The next line; `None` when there will be none.
    pub(crate) async fn next(&mut self) -> Option<PluginTailLine> {
        let mut line = self.listener.next().await?;
        if line.what() == PluginTailWhat::Log {
            // Whoever wrote the line knows nothing of modes.
            line.set_mode(self.mode(&line).unwrap_or_default());
        }
        Some(line)
    }

    fn mode(&self, line: &PluginTailLine) -> Option<PluginMode> {
        let Plugin { current, candidate, .. } = self.node.plugins.get(&line.plugin)?;
        let revision = [current, candidate].into_iter().flatten().find(|kept| kept.number == line.revision)?;
        Some(revision.mode())
    }
}
