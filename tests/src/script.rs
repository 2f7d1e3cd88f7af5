//! Script files: requests, and what must be answered.
//!
//! ```text
//! # The claim, in a sentence.
//! flags --watch-progress-notify-interval=200ms    servers of their own, started with these flags
//! subject-only                                    etcd does not survive this script
//! put a 1
//! = put rev=r1                                    both servers must answer this
//! txn then [delete a..; put b 1]
//! = error InvalidArgument "..."                   Kuorum's answer,
//! ! txn rev=r2 ...                                and the wrong one that etcd gives today
//! ```
//! A line that starts with a blank continues the one before. Without `=` the real etcd beside it says what is right.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    pub name: String,
    pub flags: Vec<String>,
    pub subject_only: bool,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// In the file, from 1.
    pub number: usize,
    pub line: String,
    pub ours: Option<String>,
    /// Only where etcd is wrong.
    pub etcds: Option<String>,
}

impl Script {
    pub fn of_lines<'a>(name: &str, lines: impl IntoIterator<Item = &'a str>) -> Script {
        let text: Vec<&str> = lines.into_iter().collect();
        Script::parse(name, &text.join("\n")).expect("generated lines make a script")
    }

    pub fn parse(name: &str, text: &str) -> Result<Script, String> {
        let mut script = Script { name: name.to_owned(), ..Script::default() };
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            script.add(number, line).map_err(|problem| format!("{name}:{number}: {problem}"))?;
        }
        match script.steps.is_empty() {
            true => Err(format!("{name}: no request in it")),
            false => Ok(script),
        }
    }

    fn add(&mut self, number: usize, line: &str) -> Result<(), String> {
        let trimmed = line.trim_end();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Ok(());
        }
        if let Some(flags) = trimmed.strip_prefix("flags ") {
            self.flags.extend(flags.split_whitespace().map(str::to_owned));
            return Ok(());
        }
        if trimmed == "subject-only" {
            self.subject_only = true;
            return Ok(());
        }
        let last = self.steps.last_mut();
        if trimmed.starts_with(' ') {
            let last = last.ok_or("nothing to continue")?;
            last.line.push_str(trimmed);
            return Ok(());
        }
        let expectation = |mark: &str| trimmed.strip_prefix(mark).map(str::to_owned);
        if let Some(text) = expectation("= ") {
            append(&mut last.ok_or("no request before")?.ours, &text);
            return Ok(());
        }
        if let Some(text) = expectation("! ") {
            append(&mut last.ok_or("no request before")?.etcds, &text);
            return Ok(());
        }
        self.steps.push(Step { number, line: trimmed.to_owned(), ..Step::default() });
        Ok(())
    }

    pub fn lines(&self) -> Vec<String> {
        self.steps.iter().map(|step| step.line.clone()).collect()
    }
}

fn append(expectation: &mut Option<String>, line: &str) {
    match expectation {
        None => *expectation = Some(line.to_owned()),
        Some(text) => {
            text.push('\n');
            text.push_str(line);
        }
    }
}

/// Every script of a directory, in the order of names. An empty directory is a mistake.
pub fn scripts_in(directory: &Path) -> Vec<Script> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a directory can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "no scripts in {}", directory.display());
    paths
        .iter()
        .map(|path| {
            let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            Script::parse(&name, &text).unwrap_or_else(|problem| panic!("{problem}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_has_requests_expectations_and_continuations() {
        let text = "# claim\nflags --a=b\ntxn\n  then [put a 1]\n= one\n= two\n! three\nrange a\n";
        let script = Script::parse("s", text).unwrap();
        assert_eq!(script.flags, ["--a=b"]);
        assert_eq!(script.steps[0].line, "txn  then [put a 1]");
        assert_eq!(script.steps[0].ours.as_deref(), Some("one\ntwo"));
        assert_eq!(script.steps[0].etcds.as_deref(), Some("three"));
        assert_eq!(script.steps[1].number, 8);
    }

    #[test]
    fn an_expectation_without_a_request_is_refused() {
        assert!(Script::parse("s", "= one\nput a 1\n").is_err());
        assert!(Script::parse("s", "# nothing\n").is_err());
    }
}
