//! What must hold after every step, whatever happens to the members.
//!
//! Each rule is one method; the world calls it with what it sees, and ends the run at the first that is broken. What is
//! right is looked up in the [`History`]; nothing here asks a member.

use std::collections::{BTreeMap, BTreeSet};

use kuorum_proto::mvccpb::KeyValue;

use crate::apply::Reply;
use crate::consensus::answers::Answer;
use crate::log::LogEntry;
use crate::refusal::Refusal;
use crate::sim::history::{History, Outcome};

/// A broken rule, in a sentence.
pub(super) type Violation = String;

/// A member's state after it has applied something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Applied {
    pub(super) member: u64,
    pub(super) boot: u64,
    pub(super) index: u64,
    pub(super) revision: i64,
    pub(super) compacted: i64,
}

/// A read and what it was answered with.
#[derive(Clone, Debug)]
pub(super) struct Read<'a> {
    pub(super) member: u64,
    pub(super) key: &'a [u8],
    pub(super) end: &'a [u8],
    /// The revision asked for; 0 for the current one.
    pub(super) at: i64,
    /// The store's revision when it answered.
    pub(super) revision: i64,
    pub(super) kvs: &'a [KeyValue],
}

pub(super) struct Checker {
    pub(super) history: History,
    /// Of each term.
    leaders: BTreeMap<u64, u64>,
    /// Of the whole store after an entry, and the member that had it first.
    hashes: BTreeMap<u64, (u32, u64)>,
    /// The newest revision that a client knows to be there: of a write acknowledged or a linearizable read.
    known_revision: i64,
    last: BTreeMap<u64, Applied>,
    /// Commands of which a client was told that they were not even proposed.
    never_proposed: BTreeSet<u64>,
}

impl Checker {
    pub(super) fn new() -> Checker {
        Checker {
            history: History::new(),
            leaders: BTreeMap::new(),
            hashes: BTreeMap::new(),
            known_revision: 1,
            last: BTreeMap::new(),
            never_proposed: BTreeSet::new(),
        }
    }

    /// No read that begins now may be answered from before this revision.
    pub(super) fn known_revision(&self) -> i64 {
        self.known_revision
    }

    pub(super) fn leads(&mut self, member: u64, term: u64) -> Result<(), Violation> {
        match *self.leaders.entry(term).or_insert(member) {
            leader if leader == member => Ok(()),
            leader => Err(format!("m{member} leads in term {term}, and so does m{leader}")),
        }
    }

    pub(super) fn committed(&mut self, member: u64, entry: &LogEntry, now_us: u64) -> Result<(), Violation> {
        self.history.commit(member, entry, now_us)?;
        let number = crate::command::number(&entry.data).unwrap_or(0);
        if self.never_proposed.contains(&number) {
            return Err(format!("command {number} is committed, and its client was told that it was not proposed"));
        }
        Ok(())
    }

    pub(super) fn applied(&mut self, applied: Applied) -> Result<(), Violation> {
        let Applied { member, boot, index, revision, compacted } = applied;
        let Some(right) = self.history.after(index) else {
            return Err(format!("m{member} has applied entry {index}, which nobody has committed"));
        };
        if right != (revision, compacted) {
            return Err(format!(
                "m{member} is at revision {revision}, compacted {compacted}, after entry {index}; right is {}, {}",
                right.0, right.1
            ));
        }
        if let Some(last) = self.last.insert(member, applied)
            && last.boot == boot
            && (last.index > index || last.revision > revision)
        {
            return Err(format!("m{member} fell back from {last:?} to entry {index}, revision {revision}"));
        }
        Ok(())
    }

    /// The hash of a member's whole store.
    pub(super) fn hash(&mut self, member: u64, index: u64, hash: u32) -> Result<(), Violation> {
        match *self.hashes.entry(index).or_insert((hash, member)) {
            (other, _) if other == hash => Ok(()),
            (other, by) => Err(format!(
                "after entry {index} the store of m{member} has hash {hash:08x}, that of m{by} had {other:08x}"
            )),
        }
    }

