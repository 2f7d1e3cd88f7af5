//! Behaviour of the driver as its runner sees it. Other members are messages made by hand: none of them runs.

use bytes::Bytes;
use crossbeam_channel::{Receiver, bounded};

use super::*;
use kuorum_proto::etcdserverpb::PutRequest;

use crate::cluster::{Change, MemberId, Reconfiguration};
use crate::command::Command;
use crate::consensus::answers::Answer;
use crate::consensus::effects::{Forward, SendSnapshot};
use crate::consensus::proposals::Verdict;
use crate::log::EntryKind;

const ME: u64 = 1;
const TICK_MS: u64 = 100;
const REQUEST_TICKS: u64 = 5_000 / TICK_MS + 20;

fn options(applied: u64) -> Options {
    Options {
        member_id: ME,
        tick_ms: TICK_MS,
        election_ticks: 10,
        pre_vote: false,
        snapshot_entries: 100,
        catch_up_entries: 10,
        applied,
        boot_nonce: 42,
        early_first_election: false,
        seed: 1,
    }
}

fn entry(index: u64, term: u64, data: &'static str) -> LogEntry {
    LogEntry { term, index, kind: EntryKind::Normal, data: Bytes::from_static(data.as_bytes()) }
}

/// A tail after entry `before` of term 1 that holds `count` entries of term 1.
fn tail(before: u64, count: u64, commit: u64, voters: &[u64]) -> Tail {
    let term_before = u64::from(before > 0);
    let mut tail = Tail::new((before, term_before), &crate::log::HardState { term: 1, vote: ME, commit }, voters, &[]);
    tail.extend((before + 1..=before + count).map(|index| entry(index, 1, "old")).collect());
    tail
}

/// A driver with a log that writes and an apply thread that applies when told to.
struct Bench {
    driver: Driver,
    unwritten: VecDeque<u64>,
    committed: Vec<Committed>,
    reads: Vec<(u64, Waiter)>,
    reads_failed: u64,
    proposals_failed: u64,
    released: Option<Release>,
    messages: Vec<Message>,
    forwards: Vec<Forward>,
    verdicts: Vec<(u64, Verdict)>,
    marks: Vec<SnapshotMark>,
    snapshot_wanted: bool,
    snapshot: Option<SendSnapshot>,
    install: Option<u64>,
    applied: u64,
    /// Of the last proposal.
    number: u64,
}

/// A command under this number.
fn put(number: u64) -> Bytes {
    let request = PutRequest { key: "k".into(), ..PutRequest::default() };
    Command::Put(request).encode(number, crate::command::Judgement::default())
}

fn command(number: u64) -> Payload {
    Payload { number, kind: EntryKind::Normal, data: put(number) }
}

impl Bench {
    fn new(tail: Tail, applied: u64) -> Bench {
        let driver = Driver::new(tail, options(applied)).unwrap();
        let mut bench = Bench {
            driver,
            unwritten: VecDeque::new(),
            committed: Vec::new(),
            reads: Vec::new(),
            reads_failed: 0,
            proposals_failed: 0,
            released: None,
            messages: Vec::new(),
            forwards: Vec::new(),
            verdicts: Vec::new(),
            marks: Vec::new(),
            snapshot_wanted: false,
            snapshot: None,
            install: None,
            applied,
            number: 0,
        };
        bench.carry_out();
        bench
    }

    /// Alone, leading, with the empty entry of its term applied.
    fn leading() -> Bench {
        let mut bench = Bench::new(tail(0, 0, 0, &[ME]), 0);
        bench.write();
        bench.apply();
        bench
    }

    fn handle(&mut self, event: Event) {
        self.driver.handle(&mut vec![event], self.applied);
        self.carry_out();
    }

