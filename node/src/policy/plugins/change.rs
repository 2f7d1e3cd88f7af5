//! The rules by which plugins change. A change that is refused has changed nothing.

use bytes::Bytes;
use kuorum_proto::kuorum::v1::{
    Plugin, PluginAck, PluginAcknowledge, PluginChunk, PluginCommand, PluginComponent, PluginComponents, PluginLoad,
    PluginMode, PluginRemove, PluginRevision, PluginRollback, PluginSetMode, plugin_command,
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{
    CHUNK_BYTES, COMPONENT_BYTES_MAX, COMPONENTS_BYTES_MAX, COMPONENTS_ROW, CONFIG_BYTES_MAX, FAILURE_BYTES_MAX,
    GRANT_BYTES_MAX, GRANTS_MAX, Lacking, NAME_BYTES_MAX, PLUGINS_MAX, Refused, SHA256_BYTES, SIGNATURE_BYTES, State,
    UNUSED_COMPONENTS_MAX, chunk_count, chunk_row, is_whole, plugin_row, revisions_of,
};
use crate::cluster::Member;

/// A row of the `sys` space, by its name, and what it holds now; `None`: it is gone.
type Row = (Vec<u8>, Option<Vec<u8>>);

/// What became of a change.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Changed {
    pub(crate) outcome: Outcome,
    /// In force from now on.
    pub(crate) epoch: u64,
    /// What is to be kept, in order.
    pub(crate) rows: Vec<Row>,
    /// Whether a plugin, and not a piece of a component alone, has changed.
    pub(crate) concerns_revisions: bool,
}

/// What whoever asked for it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done,
    /// The revision that was loaded, or was there with the same content.
    Revision {
        number: u64,
        was_there: bool,
    },
}

/// Whether a plugin can be called so.
pub(crate) fn check_name(name: &str) -> Result<(), Refused> {
    let begins = name.starts_with(|letter: char| letter.is_ascii_lowercase());
    let allowed = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(allowed) {
        return Ok(());
    }
    // Cut, since it is shown.
    Err(Refused::BadName(name.chars().take(NAME_BYTES_MAX + 1).collect()))
}

/// What is wrong with a configuration before a plugin sees it, but for its length.
pub(crate) fn check_json(config: &str) -> Result<(), String> {
    let parsed = serde_json::from_str::<serde::de::IgnoredAny>(config);
    parsed.map(drop).map_err(|error| format!("the configuration is no JSON: {error}"))
}

/// What can be said of a load without knowing what it meets.
pub(crate) fn check_load(load: &PluginLoad) -> Result<(), Refused> {
    check_name(&load.name)?;
    if load.sha256.len() != SHA256_BYTES {
        return Err(Refused::BadHash);
    }
    if !matches!(load.signature.len(), 0 | SIGNATURE_BYTES) {
        return Err(Refused::BadSignature(load.signature.len()));
    }
    if load.config.len() > CONFIG_BYTES_MAX {
        return Err(Refused::ConfigTooLarge);
    }
    if load.kv_read.len() > GRANTS_MAX {
        return Err(Refused::TooManyGrants);
    }
    match load.kv_read.iter().any(|prefix| prefix.len() > GRANT_BYTES_MAX) {
        true => Err(Refused::GrantTooLarge),
        false => Ok(()),
    }
}

impl State {
    /// Carries out a change under this policy epoch, when these are the members.
    pub(super) fn change(
        &mut self,
        command: &PluginCommand,
        epoch: u64,
        members: &[Member],
    ) -> Result<Changed, Refused> {
        use plugin_command::Change;
        let mut changed = Changed { outcome: Outcome::Done, epoch, rows: Vec::new(), concerns_revisions: false };
        match command.change.as_ref().ok_or(Refused::Empty)? {
            Change::Chunk(chunk) => {
                self.take_chunk(chunk, &mut changed)?;
                return Ok(changed);
            }
            Change::Load(load) => self.load(load, members, &mut changed)?,
            Change::Acknowledge(acknowledge) => self.acknowledge(acknowledge, members, &mut changed)?,
            Change::SetMode(set_mode) => self.set_mode(set_mode, members, &mut changed)?,
            Change::Rollback(rollback) => self.roll_back(rollback, members, &mut changed)?,
            Change::Remove(remove) => self.remove(remove, &mut changed)?,
        }
        changed.concerns_revisions = true;
        Ok(changed)
    }

    // ---- components