    /// A client was answered.
    pub(super) fn answered(&mut self, number: u64, answer: &Answer) -> Result<(), Violation> {
        let carried = self.history.carried(number);
        let reply = match answer {
            Ok(reply) => reply,
            Err(refusal) if decides(refusal) => {
                return match carried {
                    Some(carried) if carried.outcome == Outcome::Refused => Ok(()),
                    _ => Err(format!("command {number} was refused ({refusal}), and the log says {carried:?}")),
                };
            }
            Err(Refusal::TooManyRequests | Refusal::ReconfigurationPending) => {
                self.never_proposed.insert(number);
                return match carried {
                    Some(_) => {
                        Err(format!("command {number} was refused as not proposed, and the log has {carried:?}"))
                    }
                    None => Ok(()),
                };
            }
            Err(_) => return Ok(()),
        };
        let Some(carried) = carried else {
            return Err(format!("command {number} was acknowledged, and no member has committed it"));
        };
        if matches!(reply, Reply::Members(_)) || (*reply == Reply::Empty && carried.says_nothing) {
            return Ok(());
        }
        let told = outcome(reply);
        if told.as_ref() != Some(&carried.outcome) {
            return Err(format!("command {number} was answered with {told:?}; right is {:?}", carried.outcome));
        }
        if let Some(Outcome::Done { revision, .. }) = told {
            self.known_revision = self.known_revision.max(revision);
        }
        Ok(())
    }

    /// A linearizable read that began when `began` was the known revision.
    pub(super) fn linearizable(&mut self, read: &Read<'_>, began: i64) -> Result<(), Violation> {
        if read.revision < began {
            return Err(format!(
                "stale read: m{} answered from revision {}, and revision {began} was known before the read began",
                read.member, read.revision
            ));
        }
        self.known_revision = self.known_revision.max(read.revision);
        self.read(read)
    }

    /// Any read: what it shows is what was there at its revision.
    pub(super) fn read(&self, read: &Read<'_>) -> Result<(), Violation> {
        let Read { member, key, end, at, revision, kvs } = *read;
        if revision > self.history.revision() {
            return Err(format!("m{member} answers from revision {revision}, which nobody has committed"));
        }
        let at = if at == 0 { revision } else { at };
        let right = self.history.range(key, end, at);
        if right != kvs {
            return Err(format!(
                "m{member} shows other keys at revision {at} than there are: {}; right is {}",
                show(kvs),
                show(&right)
            ));
        }
        Ok(())
    }
}

fn show(kvs: &[KeyValue]) -> String {
    let shown: Vec<String> = kvs
        .iter()
        .map(|kv| {
            let (key, value) = (kv.key.escape_ascii(), kv.value.escape_ascii());
            format!("{key}@{}v{}={:.12}", kv.mod_revision, kv.version, value.to_string())
        })
        .collect();
    format!("[{}]", shown.join(" "))
}

/// Whether apply itself refuses so, alike on every member.
fn decides(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Compacted
            | Refusal::FutureRevision
            | Refusal::LeaseNotFound
            | Refusal::LeaseExists
            | Refusal::StalePolicy
            | Refusal::StaleReads
            | Refusal::Plugin(_)
            | Refusal::LearnerNotPrepared
    )
}

