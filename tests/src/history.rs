//! What clients of a cluster asked and were told, and when: the material of the checkers, and its text.
//!
//! A history is written one operation, event or notice a line, so that the file a failing run leaves and the histories
//! in the tests of the checkers are the same language:
//!
//! ```text
//! c1 n2 0..10 put a=1 b=2 -> @2 wrote none none       the keys held nothing before; the write has revision 2
//! c2 n1 5..20 get a -> @2 read 1@2#1                  value 1, mod revision 2, version 1, seen at revision 2
//! c1 n2 21..30 update a@2=3 -> @3 wrote 1@2#1         put if the mod revision is 2
//! c2 n1 31..40 update a@2=4 -> @3 read 3@3#2          it was not
//! c1 n2 41..50 delete a -> unknown timed out          it may happen at any time after 41, or never
//! past a=1@2#1                                        an event of the store's own history
//! w1 asks n2 for a* from 2                            a watcher of a prefix
//! w1 created @3
//! w1 events @3 a=1@2#1 b=2@2#1                        one response and its header's revision
//! w1 progress @3
//! w1 lost stream closed
//! ```
//!
//! Times are microseconds of one clock. Every value is written once, so that it names its write. A key is absent at the
//! beginning.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// A value as an answer or event shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    pub value: String,
    pub mod_revision: i64,
    pub version: i64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    Get {
        key: String,
    },
    /// Puts of some keys at once.
    Put {
        pairs: Vec<(String, String)>,
    },
    Delete {
        key: String,
    },
    /// A put if the key's mod revision is `expected`, else a get.
    Update {
        key: String,
        expected: i64,
        value: String,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The header's. A write has it as its own.
    pub revision: i64,
    pub wrote: bool,
    /// What each key of the request held: before a write, or when it was read.
    pub seen: Vec<Option<Seen>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Answered(Answer),
    /// It did not happen and never will.
    Refused(String),
    /// It may happen at any moment after it began, or never.
    Unknown(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    pub client: usize,
    pub member: usize,
    pub begun_us: u64,
    pub ended_us: u64,
    pub request: Request,
    pub outcome: Outcome,
}

/// A change of a key. No value: the key was deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub key: String,
    pub value: Option<String>,
    pub mod_revision: i64,
    pub version: i64,
}

