//! Whether a history of requests could have happened one request after the other, each at a moment between its beginning
//! and its end.
//!
//! Keys are independent, so each is searched by itself (Wing and Gong's search with Lowe's memory of states that were
//! tried: "Testing for linearizability", 2017). Requests whose outcome nobody knows may happen at any time after their
//! beginning, or never. Two things keep the search short:
//!
//! - Writes of a key happen in the order of their revisions, so that of all writes whose revision is known only one can
//!   be next.
//! - A write whose outcome is unknown and whose value nobody saw is left out. Every answer tells what the key held, so
//!   had it mattered to one, it would have been seen. Deletes leave nothing to see and stay in; those of one key are
//!   alike and are tried in the order in which they began.
//!
//! The rules of [`crate::revisions`] run first: they name the two lines that contradict each other.

use std::collections::{BTreeSet, HashSet};

use crate::history::{History, Operation};
use crate::revisions::{Writes, seen_of};

/// The revision that stands for a key that holds nothing.
const NOTHING: i64 = 0;

/// # Errors
/// A sentence that says what contradicts what.
pub fn check(history: &History) -> Result<(), String> {
    let writes = Writes::of(&history.operations)?;
    writes.check()?;
    search_all(&history.operations, &writes)
}

fn search_all(operations: &[Operation], writes: &Writes<'_>) -> Result<(), String> {
    let keys: BTreeSet<&str> = operations.iter().flat_map(|operation| operation.request.keys()).collect();
    keys.into_iter().try_for_each(|key| Search::new(key, operations, writes).run())
}

/// What an operation does to one key.
#[derive(Clone, Copy)]
enum Effect {
    Read,
    /// The write with this rank among the key's writes of known revisions.
    Put {
        rank: usize,
        revision: i64,
    },
    Delete {
        rank: usize,
    },
    /// Nobody knows whether and when.
    PerhapsDelete,
}

struct Step<'a> {
    operation: &'a Operation,
    effect: Effect,
    /// The revision of what it saw, where it was told.
    saw: Option<i64>,
}

/// What the key holds, by its mod revision, and how many of its known writes have happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    holds: i64,
    writes: usize,
}

/// Which steps have been taken, a bit each.
type Taken = Vec<u64>;

struct Search<'a> {
    key: &'a str,
    steps: Vec<Step<'a>>,
    /// Beginnings and ends in the order of time. An unknown outcome has no end.
    moments: Vec<Moment>,
    /// The list of moments not yet dealt with: neighbours of each, with a head at 0 and a tail behind the last.
    next: Vec<usize>,
    previous: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Moment {
    step: usize,
    is_end: bool,
    /// Of a beginning: where its end is.
    end: Option<usize>,
}

/// The farthest the search came: the step that could not be taken, and what the key held then.
struct Stuck {
    taken: usize,
    step: usize,
    holds: i64,
}