    fn tick(&mut self, count: u64) {
        for _ in 0..count {
            self.driver.tick();
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        let effects = self.driver.effects();
        for (waiter, answer) in effects.answers {
            answer_to(&waiter, answer);
        }
        self.unwritten.extend(effects.appends.iter().map(|append| append.number));
        self.marks.extend(effects.appends.into_iter().filter_map(|append| append.mark));
        self.snapshot_wanted |= effects.snapshot_wanted;
        self.snapshot = effects.snapshot.or(self.snapshot.take());
        self.install = effects.install.or(self.install.take());
        self.committed.extend(effects.committed);
        self.reads.extend(effects.reads);
        self.reads_failed += effects.reads_failed;
        self.proposals_failed += effects.proposals_failed;
        self.released = effects.release.or(self.released.take());
        self.messages.extend(effects.messages);
        self.forwards.extend(effects.forwards);
        self.verdicts.extend(effects.verdicts);
    }

    /// The log writes all that it was given, and what comes of it.
    fn write(&mut self) {
        while let Some(number) = self.unwritten.pop_front() {
            self.handle(Event::Persisted { number });
        }
    }

    /// Applies what is committed, answers, and returns the indexes.
    fn apply(&mut self) -> Vec<u64> {
        let committed = std::mem::take(&mut self.committed);
        for Committed { entry, waiter } in &committed {
            assert_eq!(entry.index, self.applied + 1);
            self.applied = entry.index;
            answer_to(waiter, Ok(Reply::Empty));
        }
        self.driver.handle(&mut Vec::new(), self.applied);
        self.carry_out();
        committed.iter().map(|committed| committed.entry.index).collect()
    }

    fn propose(&mut self) -> Receiver<Answer> {
        let (sender, receiver) = bounded(1);
        self.number += 1;
        let payload = command(self.number);
        self.handle(Event::Propose(Proposal { payload, waiter: Waiter::Thread(sender) }));
        receiver
    }

    fn propose_change(&mut self, change: &Change) -> Receiver<Answer> {
        let (sender, receiver) = bounded(1);
        self.number += 1;
        let payload = Payload { number: self.number, kind: EntryKind::ConfChange, data: change.encode(self.number) };
        self.handle(Event::Propose(Proposal { payload, waiter: Waiter::Thread(sender) }));
        receiver
    }

    /// Writes that a change is committed, and applies all that is, of which it is the last and means this.
    fn apply_change(&mut self, reconfiguration: Reconfiguration) {
        self.write();
        let Committed { entry, waiter } = self.committed.pop().unwrap();
        assert_eq!(entry.kind, EntryKind::ConfChange);
        self.apply();
        self.applied = entry.index;
        let answer = Ok(Reply::Empty);
        self.handle(Event::Reconfigured { index: entry.index, reconfiguration, waiter, answer });
    }

    fn voters(&self) -> Vec<u64> {
        self.driver.node.store().conf_state().get_voters().to_vec()
    }

    fn read(&mut self) -> Receiver<Answer> {
        let (sender, receiver) = bounded(1);
        self.handle(Event::Read { waiter: Waiter::Thread(sender) });
        receiver
    }

    /// A message from another member.
    fn step(&mut self, kind: MessageType, from: u64, change: impl FnOnce(&mut Message)) {
        let mut message = Message::default();
        message.set_msg_type(kind);
        (message.from, message.to) = (from, ME);
        message.term = self.driver.node.raft.term;
        change(&mut message);
        self.handle(Event::Message(Box::new(message)));
    }

    /// Elected by member 2 of three, with its own log written.
    fn elect(&mut self) {
        while self.driver.node.raft.state != StateRole::Candidate {
            self.tick(1);
        }
        self.write();
        self.step(MessageType::MsgRequestVoteResponse, 2, |_| {});
        assert!(self.driver.standing().is_leader);
        self.write();
    }

    /// Member 2 has everything up to `index`.
    fn acknowledge(&mut self, index: u64) {
        self.step(MessageType::MsgAppendResponse, 2, |message| message.index = index);
    }

    /// Member 2 leads a later term and sends its entries after `before` (index, term).
    fn follow(&mut self, term: u64, before: (u64, u64), entries: Vec<LogEntry>, commit: u64) {
        self.step(MessageType::MsgAppend, 2, |message| {
            message.term = term;
            (message.index, message.log_term) = before;
            message.entries = entries.into_iter().map(Entry::from).collect::<Vec<_>>().into();
            message.commit = commit;
        });
        self.write();
    }
}

fn answer_to(waiter: &Waiter, answer: Answer) {
    match waiter {
        // A test that does not look at the answer has dropped the other end.
        Waiter::Thread(sender) => drop(sender.try_send(answer)),
        Waiter::None => {}
        Waiter::Shard(_) => unreachable!("no shard asks here"),
    }
}

fn refusal(receiver: &Receiver<Answer>) -> Option<Refusal> {
    receiver.try_recv().ok().map(|answer| answer.unwrap_err())
}

#[test]
fn a_lone_voter_commits_what_its_log_holds() {
    let mut bench = Bench::leading();
    let standing = Standing { leader: ME, term: 2, committed: 1, is_leader: true, is_settled: true };
    assert_eq!(bench.driver.standing(), standing);
    let answer = bench.propose();
    assert!(bench.committed.is_empty(), "committed before it is written");
    assert_eq!(bench.driver.pending(), 1);
    bench.write();
    assert_eq!(bench.driver.pending(), 0);
    assert!(answer.is_empty(), "answered before it is applied");
    assert_eq!(bench.apply(), [2]);
    assert!(answer.recv().unwrap().is_ok());
}

#[test]
fn a_read_waits_for_a_commit_in_the_leaders_term() {
    let mut bench = Bench::new(tail(0, 3, 2, &[ME]), 1);
    bench.read();
    assert!(bench.reads.is_empty());
    bench.write();
    let indexes: Vec<u64> = bench.reads.iter().map(|(index, _)| *index).collect();
    // Entry 4 is the empty one of the new term.
    assert_eq!(indexes, [4]);
    assert_eq!(bench.apply(), [2, 3, 4]);
}

#[test]
fn a_restart_applies_again_what_is_committed_and_not_applied() {
    let mut bench = Bench::new(tail(5, 10, 12, &[ME]), 8);
    let handed: Vec<u64> = bench.committed.iter().map(|committed| committed.entry.index).collect();
    assert_eq!(handed, [9, 10, 11, 12]);
    assert!(bench.driver.standing().is_leader && !bench.driver.standing().is_settled, "what it knows of leases is old");
    bench.write();
    assert!(!bench.driver.standing().is_settled);
    assert_eq!(bench.apply(), (9..=16).collect::<Vec<_>>());
    assert!(bench.driver.standing().is_settled);
}

#[test]
fn log_and_store_that_do_not_belong_together_are_refused_in_words() {
    let refused = |tail, applied| Driver::new(tail, options(applied)).err().expect("refused");
    assert!(
        refused(tail(0, 3, 3, &[ME]), 4).contains("the store has applied entry 4 but the log holds entries 1 to 3")
    );
    assert!(
        refused(tail(5, 3, 8, &[ME]), 3).contains("the store has applied entry 3 but the log holds entries 6 to 8")
    );
    assert!(refused(tail(0, 3, 9, &[ME]), 3).contains("commit index 9 lies outside 3 to 3"));
    assert!(refused(tail(0, 5, 2, &[ME]), 3).contains("commit index 2 lies outside 3 to 5"));
    assert!(Driver::new(tail(5, 0, 5, &[ME]), options(5)).is_ok());
}

#[test]
fn a_proposal_that_is_not_committed_in_time_is_answered_once() {
    let mut bench = Bench::leading();
    let answer = bench.propose();
    bench.tick(REQUEST_TICKS - 1);
    assert_eq!(refusal(&answer), None);
    bench.tick(1);
    assert_eq!((refusal(&answer), bench.proposals_failed), (Some(Refusal::Timeout), 1));
    // It is in the log all the same.
    bench.write();
    assert_eq!(bench.apply(), [2]);
    assert_eq!(refusal(&answer), None);
}

#[test]
fn a_read_without_a_leader_is_answered_in_time() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    let answer = bench.read();
    bench.tick(REQUEST_TICKS - 1);
    assert_eq!((refusal(&answer), bench.reads_failed), (None, 0));
    bench.tick(1);
    assert_eq!((refusal(&answer), bench.reads_failed), (Some(Refusal::NoLeader), 1));
}

