//! The preparation thread: makes every revision of a plugin ready on this member, and tells the cluster how that went.
//!
//! Off the apply path, since it may take many seconds. Woken when plugins change; what is to be done it reads from the
//! rows of the store, so a restart or a store that another member sent needs no case of its own. What a member has said
//! is itself among the rows: it is said again when it is not there or has become untrue. What is ready goes to the
//! [`Roster`], where requests find it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, after, never, select};
use kuorum_proto::kuorum::v1::{PluginAck, PluginAcknowledge, PluginMode, PluginRevision, plugin_command};
use sha2::{Digest as _, Sha256};

use crate::admission::Gate;
use crate::apply::plugin as rows;
use crate::cluster::MemberId;
use crate::consensus::Handle;
use crate::mvcc::{CurrentStore, Store};
use crate::plugin::{AskedLimits, Compiler, Host, KvReader, PrepareError, Prepared, Revision, Scope, Urgency};
use crate::policy::plugins::{FAILURE_BYTES_MAX, Registry, TrustedKeys};
use crate::refusal::Refusal;
use crate::roster::Roster;
use crate::storage::StorageError;

/// How long an acknowledgement may take to be agreed on.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before one that was not agreed on is proposed again.
const PAUSE: Duration = Duration::from_secs(1);
/// Pauses before what this member could not prepare is tried again; each is twice the one before.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(600);

pub(crate) struct Parts {
    pub(crate) store: CurrentStore,
    pub(crate) consensus: Handle,
    pub(crate) gate: Gate,
    pub(crate) member: MemberId,
    pub(crate) registry: Registry,
    pub(crate) roster: Roster,
    /// Whose signatures are taken.
    pub(crate) trusted_keys: TrustedKeys,
    /// Where compiled code is kept.
    pub(crate) cache_dir: PathBuf,
    /// What plugins read keys through.
    pub(crate) reader: Arc<dyn KvReader>,
    /// Told when plugins changed.
    pub(crate) changed: Receiver<()>,
    /// Called once the roster has something new.
    pub(crate) readied: Box<dyn Fn() + Send>,
    /// Closed when the node stops.
    pub(crate) stop: Receiver<()>,
}

/// Starts the thread. It ends when the stop channel closes, after the preparation under way.
pub(crate) fn start(parts: Parts) -> std::io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("prepare".into());
    thread.spawn(move || Preparation { parts, host: None, outcomes: BTreeMap::new() }.run())
}

struct Preparation {
    parts: Parts,
    /// Started with the first plugin, since most members have none.
    host: Option<Host>,
    /// What is to be said of the revisions that are kept, by identity.
    outcomes: BTreeMap<Bytes, Outcome>,
}

/// How the preparation of a revision went in this process.
#[derive(Clone)]
struct Outcome {
    /// Empty if it is ready.
    failure: String,
    /// Why it can't be put in force though it is ready; else empty.
    unusable: String,
    /// Whether it failed for a reason of this member's own, such as a lack of memory, which may pass.
    may_pass: bool,
}

/// Why a revision is not ready.
struct Trouble {
    /// For the operator, a sentence.
    text: String,
    may_pass: bool,
}

impl Trouble {
    fn lasting(text: String) -> Trouble {
        Trouble { text, may_pass: false }
    }

    fn passing(text: String) -> Trouble {
        Trouble { text, may_pass: true }
    }
}

impl Preparation {
    fn run(mut self) {
        let (mut retry, mut retry_pause) = (None, RETRY_PAUSE_MIN);
        loop {
            let told = self.look().unwrap_or_else(|error| {
                crate::warn!("plugins can't be read; they are looked at again", error = error.to_string());
                false
            });
            let again = if told { never() } else { after(PAUSE) };
            if self.outcomes.values().any(|outcome| outcome.may_pass) {
                retry.get_or_insert_with(|| after(retry_pause));
            } else {
                (retry, retry_pause) = (None, RETRY_PAUSE_MIN);
            }
            select! {
                recv(self.parts.stop) -> _ => return,
                recv(self.parts.changed) -> _ => {}
                recv(again) -> _ => {}
                recv(retry.as_ref().unwrap_or(&never())) -> _ => {
                    self.outcomes.retain(|_, outcome| !outcome.may_pass);
                    (retry, retry_pause) = (None, RETRY_PAUSE_MAX.min(2 * retry_pause));
                }
            }
        }
    }

