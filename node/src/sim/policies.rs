//! What the log makes of the plugin that the operator changes, and of the members that have to prepare it: a part of the
//! model in [`super::history`], which shares no code with the node.
//!
//! It knows one plugin, whose components are of one piece each, and which is never removed.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kuorum_proto::kuorum::v1::{PluginMode, plugin_command};

use crate::cluster::Change;

/// Components that no revision refers to.
const UNUSED_MAX: usize = 4;

#[derive(Clone)]
struct Revision {
    number: u64,
    component: Bytes,
    mode: PluginMode,
    /// Whether it is ready, by member.
    acks: BTreeMap<u64, bool>,
}

#[derive(Default)]
pub(super) struct Policies {
    pub(super) epoch: u64,
    /// Whether each is a learner.
    members: BTreeMap<u64, bool>,
    removed: BTreeSet<u64>,
    /// Oldest first.
    components: Vec<Bytes>,
    last_number: u64,
    current: Option<Revision>,
    candidate: Option<Revision>,
    previous: Option<Revision>,
}

/// Every member refuses it.
pub(super) struct Refused;

impl Policies {
    // ---- members

    pub(super) fn change_members(&mut self, change: &Change) -> Result<(), Refused> {
        let id = change.id().0;
        let known = self.members.get(&id).copied();
        let refused = match change {
            Change::Add { is_learner, learners_max, .. } => {
                let learners = self.members.values().filter(|is_learner| **is_learner).count();
                known.is_some() || (*is_learner && learners >= *learners_max)
            }
            Change::Promote(_) => known != Some(true) || !self.has_prepared(id),
            Change::Remove(_) => {
                let others = self.members.iter().filter(|(other, is_learner)| **other != id && !**is_learner).count();
                known.is_none() || (known == Some(false) && others == 0)
            }
            Change::Update { .. } => known.is_none(),
        };
        if refused || self.removed.contains(&id) {
            return Err(Refused);
        }
        match change {
            Change::Add { is_learner, .. } => drop(self.members.insert(id, *is_learner)),
            Change::Promote(_) => drop(self.members.insert(id, false)),
            Change::Remove(_) => {
                self.members.remove(&id);
                self.removed.insert(id);
            }
            Change::Update { .. } => {}
        }
        Ok(())
    }

    /// Whether a member is ready for all that is asked.
    fn has_prepared(&self, member: u64) -> bool {
        let asked = [&self.current, &self.candidate].into_iter().flatten().filter(|kept| kept.mode != PluginMode::Off);
        asked.into_iter().all(|kept| kept.acks.get(&member) == Some(&true))
    }

    // ---- the plugin

    pub(super) fn change(&mut self, change: &plugin_command::Change) -> Result<(), Refused> {
        use plugin_command::Change;
        let enforced = self.enforced();
        match change {
            Change::Chunk(chunk) => self.add_component(&chunk.sha256),
            Change::Load(load) => self.load(&load.sha256)?,
            Change::Acknowledge(acknowledge) => {
                let ack = acknowledge.ack.as_ref().ok_or(Refused)?;
                if !self.members.contains_key(&ack.member_id) {
                    return Err(Refused);
                }
                let slots = [&mut self.current, &mut self.candidate, &mut self.previous];
                let mut kept = slots.into_iter().flatten();
                let revision = kept.find(|kept| kept.number == acknowledge.revision).ok_or(Refused)?;
                revision.acks.insert(ack.member_id, ack.failure.is_empty());
                let members = &self.members;
                revision.acks.retain(|member, _| members.contains_key(member));
            }
            Change::SetMode(set) => {
                if set.expected_policy_epoch.is_some_and(|expected| expected != self.epoch) {
                    return Err(Refused);
                }
                self.set_mode(set.mode(), set.revision, set.allow_missing_members)?;
            }
            Change::Rollback(rollback) => {
                if rollback.expected_policy_epoch.is_some_and(|expected| expected != self.epoch) {
                    return Err(Refused);
                }
                self.roll_back(rollback.allow_missing_members)?;
            }
            Change::Remove(_) => return Err(Refused),
        }
        self.epoch += u64::from(self.enforced() != enforced);
        Ok(())
    }