    fn take_chunk(&mut self, chunk: &PluginChunk, changed: &mut Changed) -> Result<(), Refused> {
        check_chunk(chunk)?;
        let known = self.components.iter().position(|component| component.sha256 == chunk.sha256);
        if known.is_some_and(|place| is_whole(&self.components[place])) {
            return Ok(());
        }
        let place = match known {
            Some(place) if continues(&self.components[place], chunk) => place,
            known if chunk.number == 0 => {
                self.check_room(chunk.component_bytes)?;
                if let Some(place) = known {
                    self.drop_component(place, changed);
                }
                self.make_room(chunk.component_bytes, changed);
                self.components.push(PluginComponent {
                    sha256: chunk.sha256.clone(),
                    bytes: chunk.component_bytes,
                    upload: chunk.upload,
                    chunks: 0,
                });
                self.components.len() - 1
            }
            _ => return Err(Refused::UploadReplaced),
        };
        self.components[place].chunks += 1;
        changed.rows.push((chunk_row(&chunk.sha256, chunk.number), Some(chunk.data.to_vec())));
        self.keep_components(changed);
        Ok(())
    }

    /// Whether another component has room beside those that something refers to.
    fn check_room(&self, bytes: u64) -> Result<(), Refused> {
        let used = self.components.iter().filter(|component| self.is_used(&component.sha256));
        let used_bytes: u64 = used.map(|component| component.bytes).sum();
        if used_bytes + bytes > COMPONENTS_BYTES_MAX { Err(Refused::NoRoom) } else { Ok(()) }
    }

    /// Drops components that nothing refers to, oldest first, until another one has the room that was checked.
    fn make_room(&mut self, bytes: u64, changed: &mut Changed) {
        loop {
            let unused = self.components.iter().filter(|component| !self.is_used(&component.sha256)).count();
            let all: u64 = self.components.iter().map(|component| component.bytes).sum();
            if unused < UNUSED_COMPONENTS_MAX && all + bytes <= COMPONENTS_BYTES_MAX {
                return;
            }
            let oldest = self.components.iter().position(|component| !self.is_used(&component.sha256));
            self.drop_component(oldest.expect("those in use leave room, so others take it"), changed);
        }
    }

    fn drop_component(&mut self, place: usize, changed: &mut Changed) {
        let component = self.components.remove(place);
        changed.rows.extend((0..component.chunks).map(|number| (chunk_row(&component.sha256, number), None)));
    }

    fn keep_components(&self, changed: &mut Changed) {
        let row = PluginComponents { components: self.components.clone() }.encode_to_vec();
        changed.rows.push((COMPONENTS_ROW.to_vec(), Some(row)));
    }

    fn is_used(&self, sha256: &Bytes) -> bool {
        self.revisions().any(|(_, revision)| revision.sha256 == *sha256)
    }

    // ---- revisions

    fn load(&mut self, load: &PluginLoad, members: &[Member], changed: &mut Changed) -> Result<(), Refused> {
        check_load(load)?;
        let component_bytes = self.component_bytes(&load.sha256).ok_or(Refused::NoComponent)?;
        let known = self.plugins.get(&load.name);
        if known.is_none() && self.plugins.len() >= PLUGINS_MAX {
            return Err(Refused::TooManyPlugins);
        }
        let mut plugin = known.cloned().unwrap_or(Plugin { name: load.name.clone(), ..Plugin::default() });
        let kept = [&plugin.candidate, &plugin.current];
        if let Some(same) = kept.into_iter().flatten().find(|revision| is_same(revision, load, members)) {
            changed.outcome = Outcome::Revision { number: same.number, was_there: true };
            return Ok(());
        }
        plugin.last_number += 1;
        let number = plugin.last_number;
        plugin.candidate = Some(PluginRevision {
            number,
            mode: PluginMode::Off.into(),
            sha256: load.sha256.clone(),
            component_bytes,
            config: load.config.clone(),
            kv_read: load.kv_read.clone(),
            limits: load.limits,
            identity: identity(load, number),
            acks: Vec::new(),
            signature: load.signature.clone(),
        });
        changed.outcome = Outcome::Revision { number, was_there: false };
        self.put(plugin, changed);
        Ok(())
    }

