//! What the members must agree on: the committed entries, carried out once by a model that shares no code with the node.
//!
//! The model knows keys, versions, leases and compactions, and only the requests that the clients of the simulation make;
//! members and plugins are [`super::policies`]'.
//! It is fed with each entry when the first member hands it on as committed, so that it is never behind any member.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{Compare, ReadSetEntry, RequestOp, TxnRequest, compare, request_op};
use kuorum_proto::mvccpb::KeyValue;

use crate::command::{self, Command};
use crate::log::LogEntry;
use crate::sim::policies::Policies;

/// A change of one key.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Change {
    pub(super) revision: i64,
    pub(super) key: Bytes,
    /// `None` for a deletion.
    pub(super) now: Option<KeyValue>,
    pub(super) before: Option<KeyValue>,
}

/// What a command came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Carried out: the revision after it, and what its answer says beside (keys deleted; 1 for a compare that held).
    Done {
        revision: i64,
        detail: i64,
    },
    /// A change of the plugins: the policy epoch after it.
    InForce {
        epoch: u64,
    },
    Refused,
}

/// A command of the log and when it came there.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    pub(super) index: u64,
    pub(super) outcome: Outcome,
    /// That it was carried out is all that its answer says.
    pub(super) says_nothing: bool,
}

#[derive(Clone, Default, Debug)]
struct Lease {
    ttl_seconds: i64,
    keys: BTreeSet<Bytes>,
    /// Not to be revoked for its age before.
    promised_until_us: u64,
}

pub(super) struct History {
    /// Entry 1 is the first.
    entries: Vec<LogEntry>,
    /// Revision and compacted revision after each entry.
    after: Vec<(i64, i64)>,
    pub(super) changes: Vec<Change>,
    /// Of each key: revision and version from there on.
    versions: BTreeMap<Bytes, Vec<(i64, Option<KeyValue>)>>,
    /// By number.
    carried: BTreeMap<u64, Carried>,
    leases: BTreeMap<i64, Lease>,
    policies: Policies,
    revision: i64,
    compacted: i64,
    /// Sub-revisions of the request under way.
    changed: bool,
}

impl History {
    pub(super) fn new() -> History {
        History {
            entries: Vec::new(),
            after: Vec::new(),
            changes: Vec::new(),
            versions: BTreeMap::new(),
            carried: BTreeMap::new(),
            leases: BTreeMap::new(),
            policies: Policies::default(),
            revision: 1,
            compacted: -1,
            changed: false,
        }
    }

    // ---- what was