    /// The number of the revision that is enforced.
    fn enforced(&self) -> Option<u64> {
        self.current.as_ref().filter(|current| current.mode == PluginMode::Enforce).map(|current| current.number)
    }

    fn is_used(&self, component: &Bytes) -> bool {
        let slots = [&self.current, &self.candidate, &self.previous];
        slots.into_iter().flatten().any(|kept| kept.component == *component)
    }

    fn add_component(&mut self, component: &Bytes) {
        if self.components.contains(component) {
            return;
        }
        loop {
            let unused: Vec<usize> =
                (0..self.components.len()).filter(|place| !self.is_used(&self.components[*place])).collect();
            if unused.len() < UNUSED_MAX {
                break;
            }
            self.components.remove(unused[0]);
        }
        self.components.push(component.clone());
    }

    fn load(&mut self, component: &Bytes) -> Result<(), Refused> {
        let is_same = |kept: &Revision| kept.component == *component && kept.acks.values().all(|ready| *ready);
        if !self.components.contains(component) {
            return Err(Refused);
        }
        if [&self.candidate, &self.current].into_iter().flatten().any(is_same) {
            return Ok(());
        }
        self.last_number += 1;
        let (number, component) = (self.last_number, component.clone());
        let before =
            self.candidate.replace(Revision { number, component, mode: PluginMode::Off, acks: BTreeMap::new() });
        self.forget(before);
        Ok(())
    }

    /// A revision is kept no more; its component goes with it, unless another needs it.
    fn forget(&mut self, revision: Option<Revision>) {
        if let Some(revision) = revision
            && !self.is_used(&revision.component)
        {
            self.components.retain(|component| *component != revision.component);
        }
    }

    fn set_mode(&mut self, mode: PluginMode, number: u64, allow_missing: bool) -> Result<(), Refused> {
        let has_any = self.current.is_some() || self.candidate.is_some();
        if mode == PluginMode::Off && number == 0 && has_any {
            [&mut self.current, &mut self.candidate].into_iter().flatten().for_each(|kept| kept.mode = mode);
            return Ok(());
        }
        let is_meant = |kept: &Option<Revision>| kept.as_ref().is_some_and(|k| number == 0 || k.number == number);
        let is_candidate = is_meant(&self.candidate);
        let meant = if is_candidate { &self.candidate } else { &self.current };
        let meant = meant.clone().filter(|kept| number == 0 || kept.number == number).ok_or(Refused)?;
        if mode != PluginMode::Off && !self.is_ready(&meant, allow_missing) {
            return Err(Refused);
        }
        let now = Some(Revision { mode, ..meant });
        if is_candidate && mode == PluginMode::Enforce {
            let before = std::mem::replace(&mut self.previous, self.current.take());
            self.previous.iter_mut().for_each(|previous| previous.mode = PluginMode::Off);
            self.current = now;
            self.candidate = None;
            self.forget(before);
        } else if is_candidate {
            self.candidate = now;
        } else {
            self.current = now;
        }
        Ok(())
    }

    fn roll_back(&mut self, allow_missing: bool) -> Result<(), Refused> {
        let (Some(current), Some(previous)) = (self.current.clone(), self.previous.clone()) else {
            return Err(Refused);
        };
        if current.mode != PluginMode::Off && !self.is_ready(&previous, allow_missing) {
            return Err(Refused);
        }
        self.current = Some(Revision { mode: current.mode, ..previous });
        self.previous = Some(Revision { mode: PluginMode::Off, ..current });
        Ok(())
    }

    fn is_ready(&self, revision: &Revision, allow_missing: bool) -> bool {
        let voters: Vec<_> = self.members.iter().filter(|(_, is_learner)| !**is_learner).collect();
        let ready = voters.iter().filter(|(id, _)| revision.acks.get(*id) == Some(&true)).count();
        ready == voters.len() || (allow_missing && ready > 0)
    }
}
