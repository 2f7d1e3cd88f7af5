//! The plugins of the cluster: which there are, in which revisions, who has prepared them, and what is in force.
//!
//! A plugin has up to three revisions: the *current* one; the one *previous* to it, kept for a rollback; and a
//! *candidate*, which was loaded and is not current yet. Each has a mode:
//!
//! ```text
//!   load --> candidate: off <--> shadow            current: off <--> shadow <--> enforce
//!                |                                    ^   |
//!                +------- enforce --------------------+   +--> previous (off), which a rollback puts back
//! ```
//!
//! So a candidate can be watched in shadow beside the current revision that is enforced, and at no entry of the log is
//! there neither. [`change`] holds the rules. They are pure: apply calls them with the members and the policy epoch as of
//! the entry, and keeps the rows that they return. Whenever what is enforced changes, so does the policy epoch.
//!
//! Members read the [`Registry`]; what a revision does is another module's affair.

mod change;
mod refused;
mod signature;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kuorum_proto::kuorum::v1::{Plugin, PluginCommand, PluginComponent, PluginComponents, PluginMode, PluginRevision};
use parking_lot::RwLock;
use prost::Message as _;

pub(crate) use change::{Changed, Outcome, check_json, check_load, check_name};
pub(crate) use refused::{Lacking, Refused};
pub(crate) use signature::{TrustedKeys, keys_of_pem};

use crate::cluster::{Member, MemberId};
use crate::policy::epoch::Epoch;
use crate::policy::timeline::Timeline;

/// Plugins that a cluster may have. Admission asks each that matches, one after the other.
pub(crate) const PLUGINS_MAX: usize = 32;
/// Bytes of a component. What compilers make of JavaScript and Python takes 12 to 18 MB.
pub(crate) const COMPONENT_BYTES_MAX: u64 = 64 << 20;
/// Bytes of all components: they are in every snapshot that one member sends another.
pub(crate) const COMPONENTS_BYTES_MAX: u64 = 256 << 20;
/// Components, in part or whole, that no revision refers to. The oldest makes room for a new one.
pub(crate) const UNUSED_COMPONENTS_MAX: usize = 4;
/// Bytes of a component in one entry, but for the last: small enough that writes beside an upload wait for a millisecond
/// or two.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
pub(crate) const CONFIG_BYTES_MAX: usize = 64 << 10;
/// Prefixes that a revision may be granted, and the bytes of one.
pub(crate) const GRANTS_MAX: usize = 64;
pub(crate) const GRANT_BYTES_MAX: usize = 1_024;
/// Bytes of the text that says why a member could not prepare a revision.
pub(crate) const FAILURE_BYTES_MAX: usize = 1_024;
/// Letters of a plugin's name, which begins with one and goes on with letters, digits and hyphens, all of them small.
pub(crate) const NAME_BYTES_MAX: usize = 63;

const SHA256_BYTES: usize = 32;
/// Of an Ed25519 signature.
pub(crate) const SIGNATURE_BYTES: usize = 64;

/// Names of rows in the `sys` space: of the list of components, and beginnings of those of plugins and of pieces of
/// components.
pub(crate) const COMPONENTS_ROW: &[u8] = b"plugin-components";
pub(crate) const PLUGIN_ROWS: &[u8] = b"plugin-state/";
const CHUNK_ROWS: &[u8] = b"plugin-chunk/";

/// The name of the row of a piece of a component.
pub(crate) fn chunk_row(sha256: &[u8], number: u32) -> Vec<u8> {
    [CHUNK_ROWS, sha256, &number.to_be_bytes()].concat()
}

fn plugin_row(name: &str) -> Vec<u8> {
    [PLUGIN_ROWS, name.as_bytes()].concat()
}

/// How many pieces a component has.
pub(crate) fn chunk_count(component_bytes: u64) -> u32 {
    u32::try_from(component_bytes.div_ceil(CHUNK_BYTES as u64)).unwrap_or(u32::MAX)
}

/// A revision that is asked, and how far what it says counts.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct InForce {
    pub(crate) name: String,
    pub(crate) revision: PluginRevision,
}

/// What there is, as of an entry.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct State {
    plugins: BTreeMap<String, Plugin>,
    /// Oldest first.
    components: Vec<PluginComponent>,
}

impl State {
    /// From the rows that keep it. `None` when one can't be read.
    pub(crate) fn from_rows(
        components: Option<&[u8]>,
        plugins: impl IntoIterator<Item = (Bytes, Bytes)>,
    ) -> Option<State> {
        let components = PluginComponents::decode(components.unwrap_or_default()).ok()?.components;
        let plugin = |(_, row): (Bytes, Bytes)| {
            let plugin = Plugin::decode(row).ok()?;
            Some((plugin.name.clone(), plugin))
        };
        Some(State { components, plugins: plugins.into_iter().map(plugin).collect::<Option<_>>()? })
    }

    /// Every revision that is kept, with its plugin's name.
    pub(crate) fn revisions(&self) -> impl Iterator<Item = (&str, &PluginRevision)> {
        self.plugins.values().flat_map(revisions_of)
    }