#[test]
fn a_proposal_waits_for_a_leader() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    let (late, answer) = (bench.propose(), bench.propose());
    bench.tick(REQUEST_TICKS - 1);
    assert_eq!(refusal(&late), None);
    bench.tick(1);
    assert_eq!((refusal(&late), refusal(&answer)), (Some(Refusal::Timeout), Some(Refusal::Timeout)));
    let answer = bench.propose();
    bench.elect();
    bench.acknowledge(2);
    assert_eq!(bench.apply(), [1, 2]);
    assert!(answer.recv().unwrap().is_ok());
}

/// Member 1 of three, following member 2 in a term of its own, with an empty entry applied.
fn following() -> Bench {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    bench.follow(7, (0, 0), vec![entry(1, 7, "")], 1);
    assert_eq!(bench.apply(), [1]);
    bench
}

#[test]
fn a_proposal_goes_to_the_leader_and_is_answered_where_it_was_made() {
    let mut bench = following();
    let answer = bench.propose();
    let Forward { to, entries } = bench.forwards.pop().unwrap();
    assert_eq!((to, entries), (2, vec![command(1)]));
    let place = Place { index: 2, term: 7 };
    bench.handle(Event::Judged(Verdict { numbers: vec![1], outcome: Ok(place) }));
    let replicated = LogEntry { term: 7, index: 2, kind: EntryKind::Normal, data: put(1) };
    bench.follow(7, (1, 7), vec![replicated], 2);
    assert_eq!(refusal(&answer), None);
    assert_eq!(bench.apply(), [2]);
    assert!(answer.recv().unwrap().is_ok());
}

#[test]
fn a_verdict_that_comes_after_the_entry_changes_nothing() {
    let mut bench = following();
    let (answer, lost) = (bench.propose(), bench.propose());
    bench.follow(7, (1, 7), vec![LogEntry { term: 7, index: 2, kind: EntryKind::Normal, data: put(1) }], 2);
    bench.handle(Event::Judged(Verdict { numbers: vec![1], outcome: Ok(Place { index: 2, term: 7 }) }));
    bench.apply();
    assert!(answer.recv().unwrap().is_ok());
    // The leader put the other one where another leader's entry stands by now.
    bench.handle(Event::Judged(Verdict { numbers: vec![2], outcome: Ok(Place { index: 1, term: 6 }) }));
    assert_eq!(refusal(&lost), Some(Refusal::LeaderChanged));
}

/// A verdict in the same round as the append that commits the entry, before the disk has it.
#[test]
fn a_verdict_between_commit_and_disk_changes_nothing() {
    let mut bench = following();
    let answer = bench.propose();
    bench.step(MessageType::MsgAppend, 2, |message| {
        (message.index, message.log_term, message.commit) = (1, 7, 2);
        let replicated = LogEntry { term: 7, index: 2, kind: EntryKind::Normal, data: put(1) };
        message.entries = vec![Entry::from(replicated)].into();
    });
    bench.handle(Event::Judged(Verdict { numbers: vec![1], outcome: Ok(Place { index: 2, term: 7 }) }));
    assert_eq!(refusal(&answer), None);
    bench.write();
    assert_eq!(bench.apply(), [2]);
    assert!(answer.recv().unwrap().is_ok());
}

#[test]
fn a_forwarded_proposal_whose_place_was_taken_is_told() {
    let mut bench = following();
    let (lost, kept) = (bench.propose(), bench.propose());
    bench.handle(Event::Judged(Verdict { numbers: vec![1, 2], outcome: Ok(Place { index: 2, term: 7 }) }));
    // Another leader has the second of them, and something else in the first one's place.
    let theirs = |index, data| LogEntry { term: 8, index, kind: EntryKind::Normal, data };
    bench.follow(8, (1, 7), vec![theirs(2, Bytes::new()), theirs(3, put(2))], 3);
    assert_eq!(refusal(&lost), Some(Refusal::LeaderChanged));
    assert_eq!(bench.apply(), [2, 3]);
    assert!(kept.recv().unwrap().is_ok());
}

#[test]
fn a_proposal_that_was_not_taken_goes_to_the_next_leader() {
    let mut bench = following();
    let answer = bench.propose();
    bench.handle(Event::Judged(Verdict { numbers: vec![1], outcome: Err(Declined::NotLeader) }));
    bench.forwards.clear();
    bench.tick(1);
    assert_eq!(bench.forwards.pop().unwrap().to, 2, "which may lead by now");
    bench.handle(Event::Judged(Verdict { numbers: vec![1], outcome: Err(Declined::TooManyRequests) }));
    assert_eq!(refusal(&answer), Some(Refusal::TooManyRequests));
}

#[test]
fn a_leader_says_what_became_of_what_others_sent() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    let forwarded = |numbers: &[u64]| Event::Forwarded {
        from: 3,
        entries: numbers.iter().map(|number| command(*number)).collect(),
    };
    bench.handle(forwarded(&[5, 6]));
    let declined = Verdict { numbers: vec![5, 6], outcome: Err(Declined::NotLeader) };
    assert_eq!(bench.verdicts, [(3, declined)]);
    bench.verdicts.clear();
    bench.elect();
    bench.handle(forwarded(&[5, 6]));
    let term = bench.driver.standing().term;
    let placed = Verdict { numbers: vec![5, 6], outcome: Ok(Place { index: 2, term }) };
    assert_eq!(bench.verdicts, [(3, placed)]);
}

