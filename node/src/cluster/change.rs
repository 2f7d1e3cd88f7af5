//! A change of who the members are: what it asks, when it may be done, and how a log entry says it.
//!
//! An entry holds etcd's `ConfChange`, with the member as JSON in its context. Its type says no more than whether a member
//! goes: the crate `raft` looks at it too, and refuses etcd's numbers for learners and for new URLs. The context says the
//! rest. Whether a change may be done is decided when it is applied, from the members as they are then, so that every member
//! decides alike; a limit that is one member's flag travels in the entry.

use bytes::Bytes;
use kuorum_proto::raftpb::{ConfChange, ConfChangeType};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::{Member, MemberId, Roster};
use crate::log::{EntryKind, LogEntry};
use crate::refusal::Refusal;

/// What is to be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// A member that has not started yet. As a learner it is added only while there are fewer than `learners_max`.
    Add {
        id: MemberId,
        peer_urls: Vec<String>,
        is_learner: bool,
        learners_max: usize,
    },
    /// A learner becomes a voter.
    Promote(MemberId),
    Remove(MemberId),
    Update {
        id: MemberId,
        peer_urls: Vec<String>,
    },
}

/// What a change that was done means for who votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reconfiguration {
    Voter(MemberId),
    Learner(MemberId),
    Gone(MemberId),
    /// Nothing.
    None,
}

/// etcd's JSON of a member, and of what is to become of it.
#[derive(Serialize, Deserialize, Default)]
struct Context {
    id: u64,
    #[serde(rename = "peerURLs", default)]
    peer_urls: Option<Vec<String>>,
    #[serde(rename = "isLearner", default, skip_serializing_if = "std::ops::Not::not")]
    is_learner: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(rename = "isPromote", default, skip_serializing_if = "std::ops::Not::not")]
    is_promote: bool,
    /// Kuorum's addition, as the next: etcd has a type for it.
    #[serde(rename = "isUpdate", default, skip_serializing_if = "std::ops::Not::not")]
    is_update: bool,
    #[serde(rename = "maxLearners", default, skip_serializing_if = "Option::is_none")]
    learners_max: Option<usize>,
}

impl Change {
    /// The member that it is about.
    pub(crate) fn id(&self) -> MemberId {
        match self {
            Change::Add { id, .. } | Change::Promote(id) | Change::Remove(id) | Change::Update { id, .. } => *id,
        }
    }