    /// What is asked, each with its mode. Where a candidate is in shadow beside the current revision, both.
    fn asked(&self) -> Vec<InForce> {
        let in_force = self.in_force();
        in_force.map(|(name, revision)| InForce { name: name.to_owned(), revision: revision.clone() }).collect()
    }

    /// Revisions that are asked, enforced or in shadow.
    fn in_force(&self) -> impl Iterator<Item = (&str, &PluginRevision)> {
        self.revisions().filter(|(_, revision)| revision.mode() != PluginMode::Off)
    }

    fn pieces_bytes(&self) -> u64 {
        let of = |component: &PluginComponent| component.bytes.min(u64::from(component.chunks) * CHUNK_BYTES as u64);
        self.components.iter().map(of).sum()
    }

    /// The bytes of a component, if all of it is there.
    fn component_bytes(&self, sha256: &[u8]) -> Option<u64> {
        let whole = |component: &&PluginComponent| component.sha256 == sha256 && is_whole(component);
        self.components.iter().find(whole).map(|component| component.bytes)
    }
}

/// Every revision of a plugin that is kept, with its name.
pub(crate) fn revisions_of(plugin: &Plugin) -> impl Iterator<Item = (&str, &PluginRevision)> {
    let slots = [&plugin.current, &plugin.candidate, &plugin.previous];
    slots.into_iter().flatten().map(|revision| (plugin.name.as_str(), revision))
}

fn is_whole(component: &PluginComponent) -> bool {
    component.chunks == chunk_count(component.bytes)
}

/// Whether this member has prepared the revision.
pub(crate) fn is_ready(revision: &PluginRevision, member: MemberId) -> bool {
    revision.acks.iter().any(|ack| ack.member_id == member.0 && ack.failure.is_empty())
}

/// The plugins, the policy epoch and the timeline as of the last applied entry. Cheap to clone; apply alone changes it.
// A lock, since every shard reads while apply writes; held for a copy of what was asked for.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    epoch: Epoch,
    timeline: Timeline,
    state: Arc<RwLock<State>>,
    /// What the pieces of components take in the store, for those who look without waiting for a change.
    pieces_bytes: Arc<AtomicU64>,
    /// Called with what is in force whenever that may have changed, before anybody can see it.
    observer: Arc<OnceLock<Observer>>,
}

type Observer = Box<dyn Fn(&[InForce]) + Send + Sync>;

impl Registry {
    /// The policy epoch, for whoever has requests judged.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch.clone()
    }

    /// Which revision there was when, for policies that think in times.
    pub(crate) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Bytes of components in the store, those of unfinished uploads too.
    pub(crate) fn pieces_bytes(&self) -> u64 {
        self.pieces_bytes.load(Ordering::Relaxed)
    }

    /// Every plugin, by name.
    pub(crate) fn list(&self) -> Vec<Plugin> {
        self.state.read().plugins.values().cloned().collect()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Plugin> {
        self.state.read().plugins.get(name).cloned()
    }

    /// What is asked, each with its mode.
    #[cfg(test)]
    pub(crate) fn in_force(&self) -> Vec<InForce> {
        self.state.read().asked()
    }

    /// Has every change of what is in force told, by the thread that makes it. There can be one observer.
    pub(crate) fn observe(&self, observer: impl Fn(&[InForce]) + Send + Sync + 'static) {
        assert!(self.observer.set(Box::new(observer)).is_ok(), "the registry has an observer already");
        self.tell();
    }

    /// Tells the observer what is in force, as if it had changed.
    pub(crate) fn tell(&self) {
        self.tell_of(&self.state.read());
    }

    fn tell_of(&self, state: &State) {
        if let Some(observer) = self.observer.get() {
            observer(&state.asked());
        }
    }

    /// Whether all of a component is there.
    pub(crate) fn has_component(&self, sha256: &[u8]) -> bool {
        self.component_bytes(sha256).is_some()
    }

    /// The bytes of a component, if all of it is there.
    pub(crate) fn component_bytes(&self, sha256: &[u8]) -> Option<u64> {
        self.state.read().component_bytes(sha256)
    }

    /// Whether this member has prepared everything that is in force.
    pub(crate) fn is_prepared(&self, member: MemberId) -> bool {
        self.state.read().in_force().all(|(_, revision)| is_ready(revision, member))
    }

    /// Carries out a change, or refuses it as every member does. What it returns says what is to be kept.
    pub(crate) fn change(&self, command: &PluginCommand, members: &[Member]) -> Result<Changed, Refused> {
        let mut state = self.state.write();
        let changed = state.change(command, self.epoch.get(), members)?;
        self.pieces_bytes.store(state.pieces_bytes(), Ordering::Relaxed);
        if changed.concerns_revisions {
            self.tell_of(&state);
        }
        Ok(changed)
    }

    /// Takes the place of what was known.
    pub(crate) fn replace(&self, state: State) {
        let mut kept = self.state.write();
        *kept = state;
        self.pieces_bytes.store(kept.pieces_bytes(), Ordering::Relaxed);
        self.tell_of(&kept);
    }
}