    fn acknowledge(
        &mut self,
        acknowledge: &PluginAcknowledge,
        members: &[Member],
        changed: &mut Changed,
    ) -> Result<(), Refused> {
        let PluginAcknowledge { name, revision: number, identity, ack } = acknowledge;
        let ack = ack.as_ref().ok_or(Refused::Empty)?;
        if ack.failure.len().max(ack.unusable.len()) > FAILURE_BYTES_MAX {
            return Err(Refused::FailureTooLarge);
        }
        let is_member = |id: u64| members.iter().any(|member| member.id.0 == id);
        if !is_member(ack.member_id) {
            return Err(Refused::NoMember);
        }
        let mut plugin = self.plugin(name)?;
        let slots = [&mut plugin.current, &mut plugin.candidate, &mut plugin.previous];
        let meant = slots.into_iter().flatten().find(|revision| revision.identity == *identity);
        let revision = meant.ok_or_else(|| Refused::NoRevision { name: name.clone(), revision: *number })?;
        revision.acks.retain(|known| known.member_id != ack.member_id && is_member(known.member_id));
        revision.acks.push(ack.clone());
        revision.acks.sort_by_key(|ack| ack.member_id);
        self.put(plugin, changed);
        Ok(())
    }

    fn set_mode(&mut self, set_mode: &PluginSetMode, members: &[Member], changed: &mut Changed) -> Result<(), Refused> {
        let mode = PluginMode::try_from(set_mode.mode).map_err(|_| Refused::UnknownMode(set_mode.mode))?;
        let mut plugin = self.plugin(&set_mode.name)?;
        check_epoch(set_mode.expected_policy_epoch, changed.epoch)?;
        if mode == PluginMode::Off && set_mode.revision == 0 {
            let slots = [&mut plugin.current, &mut plugin.candidate];
            slots.into_iter().flatten().for_each(|revision| revision.set_mode(PluginMode::Off));
            self.put(plugin, changed);
            return Ok(());
        }
        let (is_candidate, revision) = meant(&mut plugin, set_mode.revision)?;
        if mode != PluginMode::Off {
            check_ready(&set_mode.name, revision, members, set_mode.allow_missing_members)?;
        }
        revision.set_mode(mode);
        if is_candidate && mode == PluginMode::Enforce {
            plugin.previous = plugin.current.take();
            if let Some(previous) = &mut plugin.previous {
                previous.set_mode(PluginMode::Off);
            }
            plugin.current = plugin.candidate.take();
        }
        self.put(plugin, changed);
        Ok(())
    }

    fn roll_back(
        &mut self,
        rollback: &PluginRollback,
        members: &[Member],
        changed: &mut Changed,
    ) -> Result<(), Refused> {
        let name = &rollback.name;
        let mut plugin = self.plugin(name)?;
        check_epoch(rollback.expected_policy_epoch, changed.epoch)?;
        let (Some(mut current), Some(mut previous)) = (plugin.current.take(), plugin.previous.take()) else {
            return Err(Refused::NoPrevious(name.clone()));
        };
        if current.mode() != PluginMode::Off {
            check_ready(name, &previous, members, rollback.allow_missing_members)?;
        }
        previous.set_mode(current.mode());
        current.set_mode(PluginMode::Off);
        (plugin.current, plugin.previous) = (Some(previous), Some(current));
        self.put(plugin, changed);
        Ok(())
    }

    fn remove(&mut self, remove: &PluginRemove, changed: &mut Changed) -> Result<(), Refused> {
        let plugin = self.plugin(&remove.name)?;
        let is_off = |revision: &PluginRevision| revision.mode() == PluginMode::Off;
        if ![&plugin.current, &plugin.candidate].into_iter().flatten().all(is_off) {
            return Err(Refused::InUse(remove.name.clone()));
        }
        self.plugins.remove(&remove.name);
        changed.rows.push((plugin_row(&remove.name), None));
        self.drop_left(&plugin, changed);
        Ok(())
    }

    /// A copy to change, so that what is refused half way leaves nothing.
    fn plugin(&self, name: &str) -> Result<Plugin, Refused> {
        check_name(name)?;
        self.plugins.get(name).cloned().ok_or_else(|| Refused::NoPlugin(name.to_owned()))
    }

    /// Puts a plugin in the place of what it was, and raises the epoch if something else is enforced now.
    fn put(&mut self, plugin: Plugin, changed: &mut Changed) {
        changed.rows.push((plugin_row(&plugin.name), Some(plugin.encode_to_vec())));
        let now = enforced(&plugin).cloned();
        let before = self.plugins.insert(plugin.name.clone(), plugin);
        if before.as_ref().and_then(enforced) != now.as_ref() {
            changed.epoch += 1;
        }
        if let Some(before) = before {
            self.drop_left(&before, changed);
        }
    }

