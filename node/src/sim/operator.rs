//! The operator: adds, promotes and removes members, and brings revisions of a plugin into force, while the cluster serves.

use bytes::Bytes;
use crossbeam_channel::Receiver;
use kuorum_proto::kuorum::v1::{
    PluginAck, PluginAcknowledge, PluginChunk, PluginLoad, PluginMode, PluginRevision, PluginRollback, PluginSetMode,
    plugin_command,
};

use crate::admission::Gate;
use crate::cluster::{Change, Member, MemberId};
use crate::consensus::answers::Answer;
use crate::sim::checker::{Checker, Violation};
use crate::sim::client::Peer;
use crate::sim::member::peer_urls;
use crate::sim::random::Random;

/// Between these many voters the operator keeps the cluster. Of two, one must not be removed: who is left may lose, with its
/// power, that this was agreed on, and nobody is there to agree with. It may be mistaken by one, as a change that it has
/// not heard of again may still be done.
const VOTERS: (usize, usize) = (3, 6);
/// How long it takes away nobody after it has lost sight of a change.
const CAUTION_MS: u64 = 10_000;
const LEARNERS_MAX: usize = 1;
/// Components that the plugin has.
const COMPONENTS: u64 = 6;
const PLUGIN: &str = "p";
/// Numbers of its commands begin here, past those of all clients.
const FIRST_NUMBER: u64 = 1 << 60;

pub(super) struct Operator {
    /// The id of the next member added.
    next_id: u64,
    next_number: u64,
    /// Until when it takes away nobody.
    cautious_until_ms: u64,
    /// What was asked last, of which member's which process.
    asked: Option<(u64, u64, Asked)>,
}

enum Asked {
    CaughtUp(u64, Receiver<Answer>),
    Change(u64, Receiver<Answer>),
}

impl Operator {
    pub(super) fn new(members: u64) -> Operator {
        Operator { next_id: members + 1, next_number: FIRST_NUMBER, cautious_until_ms: 0, asked: None }
    }

    /// The member whose answer it waits for.
    pub(super) fn waits_for(&self) -> Option<u64> {
        self.asked.as_ref().map(|(member, ..)| *member)
    }

    /// Has something changed, by way of this member, when these are the members and this the policy epoch. Without members
    /// they are to stay as they are. Returns what, in a few words.
    pub(super) fn ask(
        &mut self,
        peer: &Peer<'_>,
        members: &[Member],
        epoch: u64,
        plugins_permille: u64,
        random: &mut Random,
    ) -> Option<String> {
        if random.permille(plugins_permille) {
            return self.change_plugin(peer, epoch, random);
        }
        if members.is_empty() {
            return None;
        }
        let voters: Vec<u64> = members.iter().filter(|member| !member.is_learner).map(|member| member.id.0).collect();
        let learner = members.iter().find(|member| member.is_learner).map(|member| member.id.0);
        if let Some(learner) = learner
            && random.permille(600)
        {
            // Only the leader can tell; whoever else is asked says so.
            let answer = peer.process.ask_caught_up(learner);
            self.asked = Some((peer.member, peer.boot, Asked::CaughtUp(learner, answer)));
            return Some(format!("whether m{learner} has caught up"));
        }
        let grows = voters.len() <= VOTERS.0 || (voters.len() < VOTERS.1 && random.permille(500));
        let change = if grows {
            let id = self.next_id;
            self.next_id += 1;
            let is_learner = random.permille(500);
            Change::Add { id: MemberId(id), peer_urls: peer_urls(id), is_learner, learners_max: LEARNERS_MAX }
        } else if peer.now_ms < self.cautious_until_ms {
            return None;
        } else {
            Change::Remove(MemberId(random.pick(&voters)))
        };
        Some(self.propose(peer, change))
    }

    /// Goes on with the one plugin, by what the member that is asked knows of it.
    fn change_plugin(&mut self, peer: &Peer<'_>, epoch: u64, random: &mut Random) -> Option<String> {
        let change = plugin_change(peer, epoch, random);
        let shown = show(&change);
        self.next_number += 1;
        // Refused here only for want of room on a disk, of which there is enough.
        let command = peer.process.gate.plugin(change).ok()?;
        let answer = peer.process.propose(command, self.next_number);
        self.asked = Some((peer.member, peer.boot, Asked::Change(self.next_number, answer)));
        Some(shown)
    }

    fn propose(&mut self, peer: &Peer<'_>, change: Change) -> String {
        let shown = format!("{change:?}");
        self.next_number += 1;
        let answer = peer.process.propose(Gate::membership(change), self.next_number);
        self.asked = Some((peer.member, peer.boot, Asked::Change(self.next_number, answer)));
        shown
    }

