//! What plugins decide and say on this member, told to whoever listens at the moment.
//!
//! Nobody waits for a listener: one that is too slow loses the oldest lines and is told how many. While nobody listens a
//! line costs one look at a number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kuorum_proto::kuorum::v1::{PluginMode, PluginTailLine, PluginTailWhat};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::{Asked, Weight};
use crate::maintenance::clock;
use crate::plugin::{Judged, Kind, LineListener, Op, Question, Spent, Verdict};

/// Lines that wait for a slow listener.
const LINES_MAX: usize = 1_024;
/// Lines in a second that say no more than that a request may pass: nobody reads more.
const ALLOWED_PER_SECOND_MAX: u32 = 200;
/// As much of a key as is shown.
const KEY_BYTES_MAX: usize = 256;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Tail(Arc<Inner>);

struct Inner {
    listeners: AtomicUsize,
    lines: broadcast::Sender<Arc<PluginTailLine>>,
    // A lock, since every shard tells lines; taken while somebody listens, for a look at two numbers and a small map.
    allowed: Mutex<Allowed>,
}

/// What was told in this second of requests that may pass.
#[derive(Default)]
struct Allowed {
    /// Since 1970.
    second: u64,
    lines: u32,
    /// By plugin, until its next line.
    left_out: BTreeMap<String, u64>,
}

impl Default for Tail {
    fn default() -> Tail {
        let (lines, _) = broadcast::channel(LINES_MAX);
        Tail(Arc::new(Inner { listeners: AtomicUsize::new(0), lines, allowed: Mutex::default() }))
    }
}

impl Tail {
    /// Whether a line would be heard by anybody.
    #[inline]
    pub(crate) fn is_heard(&self) -> bool {
        self.0.listeners.load(Ordering::Relaxed) > 0
    }

    /// Listens to what is told of a plugin from now on.
    pub(crate) fn listen(&self, plugin: String) -> Listener {
        let lines = self.0.lines.subscribe();
        self.0.listeners.fetch_add(1, Ordering::Relaxed);
        Listener { tail: self.clone(), plugin, lines, left_out: 0 }
    }

    /// A plugin of admission has answered.
    pub(crate) fn verdict(&self, asked: &Asked, question: &Question<'_>, judged: &Judged) {
        if !self.is_heard() {
            return;
        }
        let mut line = about(asked, question);
        line.what = PluginTailWhat::Verdict.into();
        spent(&mut line, judged.spent);
        match &judged.verdict {
            Verdict::Allow if !self.may_tell_allowed(&asked.name, question.ctx.now_ms / 1_000) => return,
            Verdict::Allow => say(&mut line, "allow", ""),
            Verdict::Warn(text) => say(&mut line, "warn", text),
            Verdict::Deny { code, message } => {
                say(&mut line, "deny", message);
                code.as_str().clone_into(&mut line.code);
            }
        }
        self.tell(line);
    }

    /// A plugin of admission could not be asked, or did not answer.
    pub(crate) fn unjudged(&self, asked: &Asked, question: &Question<'_>, passes: bool, failure: &str) {
        if !self.is_heard() {
            return;
        }
        let mut line = about(asked, question);
        line.what = PluginTailWhat::Failure.into();
        say(&mut line, if passes { "allow" } else { "refuse" }, failure);
        self.tell(line);
    }

    /// A plugin of compaction has made a plan, or has not; the text says which.
    pub(crate) fn plan(&self, asked: &Asked, outcome: Result<(&str, Spent), &str>) {
        if !self.is_heard() {
            return;
        }
        let mut line = of_kind(asked, Kind::Compaction, clock::unix_ms());
        let (what, text) = match outcome {
            Ok((text, used)) => {
                spent(&mut line, used);
                (PluginTailWhat::Plan, text)
            }
            Err(failure) => (PluginTailWhat::Failure, failure),
        };
        line.what = what.into();
        text.clone_into(&mut line.text);
        self.tell(line);
    }

    fn tell(&self, mut line: PluginTailLine) {
        line.left_out = self.0.allowed.lock().left_out.remove(&line.plugin).unwrap_or(0);
        // The last listener may have gone just now.
        self.0.lines.send(Arc::new(line)).ok();
    }

    fn may_tell_allowed(&self, plugin: &str, second: u64) -> bool {
        let mut allowed = self.0.allowed.lock();
        if allowed.second != second {
            (allowed.second, allowed.lines) = (second, 0);
        }
        allowed.lines += 1;
        let may = allowed.lines <= ALLOWED_PER_SECOND_MAX;
        if !may {
            *allowed.left_out.entry(plugin.to_owned()).or_default() += 1;
        }
        may
    }
}

impl LineListener for Tail {
    fn is_heard(&self) -> bool {
        Tail::is_heard(self)
    }