impl<'a> Search<'a> {
    fn new(key: &'a str, operations: &'a [Operation], writes: &Writes<'_>) -> Search<'a> {
        let ranks = writes.ranks(key);
        let mut steps = Vec::new();
        for (number, operation) in operations.iter().enumerate() {
            if !operation.request.keys().contains(&key) {
                continue;
            }
            let effects = operation.request.effects();
            let is_delete = effects.iter().any(|(name, value)| *name == key && value.is_none());
            let effect = match (operation.answer(), writes.revision(number), is_delete) {
                (_, Some(revision), false) => Effect::Put { rank: ranks[&number], revision },
                (Some(_), Some(_), true) => Effect::Delete { rank: ranks[&number] },
                (Some(_), None, _) => Effect::Read,
                (None, _, true) if operation.is_unknown() => Effect::PerhapsDelete,
                (None, _, _) => continue,
            };
            let seen = seen_of(operation).find(|(name, _)| *name == key);
            let saw = seen.map(|(_, seen)| seen.as_ref().map_or(NOTHING, |seen| seen.mod_revision));
            steps.push(Step { operation, effect, saw });
        }
        let moments = moments_of(&steps);
        let count = moments.len();
        let next = (0..=count + 1).map(|place| place + 1).collect();
        let previous = (0..=count + 1).map(|place| place.saturating_sub(1)).collect();
        Search { key, steps, moments, next, previous }
    }

    fn run(mut self) -> Result<(), String> {
        let tail = self.moments.len() + 1;
        let mut taken: Taken = vec![0; self.steps.len().div_ceil(64)];
        let mut state = State { holds: NOTHING, writes: 0 };
        let mut tried: HashSet<(Taken, State)> = HashSet::new();
        let mut path: Vec<(usize, State)> = Vec::new();
        let mut stuck: Option<Stuck> = None;
        let mut place = self.next[0];
        loop {
            if place == tail {
                // No end is left: what remains are unknown outcomes, which may never happen.
                return Ok(());
            }
            let moment = self.moments[place - 1];
            if !moment.is_end {
                let (word, bit) = (moment.step / 64, 1 << (moment.step % 64));
                let after = self.after(moment.step, state, &taken);
                taken[word] |= bit;
                if let Some(after) = after
                    && tried.insert((taken.clone(), after))
                {
                    path.push((place, state));
                    state = after;
                    self.lift(place);
                    place = self.next[0];
                } else {
                    taken[word] &= !bit;
                    place = self.next[place];
                }
                continue;
            }
            if stuck.as_ref().is_none_or(|stuck| stuck.taken < path.len()) {
                stuck = Some(Stuck { taken: path.len(), step: moment.step, holds: state.holds });
            }
            // A read that fits changes nothing: where the search fails behind it, it fails without it too.
            let choice = loop {
                let Some((back, before)) = path.pop() else { break None };
                let step = self.moments[back - 1].step;
                taken[step / 64] &= !(1 << (step % 64));
                state = before;
                self.unlift(back);
                if !matches!(self.steps[step].effect, Effect::Read) {
                    break Some(back);
                }
            };
            let Some(back) = choice else { return Err(self.explain(stuck)) };
            place = self.next[back];
        }
    }

    /// The state after a step, or `None` when it can't be taken now.
    fn after(&self, step: usize, state: State, taken: &Taken) -> Option<State> {
        let Step { effect, saw, .. } = &self.steps[step];
        if saw.is_some_and(|saw| saw != state.holds) {
            return None;
        }
        match *effect {
            Effect::Read => Some(state),
            Effect::Put { rank, revision } => {
                (rank == state.writes).then_some(State { holds: revision, writes: rank + 1 })
            }
            Effect::Delete { rank } => (rank == state.writes).then_some(State { holds: NOTHING, writes: rank + 1 }),
            Effect::PerhapsDelete => {
                let is_untaken = |other: usize| taken[other / 64] & (1 << (other % 64)) == 0;
                let begun = |other: usize| (self.steps[other].operation.begun_us, other);
                let waits = (0..self.steps.len()).any(|other| {
                    matches!(self.steps[other].effect, Effect::PerhapsDelete)
                        && is_untaken(other)
                        && begun(other) < begun(step)
                });
                (state.holds != NOTHING && !waits).then_some(State { holds: NOTHING, ..state })
            }
        }
    }

    /// Takes a beginning and its end off the list.
    fn lift(&mut self, place: usize) {
        for place in [Some(place), self.moments[place - 1].end].into_iter().flatten() {
            let (before, after) = (self.previous[place], self.next[place]);
            self.next[before] = after;
            self.previous[after] = before;
        }
    }

    /// Puts back what [`Search::lift`] took, which must have been the last.
    fn unlift(&mut self, place: usize) {
        for place in [self.moments[place - 1].end, Some(place)].into_iter().flatten() {
            let (before, after) = (self.previous[place], self.next[place]);
            self.next[before] = place;
            self.previous[after] = place;
        }
    }

    fn explain(&self, stuck: Option<Stuck>) -> String {
        let key = self.key;
        let Some(Stuck { step, holds, .. }) = stuck else { return format!("key {key}: no order explains it") };
        let held_by = |step: &&Step<'_>| matches!(step.effect, Effect::Put { revision, .. } if revision == holds);
        let held = match self.steps.iter().find(held_by) {
            Some(step) => format!("held what `{}` wrote", step.operation),
            None => "held nothing".to_owned(),
        };
        format!(
            "key {key}: `{}` fits nowhere: when it had to happen at the latest, the key {held}",
            self.steps[step].operation
        )
    }
}

/// Beginnings and ends in the order of time; at one moment beginnings come first, since they may overlap.
fn moments_of(steps: &[Step<'_>]) -> Vec<Moment> {
    let mut times = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        times.push((step.operation.begun_us, false, number));
        if !step.operation.is_unknown() {
            times.push((step.operation.ended_us, true, number));
        }
    }
    times.sort_unstable();
    let mut moments: Vec<Moment> =
        times.iter().map(|(_, is_end, step)| Moment { step: *step, is_end: *is_end, end: None }).collect();
    let mut ends = vec![None; steps.len()];
    for (place, moment) in moments.iter().enumerate().filter(|(_, moment)| moment.is_end) {
        // Places are counted from 1: the head of the list is 0.
        ends[moment.step] = Some(place + 1);
    }
    for moment in moments.iter_mut().filter(|moment| !moment.is_end) {
        moment.end = ends[moment.step];
    }
    moments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::golden;

    /// What the rules and the search together say of a history, and the search alone.
    fn judged(text: &str) -> String {
        let history = History::parse(text).unwrap();
        let searched = Writes::of(&history.operations).map(|writes| search_all(&history.operations, &writes));
        let said = |result: Result<(), String>| result.err().unwrap_or_else(|| "it can be".to_owned());
        match searched {
            Ok(searched) => format!("{}\nthe search alone: {}\n", said(check(&history)), said(searched)),
            Err(contradiction) => format!("{contradiction}\n"),
        }
    }

    #[test]
    fn histories_are_judged_as_their_files_say() {
        golden("requests", judged);
    }

    /// A search without a memory would try each order of the readers.
    #[test]
    fn many_requests_beside_each_other_are_searched_quickly() {
        let mut text = String::from("c0 n1 0..1 put a=0 -> @2 wrote none\n");
        for client in 1..=60 {
            text += &format!("c{client} n1 2..900 get a -> @2 read 0@2#1\n");
            text += &format!("c{client} n1 3..4 delete a -> unknown late\n");
            text += &format!("c{client} n1 5..6 put a={client} -> unknown late\n");
        }
        assert_eq!(judged(&text), "it can be\nthe search alone: it can be\n");
        text += "c99 n1 901..902 get a -> @70 read none\nc99 n1 903..904 get a -> @70 read 0@2#1\n";
        let held_nothing = "key a: `c99 n1 903..904 get a -> @70 read 0@2#1` fits nowhere: when it had to happen at the \
                            latest, the key held nothing";
        assert_eq!(judged(&text), format!("{held_nothing}\nthe search alone: {held_nothing}\n"));
    }
}