    /// The payload of the change's entry, under the number by which its proposer finds it again.
    pub(crate) fn encode(&self, number: u64) -> Bytes {
        let id = self.id().0;
        let context = match self {
            Change::Add { peer_urls, is_learner, learners_max, .. } => {
                let learners_max = is_learner.then_some(*learners_max);
                let peer_urls = Some(peer_urls.clone());
                Some(Context { id, peer_urls, is_learner: *is_learner, learners_max, ..Context::default() })
            }
            Change::Promote(_) => Some(Context { id, is_promote: true, ..Context::default() }),
            Change::Remove(_) => None,
            Change::Update { peer_urls, .. } => {
                Some(Context { id, peer_urls: Some(peer_urls.clone()), is_update: true, ..Context::default() })
            }
        };
        let kind = match context {
            Some(_) => ConfChangeType::ConfChangeAddNode,
            None => ConfChangeType::ConfChangeRemoveNode,
        };
        let context =
            context.map(|context| serde_json::to_vec(&context).expect("numbers and texts are always JSON").into());
        let change = ConfChange { id: Some(number), r#type: Some(kind.into()), node_id: Some(id), context };
        change.encode_to_vec().into()
    }

    /// Reads an entry's payload, which may come from any member, or from etcd.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(payload: &[u8]) -> Result<Change, String> {
        let change = ConfChange::decode(payload).map_err(|error| error.to_string())?;
        let id = MemberId(change.node_id.unwrap_or(0));
        if id.0 == 0 {
            return Err("a change of no member".to_owned());
        }
        let kind = ConfChangeType::try_from(change.r#type.unwrap_or(0)).map_err(|error| error.to_string())?;
        if kind == ConfChangeType::ConfChangeRemoveNode {
            return Ok(Change::Remove(id));
        }
        let context: Context =
            serde_json::from_slice(&change.context.unwrap_or_default()).map_err(|error| error.to_string())?;
        if context.id != id.0 {
            return Err(format!("a change of member {id} that describes member {:x}", context.id));
        }
        let peer_urls = context.peer_urls.unwrap_or_default();
        if context.is_update || kind == ConfChangeType::ConfChangeUpdateNode {
            return Ok(Change::Update { id, peer_urls });
        }
        if context.is_promote {
            return Ok(Change::Promote(id));
        }
        let is_learner = context.is_learner || kind == ConfChangeType::ConfChangeAddLearnerNode;
        let learners_max = context.learners_max.unwrap_or(usize::MAX);
        Ok(Change::Add { id, peer_urls, is_learner, learners_max })
    }
}

/// The term of the entries that found a cluster, as in etcd.
pub(crate) const FOUNDING_TERM: u64 = 1;

/// The entries that a new cluster's log begins with: the members, added one by one.
pub(crate) fn founding_entries(members: &[Member]) -> Vec<LogEntry> {
    let entry = |(index, member): (u64, &Member)| {
        let (id, peer_urls) = (member.id, member.peer_urls.clone());
        let change = Change::Add { id, peer_urls, is_learner: false, learners_max: 0 };
        LogEntry { term: FOUNDING_TERM, index, kind: EntryKind::ConfChange, data: change.encode(0) }
    };
    (1..).zip(members).map(entry).collect()
}

impl Roster {
    /// Carries out a change, or refuses it and changes nothing (etcd: ValidateConfigurationChange).
    pub(super) fn change(&mut self, change: &Change) -> Result<Reconfiguration, Refusal> {
        let id = change.id();
        if self.removed.contains(&id) {
            return Err(Refusal::MemberNotFound);
        }
        let known = self.members.iter().position(|member| member.id == id);
        match change {
            Change::Add { peer_urls, is_learner, learners_max, .. } => {
                if known.is_some() {
                    return Err(Refusal::MemberExists);
                }
                self.check_peer_urls(id, peer_urls)?;
                let learners = self.members.iter().filter(|member| member.is_learner).count();
                if *is_learner && learners >= *learners_max {
                    return Err(Refusal::TooManyLearners);
                }
                self.put(Member::unstarted(id, peer_urls.clone(), *is_learner));
                Ok(if *is_learner { Reconfiguration::Learner(id) } else { Reconfiguration::Voter(id) })
            }
            Change::Promote(_) => {
                let member = &mut self.members[known.ok_or(Refusal::MemberNotFound)?];
                if !member.is_learner {
                    return Err(Refusal::MemberNotLearner);
                }
                member.is_learner = false;
                Ok(Reconfiguration::Voter(id))
            }
            Change::Remove(_) => {
                let at = known.ok_or(Refusal::MemberNotFound)?;
                let votes = |member: &&Member| !member.is_learner && member.id != id;
                if !self.members[at].is_learner && self.members.iter().filter(votes).count() == 0 {
                    // Nobody would be left to agree on anything, not even on adding a member.
                    return Err(Refusal::NotEnoughStarted);
                }
                self.members.remove(at);
                self.removed.insert(id);
                Ok(Reconfiguration::Gone(id))
            }
            Change::Update { peer_urls, .. } => {
                let at = known.ok_or(Refusal::MemberNotFound)?;
                self.check_peer_urls(id, peer_urls)?;
                self.members[at].peer_urls.clone_from(peer_urls);
                Ok(Reconfiguration::None)
            }
        }
    }