    fn heard(&self, plugin: &str, revision: u64, level: &'static str, text: String) {
        self.tell(PluginTailLine {
            what: PluginTailWhat::Log.into(),
            unix_ms: i64::try_from(clock::unix_ms()).unwrap_or(i64::MAX),
            plugin: plugin.to_owned(),
            revision,
            level: level.to_owned(),
            text,
            ..PluginTailLine::default()
        });
    }
}

/// Somebody who follows a plugin.
pub(crate) struct Listener {
    tail: Tail,
    plugin: String,
    lines: broadcast::Receiver<Arc<PluginTailLine>>,
    left_out: u64,
}

impl Listener {
    /// The next line; `None` when there will be none.
    pub(crate) async fn next(&mut self) -> Option<PluginTailLine> {
        loop {
            match self.lines.recv().await {
                Ok(line) if line.plugin == self.plugin => {
                    let mut line = PluginTailLine::clone(&line);
                    line.left_out += std::mem::take(&mut self.left_out);
                    return Some(line);
                }
                Ok(_) => {}
                Err(RecvError::Lagged(lines)) => self.left_out += lines,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.tail.0.listeners.fetch_sub(1, Ordering::Relaxed) == 1 {
            // What was left out concerned those who listened.
            self.tail.0.allowed.lock().left_out.clear();
        }
    }
}

fn of_kind(asked: &Asked, kind: Kind, unix_ms: u64) -> PluginTailLine {
    let mode = match asked.weight {
        Weight::Enforced => PluginMode::Enforce,
        Weight::Shadow => PluginMode::Shadow,
    };
    PluginTailLine {
        unix_ms: i64::try_from(unix_ms).unwrap_or(i64::MAX),
        plugin: asked.name.clone(),
        revision: asked.revision,
        mode: mode.into(),
        kind: kind.as_str().to_owned(),
        ..PluginTailLine::default()
    }
}

/// A line about the first operation that concerns the plugin.
fn about(asked: &Asked, question: &Question<'_>) -> PluginTailLine {
    let mut line = of_kind(asked, Kind::Admission, question.ctx.now_ms);
    let mut concerned = question.ops.iter().filter(|op| asked.concerns(op));
    if let Some(op) = concerned.next() {
        let (operation, key) = match op {
            Op::Put { key, .. } => ("put", *key),
            Op::Delete { key, range_end: None } => ("delete", *key),
            Op::Delete { key, range_end: Some(_) } => ("delete-range", *key),
            Op::LeaseGrant { .. } => ("lease-grant", &[][..]),
        };
        operation.clone_into(&mut line.operation);
        line.key = key[..key.len().min(KEY_BYTES_MAX)].to_vec().into();
        line.more_operations = u32::try_from(concerned.count()).unwrap_or(u32::MAX);
    }
    line
}

fn say(line: &mut PluginTailLine, verdict: &str, text: &str) {
    verdict.clone_into(&mut line.verdict);
    text.clone_into(&mut line.text);
}

fn spent(line: &mut PluginTailLine, Spent { elapsed, fuel }: Spent) {
    line.elapsed_us = micros(elapsed);
    line.fuel = fuel;
}

fn micros(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell(tail: &Tail, plugin: &str, text: &str) {
        tail.heard(plugin, 1, "info", text.to_owned());
    }

    #[tokio::test]
    async fn a_listener_hears_of_its_plugin_alone_and_of_what_it_was_too_slow_for() {
        let tail = Tail::default();
        assert!(!tail.is_heard());
        let mut slow = tail.listen("a".to_owned());
        assert!(tail.is_heard());
        tell(&tail, "b", "not for it");
        tell(&tail, "a", "first");
        let first = slow.next().await.unwrap();
        assert_eq!((first.text.as_str(), first.left_out), ("first", 0));
        for number in 0..LINES_MAX + 3 {
            tell(&tail, "a", &number.to_string());
        }
        let next = slow.next().await.unwrap();
        assert_eq!((next.text.as_str(), next.left_out), ("3", 3));
        drop(slow);
        assert!(!tail.is_heard());
    }

    #[test]
    fn what_only_allows_is_told_so_often_in_a_second_and_counted_beyond() {
        let tail = Tail::default();
        let _listener = tail.listen("a".to_owned());
        let told = (0..ALLOWED_PER_SECOND_MAX + 5).filter(|_| tail.may_tell_allowed("a", 7)).count();
        assert_eq!(told, ALLOWED_PER_SECOND_MAX as usize);
        assert!(!tail.may_tell_allowed("b", 7));
        assert_eq!(tail.0.allowed.lock().left_out.get("a"), Some(&5));
        assert!(tail.may_tell_allowed("a", 8));
    }
}
