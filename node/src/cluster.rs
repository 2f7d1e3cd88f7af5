//! Who the members are, and what this member is called.
//!
//! Owns the member list, ids, and the facts every response header carries. The list changes only through applied
//! entries; readers get copies. Ids are computed exactly as etcd does, so that a data directory or a backup keeps its
//! identity on either side.

mod change;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kuorum_proto::etcdserverpb;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

pub(crate) use change::{Change, FOUNDING_TERM, Reconfiguration, founding_entries};

use crate::log::SnapshotMark;
use crate::refusal::Refusal;

/// The id of a member, shown in hexadecimal as etcd does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct MemberId(pub(crate) u64);

/// The id of a cluster, shown in hexadecimal as etcd does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ClusterId(pub(crate) u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Name of the row in the store's `sys` space that holds the member list.
pub(crate) const MEMBERS_ROW: &[u8] = b"members";
/// Name of the row that holds the ids of members that were removed; missing while none was.
pub(crate) const REMOVED_ROW: &[u8] = b"removed";
/// Name of the row that says whose store it is; written with the first member list and never changed.
pub(crate) const IDENTITY_ROW: &[u8] = b"identity";

/// Whose data directory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) cluster_id: ClusterId,
    pub(crate) member_id: MemberId,
}

/// The first eight bytes of a SHA-1 digest, big-endian: etcd's id function.
fn id_of(parts: &[&[u8]]) -> u64 {
    let mut hasher = Sha1::new();
    for part in parts {
        hasher.update(part);
    }
    let digest = hasher.finalize();
    let head: [u8; 8] = digest[..8].try_into().expect("a SHA-1 digest has twenty bytes");
    u64::from_be_bytes(head)
}

impl MemberId {
    /// The id of a member known at bootstrap: from its sorted peer URLs and the cluster token.
    pub(crate) fn at_bootstrap(peer_urls: &[String], token: &str) -> MemberId {
        let mut sorted = peer_urls.to_vec();
        sorted.sort();
        MemberId(id_of(&[sorted.concat().as_bytes(), token.as_bytes()]))
    }

    /// The id of a member added to a running cluster, at this second since 1970.
    pub(crate) fn when_added(peer_urls: &[String], unix_seconds: u64) -> MemberId {
        // etcd puts the time where the token stands at bootstrap, and no token.
        MemberId::at_bootstrap(peer_urls, &unix_seconds.to_string())
    }
}

impl ClusterId {
    /// The id of the cluster that these members bootstrap, from their sorted ids.
    pub(crate) fn of(members: &[MemberId]) -> ClusterId {
        let mut sorted = members.to_vec();
        sorted.sort();
        let bytes: Vec<u8> = sorted.iter().flat_map(|member| member.0.to_be_bytes()).collect();
        ClusterId(id_of(&[&bytes]))
    }
}

/// One member as the cluster knows it. A member that has not started yet has an empty name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) name: String,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) client_urls: Vec<String>,
    pub(crate) is_learner: bool,
    /// The number of the data directory that it started with; 0 before it has started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) data_dir: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Member {
    /// A member that has not told its name and client URLs yet.
    pub(crate) fn unstarted(id: MemberId, peer_urls: Vec<String>, is_learner: bool) -> Member {
        Member { id, name: String::new(), peer_urls, client_urls: Vec::new(), is_learner, data_dir: 0 }
    }

    /// Whether it has told its name, as every member does when it has started.
    pub(crate) fn has_started(&self) -> bool {
        !self.name.is_empty()
    }
}

/// The members as of the last applied entry, and those that were. Cheap to clone; the apply thread alone changes it.
// A lock, since every shard reads the list while the apply thread replaces it; it is held for a clone of a few lines.
#[derive(Clone)]
pub(crate) struct Members(Arc<RwLock<Roster>>);

#[derive(Default)]
struct Roster {
    /// Sorted by id.
    members: Vec<Member>,
    /// Never to come back under their ids.
    removed: BTreeSet<MemberId>,
}

impl Roster {
    /// Adds the member, or replaces what is known of it.
    fn put(&mut self, member: Member) {
        self.members.retain(|known| known.id != member.id);
        self.members.push(member);
        self.members.sort_by_key(|member| member.id);
    }
}

impl Members {
    pub(crate) fn new(mut members: Vec<Member>) -> Members {
        members.sort_by_key(|member| member.id);
        Members(Arc::new(RwLock::new(Roster { members, removed: BTreeSet::new() })))
    }