/// What a watcher asked for and was told, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A new stream, to `member`. From revision 0 means from now on.
    Asks {
        member: usize,
        keys: Keys,
        from: i64,
    },
    Created {
        revision: i64,
    },
    Events {
        revision: i64,
        events: Vec<Event>,
    },
    Progress {
        revision: i64,
    },
    Lost {
        reason: String,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Keys {
    One(String),
    Prefix(String),
}

impl Keys {
    pub fn contain(&self, key: &str) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    pub operations: Vec<Operation>,
    /// All events of the store, as it tells them when all is over.
    pub past: Vec<Event>,
    pub watchers: BTreeMap<String, Vec<Notice>>,
}

impl Request {
    pub fn keys(&self) -> Vec<&str> {
        match self {
            Request::Get { key } | Request::Delete { key } | Request::Update { key, .. } => vec![key],
            Request::Put { pairs } => pairs.iter().map(|(key, _)| key.as_str()).collect(),
        }
    }

    /// What each key holds once the request has written. Empty for a get.
    pub fn effects(&self) -> Vec<(&str, Option<&str>)> {
        match self {
            Request::Get { .. } => Vec::new(),
            Request::Put { pairs } => pairs.iter().map(|(key, value)| (key.as_str(), Some(value.as_str()))).collect(),
            Request::Delete { key } => vec![(key, None)],
            Request::Update { key, value, .. } => vec![(key, Some(value))],
        }
    }
}

impl Operation {
    pub fn answer(&self) -> Option<&Answer> {
        match &self.outcome {
            Outcome::Answered(answer) => Some(answer),
            Outcome::Refused(_) | Outcome::Unknown(_) => None,
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Unknown(_))
    }

    /// Whether it wrote or may have.
    pub fn may_write(&self) -> bool {
        match &self.outcome {
            Outcome::Answered(answer) => answer.wrote,
            Outcome::Refused(_) => false,
            Outcome::Unknown(_) => !matches!(self.request, Request::Get { .. }),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}#{}", self.value, self.mod_revision, self.version)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={value}@{}#{}", self.key, self.mod_revision, self.version),
            None => write!(f, "{}-@{}", self.key, self.mod_revision),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Get { key } => write!(f, "get {key}"),
            Request::Put { pairs } => {
                f.write_str("put")?;
                pairs.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
            }
            Request::Delete { key } => write!(f, "delete {key}"),
            Request::Update { key, expected, value } => write!(f, "update {key}@{expected}={value}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { client, member, begun_us, ended_us, request, outcome } = self;
        write!(f, "c{client} n{member} {begun_us}..{ended_us} {request} -> ")?;
        match outcome {
            Outcome::Refused(reason) => write!(f, "refused {reason}"),
            Outcome::Unknown(reason) => write!(f, "unknown {reason}"),
            Outcome::Answered(Answer { revision, wrote, seen }) => {
                write!(f, "@{revision} {}", if *wrote { "wrote" } else { "read" })?;
                seen.iter().try_for_each(|seen| match seen {
                    Some(seen) => write!(f, " {seen}"),
                    None => f.write_str(" none"),
                })
            }
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Asks { member, keys: Keys::One(key), from } => write!(f, "asks n{member} for {key} from {from}"),
            Notice::Asks { member, keys: Keys::Prefix(prefix), from } => {
                write!(f, "asks n{member} for {prefix}* from {from}")
            }
            Notice::Created { revision } => write!(f, "created @{revision}"),
            Notice::Events { revision, events } => {
                write!(f, "events @{revision}")?;
                events.iter().try_for_each(|event| write!(f, " {event}"))
            }
            Notice::Progress { revision } => write!(f, "progress @{revision}"),
            Notice::Lost { reason } => write!(f, "lost {reason}"),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operations.iter().try_for_each(|operation| writeln!(f, "{operation}"))?;
        self.past.iter().try_for_each(|event| writeln!(f, "past {event}"))?;
        for (name, notices) in &self.watchers {
            notices.iter().try_for_each(|notice| writeln!(f, "{name} {notice}"))?;
        }
        Ok(())
    }
}

impl History {
    /// Writes the history where a failing run can point to.
    pub fn save(&self, path: &Path) {
        let directory = path.parent().expect("a history has a name in a directory");
        std::fs::create_dir_all(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        std::fs::write(path, self.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Reads what [`History::save`] wrote.
    ///
    /// # Errors
    /// The first line that is no line of a history.
    pub fn parse(text: &str) -> Result<History, String> {
        let mut history = History::default();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            history.parse_line(line).ok_or_else(|| format!("no line of a history: {line}"))?;
        }
        Ok(history)
    }

    fn parse_line(&mut self, line: &str) -> Option<()> {
        let (name, rest) = line.split_once(' ')?;
        if name == "past" {
            self.past.push(parse_event(rest)?);
        } else if name.starts_with('w') {
            self.watchers.entry(name.to_owned()).or_default().push(parse_notice(rest)?);
        } else {
            self.operations.push(parse_operation(name, rest)?);
        }
        Some(())
    }
}

fn parse_operation(client: &str, rest: &str) -> Option<Operation> {
    let (asked, told) = rest.split_once(" -> ")?;
    let (member, asked) = asked.split_once(' ')?;
    let (times, request) = asked.split_once(' ')?;
    let (begun, ended) = times.split_once("..")?;
    Some(Operation {
        client: client.strip_prefix('c')?.parse().ok()?,
        member: member.strip_prefix('n')?.parse().ok()?,
        begun_us: begun.parse().ok()?,
        ended_us: ended.parse().ok()?,
        request: parse_request(request)?,
        outcome: parse_outcome(told)?,
    })
}

fn parse_request(text: &str) -> Option<Request> {
    let (verb, rest) = text.split_once(' ')?;
    let key = rest.to_owned();
    Some(match verb {
        "get" => Request::Get { key },
        "delete" => Request::Delete { key },
        "put" => {
            let pairs = rest.split(' ').map(|pair| pair.split_once('='));
            let pairs = pairs.map(|pair| pair.map(|(key, value)| (key.to_owned(), value.to_owned())));
            Request::Put { pairs: pairs.collect::<Option<_>>()? }
        }
        "update" => {
            let (compare, value) = rest.split_once('=')?;
            let (key, expected) = compare.split_once('@')?;
            Request::Update { key: key.to_owned(), expected: expected.parse().ok()?, value: value.to_owned() }
        }
        _ => return None,
    })
}

fn parse_outcome(text: &str) -> Option<Outcome> {
    let (first, rest) = text.split_once(' ').unwrap_or((text, ""));
    Some(match first {
        "refused" => Outcome::Refused(rest.to_owned()),
        "unknown" => Outcome::Unknown(rest.to_owned()),
        _ => {
            let mut words = rest.split(' ');
            let wrote = match words.next()? {
                "wrote" => true,
                "read" => false,
                _ => return None,
            };
            let seen = words.map(|word| match word {
                "none" => Some(None),
                word => parse_seen(word).map(Some),
            });
            let seen = seen.collect::<Option<_>>()?;
            Outcome::Answered(Answer { revision: parse_revision(first)?, wrote, seen })
        }
    })
}

fn parse_seen(text: &str) -> Option<Seen> {
    let (value, numbers) = text.split_once('@')?;
    let (mod_revision, version) = numbers.split_once('#')?;
    Some(Seen { value: value.to_owned(), mod_revision: mod_revision.parse().ok()?, version: version.parse().ok()? })
}

fn parse_revision(text: &str) -> Option<i64> {
    text.strip_prefix('@')?.parse().ok()
}

fn parse_event(text: &str) -> Option<Event> {
    let Some((key, seen)) = text.split_once('=') else {
        let (key, mod_revision) = text.split_once("-@")?;
        return Some(Event { key: key.to_owned(), value: None, mod_revision: mod_revision.parse().ok()?, version: 0 });
    };
    let Seen { value, mod_revision, version } = parse_seen(seen)?;
    Some(Event { key: key.to_owned(), value: Some(value), mod_revision, version })
}

fn parse_notice(text: &str) -> Option<Notice> {
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    Some(match verb {
        "asks" => {
            let (member, rest) = rest.strip_prefix('n')?.split_once(" for ")?;
            let (keys, from) = rest.split_once(" from ")?;
            let keys = match keys.strip_suffix('*') {
                Some(prefix) => Keys::Prefix(prefix.to_owned()),
                None => Keys::One(keys.to_owned()),
            };
            Notice::Asks { member: member.parse().ok()?, keys, from: from.parse().ok()? }
        }
        "created" => Notice::Created { revision: parse_revision(rest)? },
        "progress" => Notice::Progress { revision: parse_revision(rest)? },
        "lost" => Notice::Lost { reason: rest.to_owned() },
        "events" => {
            let (revision, events) = rest.split_once(' ')?;
            let events = events.split(' ').map(parse_event).collect::<Option<_>>()?;
            Notice::Events { revision: parse_revision(revision)?, events }
        }
        _ => return None,
    })
}

/// Runs `judge` on each history below `tests/histories/<folder>` and compares with what stands behind its `---`.
/// `UPDATE_GOLDENFILES=1` writes that anew.
#[cfg(test)]
pub(crate) fn golden(folder: &str, judge: impl Fn(&str) -> String) {
    let folder = crate::subject::workspace().join("tests/histories").join(folder);
    let mut problems = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the folder of histories is there") {
        let path = entry.expect("a directory can be listed").path();
        let text = std::fs::read_to_string(&path).expect("a history is text");
        let (history, expected) = text.split_once("---\n").expect("a file has --- behind its history");
        let judged = judge(history);
        if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
            std::fs::write(&path, format!("{history}---\n{judged}")).expect("the folder is writable");
        } else if judged != expected {
            problems.push(format!("{}: expected\n{expected}found\n{judged}", path.display()));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let text = "\
c1 n2 0..10 put a=1 b=2 -> @2 wrote none none
c2 n1 5..20 get a -> @2 read 1@2#1
c1 n2 21..30 update a@2=3 -> @3 wrote 1@2#1
c2 n1 31..40 delete b -> unknown timed out
c2 n1 41..50 put a=9 -> refused no space
past a=1@2#1
past b-@4
w1 asks n2 for a* from 2
w1 created @3
w1 events @3 a=1@2#1 b=2@2#1
w1 progress @3
w1 lost stream closed
w2 asks n1 for a from 0
";
        assert_eq!(History::parse(text).map(|history| history.to_string()).as_deref(), Ok(text));
        assert_eq!(History::parse("c1 n1 0..9 put a").unwrap_err(), "no line of a history: c1 n1 0..9 put a");
    }
}
