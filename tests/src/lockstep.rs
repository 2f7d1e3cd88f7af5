//! Two servers answer one script side by side; the first difference ends it.

#![allow(clippy::result_large_err, reason = "a difference ends the run; its size costs nothing")]

use std::fmt;
use std::time::Duration;

use crate::clock::Deadline;
use crate::script::{Script, Step};
use crate::side::Side;
use crate::subject::Subject;

/// Events that do not come within this time do not come.
const EVENTS_WAIT: Duration = Duration::from_secs(5);
const EVENTS_POLL: Duration = Duration::from_millis(2);
/// etcd looks after watchers that start in the past every 100 ms (its sync loop).
const CATCH_UP: Duration = Duration::from_millis(220);

/// What a script found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub script: String,
    pub number: usize,
    pub line: String,
    pub got: String,
    /// Who says otherwise: "etcd", or "the script about kuorum".
    pub by: String,
    pub wanted: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}:{}: {}\n  answered: {}\n  {}: {}",
            self.script,
            self.number,
            self.line,
            self.got.replace('\n', "\n            "),
            self.by,
            self.wanted.replace('\n', "\n            ")
        )
    }
}

/// The server under test and, unless the script kills it, the real etcd.
pub struct Pair {
    pub subject: Side,
    pub etcd: Option<Side>,
    /// Silence after which no more events are expected; zero where later steps will see them.
    pub quiet: Duration,
    /// Whether a watcher may still be catching up, or be about to hear that its start is compacted.
    catches_up: bool,
}

impl Pair {
    pub async fn started(subject: &Subject, flags: &[&str]) -> Pair {
        let etcd = Subject::etcd();
        let (subject, etcd) = tokio::join!(Side::started(subject, flags), Side::started(&etcd, flags));
        Pair { subject, etcd: Some(etcd), quiet: Duration::ZERO, catches_up: false }
    }

    pub async fn subject_only(subject: &Subject, flags: &[&str]) -> Pair {
        Pair { subject: Side::started(subject, flags).await, etcd: None, quiet: Duration::ZERO, catches_up: false }
    }

    /// Runs a script from an empty store.
    pub async fn run(&mut self, script: &Script) -> Result<(), Difference> {
        match &mut self.etcd {
            None => self.subject.begin().await,
            Some(etcd) => {
                tokio::join!(self.subject.begin(), etcd.begin());
            }
        }
        for step in &script.steps {
            self.step(&script.name, step).await?;
        }
        Ok(())
    }

    async fn step(&mut self, script: &str, step: &Step) -> Result<(), Difference> {
        let verb = step.line.split_whitespace().next().unwrap_or_default();
        if verb == "events" {
            let stream = step.line.split_whitespace().nth(1).unwrap_or("*").to_owned();
            let result = self.settle(script, step, &stream).await;
            self.subject.clear_events(&stream);
            if let Some(etcd) = &mut self.etcd {
                etcd.clear_events(&stream);
            }
            return result;
        }
        // What a watcher still catches up with depends on the moment of these two.
        if matches!(verb, "compact" | "cancel") && self.subject.has_streams() && self.etcd.is_some() {
            if std::mem::take(&mut self.catches_up) {
                tokio::time::sleep(CATCH_UP).await;
            }
            let before =
                Step { line: format!("(events before) {}", step.line), number: step.number, ..Step::default() };
            self.settle(script, &before, "*").await?;
        }
        self.catches_up |= verb == "watch" && step.line.contains(" rev=");
        let (got, etcds) = match &mut self.etcd {
            None => (self.subject.answer(&step.line).await, None),
            Some(etcd) => {
                let (got, etcds) = tokio::join!(self.subject.answer(&step.line), etcd.answer(&step.line));
                (got, Some(etcds))
            }
        };
        self.judge(script, step, &got, etcds.as_deref())
    }

    /// Waits until the events are the same and those that the script names.
    async fn settle(&mut self, script: &str, step: &Step, stream: &str) -> Result<(), Difference> {
        let deadline = Deadline::after(EVENTS_WAIT);
        let mut is_second_look = self.quiet.is_zero();
        loop {
            let got = self.subject.events(stream);
            let etcds = self.etcd.as_mut().map(|etcd| etcd.events(stream));
            let verdict = self.judge(script, step, &got, etcds.as_deref());
            match verdict {
                Ok(()) if is_second_look => return Ok(()),
                Ok(()) => {
                    tokio::time::sleep(self.quiet).await;
                    is_second_look = true;
                    continue;
                }
                Err(difference) if deadline.has_passed() => return Err(difference),
                Err(_) => tokio::time::sleep(EVENTS_POLL).await,
            }
        }
    }

    fn judge(&self, script: &str, step: &Step, got: &str, etcds: Option<&str>) -> Result<(), Difference> {
        let differ = |got: &str, by: String, wanted: &str| match got == wanted {
            true => Ok(()),
            false => Err(Difference {
                script: script.to_owned(),
                number: step.number,
                line: step.line.clone(),
                got: got.to_owned(),
                by,
                wanted: wanted.to_owned(),
            }),
        };
        let name = self.subject.member.subject.name;
        if let Some(wrong) = &step.etcds {
            if let Some(etcds) = etcds {
                differ(etcds, "the script about etcd".to_owned(), wrong)?;
            }
            let wanted = match self.subject.member.subject.is_etcd {
                true => wrong.as_str(),
                false => step.ours.as_deref().unwrap_or(wrong),
            };
            return differ(got, format!("the script about {name}"), wanted);
        }
        if let Some(etcds) = etcds {
            differ(got, "etcd".to_owned(), etcds)?;
        }
        match &step.ours {
            Some(ours) => differ(got, format!("the script about {name}"), ours),
            None => Ok(()),
        }
    }
}