    /// The members from their rows.
    pub(crate) fn from_rows(members: &[u8], removed: Option<&[u8]>) -> serde_json::Result<Members> {
        let found = Members::new(serde_json::from_slice(members)?);
        if let Some(row) = removed {
            found.0.write().removed = serde_json::from_slice(row)?;
        }
        Ok(found)
    }

    /// The names of the rows in the store's `sys` space, and what they hold now.
    pub(crate) fn to_rows(&self) -> [(&'static [u8], Vec<u8>); 2] {
        let roster = self.0.read();
        let always = "member ids and texts are always JSON";
        let members = serde_json::to_vec(&roster.members).expect(always);
        let removed = serde_json::to_vec(&roster.removed).expect(always);
        [(MEMBERS_ROW, members), (REMOVED_ROW, removed)]
    }

    /// Every member, sorted by id.
    pub(crate) fn list(&self) -> Vec<Member> {
        self.0.read().members.clone()
    }

    /// A mark of a store that holds these members as of this entry.
    pub(crate) fn mark(&self, index: u64, term: u64) -> SnapshotMark {
        let roster = self.0.read();
        let ids = |is_learner: bool| {
            let members = roster.members.iter().filter(|member| member.is_learner == is_learner);
            members.map(|member| member.id.0).collect()
        };
        SnapshotMark { index, term, voters: ids(false), learners: ids(true) }
    }

    /// Takes over what another list says.
    pub(crate) fn replace(&self, other: &Members) {
        let other = other.0.read();
        let (members, removed) = (other.members.clone(), other.removed.clone());
        *self.0.write() = Roster { members, removed };
    }

    pub(crate) fn get(&self, id: MemberId) -> Option<Member> {
        self.0.read().members.iter().find(|member| member.id == id).cloned()
    }

    pub(crate) fn is_learner(&self, id: MemberId) -> bool {
        self.0.read().members.iter().any(|member| member.id == id && member.is_learner)
    }

    /// Whether a member of this id was removed from the cluster.
    pub(crate) fn was_removed(&self, id: MemberId) -> bool {
        self.0.read().removed.contains(&id)
    }

    /// Goes on without all others, with this one as the only voter. Returns false when that is so already.
    pub(crate) fn keep_only(&self, id: MemberId) -> bool {
        let mut roster = self.0.write();
        let (own, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut roster.members).into_iter().partition(|member| member.id == id);
        roster.members = own;
        roster.members.iter_mut().for_each(|member| member.is_learner = false);
        roster.removed.extend(others.iter().map(|member| member.id));
        !others.is_empty()
    }

    /// Replaces what is known of a member.
    pub(crate) fn put(&self, member: Member) {
        self.0.write().put(member);
    }

    /// Carries out a change, or refuses it as every member does.
    pub(crate) fn change(&self, change: &Change) -> Result<Reconfiguration, Refusal> {
        self.0.write().change(change)
    }
}

/// What every response header says about this member, whatever the request.
pub(crate) struct Facts {
    pub(crate) cluster_id: ClusterId,
    pub(crate) member_id: MemberId,
    /// Written by the raft thread, read by everyone.
    raft_term: AtomicU64,
}

impl Facts {
    pub(crate) fn new(cluster_id: ClusterId, member_id: MemberId) -> Facts {
        Facts { cluster_id, member_id, raft_term: AtomicU64::new(0) }
    }

    pub(crate) fn set_raft_term(&self, term: u64) {
        self.raft_term.store(term, Ordering::Release);
    }

    pub(crate) fn raft_term(&self) -> u64 {
        self.raft_term.load(Ordering::Acquire)
    }

    pub(crate) fn header(&self, revision: i64) -> etcdserverpb::ResponseHeader {
        etcdserverpb::ResponseHeader {
            cluster_id: self.cluster_id.0,
            member_id: self.member_id.0,
            revision,
            raft_term: self.raft_term(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_etcd() {
        // Seen on a running etcd 3.7.3 with its defaults: --name default, token etcd-cluster.
        let member = MemberId::at_bootstrap(&["http://localhost:2380".into()], "etcd-cluster");
        assert_eq!(member.to_string(), "8e9e05c52164694d");
        assert_eq!(ClusterId::of(&[member]).to_string(), "cdf818194e3a8c32");
        // As etcd computes it: SHA-1 of the sorted URLs and the decimal seconds.
        let added = MemberId::when_added(&["http://b:1".into(), "http://a:1".into()], 1_700_000_000);
        assert_eq!(added.to_string(), "7b97771442acae57");
    }
}
