//! A client that watches: over one stream to one member at a time, going on elsewhere when that is gone.

use bytes::Bytes;
use futures::FutureExt as _;
use kuorum_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use kuorum_proto::mvccpb::{Event, KeyValue, event::EventType};
use prost::Message as _;

use crate::sim::checker::Violation;
use crate::sim::client::{Peer, range};
use crate::sim::history::{Change, History, is_in};
use crate::sim::plan::Plan;
use crate::sim::random::Random;
use crate::watch::{WatchRequests, WatchResponses};

const WATCHES_MAX: u64 = 3;

pub(super) struct Watcher {
    stream: Option<Stream>,
    watches: Vec<Watch>,
}

struct Stream {
    member: u64,
    boot: u64,
    requests: WatchRequests,
    responses: WatchResponses,
}

/// One watch, over all the streams that carry it.
pub(super) struct Watch {
    key: Bytes,
    end: Bytes,
    previous: bool,
    /// The first revision that it may still be owed changes of; 0 until it is created from now on.
    owed_from: i64,
    /// The first change of the history that was not looked at.
    place: usize,
    is_created: bool,
}

impl Watcher {
    pub(super) fn new(plan: &Plan, random: &mut Random) -> Watcher {
        let watch = |random: &mut Random| {
            let (key, end) = range(plan, random);
            Watch::new(key, end, random.permille(500))
        };
        let mut watches: Vec<Watch> = (0..random.between(1, WATCHES_MAX)).map(|_| watch(random)).collect();
        // A range that ends before it begins is refused; clients know better.
        watches.retain(|watch| watch.end.is_empty() || *watch.end == [0] || watch.key < watch.end);
        Watcher { stream: None, watches }
    }

    /// The member that it has a stream to, and the process.
    pub(super) fn on(&self) -> Option<(u64, u64)> {
        self.stream.as_ref().map(|stream| (stream.member, stream.boot))
    }

    /// Leaves the stream, whose member may be gone.
    pub(super) fn leave(&mut self) {
        self.stream = None;
    }

    /// Opens a stream to a member, and goes on there.
    pub(super) fn open(&mut self, peer: &Peer<'_>, history: &History, random: &mut Random) {
        let (requests, responses) = peer.process.hub.open();
        for (number, watch) in (1..).zip(&mut self.watches) {
            watch.is_created = false;
            if watch.owed_from != 0 {
                watch.place = first_from(history, watch.owed_from);
            }
            requests.create(WatchCreateRequest {
                key: watch.key.clone(),
                range_end: watch.end.clone(),
                start_revision: watch.owed_from,
                watch_id: number,
                prev_kv: watch.previous,
                progress_notify: random.permille(500),
                ..WatchCreateRequest::default()
            });
        }
        self.stream = Some(Stream { member: peer.member, boot: peer.boot, requests, responses });
    }

    /// Asks where the stream stands.
    pub(super) fn ask_progress(&self) {
        if let Some(stream) = &self.stream {
            stream.requests.progress();
        }
    }

    /// Takes in up to so many responses.
    pub(super) fn look(&mut self, most: usize, history: &History) -> Result<(), Violation> {
        for _ in 0..most {
            let Some(stream) = &mut self.stream else { return Ok(()) };
            let Some(response) = stream.responses.next().now_or_never() else { return Ok(()) };
            let Some(bytes) = response else {
                return Err(format!("m{} closed a watch stream that it serves", stream.member));
            };
            let member = stream.member;
            let response = WatchResponse::decode(bytes).map_err(|error| format!("a watch response: {error}"))?;
            if response.canceled {
                self.canceled(&response, history).map_err(|what| format!("m{member} {what}"))?;
                self.stream = None;
                return Ok(());
            }
            self.take(&response, history).map_err(|what| format!("m{member} {what}"))?;
        }
        Ok(())
    }

    /// Nothing is owed any more.
    pub(super) fn check_complete(&self, history: &History) -> Result<(), Violation> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let owed = self.watches.iter().filter(|watch| watch.is_created).find_map(|watch| watch.next(history));
        match owed.map(|place| &history.changes[place]) {
            Some(change) => Err(format!("m{} never told a watcher of {change:?}", stream.member)),
            None => Ok(()),
        }
    }

    fn take(&mut self, response: &WatchResponse, history: &History) -> Result<(), Violation> {
        if response.watch_id == -1 {
            return self.watches.iter_mut().try_for_each(|watch| watch.take(response, history));
        }
        self.watch(response.watch_id)?.take(response, history)
    }

    /// Only a compaction ends a watch.
    fn canceled(&mut self, response: &WatchResponse, history: &History) -> Result<(), Violation> {
        let watch = self.watch(response.watch_id)?;
        let compacted = response.compact_revision;
        if watch.owed_from >= compacted || compacted > history.compacted() {
            return Err(format!(
                "cancelled a watch owed changes from revision {} as compacted at {compacted} ({:?})",
                watch.owed_from, response.cancel_reason
            ));
        }
        watch.owed_from = compacted;
        Ok(())
    }

    fn watch(&mut self, id: i64) -> Result<&mut Watch, Violation> {
        let place = usize::try_from(id - 1).ok().filter(|place| *place < self.watches.len());
        place.map(|place| &mut self.watches[place]).ok_or(format!("speaks of a watch {id} that nobody made"))
    }
}

impl Watch {
    pub(super) fn new(key: Bytes, end: Bytes, previous: bool) -> Watch {
        Watch { key, end, previous, owed_from: 0, place: 0, is_created: false }
    }

