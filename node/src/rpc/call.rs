//! One call: what its headers ask for, when it has to end, and its count.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::Counter;
use hyper::header::HeaderMap;
use tokio::time::Instant;
use tonic::Code;

use super::frame::Encoding;
use super::method::{Kind, Method};
use super::shards::{Front, becomes_true};
use super::status::Fault;
use crate::metrics;
use crate::refusal::Refusal;

/// Client versions that are counted by name on one shard. A version is whatever a client sends, and every one becomes a
/// series that is never dropped.
const VERSIONS_MAX: usize = 32;
/// Where versions beyond [`VERSIONS_MAX`] are counted.
const OTHER_VERSION: &str = "other";

/// A call under way, as its headers describe it.
pub(super) struct Call {
    pub(super) front: Arc<Front>,
    /// The client's address.
    pub(super) peer: SocketAddr,
    pub(super) method: Method,
    pub(super) deadline: Option<Instant>,
    pub(super) encoding: Encoding,
    requires_leader: bool,
    /// `None` when the client states its API version in bytes that are no text.
    version: Option<String>,
}

impl Call {
    pub(super) fn new(front: Arc<Front>, peer: SocketAddr, method: Method, headers: &HeaderMap) -> Result<Call, Fault> {
        let version = match headers.get("client-api-version") {
            None => Some("unknown".to_owned()),
            Some(version) => std::str::from_utf8(version.as_bytes()).ok().map(str::to_owned),
        };
        Ok(Call {
            front,
            peer,
            method,
            deadline: deadline(headers)?,
            encoding: encoding(headers)?,
            requires_leader: headers.get("hasleader").is_some_and(|value| value == "true"),
            version,
        })
    }

    /// The checks that etcd makes before a handler is called.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.front.node.is_learner() && !self.method.is_for_learners() {
            return Err(Refusal::NotForLearner.into());
        }
        let Some(version) = &self.version else {
            return Err(Fault::InvalidClientVersion);
        };
        count_version(self.method, version);
        if self.requires_leader && self.front.node.consensus.status().leader.is_none() {
            return Err(Refusal::NoLeader.into());
        }
        Ok(())
    }

    /// Resolves when a stream of this call has to end though neither side wants it to.
    pub(super) async fn cut_short(front: Arc<Front>, requires_leader: bool, deadline: Option<Instant>) -> Fault {
        tokio::select! {
            () = becomes_true(front.stopping.clone()) => Refusal::Stopped.into(),
            () = becomes_true(front.leaderless.clone()), if requires_leader => Refusal::NoLeader.into(),
            () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                Fault::DeadlineExceeded
            }
        }
    }

    pub(super) fn requires_leader(&self) -> bool {
        self.requires_leader
    }
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Fault> {
    match headers.get("grpc-encoding").map(|value| value.as_bytes()) {
        None | Some(b"identity" | b"") => Ok(Encoding::Identity),
        Some(b"gzip") => Ok(Encoding::Gzip),
        Some(other) => Err(Fault::UnknownEncoding(String::from_utf8_lossy(other).into_owned())),
    }
}

fn deadline(headers: &HeaderMap) -> Result<Option<Instant>, Fault> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let timeout = value.to_str().ok().and_then(parse_timeout);
    match timeout {
        Some(timeout) => Ok(Instant::now().checked_add(timeout)),
        None => Err(Fault::MalformedTimeout(String::from_utf8_lossy(value.as_bytes()).into_owned())),
    }
}

/// At most eight digits and a unit, as gRPC over HTTP/2 has it.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

thread_local! {
    /// The counters of the versions seen on this shard, so that a call formats nothing.
    static VERSIONS: RefCell<Vec<(String, [Counter; 2])>> = const { RefCell::new(Vec::new()) };
}

fn count_version(method: Method, version: &str) {
    let kind = usize::from(method.kind() != Kind::Unary);
    VERSIONS.with_borrow_mut(|versions| {
        if let Some((_, counters)) = versions.iter().find(|(known, _)| known == version) {
            counters[kind].increment(1);
            return;
        }
        let version = if versions.len() < VERSIONS_MAX { version } else { OTHER_VERSION };
        let counters = ["unary", "stream"].map(|kind| metrics::get().client_requests(kind, version));
        counters[kind].increment(1);
        if versions.len() < VERSIONS_MAX {
            versions.push((version.to_owned(), counters));
        }
    });
}

/// Counts a call from its start to its end. Dropped before the end is told, it counts as canceled by the client.
pub(super) struct Tally {
    method: Method,
    /// Only when latencies are wanted.
    started: Option<Instant>,
    is_open: bool,
}

impl Tally {
    pub(super) fn start(method: Method) -> Tally {
        let methods = &metrics::get().methods;
        methods.started(method);
        Tally { method, started: methods.is_extensive().then(Instant::now), is_open: true }
    }

    pub(super) fn received(&self) {
        metrics::get().methods.received(self.method);
    }

    pub(super) fn sent(&self, bytes: usize) {
        let metrics = metrics::get();
        metrics.methods.sent(self.method);
        metrics.client.sent_bytes.increment(bytes as u64);
    }

    /// The call has ended with this code.
    pub(super) fn end(&mut self, code: Code) {
        if std::mem::take(&mut self.is_open) {
            let seconds = self.started.map(|started| started.elapsed().as_secs_f64());
            metrics::get().methods.handled(self.method, code as usize, seconds);
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_eight_digits_at_most_and_a_unit() {
        assert_eq!(parse_timeout("5S"), Some(Duration::from_secs(5)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse_timeout("250m"), Some(Duration::from_millis(250)));
        for wrong in ["", "S", "5", "5s", "-5S", "123456789S", "5é"] {
            assert_eq!(parse_timeout(wrong), None, "{wrong:?}");
        }
    }
}
