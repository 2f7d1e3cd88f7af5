//! The preparation thread: makes every revision of a plugin ready on this member, and tells the cluster how that went.
//!
//! Off the apply path, since it may take many seconds. Woken when plugins change; what is to be done it reads from the
//! rows of the store, so a restart or a store that another member sent needs no case of its own. What a member has said
//! is itself among the rows: it is said again when it is not there or has become untrue.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, after, never, select};
use kuorum_proto::kuorum::v1::{PluginAck, PluginAcknowledge, PluginRevision, plugin_command};
use sha2::{Digest as _, Sha256};

use crate::admission::Gate;
use crate::apply::plugin;
use crate::cluster::MemberId;
use crate::consensus::Handle;
use crate::mvcc::CurrentStore;
use crate::policy::plugins::FAILURE_BYTES_MAX;
use crate::refusal::Refusal;
use crate::storage::StorageError;

/// How long an acknowledgement may take to be agreed on.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before one that was not agreed on is proposed again.
const PAUSE: Duration = Duration::from_secs(1);

/// Where components are made ready to be asked. The seam to the host of plugins.
pub(crate) trait Prepare: Send {
    /// May take long. An error is for the operator, in a sentence.
    fn prepare(&mut self, name: &str, revision: &PluginRevision, component: &Bytes) -> Result<(), String>;
}

/// Looks that a component is what it is called, and a component at all.
pub(crate) struct HeaderCheck;

impl Prepare for HeaderCheck {
    fn prepare(&mut self, _name: &str, revision: &PluginRevision, component: &Bytes) -> Result<(), String> {
        if Sha256::digest(component).as_slice() != revision.sha256 {
            return Err("the component has another SHA-256 than it is called by".to_owned());
        }
        match component.get(..8) {
            Some(b"\0asm\x0d\0\x01\0") => Ok(()),
            Some(b"\0asm\x01\0\0\0") => Err("this is a core module of WebAssembly; a plugin is a component".to_owned()),
            Some(_) | None => Err("this is no component of WebAssembly".to_owned()),
        }
    }
}

pub(crate) struct Parts {
    pub(crate) store: CurrentStore,
    pub(crate) consensus: Handle,
    pub(crate) gate: Gate,
    pub(crate) member: MemberId,
    pub(crate) prepare: Box<dyn Prepare>,
    /// Told when plugins changed.
    pub(crate) changed: Receiver<()>,
    /// Closed when the node stops.
    pub(crate) stop: Receiver<()>,
}

/// Starts the thread. It ends when the stop channel closes, after the preparation under way.
pub(crate) fn start(parts: Parts) -> std::io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("prepare".into());
    thread.spawn(move || Preparation { parts, outcomes: BTreeMap::new() }.run())
}

/// How the preparation of a revision went in this process: the failure, or none.
type Outcomes = BTreeMap<Bytes, String>;

struct Preparation {
    parts: Parts,
    /// By identity, of the revisions that are kept.
    outcomes: Outcomes,
}

impl Preparation {
    fn run(mut self) {
        loop {
            let told = self.look().unwrap_or_else(|error| {
                crate::warn!("plugins can't be read; they are looked at again", error = error.to_string());
                false
            });
            let again = if told { never() } else { after(PAUSE) };
            select! {
                recv(self.parts.stop) -> _ => return,
                recv(self.parts.changed) -> _ => {}
                recv(again) -> _ => {}
            }
        }
    }

    /// Prepares what is not prepared yet and tells what was not told. Returns whether all is told.
    fn look(&mut self) -> Result<bool, StorageError> {
        let store = self.parts.store.get();
        let state = plugin::read(&store)?;
        let kept: Vec<(&str, &PluginRevision)> = state.revisions().collect();
        self.outcomes.retain(|identity, _| kept.iter().any(|(_, revision)| revision.identity == identity));
        let mut told = true;
        for (name, revision) in kept {
            if !self.outcomes.contains_key(&revision.identity) {
                // Removed meanwhile: then there is another change to look at.
                let Some(component) = plugin::component(&store, revision)? else { continue };
                let failure = self.prepare(name, revision, &component);
                self.outcomes.insert(revision.identity.clone(), failure);
            }
            let failure = &self.outcomes[&revision.identity];
            let known = revision.acks.iter().find(|ack| ack.member_id == self.parts.member.0);
            if known.is_none_or(|ack| ack.failure != *failure) {
                told &= self.acknowledge(name, revision, failure.clone());
            }
        }
        Ok(told)
    }

    /// Returns the failure, or an empty text.
    fn prepare(&mut self, name: &str, revision: &PluginRevision, component: &Bytes) -> String {
        match self.parts.prepare.prepare(name, revision, component) {
            Ok(()) => {
                crate::info!("prepared a plugin", plugin = name, revision = revision.number);
                String::new()
            }
            Err(failure) => {
                crate::warn!("a plugin can't be prepared", plugin = name, revision = revision.number, error = failure);
                cut(failure)
            }
        }
    }

    /// Returns whether nothing is left to be told of this revision.
    fn acknowledge(&self, name: &str, revision: &PluginRevision, failure: String) -> bool {
        let acknowledge = PluginAcknowledge {
            name: name.to_owned(),
            revision: revision.number,
            identity: revision.identity.clone(),
            ack: Some(PluginAck { member_id: self.parts.member.0, failure }),
        };
        let command = self.parts.gate.plugin(plugin_command::Change::Acknowledge(acknowledge));
        match command.and_then(|command| self.parts.consensus.propose_and_wait(command, PATIENCE)) {
            Ok(_) => true,
            // The revision is gone; there is another change to look at.
            Err(Refusal::Plugin(_)) => true,
            Err(refusal) => {
                crate::info!("a plugin is acknowledged later", plugin = name, state = refusal.to_string());
                false
            }
        }
    }
}

/// As much of a text as an acknowledgement holds; never empty.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(FAILURE_BYTES_MAX));
    if text.is_empty() { "no reason was given".to_owned() } else { text }
}