#[test]
fn what_vouches_for_the_log_waits_for_the_disk_and_heartbeats_do_not() {
    let mut bench = following();
    let kinds = |bench: &mut Bench| -> Vec<MessageType> {
        std::mem::take(&mut bench.messages).iter().map(Message::get_msg_type).collect()
    };
    kinds(&mut bench);
    bench.step(MessageType::MsgAppend, 2, |message| {
        (message.index, message.log_term) = (1, 7);
        message.entries = vec![Entry::from(entry(2, 7, "new"))].into();
    });
    assert_eq!(kinds(&mut bench), [], "acknowledged before it is written");
    bench.step(MessageType::MsgHeartbeat, 2, |_| {});
    assert_eq!(kinds(&mut bench), [MessageType::MsgHeartbeatResponse]);
    bench.step(MessageType::MsgRequestVote, 3, |message| {
        (message.term, message.index, message.log_term) = (8, 9, 8);
        message.context = b"CampaignTransfer"[..].into();
    });
    assert_eq!(kinds(&mut bench), [], "voted before the vote is written");
    bench.write();
    assert_eq!(kinds(&mut bench), [MessageType::MsgAppendResponse, MessageType::MsgRequestVoteResponse]);
}

#[test]
fn a_leader_whose_disk_stands_still_hands_over() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    bench.elect();
    bench.acknowledge(1);
    bench.propose();
    bench.acknowledge(2);
    for _ in 0..options(0).election_ticks {
        assert!(bench.messages.iter().all(|message| message.get_msg_type() != MessageType::MsgTimeoutNow));
        bench.step(MessageType::MsgHeartbeatResponse, 2, |_| {});
        bench.tick(1);
    }
    let handed: Vec<u64> = bench
        .messages
        .iter()
        .filter(|message| message.get_msg_type() == MessageType::MsgTimeoutNow)
        .map(|message| message.to)
        .collect();
    assert_eq!(handed, [2]);
}

#[test]
fn leadership_is_handed_over_when_asked() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    bench.elect();
    bench.acknowledge(1);
    let (sender, answer) = bounded(1);
    bench.handle(Event::Transfer { to: None, waiter: Waiter::Thread(sender) });
    // Held meanwhile, and sent to the new leader.
    bench.propose();
    assert!(bench.forwards.is_empty() && answer.is_empty());
    let term = bench.driver.standing().term + 1;
    bench.follow(term, (1, term - 1), vec![entry(2, term, "")], 1);
    assert!(answer.recv().unwrap().is_ok());
    assert_eq!(bench.forwards.pop().unwrap().to, 2);

    for (to, expected) in [(Some(9), Refusal::BadLeaderTransferee), (Some(3), Refusal::TransferTimeout)] {
        let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
        bench.elect();
        bench.acknowledge(1);
        let (sender, answer) = bounded(1);
        bench.handle(Event::Transfer { to, waiter: Waiter::Thread(sender) });
        bench.tick(options(0).election_ticks);
        assert_eq!(refusal(&answer), Some(expected));
    }
}

#[test]
fn a_member_that_lost_its_log_is_told_to_leave() {
    let mut bench = following();
    bench.driver.handle(&mut vec![heartbeat(7, 2)], 1);
    let why = bench.driver.effects().dead.unwrap();
    assert!(why.contains("knows of entry 2 that this member acknowledged, but the log here ends at entry 1"), "{why}");
    bench.driver.handle(&mut vec![heartbeat(6, 2)], 1);
    assert_eq!(bench.driver.effects().dead, None, "of a leader of the past");
}

fn heartbeat(term: u64, commit: u64) -> Event {
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgHeartbeat);
    (message.from, message.to, message.term, message.commit) = (2, ME, term, commit);
    Event::Message(Box::new(message))
}

#[test]
fn reads_that_come_during_a_round_share_the_next() {
    let mut bench = following();
    let asked = |bench: &mut Bench| {
        let messages = std::mem::take(&mut bench.messages);
        messages.iter().filter(|message| message.get_msg_type() == MessageType::MsgReadIndex).count()
    };
    let answers: Vec<_> = (0..3).map(|_| bench.read()).collect();
    assert_eq!((asked(&mut bench), bench.driver.reads.asked()), (1, vec![1]));
    let context = |counter: u64| -> Bytes { [ME, 42, counter].iter().flat_map(|part| part.to_be_bytes()).collect() };
    let answer = |bench: &mut Bench, counter| {
        bench.step(MessageType::MsgReadIndexResp, 2, |message| {
            message.index = 1;
            message.entries = vec![Entry { data: context(counter), ..Entry::default() }].into();
        });
    };
    answer(&mut bench, 1);
    assert_eq!((bench.reads.len(), asked(&mut bench), bench.driver.reads.asked()), (1, 1, vec![2]));
    // Another leader: the round of the old one is over.
    bench.follow(8, (1, 7), vec![entry(2, 8, "")], 1);
    assert_eq!(bench.driver.reads.asked(), [3]);
    answer(&mut bench, 2);
    assert_eq!(bench.reads.len(), 1);
    answer(&mut bench, 3);
    assert_eq!(bench.reads.len(), 3);
    assert!(answers.iter().all(|answer| answer.is_empty()));
}

#[test]
fn proposals_are_refused_while_apply_is_far_behind() {
    let mut bench = Bench::leading();
    let mut answers: Vec<_> = (0..=BACKLOG_ENTRIES_MAX).map(|_| bench.propose()).collect();
    bench.write();
    let answer = bench.propose();
    assert_eq!((refusal(&answer), bench.proposals_failed), (Some(Refusal::TooManyRequests), 0));
    bench.apply();
    assert!(answers.pop().unwrap().recv().unwrap().is_ok());
    assert_eq!(refusal(&bench.propose()), None);
}

