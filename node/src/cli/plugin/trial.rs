//! `test`: asks a component what a node would ask it, in the host that nodes have.
//!
//! Each question is asked in two new instances and in one that has answered all of them before. A node keeps instances of
//! admission warm and drops them when it likes, and members have their own: where answers differ, what a client is told is a
//! matter of luck. A plugin that means it (a rate is such) has to be tested by its author's own tests.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use serde_json::{Value, json};

use super::arguments::{Output, Test};
use super::load::read;
use super::output;
use super::questions::{AdmissionCase, CompactionCase, Questions};
use crate::plugin::{
    AskedLimits, Compiler, Failure, FieldProblem, Host, Judged, Kind, Manifest, Plan, PrepareError, Prepared, Revision,
    Spent, Trial, Urgency, Verdict, stated,
};
use crate::trace::{self, Level, LogConfig, LogFormat, LogOutput};

/// Letters of a verdict in a table.
const SHOWN_CHARS_MAX: usize = 72;

/// An answer as it is shown and compared, and what it cost.
struct Answer {
    text: String,
    failed: bool,
    spent: Spent,
}

/// One question with its three answers.
struct Asked {
    kind: Kind,
    title: String,
    expect: Option<String>,
    fresh: [Answer; 2],
    warm: Answer,
}

pub(super) fn test(output: Output, test: &Test) -> anyhow::Result<bool> {
    let component = read(&test.component)?;
    let shown = test.component.display();
    let (manifest, kinds) = stated(&component).map_err(|problem| anyhow!("{shown}: {problem}"))?;
    let questions = match &test.questions {
        None => Questions::suggested(&manifest, &kinds),
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            serde_json::from_str(&text).with_context(|| path.display().to_string())?
        }
    };
    let config = test.config.text()?;
    let scratch = Scratch::new()?;
    // The node's lines about compiling are not for authors.
    trace::init(&LogConfig { level: Level::Warn, format: LogFormat::Console, outputs: vec![LogOutput::Stderr] })?;
    let host = Host::start(&scratch.0, Compiler::own(), Arc::new(questions.stored()));
    let host = host.map_err(|problem| anyhow!(problem))?;
    let prepared = match host.prepare(&revision(&manifest, component, config)) {
        Ok(prepared) => prepared,
        Err(PrepareError::Config(problems)) => return Ok(refuse_config(&problems)),
        Err(other) => return Err(anyhow!("{shown}: {other}")),
    };
    let asked = ask_all(&prepared, &questions).map_err(|failure| anyhow!("the plugin does not start: {failure}"))?;
    Ok(report(output, &manifest, &kinds, &asked))
}

/// As an operator would load it who grants all that it asks for.
fn revision(manifest: &Manifest, component: Bytes, config: String) -> Revision {
    Revision {
        name: manifest.name.clone(),
        number: 1,
        component,
        config: if config.is_empty() { "{}".to_owned() } else { config },
        grants: manifest.kv_read.iter().map(|prefix| prefix.0.clone()).collect(),
        limits: AskedLimits::default(),
        urgency: Urgency::Now,
    }
}

/// Says what is wrong, a line for each field.
fn refuse_config(problems: &[FieldProblem]) -> bool {
    for FieldProblem { path, message } in problems {
        let place = if path.is_empty() { "." } else { path };
        output::say(&format!("kuorum plugin test: the plugin does not take its configuration: {place}: {message}"));
    }
    false
}

/// A directory for compiled code, gone afterwards.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Scratch> {
        let path = std::env::temp_dir().join(format!("kuorum-plugin-test-{}", std::process::id()));
        // Nobody else may have put code there, which would be run.
        fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| path.display().to_string())?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed is a file in the directory of temporary files.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// What may be asked of an instance, apart from what kind it is of.
enum Case<'a> {
    Admission(&'a AdmissionCase),
    Compaction(&'a CompactionCase),
}

impl Case<'_> {
    fn ask(&self, trial: &mut Trial<'_>) -> Answer {
        match self {
            Case::Admission(case) => case.with(|question| {
                if !question.ops.iter().any(|op| trial.prepared().matches(op)) {
                    return Answer::unasked();
                }
                match trial.admission(question) {
                    Ok(Judged { verdict, read_set: _, spent }) => {
                        Answer { text: verdict_text(&verdict), failed: false, spent }
                    }
                    Err(failure) => Answer::failed(&failure),
                }
            }),
            Case::Compaction(case) => match case.with(|input| trial.compaction(input)) {
                Ok(planned) => Answer { text: plan_text(&planned.plan), failed: false, spent: planned.spent },
                Err(failure) => Answer::failed(&failure),
            },
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Case::Admission(_) => Kind::Admission,
            Case::Compaction(_) => Kind::Compaction,
        }
    }

    fn title(&self) -> String {
        match self {
            Case::Admission(case) => case.title(),
            Case::Compaction(case) => case.title(),
        }
    }

    fn expect(&self) -> Option<String> {
        match self {
            Case::Admission(case) => case.expect.clone(),
            Case::Compaction(case) => case.expect.clone(),
        }
    }
}

impl Answer {
    fn unasked() -> Answer {
        let text = "not asked: no rule of its manifest matches".to_owned();
        Answer { text, failed: false, spent: Spent::default() }
    }

    fn failed(failure: &Failure) -> Answer {
        Answer { text: format!("no answer: {failure}"), failed: true, spent: Spent::default() }
    }
}

