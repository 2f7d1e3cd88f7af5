//! What the revisions in answers say of a history: which write has which, and that nobody saw them fall.
//!
//! Every write has a revision of its own, and every read names the revision it saw, so most contradictions are between
//! two operations and need no search: two writes of one revision, one write at two, a revision below one that was told
//! before the request began, a value that is not the newest of its revision. What answers may hide from these rules (a
//! wrong revision on a right value and the reverse) is left to the search in [`crate::linearizability`].

use std::collections::{BTreeMap, HashMap};

use crate::history::{Answer, Event, Operation, Request, Seen};

/// The writes of a history and what is known of them.
pub(crate) struct Writes<'a> {
    operations: &'a [Operation],
    /// Who writes a value to a key.
    writers: HashMap<(&'a str, &'a str), usize>,
    /// Of each operation that wrote: answered, or seen by somebody.
    revisions: Vec<Option<i64>>,
    /// Of the key's version that a write made.
    versions: HashMap<(usize, &'a str), i64>,
    /// The writes of each key with known revisions, by revision.
    known: HashMap<&'a str, BTreeMap<i64, usize>>,
}

impl<'a> Writes<'a> {
    /// Finds the revision of every write that an answer tells of.
    ///
    /// # Errors
    /// Which two lines contradict each other.
    pub(crate) fn of(operations: &'a [Operation]) -> Result<Writes<'a>, String> {
        let mut writes = Writes {
            operations,
            writers: HashMap::new(),
            revisions: vec![None; operations.len()],
            versions: HashMap::new(),
            known: HashMap::new(),
        };
        writes.learn_answers()?;
        for operation in operations {
            for (key, seen) in seen_of(operation) {
                if let Some(seen) = seen {
                    writes.learn_seen(operation, key, seen)?;
                }
            }
        }
        writes.revisions_are_unique()?;
        for (number, operation) in operations.iter().enumerate() {
            for (key, _) in operation.request.effects() {
                let known = writes.known.entry(key).or_default();
                known.extend(writes.revisions[number].map(|revision| (revision, number)));
            }
        }
        Ok(writes)
    }

    /// The revision of an operation that wrote, as far as anybody was told.
    pub(crate) fn revision(&self, operation: usize) -> Option<i64> {
        self.revisions[operation]
    }

    /// Finds the operation that each event of the past came from, and so the revisions of writes that no answer tells of.
    ///
    /// # Errors
    /// Which event contradicts which line.
    pub(crate) fn learn_past(&mut self, past: &[Event]) -> Result<Vec<&'a Operation>, String> {
        let mut origins = Vec::new();
        for event in past {
            let number = match &event.value {
                Some(value) => self.writers.get(&(event.key.as_str(), value.as_str())).copied(),
                None => self.delete_at(&event.key, event.mod_revision),
            };
            let number = number.ok_or_else(|| format!("{event} happened, and nobody asked for it"))?;
            let origin = &self.operations[number];
            if !origin.may_write() {
                return Err(format!("{event} happened, and `{origin}` was told that it did not"));
            }
            let revision = *self.revisions[number].get_or_insert(event.mod_revision);
            if revision != event.mod_revision {
                return Err(format!("{event} happened, and `{origin}` at revision {revision}: it happened twice"));
            }
            origins.push(origin);
        }
        self.revisions_never_fall()?;
        Ok(origins)
    }

    /// The delete of a key that had this revision, or else one that may have had it.
    fn delete_at(&self, key: &str, revision: i64) -> Option<usize> {
        let deletes = |number: &usize| {
            let operation = &self.operations[*number];
            operation.may_write() && matches!(&operation.request, Request::Delete { key: deleted } if deleted == key)
        };
        let mut numbers = (0..self.operations.len()).filter(deletes);
        let answered = numbers.clone().find(|number| self.revisions[*number] == Some(revision));
        answered.or_else(|| numbers.find(|number| self.revisions[*number].is_none()))
    }

    /// The places of operations among the known writes of a key.
    pub(crate) fn ranks(&self, key: &str) -> HashMap<usize, usize> {
        let known = self.known.get(key).into_iter().flat_map(BTreeMap::values);
        known.enumerate().map(|(rank, number)| (*number, rank)).collect()
    }