#[test]
fn a_stop_refuses_whatever_waits() {
    let mut bench = Bench::new(tail(0, 0, 0, &[ME]), 0);
    let read = bench.read();
    let proposal = bench.propose();
    bench.handle(Event::Stop);
    assert_eq!(refusal(&read), Some(Refusal::Stopped));
    assert_eq!(refusal(&proposal), Some(Refusal::Stopped));
    assert_eq!((bench.proposals_failed, bench.reads_failed), (0, 0));
}

#[test]
fn a_release_keeps_entries_for_members_that_lag() {
    let mut bench = Bench::leading();
    for _ in 0..120 {
        bench.propose();
    }
    bench.write();
    bench.apply();
    assert!(bench.driver.wants_durable_store(121));
    assert!(!bench.driver.wants_durable_store(121), "asked twice");
    bench.handle(Event::StoreDurable { index: 121 });
    let Release { mark, through } = bench.released.take().unwrap();
    assert_eq!((mark.index, mark.term, &mark.voters[..], through), (121, 2, &[ME][..], 111));
    assert_eq!(bench.driver.node.store().first(), 112);
    // An answer that comes late lets go of nothing more, and the log goes on.
    bench.handle(Event::StoreDurable { index: 50 });
    assert!(bench.released.is_none());
    bench.propose();
    bench.write();
    assert_eq!(bench.apply(), [122]);
}

#[test]
fn a_restart_after_a_release_of_everything_goes_on() {
    let mut bench = Bench::new(tail(7, 0, 7, &[ME]), 7);
    bench.write();
    assert_eq!(bench.apply(), [8]);
    assert!(bench.driver.standing().is_leader);
}

#[test]
fn a_quorum_commits_and_reads_wait_for_it() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    bench.elect();
    bench.read();
    assert!(bench.driver.reads.asked().is_empty(), "asked before a commit in this term");
    bench.acknowledge(1);
    let answer = bench.propose();
    bench.write();
    assert_eq!(bench.apply(), [1]);
    bench.acknowledge(2);
    assert_eq!(bench.apply(), [2]);
    assert!(answer.recv().unwrap().is_ok());
}

#[test]
fn a_read_context_is_used_once() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    bench.elect();
    bench.acknowledge(1);
    bench.apply();
    let context = |counter: u64| -> Bytes { [ME, 42, counter].iter().flat_map(|part| part.to_be_bytes()).collect() };
    let confirm = |bench: &mut Bench, counter| {
        bench.step(MessageType::MsgHeartbeatResponse, 2, |message| message.context = context(counter));
    };
    let answer = bench.read();
    // Half a second without an answer: asked anew, under another context.
    bench.tick(READ_RETRY_MS / TICK_MS);
    assert_eq!(bench.driver.reads.asked(), [2]);
    confirm(&mut bench, 1);
    assert!(bench.reads.is_empty(), "answered by the round that was given up");
    confirm(&mut bench, 2);
    assert_eq!(bench.reads.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1]);
    assert_eq!(refusal(&answer), None);
}

#[test]
fn a_replaced_proposal_is_told_that_the_leader_changed() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    bench.elect();
    bench.acknowledge(1);
    let (replaced, cut) = (bench.propose(), bench.propose());
    bench.write();
    let term = bench.driver.standing().term + 1;
    bench.follow(term, (1, term - 1), vec![entry(2, term, "")], 2);
    assert_eq!(refusal(&replaced), Some(Refusal::LeaderChanged));
    bench.follow(term, (2, term), vec![entry(3, term, "theirs")], 3);
    assert_eq!(refusal(&cut), Some(Refusal::LeaderChanged));
    assert_eq!(bench.apply(), [1, 2, 3]);
    assert_eq!(bench.proposals_failed, 2);
}

#[test]
fn a_proposal_of_a_new_term_is_not_mistaken_for_one_that_was_cut_off() {
    let mut bench = Bench::new(tail(0, 0, 0, &[1, 2, 3]), 0);
    bench.elect();
    bench.acknowledge(1);
    let old: Vec<_> = (0..6).map(|_| bench.propose()).collect();
    bench.write();
    // Another leader cuts them off, and this member leads again over a shorter log: entries 2 and, its own, 3.
    let term = bench.driver.standing().term + 1;
    bench.follow(term, (1, term - 1), vec![entry(2, term, "")], 1);
    bench.elect();
    let new = bench.propose();
    bench.write();
    assert!(old[3..].iter().all(|answer| refusal(answer) == Some(Refusal::LeaderChanged)));
    bench.acknowledge(4);
    assert_eq!(bench.apply(), [1, 2, 3, 4]);
    assert!(new.recv().unwrap().is_ok());
    assert!(old[..3].iter().all(|answer| refusal(answer) == Some(Refusal::LeaderChanged)));
}

fn add(id: u64) -> Change {
    Change::Add { id: MemberId(id), peer_urls: vec![format!("http://m{id}:1")], is_learner: false, learners_max: 1 }
}

/// Alone and leading, with members 2 and 3 then added, and all that follows committed by member 2.
fn grown() -> Bench {
    let mut bench = Bench::leading();
    for id in [2, 3] {
        let answer = bench.propose_change(&add(id));
        bench.write();
        bench.acknowledge(bench.driver.node.raft.raft_log.last_index());
        bench.apply_change(Reconfiguration::Voter(MemberId(id)));
        assert!(answer.recv().unwrap().is_ok());
    }
    assert_eq!(bench.voters(), [1, 2, 3]);
    bench
}