    /// Drops the components of a plugin as it was that no revision refers to any more.
    fn drop_left(&mut self, before: &Plugin, changed: &mut Changed) {
        let mut dropped = false;
        for (_, revision) in revisions_of(before) {
            let left = self.components.iter().position(|component| component.sha256 == revision.sha256);
            if let Some(place) = left.filter(|_| !self.is_used(&revision.sha256)) {
                self.drop_component(place, changed);
                dropped = true;
            }
        }
        if dropped {
            self.keep_components(changed);
        }
    }
}

fn check_chunk(chunk: &PluginChunk) -> Result<(), Refused> {
    let PluginChunk { sha256, component_bytes, number, data, .. } = chunk;
    if sha256.len() != SHA256_BYTES {
        return Err(Refused::BadHash);
    }
    if *component_bytes == 0 || *component_bytes > COMPONENT_BYTES_MAX {
        return Err(Refused::BadComponentSize(*component_bytes));
    }
    let before = u64::from(*number) * CHUNK_BYTES as u64;
    let due = component_bytes.saturating_sub(before).min(CHUNK_BYTES as u64);
    if due == 0 || data.len() as u64 != due { Err(Refused::BadChunk(*number)) } else { Ok(()) }
}

/// Whether a piece is the next one of the same upload.
fn continues(component: &PluginComponent, chunk: &PluginChunk) -> bool {
    component.upload == chunk.upload
        && component.bytes == chunk.component_bytes
        && component.chunks == chunk.number
        && chunk.number < chunk_count(component.bytes)
}

/// Whether the revision is what is to be loaded, and no member had trouble with it.
fn is_same(revision: &PluginRevision, load: &PluginLoad, members: &[Member]) -> bool {
    let has_failed = |member: &Member| ack_of(revision, member).is_some_and(|ack| !ack.failure.is_empty());
    revision.identity == identity(load, revision.number) && !members.iter().any(has_failed)
}

/// What a member said of a revision. What those said who are no members any more does not count.
fn ack_of<'a>(revision: &'a PluginRevision, member: &Member) -> Option<&'a PluginAck> {
    revision.acks.iter().find(|ack| ack.member_id == member.id.0)
}

/// What tells a revision from any other: no two plugins or numbers share it, and no two contents.
fn identity(load: &PluginLoad, number: u64) -> Bytes {
    let mut hasher = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    part(load.name.as_bytes());
    part(&number.to_be_bytes());
    part(&load.sha256);
    part(load.config.as_bytes());
    part(&load.limits.unwrap_or_default().encode_to_vec());
    part(&load.signature);
    load.kv_read.iter().for_each(|prefix| part(prefix));
    Bytes::copy_from_slice(&hasher.finalize())
}

/// What is enforced of a plugin.
fn enforced(plugin: &Plugin) -> Option<&Bytes> {
    let current = plugin.current.as_ref().filter(|revision| revision.mode() == PluginMode::Enforce);
    current.map(|revision| &revision.identity)
}

/// The revision that a change of mode is about, and whether it is the candidate.
fn meant(plugin: &mut Plugin, number: u64) -> Result<(bool, &mut PluginRevision), Refused> {
    let name = plugin.name.clone();
    let is = |revision: &PluginRevision| number == 0 || revision.number == number;
    if let Some(previous) = &plugin.previous
        && previous.number == number
    {
        return Err(Refused::IsPrevious { name, revision: number });
    }
    if let Some(candidate) = plugin.candidate.as_mut().filter(|revision| is(revision)) {
        return Ok((true, candidate));
    }
    match plugin.current.as_mut().filter(|revision| is(revision)) {
        Some(current) => Ok((false, current)),
        None => Err(Refused::NoRevision { name, revision: number }),
    }
}

fn check_epoch(expected: Option<u64>, epoch: u64) -> Result<(), Refused> {
    match expected {
        Some(expected) if expected != epoch => Err(Refused::EpochMoved { expected, epoch }),
        Some(_) | None => Ok(()),
    }
}

