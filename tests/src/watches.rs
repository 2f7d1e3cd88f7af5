//! Whether watchers were told what etcd promises: every event of their keys from the asked revision on, in order, once,
//! all events of a revision in one response, the same after a stream was lost and resumed; and progress that is never
//! ahead of an event.
//!
//! The measure is the past as the store tells it in the end, which is first held against the requests: every write that
//! was acknowledged is in it, nothing else is but writes whose outcome nobody knows, and every answer fits it.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Event, History, Keys, Notice, Operation};
use crate::revisions::{Writes, seen_of};

/// # Errors
/// A sentence that says what contradicts what.
pub fn check(history: &History) -> Result<(), String> {
    let past = Past::of(&history.past)?;
    past.fits_writes(&history.operations)?;
    past.fits_answers(&history.operations)?;
    for (name, notices) in &history.watchers {
        let mut follower = Follower::new(name, &past);
        notices.iter().try_for_each(|notice| follower.follow(notice))?;
        follower.ends()?;
    }
    Ok(())
}

/// The events of the store, in order.
struct Past<'a> {
    events: &'a [Event],
    /// The events of each key by revision.
    by_key: HashMap<&'a str, BTreeMap<i64, &'a Event>>,
}

impl<'a> Past<'a> {
    fn of(events: &'a [Event]) -> Result<Past<'a>, String> {
        let mut past = Past { events, by_key: HashMap::new() };
        let mut last = 0;
        for event in events {
            let of_key = past.by_key.entry(&event.key).or_default();
            if event.mod_revision < last {
                return Err(format!("the past tells {event} after revision {last}"));
            }
            if of_key.contains_key(&event.mod_revision) {
                return Err(format!("the past tells {event} beside another of the same key and revision"));
            }
            last = event.mod_revision;
            let before = of_key.values().next_back().map_or(0, |event| event.version);
            let version = if event.value.is_some() { before + 1 } else { 0 };
            if event.version != version || (event.value.is_none() && before == 0) {
                return Err(format!("the past tells {event} where the key was at version {before}"));
            }
            of_key.insert(event.mod_revision, event);
        }
        Ok(past)
    }

    /// The newest event of a key up to a revision.
    fn newest(&self, key: &str, revision: i64) -> Option<&'a Event> {
        self.by_key.get(key)?.range(..=revision).next_back().map(|(_, event)| *event)
    }

    fn at(&self, key: &str, revision: i64) -> Option<&'a Event> {
        self.by_key.get(key)?.get(&revision).copied()
    }

    /// What was acknowledged is there, and nothing that nobody asked for or that was refused.
    fn fits_writes(&self, operations: &[Operation]) -> Result<(), String> {
        let mut writes = Writes::of(operations)?;
        let origins = writes.learn_past(self.events)?;
        for (number, operation) in operations.iter().enumerate() {
            let Some(revision) = writes.revision(number) else { continue };
            for (key, value) in operation.request.effects() {
                if self.at(key, revision).is_none_or(|event| event.value.as_deref() != value) {
                    return Err(format!("the past has no `{operation}` at revision {revision}"));
                }
            }
        }
        for (event, origin) in self.events.iter().zip(origins) {
            let revision = event.mod_revision;
            let together = self.events.iter().filter(|other| other.mod_revision == revision).count();
            if together != origin.request.effects().len() {
                return Err(format!("the past has {together} events at revision {revision}, where `{origin}` was"));
            }
        }
        Ok(())
    }

    fn fits_answers(&self, operations: &[Operation]) -> Result<(), String> {
        for operation in operations {
            let Some(answer) = operation.answer() else { continue };
            let revision = answer.revision - i64::from(answer.wrote);
            for (key, seen) in seen_of(operation) {
                let newest = self.newest(key, revision).filter(|event| event.value.is_some());
                let is_same = match (newest, seen) {
                    (None, None) => true,
                    (Some(event), Some(seen)) => {
                        (event.value.as_deref(), event.mod_revision, event.version)
                            == (Some(seen.value.as_str()), seen.mod_revision, seen.version)
                    }
                    (None, Some(_)) | (Some(_), None) => false,
                };
                if !is_same {
                    let newest = newest.map_or_else(|| format!("nothing in {key}"), Event::to_string);
                    return Err(format!("the past has {newest} at revision {revision}, where `{operation}` was"));
                }
            }
        }
        Ok(())
    }
}