#[test]
fn one_change_of_the_members_at_a_time() {
    let mut bench = Bench::leading();
    let first = bench.propose_change(&add(2));
    let second = bench.propose_change(&add(3));
    assert_eq!(refusal(&second), Some(Refusal::ReconfigurationPending));
    bench.write();
    // Committed, and in the store: still not known to raft.
    let Committed { entry, waiter } = bench.committed.pop().unwrap();
    bench.applied = entry.index;
    bench.tick(1);
    let third = bench.propose_change(&add(3));
    assert_eq!(refusal(&third), Some(Refusal::ReconfigurationPending));
    let forwarded = Payload { number: 99, kind: EntryKind::ConfChange, data: add(3).encode(99) };
    bench.handle(Event::Forwarded { from: 3, entries: vec![forwarded] });
    let declined = Verdict { numbers: vec![99], outcome: Err(Declined::ReconfigurationPending) };
    assert_eq!(bench.verdicts, [(3, declined)]);
    let reconfiguration = Reconfiguration::Voter(MemberId(2));
    bench.handle(Event::Reconfigured { index: entry.index, reconfiguration, waiter, answer: Ok(Reply::Empty) });
    assert!(first.recv().unwrap().is_ok());
    assert_eq!(bench.voters(), [1, 2]);
    assert_eq!(refusal(&bench.propose_change(&add(3))), None);
}

#[test]
fn a_change_that_apply_refuses_changes_nothing_and_lets_the_next_begin() {
    let mut bench = Bench::leading();
    bench.propose_change(&add(2));
    bench.write();
    bench.apply_change(Reconfiguration::None);
    assert_eq!(bench.voters(), [ME]);
    let answer = bench.propose_change(&add(3));
    bench.write();
    bench.apply_change(Reconfiguration::Voter(MemberId(3)));
    assert!(answer.recv().unwrap().is_ok());
    assert_eq!(bench.voters(), [1, 3]);
}

#[test]
fn a_leader_that_was_removed_hands_over() {
    let mut bench = grown();
    let answer = bench.propose_change(&Change::Remove(MemberId(ME)));
    bench.write();
    bench.acknowledge(bench.driver.node.raft.raft_log.last_index());
    bench.apply_change(Reconfiguration::Gone(MemberId(ME)));
    assert!(answer.recv().unwrap().is_ok());
    assert_eq!(bench.voters(), [2, 3]);
    assert!(bench.driver.standing().is_leader);
    bench.messages.clear();
    bench.tick(1 + LEAVE_AFTER_TICKS);
    let asked = bench.messages.iter().any(|message| message.get_msg_type() == MessageType::MsgTimeoutNow);
    assert!(asked, "{:?}", bench.messages);
}

#[test]
fn a_leader_that_was_removed_outlives_its_last_writes() {
    let mut bench = grown();
    bench.propose_change(&Change::Remove(MemberId(ME)));
    bench.write();
    let answer = bench.propose();
    let last = bench.driver.node.raft.raft_log.last_index();
    bench.acknowledge(last - 1);
    bench.apply_change(Reconfiguration::Gone(MemberId(ME)));
    // The proposal was on its way to the disk when the removal was applied.
    bench.write();
    for member in [2, 3] {
        bench.step(MessageType::MsgAppendResponse, member, |message| message.index = last);
    }
    assert_eq!(bench.apply(), [last]);
    assert!(answer.recv().unwrap().is_ok());
}

#[test]
fn a_learner_is_caught_up_at_nine_tenths_and_the_leader_alone_knows() {
    let mut bench = Bench::leading();
    bench.propose_change(&Change::Add {
        id: MemberId(2),
        peer_urls: vec!["http://m2:1".to_owned()],
        is_learner: true,
        learners_max: 1,
    });
    bench.write();
    bench.apply_change(Reconfiguration::Learner(MemberId(2)));
    for _ in 0..8 {
        bench.propose();
        bench.write();
    }
    assert_eq!(bench.driver.node.raft.raft_log.last_index(), 10);
    assert_eq!(bench.driver.check_caught_up(2), Err(Refusal::LearnerNotReady));
    bench.acknowledge(8);
    assert_eq!(bench.driver.check_caught_up(2), Err(Refusal::LearnerNotReady));
    bench.acknowledge(9);
    assert_eq!(bench.driver.check_caught_up(2), Ok(Reply::Empty));
    assert_eq!(bench.driver.check_caught_up(9), Err(Refusal::MemberNotFound));
    assert_eq!(following().driver.check_caught_up(2), Err(Refusal::NotLeader));
}

fn mark(index: u64, term: u64) -> SnapshotMark {
    SnapshotMark { index, term, voters: vec![1, 2, 3], learners: Vec::new() }
}

/// Member 2 has nothing of a log whose head is gone.
fn lagging() -> Bench {
    let mut bench = Bench::new(tail(0, 200, 200, &[1, 2, 3]), 200);
    bench.handle(Event::StoreDurable { index: 200 });
    bench.elect();
    bench.step(MessageType::MsgAppendResponse, 2, |message| {
        (message.index, message.reject, message.reject_hint) = (200, true, 0);
    });
    bench
}