    /// All rules that need no search.
    ///
    /// # Errors
    /// Which two lines contradict each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.revisions_never_fall()?;
        for operation in self.operations {
            update_fits(operation)?;
            for (key, seen) in seen_of(operation) {
                self.is_newest(operation, key, seen)?;
            }
        }
        Ok(())
    }

    fn learn_answers(&mut self) -> Result<(), String> {
        for (number, operation) in self.operations.iter().enumerate() {
            for (key, value) in operation.request.effects() {
                let Some(value) = value else { continue };
                if let Some(other) = self.writers.insert((key, value), number) {
                    return Err(format!("`{operation}` writes the value of `{}`", self.operations[other]));
                }
            }
            let Some(Answer { revision, wrote: true, .. }) = operation.answer() else { continue };
            self.revisions[number] = Some(*revision);
            for (key, seen) in seen_of(operation) {
                let version = seen.as_ref().map_or(1, |seen| seen.version + 1);
                self.versions.insert((number, key), version);
            }
        }
        Ok(())
    }

    fn learn_seen(&mut self, by: &Operation, key: &'a str, seen: &Seen) -> Result<(), String> {
        let Some(&number) = self.writers.get(&(key, seen.value.as_str())) else {
            return Err(format!("`{by}` saw in {key} what nobody wrote"));
        };
        let writer = &self.operations[number];
        if !writer.may_write() {
            return Err(format!("`{by}` saw what `{writer}` was told did not happen"));
        }
        if writer.begun_us > by.ended_us {
            return Err(format!("`{by}` saw what `{writer}` asked for later"));
        }
        let revision = *self.revisions[number].get_or_insert(seen.mod_revision);
        if revision != seen.mod_revision {
            return Err(format!(
                "`{by}` saw in {key} at revision {} what `{writer}` wrote at {revision}: it happened twice",
                seen.mod_revision
            ));
        }
        let version = *self.versions.entry((number, key)).or_insert(seen.version);
        if version != seen.version {
            return Err(format!(
                "`{by}` saw version {} of {key} where `{writer}` made version {version}",
                seen.version
            ));
        }
        Ok(())
    }

    fn revisions_are_unique(&self) -> Result<(), String> {
        let mut owners: HashMap<i64, usize> = HashMap::new();
        for (number, revision) in self.revisions.iter().enumerate() {
            let Some(revision) = revision else { continue };
            if let Some(other) = owners.insert(*revision, number) {
                let (one, two) = (&self.operations[other], &self.operations[number]);
                return Err(format!("`{one}` and `{two}` both have revision {revision}"));
            }
        }
        Ok(())
    }

    /// What was told before a request began bounds what the request may be told.
    fn revisions_never_fall(&self) -> Result<(), String> {
        let told = |number: &usize| self.operations[*number].answer().map(|answer| answer.revision);
        let mut by_end: Vec<usize> = (0..self.operations.len()).filter(|number| told(number).is_some()).collect();
        by_end.sort_by_key(|number| self.operations[*number].ended_us);
        let mut by_begin: Vec<usize> = (0..self.operations.len()).collect();
        by_begin.sort_by_key(|number| self.operations[*number].begun_us);
        let mut ended = by_end.into_iter().peekable();
        let mut highest: Option<(i64, usize)> = None;
        for number in by_begin {
            let operation = &self.operations[number];
            while let Some(before) = ended.next_if(|before| self.operations[*before].ended_us < operation.begun_us) {
                highest = highest.max(told(&before).map(|revision| (revision, before)));
            }
            let Some((bound, before)) = highest else { continue };
            let before = &self.operations[before];
            match (self.revisions[number], told(&number)) {
                (Some(wrote), _) if wrote <= bound => {
                    return Err(format!(
                        "`{operation}` wrote at revision {wrote}, not after `{before}`, which had ended"
                    ));
                }
                (None, Some(read)) if read < bound => {
                    return Err(format!("`{operation}` read a revision below that of `{before}`, which had ended"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What was seen of a key is the newest known write up to the revision at which it was seen.
    fn is_newest(&self, by: &Operation, key: &str, seen: &Option<Seen>) -> Result<(), String> {
        let at = by.answer().map_or(0, |answer| answer.revision - i64::from(answer.wrote));
        if let Some(seen) = seen
            && seen.mod_revision > at
        {
            return Err(format!("`{by}` saw revision {} of {key} at revision {at}", seen.mod_revision));
        }
        let newest = self.known.get(key).and_then(|known| known.range(..=at).next_back());
        let Some((revision, writer)) = newest else { return Ok(()) };
        let writer = &self.operations[*writer];
        let is_deleted = writer.request.effects().iter().any(|(name, value)| *name == key && value.is_none());
        match seen {
            Some(seen) if seen.mod_revision != *revision => {
                Err(format!("`{by}` saw {seen} in {key} though `{writer}` had changed it at revision {revision}"))
            }
            None if !is_deleted && !self.may_be_deleted(key, by) => {
                Err(format!("`{by}` saw nothing in {key} though `{writer}` had written it at revision {revision}"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether a delete whose outcome nobody knows may explain that `by` saw nothing.
    fn may_be_deleted(&self, key: &str, by: &Operation) -> bool {
        self.operations.iter().any(|operation| {
            let is_delete = matches!(&operation.request, Request::Delete { key: deleted } if deleted == key);
            is_delete && operation.is_unknown() && operation.begun_us <= by.ended_us
        })
    }
}

/// The keys of an answered operation and what it saw in them.
pub(crate) fn seen_of(operation: &Operation) -> impl Iterator<Item = (&str, &Option<Seen>)> {
    let seen = operation.answer().map_or(&[][..], |answer| &answer.seen);
    operation.request.keys().into_iter().zip(seen)
}

/// An update writes if and only if the key is at the revision it expects.
fn update_fits(operation: &Operation) -> Result<(), String> {
    let Request::Update { expected, .. } = &operation.request else { return Ok(()) };
    let Some(Answer { wrote, seen, .. }) = operation.answer() else { return Ok(()) };
    let found = seen.first().and_then(Option::as_ref).map_or(0, |seen| seen.mod_revision);
    match (found == *expected, wrote) {
        (true, true) | (false, false) => Ok(()),
        (true, false) => Err(format!("`{operation}` was turned down though the key was at revision {expected}")),
        (false, true) => Err(format!("`{operation}` wrote though the key was at revision {found}")),
    }
}
