//! The service `kuorum.v1.Plugins`: how operators bring plugins into force.
//!
//! Everything that changes something is proposed, and decided in apply ([`crate::policy::plugins`]). What is kept here is
//! that a component has the SHA-256 it is called by: its last piece is proposed once that is known.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kuorum_proto::kuorum::v1::{
    Plugin, PluginChangeResponse, PluginChunk, PluginInspectRequest, PluginInspectResponse, PluginListRequest,
    PluginListResponse, PluginLoad, PluginLoadProgress, PluginLoadRequest, PluginMember, PluginPreparation,
    PluginRemove, PluginRemoveRequest, PluginRemoveResponse, PluginRevision, PluginRollback, PluginRollbackRequest,
    PluginSetMode, PluginSetModeRequest, PluginUploadBegin, PluginUploadRequest, PluginUploadResponse, plugin_command,
    plugin_upload_request,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Node, unexpected};
use crate::apply::Reply;
use crate::cluster::MemberId;
use crate::policy::plugins::{self, CHUNK_BYTES, COMPONENT_BYTES_MAX, Outcome, Refused};
use crate::refusal::Refusal;

/// How long a load waits for the members where it does not say: a large component takes some seconds to compile.
const LOAD_WAIT_MS: u64 = 60_000;
const LOAD_WAIT_MS_MAX: u64 = 600_000;

pub(crate) async fn list(node: Arc<Node>, request: PluginListRequest) -> Result<PluginListResponse, Refusal> {
    if !request.serializable {
        node.consensus.read_barrier().await?;
    }
    Ok(PluginListResponse { policy_epoch: node.plugins.epoch().get(), plugins: node.plugins.list() })
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
    Ok(PluginInspectResponse {
        policy_epoch: node.plugins.epoch().get(),
        plugin: Some(named(&node, &request.name)?),
        members: node.members.list().into_iter().map(member).collect(),
    })
}

pub(crate) async fn set_mode(node: Arc<Node>, request: PluginSetModeRequest) -> Result<PluginChangeResponse, Refusal> {
    let PluginSetModeRequest { name, mode, revision, expected_policy_epoch, allow_missing_members } = request;
    let set_mode = PluginSetMode { name: name.clone(), mode, revision, expected_policy_epoch, allow_missing_members };
    let (_, policy_epoch) = propose(&node, plugin_command::Change::SetMode(set_mode)).await?;
    Ok(PluginChangeResponse { policy_epoch, plugin: node.plugins.get(&name) })
}

pub(crate) async fn rollback(node: Arc<Node>, request: PluginRollbackRequest) -> Result<PluginChangeResponse, Refusal> {
    let PluginRollbackRequest { name, expected_policy_epoch, allow_missing_members } = request;
    let rollback = PluginRollback { name: name.clone(), expected_policy_epoch, allow_missing_members };
    let (_, policy_epoch) = propose(&node, plugin_command::Change::Rollback(rollback)).await?;
    Ok(PluginChangeResponse { policy_epoch, plugin: node.plugins.get(&name) })
}

pub(crate) async fn remove(node: Arc<Node>, request: PluginRemoveRequest) -> Result<PluginRemoveResponse, Refusal> {
    let remove = PluginRemove { name: request.name };
    let (_, policy_epoch) = propose(&node, plugin_command::Change::Remove(remove)).await?;
    Ok(PluginRemoveResponse { policy_epoch })
}

fn named(node: &Node, name: &str) -> Result<Plugin, Refusal> {
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
}

impl Upload {
    pub(crate) fn begin(node: Arc<Node>, request: PluginUploadRequest) -> Result<Upload, Refusal> {
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
    pub(crate) async fn begin(node: Arc<Node>, request: PluginLoadRequest) -> Result<Loading, Refusal> {
        let PluginLoadRequest { name, sha256, config, kv_read, limits, signature, wait_ms } = request;
        if !signature.is_empty() {
            return Err(Refusal::Unimplemented("signatures of plugins are not checked in this release: load without"));
        }
        let config = if config.is_empty() { "{}".to_owned() } else { config };
        let load = PluginLoad { name: name.clone(), sha256, config, kv_read, limits };
        plugins::check_load(&load)?;
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&load.config) {
            return Err(Refusal::Invalid(format!("the configuration is no JSON: {error}")));
        }
        // Before the proposal, so that no answer of a member is missed.
        let changes = node.plugins_changed.clone();
        let wait_ms = if wait_ms == 0 { LOAD_WAIT_MS } else { wait_ms.min(LOAD_WAIT_MS_MAX) };
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        match propose(&node, plugin_command::Change::Load(load)).await? {
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