/// Whether every voter has prepared the revision; or one, where that is enough.
fn check_ready(name: &str, revision: &PluginRevision, members: &[Member], allow_missing: bool) -> Result<(), Refused> {
    let voters = || members.iter().filter(|member| !member.is_learner);
    if let Some(ack) = voters().filter_map(|voter| ack_of(revision, voter)).find(|ack| !ack.unusable.is_empty()) {
        return Err(Refused::Unusable(ack.unusable.clone()));
    }
    let (mut ready, mut lacking) = (0, Vec::new());
    for voter in voters() {
        match ack_of(revision, voter) {
            Some(ack) if ack.failure.is_empty() => ready += 1,
            ack => {
                let member = if voter.has_started() { voter.name.clone() } else { voter.id.to_string() };
                lacking.push(Lacking { member, failure: ack.map(|ack| ack.failure.clone()).unwrap_or_default() });
            }
        }
    }
    if lacking.is_empty() || (allow_missing && ready > 0) {
        return Ok(());
    }
    Err(Refused::NotReady { name: name.to_owned(), revision: revision.number, lacking })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::MemberId;

    fn hash(letter: u8) -> Bytes {
        vec![letter; SHA256_BYTES].into()
    }

    fn carried_out(state: &mut State, change: plugin_command::Change, members: &[Member]) -> Result<Changed, Refused> {
        state.change(&PluginCommand { change: Some(change) }, 0, members)
    }

    /// A plugin for each size, called by a letter, with its component.
    fn loaded(sizes: &[u64]) -> State {
        let mut state = State::default();
        for (letter, bytes) in (b'a'..).zip(sizes) {
            let component =
                PluginComponent { sha256: hash(letter), bytes: *bytes, upload: 1, chunks: chunk_count(*bytes) };
            state.components.push(component);
            let name = char::from(letter).to_string();
            let load = PluginLoad { name, sha256: hash(letter), ..PluginLoad::default() };
            carried_out(&mut state, plugin_command::Change::Load(load), &[]).unwrap();
        }
        state
    }

    fn first_piece(letter: u8, component_bytes: u64, upload: u64) -> plugin_command::Change {
        let data = vec![0; usize::try_from(component_bytes).unwrap().min(CHUNK_BYTES)].into();
        plugin_command::Change::Chunk(PluginChunk { sha256: hash(letter), component_bytes, number: 0, data, upload })
    }

    #[test]
    fn an_upload_without_room_leaves_the_one_that_it_would_replace() {
        let mut state = loaded(&[COMPONENT_BYTES_MAX, COMPONENT_BYTES_MAX, COMPONENT_BYTES_MAX, 1]);
        carried_out(&mut state, first_piece(b'x', CHUNK_BYTES as u64 + 1, 1), &[]).unwrap();
        let before = state.clone();
        let refused = carried_out(&mut state, first_piece(b'x', COMPONENT_BYTES_MAX, 2), &[]);
        assert!(matches!(refused, Err(Refused::NoRoom)));
        assert_eq!(state, before);
        carried_out(&mut state, first_piece(b'x', COMPONENT_BYTES_MAX - 1, 2), &[]).unwrap();
    }

    #[test]
    fn what_a_removed_member_said_does_not_count() {
        let member = |id| Member::unstarted(MemberId(id), Vec::new(), false);
        let mut state = loaded(&[1]);
        let identity = state.plugins["a"].candidate.as_ref().unwrap().identity.clone();
        for (member_id, failure, unusable) in [(1, "", ""), (2, "", "unknown kind"), (3, "no room", "")] {
            let ack = PluginAck { member_id, failure: failure.to_owned(), unusable: unusable.to_owned() };
            let said =
                PluginAcknowledge { name: "a".to_owned(), revision: 1, identity: identity.clone(), ack: Some(ack) };
            carried_out(&mut state, plugin_command::Change::Acknowledge(said), &[1, 2, 3].map(member)).unwrap();
        }
        let enforce = || {
            let set_mode =
                PluginSetMode { name: "a".to_owned(), mode: PluginMode::Enforce.into(), ..Default::default() };
            plugin_command::Change::SetMode(set_mode)
        };
        let load = || {
            let load = PluginLoad { name: "a".to_owned(), sha256: hash(b'a'), ..PluginLoad::default() };
            plugin_command::Change::Load(load)
        };
        let was_there = |loaded: Result<Changed, Refused>| {
            matches!(loaded, Ok(Changed { outcome: Outcome::Revision { was_there: true, .. }, .. }))
        };
        let unusable = carried_out(&mut state, enforce(), &[1, 2, 3].map(member));
        assert!(matches!(unusable, Err(Refused::Unusable(_))));
        assert!(!was_there(carried_out(&mut state.clone(), load(), &[1, 2, 3].map(member))));
        assert!(was_there(carried_out(&mut state, load(), &[1].map(member))));
        carried_out(&mut state, enforce(), &[1].map(member)).unwrap();
    }
}