    /// Looks whether it was answered; goes on with the promotion of a learner that has caught up.
    pub(super) fn look(
        &mut self,
        peer: Option<&Peer<'_>>,
        checker: &mut Checker,
        now_ms: u64,
    ) -> Result<Option<String>, Violation> {
        let Some((_, boot, asked)) = &self.asked else { return Ok(None) };
        let Some(peer) = peer.filter(|peer| peer.boot == *boot) else {
            self.asked = None;
            self.cautious_until_ms = now_ms + CAUTION_MS;
            return Ok(Some("connection lost".to_owned()));
        };
        let (Asked::CaughtUp(_, waits) | Asked::Change(_, waits)) = asked;
        let Ok(answer) = waits.try_recv() else { return Ok(None) };
        let shown = answer.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        match self.asked.take() {
            Some((_, _, Asked::CaughtUp(learner, _))) if answer.is_ok() => {
                Ok(Some(self.propose(peer, Change::Promote(MemberId(learner)))))
            }
            Some((_, _, Asked::Change(number, _))) => {
                if answer.is_err() {
                    self.cautious_until_ms = now_ms + CAUTION_MS;
                }
                checker.answered(number, &answer).map(|()| Some(shown))
            }
            _ => Ok(Some(shown)),
        }
    }
}

/// The next step with the plugin. Members do not prepare it by themselves here: the operator says for each how it went.
fn plugin_change(peer: &Peer<'_>, epoch: u64, random: &mut Random) -> plugin_command::Change {
    let registry = &peer.process.registry;
    let plugin = registry.get(PLUGIN).unwrap_or_default();
    let slots = [&plugin.candidate, &plugin.current, &plugin.previous];
    let kept: Vec<&PluginRevision> = slots.into_iter().flatten().collect();
    let component = u8::try_from(random.below(COMPONENTS)).expect("a handful of components");
    let sha256 = Bytes::from(vec![component; 32]);
    if kept.is_empty() || random.permille(200) {
        return match registry.has_component(&sha256) {
            true => {
                plugin_command::Change::Load(PluginLoad { name: PLUGIN.to_owned(), sha256, ..PluginLoad::default() })
            }
            false => plugin_command::Change::Chunk(PluginChunk {
                sha256,
                upload: random.next(),
                component_bytes: 1,
                number: 0,
                data: Bytes::from_static(b"c"),
            }),
        };
    }
    let members = peer.process.members().list();
    let is_missing = |(revision, member): &(&PluginRevision, u64)| !is_acknowledged(revision, *member);
    let pairs = kept.iter().flat_map(|revision| members.iter().map(|member| (*revision, member.id.0)));
    let missing: Vec<_> = pairs.filter(is_missing).collect();
    if !missing.is_empty() && random.permille(600) {
        let (revision, member_id) = random.pick(&missing);
        let failure = if random.permille(100) { "scripted".to_owned() } else { String::new() };
        return plugin_command::Change::Acknowledge(PluginAcknowledge {
            name: PLUGIN.to_owned(),
            revision: revision.number,
            identity: revision.identity.clone(),
            ack: Some(PluginAck { member_id, failure, ..PluginAck::default() }),
        });
    }
    let (name, allow_missing_members) = (PLUGIN.to_owned(), random.permille(700));
    let expected_policy_epoch = random.permille(900).then_some(epoch);
    if random.permille(200) {
        return plugin_command::Change::Rollback(PluginRollback { name, expected_policy_epoch, allow_missing_members });
    }
    let (enforce, shadow, off) = (PluginMode::Enforce, PluginMode::Shadow, PluginMode::Off);
    let mode = random.pick(&[enforce, enforce, enforce, shadow, off]).into();
    let revision = if random.permille(700) { 0 } else { random.pick(&kept).number };
    plugin_command::Change::SetMode(PluginSetMode {
        name,
        mode,
        revision,
        expected_policy_epoch,
        allow_missing_members,
    })
}

fn is_acknowledged(revision: &PluginRevision, member: u64) -> bool {
    revision.acks.iter().any(|ack| ack.member_id == member)
}

fn show(change: &plugin_command::Change) -> String {
    use plugin_command::Change;
    match change {
        Change::Chunk(chunk) => format!("component {}", chunk.sha256[0]),
        Change::Load(load) => format!("load {}", load.sha256[0]),
        Change::Acknowledge(acknowledge) => {
            let PluginAck { member_id, failure, .. } = acknowledge.ack.clone().unwrap_or_default();
            format!(
                "m{member_id} on revision {}: {}",
                acknowledge.revision,
                if failure.is_empty() { "ready" } else { &failure }
            )
        }
        Change::SetMode(set) => {
            format!("revision {} {:?} after {:?}", set.revision, set.mode(), set.expected_policy_epoch)
        }
        Change::Rollback(rollback) => format!("rollback after {:?}", rollback.expected_policy_epoch),
        Change::Remove(_) => "remove".to_owned(),
    }
}