/// One watcher's way along the past.
struct Follower<'a> {
    name: &'a str,
    past: &'a Past<'a>,
    keys: Option<&'a Keys>,
    /// Events of the past before this place were told, or lie before the watcher's beginning. `None` until it has begun.
    place: Option<usize>,
    /// The newest revision that this stream's headers named.
    header: i64,
}

impl<'a> Follower<'a> {
    fn new(name: &'a str, past: &'a Past<'a>) -> Follower<'a> {
        Follower { name, past, keys: None, place: None, header: 0 }
    }

    fn follow(&mut self, notice: &'a Notice) -> Result<(), String> {
        let name = self.name;
        match notice {
            Notice::Asks { keys, from, .. } => {
                (self.keys, self.header) = (Some(keys), 0);
                match (self.place, *from) {
                    (_, 0) => self.place = None,
                    (None, from) => self.begin(from),
                    (Some(_), from) => {
                        if let Some(untold) = self.next().filter(|event| event.mod_revision < from) {
                            return Err(format!("{name} resumes from {from} and was never told {untold}"));
                        }
                    }
                }
                Ok(())
            }
            Notice::Created { revision } => {
                if self.place.is_none() {
                    self.begin(revision + 1);
                }
                self.heard(notice, *revision)
            }
            Notice::Progress { revision } => {
                if let Some(untold) = self.next().filter(|event| event.mod_revision <= *revision) {
                    return Err(format!("{name} was told `{notice}` before {untold}"));
                }
                self.heard(notice, *revision)
            }
            Notice::Events { revision, events } => {
                events.iter().try_for_each(|event| self.told(event))?;
                let last = events.last().map_or(0, |event| event.mod_revision);
                if last > *revision {
                    return Err(format!("{name} was told `{notice}`: the header is older than the events"));
                }
                if let Some(rest) = self.next().filter(|event| event.mod_revision == last) {
                    return Err(format!("{name} was told `{notice}` without {rest}, which has the same revision"));
                }
                self.heard(notice, *revision)
            }
            Notice::Lost { .. } => Ok(()),
        }
    }

    /// The watcher begins with the first event at this revision or later.
    fn begin(&mut self, revision: i64) {
        self.place = Some(self.past.events.partition_point(|event| event.mod_revision < revision));
    }

    /// The next event that the watcher is to be told.
    fn next(&self) -> Option<&'a Event> {
        let rest = self.past.events.get(self.place?..)?;
        rest.iter().find(|event| self.keys.is_some_and(|keys| keys.contain(&event.key)))
    }

    fn told(&mut self, event: &Event) -> Result<(), String> {
        let name = self.name;
        let Some(place) = self.place else { return Err(format!("{name} was told {event} before it was created")) };
        let next = self.next();
        if next == Some(event) {
            let ahead = self.past.events[place..].iter().position(|other| other == event);
            self.place = ahead.map(|ahead| place + ahead + 1);
            return Ok(());
        }
        let known = self.past.events.iter().position(|other| other == event);
        Err(match (known, next) {
            (None, _) => format!("{name} was told {event}, which never happened"),
            (Some(at), _) if at < place => format!("{name} was told {event} once more or too late"),
            (Some(_), Some(next)) => format!("{name} was told {event} before {next}"),
            (Some(_), None) => format!("{name} was told {event}, which it did not ask for"),
        })
    }

    /// Headers of a stream never fall.
    fn heard(&mut self, notice: &Notice, revision: i64) -> Result<(), String> {
        if revision < self.header {
            return Err(format!("{} was told `{notice}` after revision {}", self.name, self.header));
        }
        self.header = revision;
        Ok(())
    }

    /// When all is over, all has been told.
    fn ends(&self) -> Result<(), String> {
        match self.next() {
            Some(untold) => Err(format!("{} was never told {untold}", self.name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_are_judged_as_their_files_say() {
        crate::history::golden("watches", |text| {
            let history = History::parse(text).unwrap();
            let said = check(&history).err().unwrap_or_else(|| "it can be".to_owned());
            format!("{said}\n")
        });
    }
}