    pub(super) fn take(&mut self, response: &WatchResponse, history: &History) -> Result<(), Violation> {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        if revision > history.revision() {
            return Err(format!("tells watchers of revision {revision}, which nobody has committed"));
        }
        if response.created {
            self.is_created = true;
            if self.owed_from == 0 {
                self.owed_from = revision + 1;
                self.place = first_from(history, self.owed_from);
            }
            return Ok(());
        }
        if response.events.is_empty() {
            return if self.is_created { self.progress(revision, history) } else { Ok(()) };
        }
        for event in &response.events {
            self.event(event, history)?;
        }
        Ok(())
    }

    /// No change up to here is still to come.
    fn progress(&mut self, revision: i64, history: &History) -> Result<(), Violation> {
        if let Some(owed) = self.next(history).map(|place| &history.changes[place])
            && owed.revision <= revision
        {
            return Err(format!(
                "notified a watcher of progress to revision {revision} before the change of {} at {}",
                owed.key.escape_ascii(),
                owed.revision
            ));
        }
        self.place = self.place.max(first_from(history, revision + 1));
        self.owed_from = self.owed_from.max(revision + 1);
        Ok(())
    }

    fn event(&mut self, event: &Event, history: &History) -> Result<(), Violation> {
        let Some(place) = self.next(history) else {
            return Err(format!("told a watcher of a change that there was not: {event:?}"));
        };
        let right = &history.changes[place];
        if !is_event_of(event, right) || !self.is_previous_of(event, right, history) {
            return Err(format!("told a watcher of {event:?}; next is {right:?}"));
        }
        self.place = place + 1;
        self.owed_from = right.revision + 1;
        Ok(())
    }

    fn is_previous_of(&self, event: &Event, change: &Change, history: &History) -> bool {
        match &event.prev_kv {
            None => !self.previous || change.before.is_none() || change.revision - 1 < history.compacted(),
            shown => self.previous && *shown == change.before,
        }
    }

    /// Where the next change stands that it is owed.
    fn next(&self, history: &History) -> Option<usize> {
        let rest = history.changes.iter().enumerate().skip(self.place);
        rest.into_iter().find(|(_, change)| is_in(&change.key, &self.key, &self.end)).map(|(place, _)| place)
    }
}

fn first_from(history: &History, revision: i64) -> usize {
    history.changes.partition_point(|change| change.revision < revision)
}

fn is_event_of(event: &Event, change: &Change) -> bool {
    match &change.now {
        Some(kv) => event.r#type() == EventType::Put && event.kv.as_ref() == Some(kv),
        None => {
            let kv = KeyValue { key: change.key.clone(), mod_revision: change.revision, ..KeyValue::default() };
            event.r#type() == EventType::Delete && event.kv == Some(kv)
        }
    }
}

#[cfg(test)]
mod tests {
    use kuorum_proto::etcdserverpb::{PutRequest, ResponseHeader};

    use super::*;
    use crate::command::Command;
    use crate::log::{EntryKind, LogEntry};

    /// Keys "a" and "b" in turn, at revisions 2 to 5.
    fn history() -> History {
        let mut history = History::new();
        for index in 1..=4_u64 {
            let key = if index % 2 == 1 { "a" } else { "b" };
            let put = Command::Put(PutRequest { key: key.into(), ..PutRequest::default() });
            let entry = LogEntry {
                term: 1,
                index,
                kind: EntryKind::Normal,
                data: put.encode(index, crate::command::Judgement::default()),
            };
            history.commit(1, &entry, 0).unwrap();
        }
        history
    }

    fn response(revision: i64, events: &[Event]) -> WatchResponse {
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        WatchResponse { header, events: events.to_vec(), ..WatchResponse::default() }
    }

    fn event(history: &History, place: usize) -> Event {
        let change = &history.changes[place];
        Event { r#type: EventType::Put.into(), kv: change.now.clone(), prev_kv: change.before.clone() }
    }

    /// A watch of "a" that begins before everything.
    fn watch(history: &History) -> Watch {
        let mut watch = Watch::new("a".into(), Bytes::new(), true);
        watch.take(&WatchResponse { created: true, ..response(1, &[]) }, history).unwrap();
        watch
    }

    fn broken(result: Result<(), Violation>, words: &str) {
        let violation = result.expect_err(words);
        assert!(violation.contains(words), "{violation}");
    }

    #[test]
    fn events_in_order_and_progress_behind_them_are_right() {
        let history = history();
        let mut watch = watch(&history);
        watch.take(&response(2, &[event(&history, 0)]), &history).unwrap();
        watch.take(&response(3, &[]), &history).unwrap();
        watch.take(&response(5, &[event(&history, 2)]), &history).unwrap();
        watch.take(&response(5, &[]), &history).unwrap();
        assert_eq!((watch.owed_from, watch.next(&history)), (6, None));
    }

    #[test]
    fn events_out_of_order_missing_twice_or_false_are_seen() {
        let history = history();
        let [first, second, other] = [0, 2, 1].map(|place| event(&history, place));
        let told = |events: &[Event]| watch(&history).take(&response(5, events), &history);
        broken(told(&[second.clone(), first.clone()]), "told a watcher of");
        broken(told(&[first.clone(), first.clone()]), "told a watcher of");
        broken(told(&[other]), "told a watcher of");
        broken(
            told(&[Event { prev_kv: None, ..first.clone() }, Event { prev_kv: None, ..second.clone() }]),
            "told a watcher of",
        );
        broken(told(&[first, second.clone(), second]), "that there was not");
        broken(watch(&history).take(&response(6, &[]), &history), "nobody has committed");
    }

    #[test]
    fn progress_before_an_event_is_seen() {
        let history = history();
        broken(watch(&history).take(&response(2, &[]), &history), "progress to revision 2 before the change of a at 2");
        watch(&history).take(&response(1, &[]), &history).unwrap();
    }
}