#[test]
fn a_member_that_lacks_what_the_log_let_go_of_is_sent_rows() {
    let mut bench = lagging();
    assert!(std::mem::take(&mut bench.snapshot_wanted));
    bench.tick(1);
    bench.step(MessageType::MsgHeartbeatResponse, 2, |_| {});
    assert!(bench.snapshot_wanted, "asked for as long as there are none");
    bench.handle(Event::SnapshotReady(mark(200, 1)));
    bench.step(MessageType::MsgHeartbeatResponse, 2, |_| {});
    let term = bench.driver.standing().term;
    assert_eq!(bench.snapshot, Some(SendSnapshot { to: 2, term, mark: mark(200, 1) }));
    assert!(bench.messages.iter().all(|message| message.get_msg_type() != MessageType::MsgSnapshot));

    // The log is kept from there on while they are on their way.
    bench.step(MessageType::MsgAppendResponse, 3, |message| message.index = 201);
    bench.apply();
    let propose = |bench: &mut Bench, count: u64| {
        for _ in 0..count {
            bench.propose();
            bench.write();
        }
        let last = bench.driver.node.raft.raft_log.last_index();
        bench.step(MessageType::MsgAppendResponse, 3, |message| message.index = last);
        bench.apply();
        last
    };
    let last = propose(&mut bench, 100);
    bench.handle(Event::StoreDurable { index: last });
    assert_eq!(bench.released.take().unwrap().through, 200);
    bench.messages.clear();
    bench.handle(Event::SnapshotSent { to: 2, arrived: true });
    bench.step(MessageType::MsgAppendResponse, 2, |message| message.index = 200);
    let next = bench.messages.iter().find(|message| message.to == 2 && !message.entries.is_empty()).unwrap();
    assert_eq!(next.entries[0].index, 201);
    // And what a member that is there lacks is kept as well.
    let last = propose(&mut bench, 100);
    bench.handle(Event::StoreDurable { index: last });
    assert_eq!(bench.released.take().unwrap().through, 200);
    bench.acknowledge(last);
    bench.handle(Event::StoreDurable { index: last });
    assert_eq!(bench.released.take().unwrap().through, last - 10);
}

#[test]
fn rows_that_did_not_arrive_are_made_ready_again() {
    let mut bench = lagging();
    bench.handle(Event::SnapshotReady(mark(200, 1)));
    bench.step(MessageType::MsgHeartbeatResponse, 2, |_| {});
    assert!(bench.snapshot.is_some());
    (bench.snapshot, bench.snapshot_wanted) = (None, false);
    bench.handle(Event::SnapshotSent { to: 2, arrived: false });
    bench.tick(1);
    bench.step(MessageType::MsgHeartbeatResponse, 2, |_| {});
    assert!(bench.snapshot_wanted && bench.snapshot.is_none());
    // Nobody took those that were ready: they are not there any more.
    bench.handle(Event::SnapshotReady(mark(200, 1)));
    bench.handle(Event::SnapshotSent { to: 0, arrived: false });
    bench.step(MessageType::MsgHeartbeatResponse, 2, |_| {});
    assert!(bench.snapshot.is_none());
}

#[test]
fn rows_of_a_leader_that_steps_down_in_the_same_round_are_not_sent() {
    let mut bench = lagging();
    bench.tick(1);
    bench.messages.clear();
    bench.driver.handle(&mut vec![Event::SnapshotReady(mark(200, 1))], 200);
    let term = bench.driver.standing().term;
    let message = |kind: MessageType, from: u64, term: u64| {
        let mut message = Message::default();
        message.set_msg_type(kind);
        (message.from, message.to, message.term) = (from, ME, term);
        Event::Message(Box::new(message))
    };
    let answer = message(MessageType::MsgHeartbeatResponse, 2, term);
    let successor = message(MessageType::MsgHeartbeat, 3, term + 1);
    bench.driver.handle(&mut vec![answer, successor], 200);
    bench.carry_out();
    bench.write();
    assert!(!bench.driver.standing().is_leader && bench.snapshot.is_none());
    assert!(bench.messages.iter().all(|message| message.get_msg_type() != MessageType::MsgSnapshot));
}

#[test]
fn rows_take_the_place_of_log_and_store_before_anything_vouches_for_them() {
    let mut bench = following();
    let lost = bench.propose();
    bench.handle(Event::Judged(Verdict { numbers: vec![1], outcome: Ok(Place { index: 5, term: 7 }) }));
    bench.messages.clear();
    bench.handle(Event::SnapshotArrived { from: 2, term: 7, mark: mark(50, 7) });
    assert_eq!(bench.install, Some(50));
    assert_eq!(refusal(&lost), Some(Refusal::Timeout), "what became of it is not known");
    // What follows waits for the rows.
    bench.follow(7, (50, 7), vec![entry(51, 7, "")], 51);
    assert!(bench.marks.is_empty() && bench.committed.is_empty());
    let acknowledged = |bench: &Bench| {
        let is_answer = |message: &&Message| message.get_msg_type() == MessageType::MsgAppendResponse;
        bench.messages.iter().filter(is_answer).map(|message| message.index).max()
    };
    assert_eq!(acknowledged(&bench), None);
    // Nobody stands for election without knowing what it has.
    bench.tick(100);
    bench.step(MessageType::MsgTimeoutNow, 2, |_| {});
    assert_eq!(bench.driver.node.raft.state, StateRole::Follower);
    bench.applied = 50;
    bench.handle(Event::Installed { index: 50 });
    assert_eq!(bench.marks, [mark(50, 7)]);
    assert_eq!(acknowledged(&bench), None, "before the log knows");
    bench.write();
    assert_eq!(acknowledged(&bench), Some(51));
    assert_eq!(bench.apply(), [51]);
    bench.follow(7, (51, 7), vec![entry(52, 7, "")], 52);
    assert_eq!(bench.apply(), [52]);
    bench.tick(30);
    assert_eq!(bench.driver.node.raft.state, StateRole::Candidate);
}

#[test]
fn rows_that_are_not_needed_or_not_for_this_member_change_nothing() {
    let mut bench = following();
    for (term, mark) in [
        (7, mark(1, 7)),
        (6, mark(50, 6)),
        (7, SnapshotMark { voters: vec![2, 3], ..mark(50, 7) }),
        (7, SnapshotMark { voters: Vec::new(), learners: vec![1], ..mark(50, 7) }),
    ] {
        bench.handle(Event::SnapshotArrived { from: 2, term, mark });
        assert_eq!((bench.install, bench.driver.node.raft.raft_log.last_index()), (None, 1));
    }
    bench.handle(Event::Installed { index: 50 });
    bench.follow(7, (1, 7), vec![entry(2, 7, "")], 2);
    assert_eq!(bench.apply(), [2]);
}