/// The error is that an instance could not be made.
fn ask_all(prepared: &Prepared, questions: &Questions) -> Result<Vec<Asked>, Failure> {
    let admission = questions.admission.iter().map(Case::Admission);
    let cases: Vec<Case<'_>> = admission.chain(questions.compaction.iter().map(Case::Compaction)).collect();
    let fresh = || cases.iter().map(|case| Ok(case.ask(&mut prepared.trial()?))).collect::<Result<Vec<_>, Failure>>();
    // What it writes to the log is shown of the first time alone.
    trace::set_level(Level::Debug);
    let first = fresh()?;
    trace::set_level(Level::Error);
    let second = fresh()?;
    let mut warm = prepared.trial()?;
    let mut ask_warm = |case: &Case<'_>| {
        let answer = case.ask(&mut warm);
        // Nobody knows what an instance is like after a trap, and a node drops it.
        if answer.failed {
            warm = prepared.trial()?;
        }
        Ok(answer)
    };
    for case in &cases {
        ask_warm(case)?;
    }
    let mut asked = Vec::with_capacity(cases.len());
    for ((case, first), second) in cases.iter().zip(first).zip(second) {
        let answer = ask_warm(case)?;
        let (kind, title, expect) = (case.kind(), case.title(), case.expect());
        asked.push(Asked { kind, title, expect, fresh: [first, second], warm: answer });
    }
    Ok(asked)
}

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Allow => "allow".to_owned(),
        Verdict::Warn(message) => format!("warn: {message}"),
        Verdict::Deny { code, message } => format!("deny {}: {message}", code.as_str()),
    }
}

fn plan_text(plan: &Plan) -> String {
    let mut text = match plan.compact_to {
        Some(revision) => format!("compact to {revision}"),
        None => "compact nothing".to_owned(),
    };
    if !plan.defragment.is_empty() {
        let members: Vec<String> = plan.defragment.iter().map(|member| format!("{member:x}")).collect();
        text.push_str(&format!(", defragment {}", members.join(" ")));
    }
    text.push_str(&format!(", again in {} ms: {}", plan.next_call_in_ms, plan.reason));
    text
}

impl Asked {
    /// What is wrong with the answers, in a sentence.
    fn problem(&self) -> Option<String> {
        let [first, second] = &self.fresh;
        if second.text != first.text {
            return Some(format!("two new instances differ: \"{}\", and then \"{}\"", first.text, second.text));
        }
        if self.warm.text != first.text {
            return Some(format!(
                "it depends on what was asked before: \"{}\" in a new instance, and \"{}\" in one that was asked before",
                first.text, self.warm.text
            ));
        }
        match &self.expect {
            Some(expected) if !first.text.starts_with(expected) => {
                Some(format!("\"{expected}\" was expected, and the answer is \"{}\"", first.text))
            }
            None if first.failed => Some(first.text.clone()),
            Some(_) | None => None,
        }
    }

    fn json(&self) -> Value {
        let microseconds = |answer: &Answer| micros(answer.spent.elapsed);
        json!({
            "kind": self.kind.as_str(),
            "question": self.title,
            "answer": self.fresh[0].text,
            "fresh_us": microseconds(&self.fresh[1]),
            "warm_us": microseconds(&self.warm),
            "fuel": self.warm.spent.fuel,
            "problem": self.problem(),
        })
    }

    fn row(&self) -> Vec<String> {
        let mut verdict: String = self.fresh[0].text.chars().take(SHOWN_CHARS_MAX).collect();
        if verdict.len() < self.fresh[0].text.len() {
            verdict.push('…');
        }
        let microseconds = |answer: &Answer| format!("{:.1}", micros(answer.spent.elapsed));
        vec![
            self.title.clone(),
            verdict,
            microseconds(&self.fresh[1]),
            microseconds(&self.warm),
            self.warm.spent.fuel.to_string(),
        ]
    }
}

fn micros(elapsed: Duration) -> f64 {
    // Tenths are enough.
    (elapsed.as_secs_f64() * 1e7).round() / 10.0
}

/// Shows what was asked, and returns whether all is well.
fn report(output: Output, manifest: &Manifest, kinds: &[Kind], asked: &[Asked]) -> bool {
    let problems: Vec<String> =
        asked.iter().filter_map(|asked| asked.problem().map(|problem| format!("{}: {problem}", asked.title))).collect();
    let passed = problems.is_empty();
    match output {
        Output::Json => output::json(&json!({
            "name": manifest.name,
            "version": manifest.version,
            "kinds": kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>(),
            "questions": asked.iter().map(Asked::json).collect::<Vec<_>>(),
            "passed": passed,
        })),
        Output::Table => {
            show(manifest, kinds, asked, passed);
            for problem in &problems {
                output::say(&format!("kuorum plugin test: {problem}"));
            }
        }
    }
    passed
}

fn show(manifest: &Manifest, kinds: &[Kind], asked: &[Asked], passed: bool) {
    output::line(&format!("{} {} starts, and takes its configuration", manifest.name, manifest.version));
    for kind in kinds.iter().filter(|kind| !kind.is_asked()) {
        output::line(&format!(
            "this release does not ask plugins about {} yet, and neither does this test",
            kind.as_str()
        ));
    }
    if asked.is_empty() {
        return;
    }
    let head = ["QUESTION", "ANSWER", "FRESH US", "WARM US", "FUEL"].map(str::to_owned).to_vec();
    output::table(std::iter::once(head).chain(asked.iter().map(Asked::row)).collect());
    if passed {
        output::line("new instances and one that was asked before answer alike");
    }
}