    /// Two members at one URL could not be told apart.
    fn check_peer_urls(&self, id: MemberId, peer_urls: &[String]) -> Result<(), Refusal> {
        let mut others = self.members.iter().filter(|member| member.id != id);
        match others.any(|member| member.peer_urls.iter().any(|url| peer_urls.contains(url))) {
            true => Err(Refusal::PeerUrlExists),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(id: u64, url: &str, is_learner: bool) -> Change {
        Change::Add { id: MemberId(id), peer_urls: vec![url.to_owned()], is_learner, learners_max: 1 }
    }

    /// Members 1 and 2, which vote.
    fn roster() -> Roster {
        let mut roster = Roster::default();
        for (id, url) in [(1, "a"), (2, "b")] {
            roster.change(&add(id, url, false)).unwrap();
        }
        roster
    }

    #[test]
    fn changes_come_back_as_they_were() {
        let (id, peer_urls) = (MemberId(u64::MAX), vec!["http://a:1".to_owned()]);
        for change in [
            add(7, "http://a:1", true),
            Change::Add { id, peer_urls: peer_urls.clone(), is_learner: false, learners_max: usize::MAX },
            Change::Promote(id),
            Change::Remove(id),
            Change::Update { id, peer_urls },
        ] {
            let bytes = change.encode(300);
            assert_eq!(Change::decode(&bytes), Ok(change));
            assert_eq!(crate::command::number(&bytes), Some(300));
            for length in 0..bytes.len() {
                // Refused, or taken for a shorter change: never a panic.
                drop(Change::decode(&bytes[..length]));
            }
        }
        assert!(Change::decode(&[]).is_err());
    }

    #[test]
    fn the_context_is_that_of_etcd() {
        // Seen in the log of an etcd 3.7.3: what it writes for `member add --learner` and `member promote`.
        let learner = br#"{"id":7,"peerURLs":["http://a:1"],"isLearner":true}"#;
        let context = |bytes: &[u8], kind: ConfChangeType| {
            let context = Some(bytes.to_vec().into());
            ConfChange { id: Some(1), r#type: Some(kind.into()), node_id: Some(7), context }.encode_to_vec()
        };
        let decoded = Change::decode(&context(learner, ConfChangeType::ConfChangeAddLearnerNode)).unwrap();
        let peer_urls = vec!["http://a:1".to_owned()];
        assert_eq!(decoded, Change::Add { id: MemberId(7), peer_urls, is_learner: true, learners_max: usize::MAX });
        let promote = br#"{"id":7,"peerURLs":null,"isPromote":true}"#;
        let decoded = Change::decode(&context(promote, ConfChangeType::ConfChangeAddNode)).unwrap();
        assert_eq!(decoded, Change::Promote(MemberId(7)));
        let other = br#"{"id":8,"peerURLs":null}"#;
        let error = Change::decode(&context(other, ConfChangeType::ConfChangeUpdateNode)).unwrap_err();
        assert_eq!(error, "a change of member 7 that describes member 8");
    }

    #[test]
    fn a_learner_is_promoted_once_and_an_update_leaves_it_one() {
        let mut roster = roster();
        assert_eq!(roster.change(&add(3, "c", true)), Ok(Reconfiguration::Learner(MemberId(3))));
        assert_eq!(roster.change(&add(4, "d", true)), Err(Refusal::TooManyLearners));
        let update = Change::Update { id: MemberId(3), peer_urls: vec!["e".to_owned()] };
        assert_eq!(roster.change(&update), Ok(Reconfiguration::None));
        assert!(roster.members[2].is_learner);
        assert_eq!(roster.change(&Change::Promote(MemberId(3))), Ok(Reconfiguration::Voter(MemberId(3))));
        assert_eq!(roster.change(&Change::Promote(MemberId(3))), Err(Refusal::MemberNotLearner));
        assert_eq!(roster.change(&Change::Promote(MemberId(9))), Err(Refusal::MemberNotFound));
    }

    #[test]
    fn ids_and_urls_are_those_of_one_member() {
        let mut roster = roster();
        assert_eq!(roster.change(&add(2, "c", false)), Err(Refusal::MemberExists));
        assert_eq!(roster.change(&add(3, "b", false)), Err(Refusal::PeerUrlExists));
        let moved = |id, url: &str| Change::Update { id: MemberId(id), peer_urls: vec![url.to_owned()] };
        assert_eq!(roster.change(&moved(1, "b")), Err(Refusal::PeerUrlExists));
        assert_eq!(roster.change(&moved(1, "a")), Ok(Reconfiguration::None));
        assert_eq!(roster.change(&moved(3, "c")), Err(Refusal::MemberNotFound));
    }

    #[test]
    fn a_removed_id_stays_gone_and_the_last_voter_stays() {
        let mut roster = roster();
        assert_eq!(roster.change(&Change::Remove(MemberId(2))), Ok(Reconfiguration::Gone(MemberId(2))));
        for change in [add(2, "c", false), Change::Remove(MemberId(2)), Change::Promote(MemberId(2))] {
            assert_eq!(roster.change(&change), Err(Refusal::MemberNotFound));
        }
        roster.change(&add(3, "c", true)).unwrap();
        assert_eq!(roster.change(&Change::Remove(MemberId(1))), Err(Refusal::NotEnoughStarted));
        assert_eq!(roster.change(&Change::Remove(MemberId(3))), Ok(Reconfiguration::Gone(MemberId(3))));
    }
}