    pub(super) fn last_index(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Revision and compacted revision after an entry.
    pub(super) fn after(&self, index: u64) -> Option<(i64, i64)> {
        match usize::try_from(index).expect("an index fits in memory") {
            0 => Some((1, -1)),
            index => self.after.get(index - 1).copied(),
        }
    }

    pub(super) fn carried(&self, number: u64) -> Option<&Carried> {
        self.carried.get(&number)
    }

    pub(super) fn policy_epoch(&self) -> u64 {
        self.policies.epoch
    }

    /// The keys alive at a revision, in order, from `key` up to `end`; one key when `end` is empty.
    pub(super) fn range(&self, key: &[u8], end: &[u8], at: i64) -> Vec<KeyValue> {
        let alive = |versions: &Vec<(i64, Option<KeyValue>)>| {
            let place = versions.partition_point(|(revision, _)| *revision <= at);
            place.checked_sub(1).and_then(|place| versions[place].1.clone())
        };
        let wanted = self.versions.iter().filter(|(name, _)| is_in(name, key, end));
        wanted.filter_map(|(_, versions)| alive(versions)).collect()
    }

    /// The revision that wrote the key as it is now; 0 if it is not there.
    pub(super) fn modified(&self, key: &[u8]) -> i64 {
        self.range(key, &[], self.revision).pop().map_or(0, |kv| kv.mod_revision)
    }

    // ---- what comes

    /// A member holds this entry committed.
    ///
    /// # Errors
    /// When another entry is committed in its place, or its command was carried out before.
    pub(super) fn commit(&mut self, member: u64, entry: &LogEntry, now_us: u64) -> Result<(), String> {
        let index = entry.index;
        if index <= self.last_index() {
            let before = &self.entries[usize::try_from(index - 1).expect("an index fits in memory")];
            if before != entry {
                return Err(format!(
                    "m{member} holds another entry {index} committed, of term {}, than was committed before in term {}",
                    entry.term, before.term
                ));
            }
            return Ok(());
        }
        if index != self.last_index() + 1 {
            return Err(format!("m{member} commits entry {index} while entry {} is the last", self.last_index()));
        }
        self.entries.push(entry.clone());
        let mut says_nothing = false;
        let outcome = match Command::decode(entry.kind, entry.data.clone()) {
            Ok((header, command)) => {
                says_nothing = matches!(command, Command::LeaseCheckpoint(_));
                let judged = matches!(command, Command::Put(_) | Command::Txn(_) | Command::LeaseGrant(_));
                let is_stale = |read: &ReadSetEntry| self.modified(&read.key) != read.mod_revision;
                if judged && (header.policy_epoch != self.policies.epoch || header.read_set.iter().any(is_stale)) {
                    Outcome::Refused
                } else {
                    self.carry_out(command, command::number(&entry.data), now_us)?
                }
            }
            // A leader's own.
            Err(_) => Outcome::Done { revision: self.revision, detail: 0 },
        };
        self.after.push((self.revision, self.compacted));
        let number = command::number(&entry.data).unwrap_or(0);
        if number != 0
            && let Some(before) = self.carried.insert(number, Carried { index, outcome, says_nothing })
        {
            return Err(format!("command {number} stands in the log twice, at {} and at {index}", before.index));
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command, number: Option<u64>, now_us: u64) -> Result<Outcome, String> {
        self.changed = false;
        let detail = match command {
            Command::Put(put) => {
                if put.lease != 0 && !self.leases.contains_key(&put.lease) {
                    return Ok(Outcome::Refused);
                }
                self.put(put.key, put.value, put.lease);
                0
            }
            Command::DeleteRange(delete) => self.delete(&delete.key, &delete.range_end),
            Command::Txn(txn) => self.txn(txn),
            Command::Compact(compact) => {
                if compact.revision <= self.compacted || compact.revision > self.revision {
                    return Ok(Outcome::Refused);
                }
                self.compacted = compact.revision;
                0
            }
            Command::LeaseGrant(grant) => {
                if self.leases.contains_key(&grant.id) {
                    return Ok(Outcome::Refused);
                }
                self.leases.insert(grant.id, Lease { ttl_seconds: grant.ttl, ..Lease::default() });
                self.promise(grant.id, now_us);
                0
            }
            Command::LeaseRevoke(revoke) => {
                let Some(lease) = self.leases.remove(&revoke.id) else { return Ok(Outcome::Refused) };
                // What a client asks for has a number, what the leader's clock asks for has none.
                if number.unwrap_or(0) == 0 && now_us < lease.promised_until_us {
                    return Err(format!(
                        "lease {} ran out {} ms before its time",
                        revoke.id,
                        (lease.promised_until_us - now_us) / 1_000
                    ));
                }
                for key in lease.keys {
                    self.delete(&key, &[]);
                }
                0
            }
            Command::Plugin(command) => {
                let changed = command.change.as_ref().is_some_and(|change| self.policies.change(change).is_ok());
                let epoch = self.policies.epoch;
                return Ok(if changed { Outcome::InForce { epoch } } else { Outcome::Refused });
            }
            Command::Membership(change) => {
                if self.policies.change_members(&change).is_err() {
                    return Ok(Outcome::Refused);
                }
                0
            }
            Command::LeaseCheckpoint(_) | Command::Alarm(_) | Command::MemberAttributes(_) | Command::Mark(_) => 0,
        };
        self.revision += i64::from(self.changed);
        Ok(Outcome::Done { revision: self.revision, detail })
    }

    /// A lease that was granted or renewed now lives for its TTL at least.
    pub(super) fn promise(&mut self, lease: i64, now_us: u64) {
        if let Some(lease) = self.leases.get_mut(&lease) {
            let ttl_us = u64::try_from(lease.ttl_seconds).unwrap_or(0) * 1_000_000;
            lease.promised_until_us = lease.promised_until_us.max(now_us + ttl_us);
        }
    }

    fn now(&self, key: &[u8]) -> Option<KeyValue> {
        self.versions.get(key).and_then(|versions| versions.last()).and_then(|(_, version)| version.clone())
    }

    fn put(&mut self, key: Bytes, value: Bytes, lease: i64) {
        let revision = self.revision + 1;
        let before = self.now(&key);
        let (create_revision, version) =
            before.as_ref().map_or((revision, 1), |kv| (kv.create_revision, kv.version + 1));
        let kv = KeyValue { key: key.clone(), value, create_revision, mod_revision: revision, version, lease };
        self.attach(&key, before.as_ref().map_or(0, |kv| kv.lease), lease);
        self.change(key, Some(kv), before);
    }

    fn delete(&mut self, key: &[u8], end: &[u8]) -> i64 {
        let keys: Vec<Bytes> = self.range(key, end, i64::MAX).into_iter().map(|kv| kv.key).collect();
        for key in &keys {
            let before = self.now(key);
            self.attach(key, before.as_ref().map_or(0, |kv| kv.lease), 0);
            self.change(key.clone(), None, before);
        }
        i64::try_from(keys.len()).expect("a handful of keys")
    }

    fn attach(&mut self, key: &Bytes, from: i64, to: i64) {
        if let Some(lease) = self.leases.get_mut(&from) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.leases.get_mut(&to) {
            lease.keys.insert(key.clone());
        }
    }

    fn change(&mut self, key: Bytes, now: Option<KeyValue>, before: Option<KeyValue>) {
        self.changed = true;
        let revision = self.revision + 1;
        self.versions.entry(key.clone()).or_default().push((revision, now.clone()));
        self.changes.push(Change { revision, key, now, before });
    }

    /// A transaction as the clients make them: compares of mod revisions, then puts and deletions of different keys.
    fn txn(&mut self, txn: TxnRequest) -> i64 {
        let holds = txn.compare.iter().all(|compare| self.compare(compare));
        for RequestOp { request } in if holds { txn.success } else { txn.failure } {
            match request {
                Some(request_op::Request::RequestPut(put)) => self.put(put.key, put.value, put.lease),
                Some(request_op::Request::RequestDeleteRange(delete)) => {
                    self.delete(&delete.key, &delete.range_end);
                }
                _ => {}
            }
        }
        i64::from(holds)
    }

    fn compare(&self, compare: &Compare) -> bool {
        let modified = self.now(&compare.key).map_or(0, |kv| kv.mod_revision);
        matches!(compare.target_union, Some(compare::TargetUnion::ModRevision(revision)) if revision == modified)
    }
}

/// Whether a key lies in a range of etcd's: an end of one zero byte is no bound.
pub(super) fn is_in(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        end => key >= start && key < end,
    }
}