    /// Prepares what is not prepared yet and tells what was not told. Returns whether all is told.
    fn look(&mut self) -> Result<bool, StorageError> {
        let store = self.parts.store.get();
        let state = rows::read(&store)?;
        let mut kept: Vec<(&str, &PluginRevision)> = state.revisions().collect();
        let is_kept = |identity: &Bytes| kept.iter().any(|(_, revision)| revision.identity == identity);
        self.outcomes.retain(|identity, _| is_kept(identity));
        self.parts.roster.retain(is_kept);
        let off = kept.iter().filter(|(_, revision)| revision.mode() == PluginMode::Off);
        self.parts.roster.rest(off.map(|(_, revision)| &revision.identity));
        // What is in force first: requests may be waiting for it.
        kept.sort_by_key(|(_, revision)| revision.mode() == PluginMode::Off);
        self.find_scopes(&store, &kept)?;
        let mut told = true;
        for (name, revision) in kept {
            if !self.outcomes.contains_key(&revision.identity) {
                // Removed meanwhile: then there is another change to look at.
                let Some(component) = rows::component(&store, &revision.sha256, revision.component_bytes)? else {
                    continue;
                };
                self.prepare(name, revision, component);
            }
            let outcome = &self.outcomes[&revision.identity];
            let known = revision.acks.iter().find(|ack| ack.member_id == self.parts.member.0);
            if known.is_none_or(|ack| ack.failure != outcome.failure || ack.unusable != outcome.unusable) {
                told &= self.acknowledge(name, revision, outcome.clone());
            }
        }
        Ok(told)
    }

    /// Looks what each plugin in force wants to be asked about, before any of them is compiled: all others need not wait.
    fn find_scopes(&self, store: &Store, kept: &[(&str, &PluginRevision)]) -> Result<(), StorageError> {
        for (name, revision) in kept {
            if revision.mode() == PluginMode::Off || self.outcomes.contains_key(&revision.identity) {
                continue;
            }
            if let Some(component) = rows::component(store, &revision.sha256, revision.component_bytes)? {
                self.find_scope(name, revision, &component);
            }
        }
        Ok(())
    }

    fn find_scope(&self, name: &str, revision: &PluginRevision, component: &[u8]) {
        if self.parts.roster.has_scope(&revision.identity) {
            return;
        }
        match Scope::of(component) {
            Ok(scope) => {
                self.parts.roster.set_scope(&self.parts.registry, &revision.identity, scope);
                (self.parts.readied)();
            }
            // Said again, and acknowledged, when it is prepared.
            Err(error) => crate::debug!("a plugin's manifest can't be read", plugin = name, error = error),
        }
    }

    fn prepare(&mut self, name: &str, revision: &PluginRevision, component: Bytes) {
        self.find_scope(name, revision, &component);
        let prepared = self.prepared(name, revision, component);
        let outcome = match &prepared {
            Ok(prepared) => {
                crate::info!("prepared a plugin", plugin = name, revision = revision.number);
                let unusable = prepared.activation_refusal().unwrap_or_default();
                Outcome { failure: String::new(), unusable, may_pass: false }
            }
            Err(Trouble { text, may_pass }) => {
                let number = revision.number;
                crate::warn!("a plugin can't be prepared", plugin = name, revision = number, error = text.as_str());
                Outcome { failure: cut(text.clone()), unusable: String::new(), may_pass: *may_pass }
            }
        };
        self.outcomes.insert(revision.identity.clone(), outcome);
        let (registry, roster) = (&self.parts.registry, &self.parts.roster);
        match prepared {
            Ok(prepared) => roster.set_outcome(registry, &revision.identity, Ok(prepared)),
            Err(Trouble { text, may_pass: true }) => roster.set_hindrance(registry, &revision.identity, &text),
            Err(Trouble { text, may_pass: false }) => roster.set_outcome(registry, &revision.identity, Err(text)),
        }
        (self.parts.readied)();
    }

    /// Nothing of a component is compiled before its signature is known to hold.
    fn prepared(&mut self, name: &str, revision: &PluginRevision, component: Bytes) -> Result<Prepared, Trouble> {
        if Sha256::digest(&component).as_slice() != revision.sha256 {
            return Err(Trouble::lasting("the component has another SHA-256 than it is called by".to_owned()));
        }
        self.parts.trusted_keys.check(&component, &revision.signature).map_err(Trouble::lasting)?;
        let host = match &mut self.host {
            Some(host) => host,
            none => {
                let reader = Arc::clone(&self.parts.reader);
                let host = Host::start(&self.parts.cache_dir, Compiler::own(), reader).map_err(Trouble::passing)?;
                let host = none.insert(host);
                host.tell_lines(Arc::new(self.parts.roster.tail().clone()));
                host
            }
        };
        let limits = revision.limits.unwrap_or_default();
        let urgency = match revision.mode() {
            PluginMode::Enforce => Urgency::Now,
            PluginMode::Off | PluginMode::Shadow => Urgency::Whenever,
        };
        let revision = Revision {
            name: name.to_owned(),
            number: revision.number,
            component,
            config: revision.config.clone(),
            grants: revision.kv_read.iter().map(|prefix| prefix.to_vec()).collect(),
            limits: AskedLimits::set(limits.fuel, limits.memory_bytes, limits.deadline_ms),
            urgency,
        };
        host.prepare(&revision)
            .map_err(|error| Trouble { may_pass: matches!(error, PrepareError::Member(_)), text: error.to_string() })
    }

    /// Returns whether nothing is left to be told of this revision.
    fn acknowledge(&self, name: &str, revision: &PluginRevision, outcome: Outcome) -> bool {
        let Outcome { failure, unusable, may_pass: _ } = outcome;
        let acknowledge = PluginAcknowledge {
            name: name.to_owned(),
            revision: revision.number,
            identity: revision.identity.clone(),
            ack: Some(PluginAck { member_id: self.parts.member.0, failure, unusable }),
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