#[test]
fn a_change_of_the_members_that_rows_hold_already_is_not_made_twice() {
    let mut bench = following();
    let change = LogEntry { kind: EntryKind::ConfChange, data: add(4).encode(0), ..entry(2, 7, "") };
    bench.follow(7, (1, 7), vec![change], 2);
    let voters = vec![1, 2, 3];
    bench.handle(Event::SnapshotArrived { from: 2, term: 7, mark: SnapshotMark { voters, ..mark(50, 7) } });
    // The store tells of it before it is replaced; by the rows that member has gone again.
    let Committed { entry, waiter } = bench.committed.pop().unwrap();
    let reconfiguration = Reconfiguration::Voter(MemberId(4));
    bench.handle(Event::Reconfigured { index: entry.index, reconfiguration, waiter, answer: Ok(Reply::Empty) });
    assert_eq!(bench.voters(), [1, 2, 3]);
    bench.applied = 50;
    bench.handle(Event::Installed { index: 50 });
    bench.write();
    assert_eq!(bench.voters(), [1, 2, 3]);
}

/// Raft glues entries to an append that waits to be sent, whatever its place, if it is empty.
#[test]
fn an_append_has_the_place_of_its_entries() {
    let mut bench = Bench::new(tail(0, 3, 3, &[ME, 2, 3]), 3);
    bench.elect();
    bench.acknowledge(4);
    bench.propose();
    bench.propose();
    bench.write();
    bench.messages.clear();
    let answer = |from, change: &dyn Fn(&mut Message)| {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppendResponse);
        (message.from, message.to, message.term, message.index) = (from, ME, 2, 6);
        change(&mut message);
        Event::Message(Box::new(message))
    };
    // Member 3 has all: member 2 is to be told that it is committed. Then member 2 says that it lacks what it was sent.
    let lacks = answer(2, &|message| (message.reject, message.reject_hint, message.log_term) = (true, 4, 2));
    bench.driver.handle(&mut vec![answer(3, &|_| {}), lacks], bench.applied);
    bench.carry_out();
    let appends = bench.messages.iter().filter(|message| message.get_msg_type() == MessageType::MsgAppend);
    let places = appends.map(|append| {
        let entries: Vec<u64> = append.entries.iter().map(|entry| entry.index).collect();
        (append.to, append.index, append.log_term, entries)
    });
    assert_eq!(places.collect::<Vec<_>>(), [(2, 4, 2, vec![5, 6]), (3, 6, 2, vec![])]);
}

/// As above, with a successor's heartbeat in the same round.
#[test]
fn an_append_of_a_leader_just_deposed_has_the_place_of_its_entries() {
    let mut bench = Bench::new(tail(0, 3, 3, &[ME, 2, 3]), 3);
    bench.elect();
    bench.acknowledge(4);
    bench.propose();
    bench.propose();
    bench.write();
    bench.messages.clear();
    let message = |kind, from, term, change: &dyn Fn(&mut Message)| {
        let mut message = Message::default();
        message.set_msg_type(kind);
        (message.from, message.to, message.term, message.index) = (from, ME, term, 6);
        change(&mut message);
        Event::Message(Box::new(message))
    };
    let answer = MessageType::MsgAppendResponse;
    let lacks = message(answer, 2, 2, &|lacks| (lacks.reject, lacks.reject_hint, lacks.log_term) = (true, 4, 2));
    let successor = message(MessageType::MsgHeartbeat, 3, 3, &|heartbeat| heartbeat.index = 0);
    bench.driver.handle(&mut vec![message(answer, 3, 2, &|_| {}), lacks, successor], bench.applied);
    bench.carry_out();
    bench.write();
    let with_entries: Vec<_> = bench.messages.iter().filter(|message| !message.entries.is_empty()).collect();
    assert!(!with_entries.is_empty(), "{:?}", bench.messages);
    assert!(with_entries.iter().all(|append| append.index + 1 == append.entries[0].index), "{with_entries:?}");
}

#[test]
fn a_question_for_the_leader_is_not_passed_on_in_the_name_of_another() {
    let mut bench = Bench::new(tail(0, 3, 3, &[ME, 2, 3]), 3);
    bench.follow(2, (3, 1), vec![entry(4, 2, "theirs")], 4);
    bench.messages.clear();
    bench.step(MessageType::MsgReadIndex, 3, |message| {
        message.term = 0;
        message.entries = vec![Entry { data: Bytes::from_static(b"context"), ..Entry::default() }].into();
    });
    assert!(bench.messages.is_empty(), "{:?}", bench.messages);
}

#[test]
fn the_commit_of_a_change_of_the_members_is_written_before_anybody_hears_of_it() {
    let mut bench = grown();
    bench.propose_change(&Change::Remove(MemberId(3)));
    bench.write();
    let before = bench.unwritten.len();
    let change = bench.driver.node.raft.raft_log.last_index();
    bench.messages.clear();
    bench.acknowledge(change);
    assert_eq!(bench.unwritten.len(), before + 1, "the commit index alone, but for this, is not worth a write");
    bench.propose();
    bench.tick(1);
    assert_eq!(bench.driver.standing().committed, change);
    assert!(bench.committed.is_empty(), "applied before it was written that it is committed");
    assert!(bench.messages.iter().all(|message| message.commit < change), "{:?}", bench.messages);
    bench.write();
    assert_eq!(bench.committed.len(), 1);
    bench.messages.clear();
    bench.tick(1);
    assert!(bench.messages.iter().any(|message| message.commit == change), "{:?}", bench.messages);
    bench.apply_change(Reconfiguration::Gone(MemberId(3)));
    bench.propose();
    bench.write();
    bench.acknowledge(bench.driver.node.raft.raft_log.last_index());
    assert!(bench.unwritten.is_empty());
}