/// What an answer says.
fn outcome(reply: &Reply) -> Option<Outcome> {
    let (header, detail) = match reply {
        Reply::Put(response) => (&response.header, 0),
        Reply::DeleteRange(response) => (&response.header, response.deleted),
        Reply::Txn(response) => (&response.header, i64::from(response.succeeded)),
        Reply::Compact(response) => (&response.header, 0),
        Reply::LeaseGrant(response) => (&response.header, 0),
        Reply::LeaseRevoke(response) => (&response.header, 0),
        Reply::Plugin(_, epoch) => return Some(Outcome::InForce { epoch: *epoch }),
        Reply::Empty | Reply::Alarm(_) | Reply::Members(_) => return None,
    };
    Some(Outcome::Done { revision: header.as_ref()?.revision, detail })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use kuorum_proto::etcdserverpb::{
        DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, PutResponse, ResponseHeader,
    };

    use super::*;
    use crate::command::Command;
    use crate::log::EntryKind;

    const SECOND_US: u64 = 1_000_000;

    fn entry(index: u64, number: u64, command: Command) -> LogEntry {
        LogEntry {
            term: 1,
            index,
            kind: EntryKind::Normal,
            data: command.encode(number, crate::command::Judgement::default()),
        }
    }

    fn put(index: u64, value: &'static str) -> LogEntry {
        entry(index, index, Command::Put(PutRequest { key: "k".into(), value: value.into(), ..PutRequest::default() }))
    }

    /// After "first" at revision 2 and "second" at revision 3, of commands 1 and 2.
    fn checker() -> Checker {
        let mut checker = Checker::new();
        for entry in [put(1, "first"), put(2, "second")] {
            checker.committed(1, &entry, 0).unwrap();
        }
        checker
    }

    fn acknowledged(revision: i64) -> Answer {
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        Ok(Reply::Put(PutResponse { header, ..PutResponse::default() }))
    }

    /// The rule names what is wrong by these words.
    fn broken(result: Result<(), Violation>, words: &str) {
        let violation = result.expect_err(words);
        assert!(violation.contains(words), "{violation}");
    }

    fn applied(index: u64, revision: i64) -> Applied {
        Applied { member: 1, boot: 1, index, revision, compacted: -1 }
    }

    #[test]
    fn two_leaders_of_a_term_are_seen() {
        let mut checker = checker();
        for (member, term) in [(1, 1), (2, 2), (1, 1)] {
            checker.leads(member, term).unwrap();
        }
        broken(checker.leads(1, 2), "m1 leads in term 2, and so does m2");
    }

    #[test]
    fn logs_that_differ_are_seen() {
        let mut checker = checker();
        checker.committed(2, &put(1, "first"), 0).unwrap();
        broken(checker.committed(2, &put(2, "another"), 0), "another entry 2");
        broken(checker.committed(2, &LogEntry { term: 9, ..put(2, "second") }, 0), "another entry 2");
        broken(checker.committed(2, &put(4, "too far"), 0), "commits entry 4 while entry 2 is the last");
    }

    #[test]
    fn a_command_that_comes_twice_is_seen() {
        let mut checker = checker();
        let again = LogEntry { index: 3, ..put(2, "second") };
        broken(checker.committed(1, &again, 0), "command 2 stands in the log twice, at 2 and at 3");
    }

    #[test]
    fn a_store_that_differs_is_seen() {
        let mut checker = checker();
        checker.applied(applied(1, 2)).unwrap();
        checker.applied(applied(2, 3)).unwrap();
        broken(checker.applied(applied(1, 2)), "fell back");
        checker.applied(Applied { boot: 2, ..applied(1, 2) }).unwrap();
        broken(checker.applied(applied(2, 4)), "is at revision 4");
        broken(checker.applied(applied(3, 4)), "nobody has committed");
        checker.hash(1, 2, 7).unwrap();
        checker.hash(2, 2, 7).unwrap();
        broken(checker.hash(3, 2, 8), "has hash 00000008, that of m1 had 00000007");
    }

    #[test]
    fn answers_that_the_log_does_not_bear_out_are_seen() {
        let mut checker = checker();
        checker.answered(1, &acknowledged(2)).unwrap();
        broken(checker.answered(2, &acknowledged(2)), "right is Done { revision: 3");
        broken(checker.answered(3, &acknowledged(4)), "acknowledged, and no member has committed it");
        broken(checker.answered(2, &Err(Refusal::LeaseNotFound)), "was refused (LeaseNotFound)");
        checker.answered(2, &Err(Refusal::Timeout)).unwrap();
        broken(checker.answered(2, &Err(Refusal::TooManyRequests)), "was refused as not proposed");
        checker.answered(3, &Err(Refusal::TooManyRequests)).unwrap();
        broken(checker.committed(1, &put(3, "all the same"), 0), "was told that it was not proposed");
    }

    #[test]
    fn stale_and_false_reads_are_seen() {
        let mut checker = checker();
        let (old, new) = (checker.history.range(b"k", b"", 2), checker.history.range(b"k", b"", 3));
        let read = |revision, kvs| Read { member: 1, key: b"k", end: b"", at: 0, revision, kvs };
        let began = checker.known_revision();
        checker.linearizable(&read(2, &old), began).unwrap();
        checker.answered(2, &acknowledged(3)).unwrap();
        checker.linearizable(&read(2, &old), began).unwrap();
        broken(checker.linearizable(&read(2, &old), checker.known_revision()), "stale read");
        broken(checker.read(&read(3, &old)), "shows other keys at revision 3");
        broken(checker.read(&read(3, &[])), "shows other keys at revision 3");
        broken(checker.read(&read(4, &new)), "answers from revision 4");
        checker.read(&Read { at: 2, ..read(3, &old) }).unwrap();
        // What one client has read another may not miss.
        let mut checker = self::checker();
        checker.linearizable(&read(3, &new), 1).unwrap();
        broken(checker.linearizable(&read(2, &old), checker.known_revision()), "stale read");
    }

    #[test]
    fn a_lease_that_ends_early_is_seen() {
        let mut checker = Checker::new();
        let grant = |id| Command::LeaseGrant(LeaseGrantRequest { id, ttl: 5 });
        let revoke = |id| Command::LeaseRevoke(LeaseRevokeRequest { id });
        for (index, id) in [(1, 7), (2, 8), (3, 9)] {
            checker.committed(1, &entry(index, index, grant(id)), 0).unwrap();
        }
        checker.history.promise(8, 3 * SECOND_US);
        checker.committed(1, &entry(4, 0, revoke(7)), 5 * SECOND_US).unwrap();
        broken(checker.committed(1, &entry(5, 0, revoke(8)), 7 * SECOND_US), "lease 8 ran out 1000 ms before its time");
        // A client may end its lease when it likes.
        checker.committed(1, &entry(6, 6, revoke(9)), SECOND_US).unwrap();
    }

    #[test]
    fn the_model_keeps_versions_leases_and_deletions() {
        let mut checker = Checker::new();
        let leased = PutRequest { key: "a".into(), lease: 7, ..PutRequest::default() };
        let commands = [
            Command::LeaseGrant(LeaseGrantRequest { id: 7, ttl: 5 }),
            Command::Put(leased.clone()),
            Command::Put(leased),
            Command::DeleteRange(DeleteRangeRequest { key: "b".into(), ..DeleteRangeRequest::default() }),
            Command::LeaseRevoke(LeaseRevokeRequest { id: 7 }),
            Command::LeaseRevoke(LeaseRevokeRequest { id: 7 }),
        ];
        for (index, command) in (1..).zip(commands) {
            checker.committed(1, &entry(index, index, command), 0).unwrap();
        }
        let history = &checker.history;
        assert_eq!((1..=6).map(|index| history.after(index).unwrap().0).collect::<Vec<_>>(), [1, 2, 3, 3, 4, 4]);
        let seen = history.range(b"a", b"", 3).pop().unwrap();
        assert_eq!((seen.create_revision, seen.version, seen.lease), (2, 2, 7));
        assert!(history.range(b"\0", b"\0", 4).is_empty());
        assert_eq!(history.carried(6).unwrap().outcome, Outcome::Refused);
        assert_eq!(history.changes.iter().map(|change| change.revision).collect::<Vec<_>>(), [2, 3, 4]);
        let told: Vec<Option<Bytes>> =
            history.changes.iter().map(|change| change.now.clone().map(|kv| kv.key)).collect();
        assert_eq!(told, [Some("a".into()), Some("a".into()), None]);
    }
}
