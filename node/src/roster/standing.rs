//! How plugins stand on this member, for those who look after them.

use kuorum_proto::kuorum::v1::{Plugin, PluginHealth, PluginLimits, PluginStanding};

use super::{Asked, Made, Roster, Standing};
use crate::plugin::{Health, Prepared};
use crate::policy::plugins::revisions_of;

impl Roster {
    /// Of every revision of these plugins.
    pub(crate) fn standings<'a>(&self, plugins: impl IntoIterator<Item = &'a Plugin>) -> Vec<PluginStanding> {
        let made = self.0.made.lock();
        let revisions = plugins.into_iter().flat_map(revisions_of);
        revisions.map(|(name, revision)| standing(name, revision.number, made.get(&revision.identity))).collect()
    }

    /// The names of plugins that are in force and not asked on this member, for their failures.
    pub(crate) fn quarantined(&self) -> Vec<String> {
        self.names_of(Asked::is_quarantined)
    }

    /// The names of plugins that are in force and that this member can't ask yet, or at all.
    pub(crate) fn unready(&self) -> Vec<String> {
        self.names_of(|asked| !matches!(asked.standing(), Standing::Ready(_)))
    }

    fn names_of(&self, is_meant: impl Fn(&Asked) -> bool) -> Vec<String> {
        let table = self.table();
        let meant = table.admission().iter().chain(table.compaction()).filter(|asked| is_meant(asked));
        let mut names: Vec<String> = meant.map(|asked| asked.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Whether this member has looked at any plugin that is there.
    pub(crate) fn has_plugins(&self) -> bool {
        !self.0.made.lock().is_empty()
    }

    /// Sets the gauges of all plugins that this member has prepared.
    pub(crate) fn show_quarantined(&self) {
        let quarantined = self.quarantined();
        for prepared in self.0.made.lock().values().filter_map(|made| made.outcome.as_ref()?.as_ref().ok()) {
            let is_resting = quarantined.contains(&prepared.manifest().name);
            prepared.counts().quarantined.set(if is_resting { 1.0 } else { 0.0 });
        }
    }
}

impl Asked {
    fn is_quarantined(&self) -> bool {
        matches!(self.standing(), Standing::Ready(prepared) if health(prepared).0 != PluginHealth::Ok)
    }
}

/// And how many failures there were in a row, if they are counted.
fn health(prepared: &Prepared) -> (PluginHealth, u32) {
    match prepared.health() {
        Health::Asked { failures } => (PluginHealth::Ok, failures),
        Health::Quarantined => (PluginHealth::Quarantined, 0),
        Health::Tried => (PluginHealth::Tried, 0),
    }
}

fn standing(name: &str, revision: u64, made: Option<&Made>) -> PluginStanding {
    let stands = |health: PluginHealth| PluginStanding {
        name: name.to_owned(),
        revision,
        health: health.into(),
        ..PluginStanding::default()
    };
    match made.and_then(|made| made.outcome.as_ref()) {
        None if made.is_some_and(|made| made.hindrance.is_some()) => stands(PluginHealth::Failed),
        None => stands(PluginHealth::Preparing),
        Some(Err(_)) => stands(PluginHealth::Failed),
        Some(Ok(prepared)) => {
            let (health, failures) = health(prepared);
            let (manifest, limits) = (prepared.manifest(), prepared.limits());
            PluginStanding {
                failures,
                kinds: prepared.kinds().iter().map(|kind| kind.as_str().to_owned()).collect(),
                version: manifest.version.clone(),
                description: manifest.description.clone(),
                kv_read_asked: manifest.kv_read.iter().map(|prefix| prefix.0.clone().into()).collect(),
                limits: Some(PluginLimits {
                    fuel: limits.fuel,
                    memory_bytes: limits.memory_bytes,
                    deadline_ms: limits.deadline_ms.into(),
                }),
                ..stands(health)
            }
        }
    }
}
