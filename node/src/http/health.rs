//! `/health`, `/livez`, `/readyz` and their checks.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{Response, StatusCode, header::CONTENT_TYPE};
use axum::routing::any;
use bytes::Bytes;
use kuorum_proto::etcdserverpb::{AlarmMember, AlarmType};

use super::{TEXT, error, not_found, page, query_values};
use crate::metrics;
use crate::mvcc::query::RangeQuery;
use crate::refusal::Refusal;
use crate::rpc::{Node, status};

/// Any key: what counts is that a read is served.
const PROBED_KEY: &[u8] = b"health";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

const LIVEZ: &[Check] = &[Check::SerializableRead];
const READYZ: &[Check] = &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner];

impl Check {
    fn name(self) -> &'static str {
        match self {
            Check::DataCorruption => "data_corruption",
            Check::SerializableRead => "serializable_read",
            Check::LinearizableRead => "linearizable_read",
            Check::NonLearner => "non_learner",
        }
    }

    async fn run(self, node: &Node) -> Outcome {
        let reason = match self {
            Check::DataCorruption => {
                node.alarms.corrupt().then(|| format!("alarm activated: {}", AlarmType::Corrupt.as_str_name()))
            }
            Check::SerializableRead => read(node, true).await.err(),
            Check::LinearizableRead => read(node, false).await.err(),
            Check::NonLearner => node.is_learner().then(|| "not supported for learner".to_owned()),
        };
        Outcome { check: self, failure: reason }
    }
}

struct Outcome {
    check: Check,
    /// Why it failed, if it did.
    failure: Option<String>,
}

pub(super) fn pages() -> Router<Arc<Node>> {
    Router::new()
        .route("/health", any(health))
        .route("/livez", any(async |node, query| probe(node, query, "livez", LIVEZ).await))
        .route("/readyz", any(async |node, query| probe(node, query, "readyz", READYZ).await))
        .route("/livez/{check}", any(async |node, query, check| probe_one(node, query, check, "livez", LIVEZ).await))
        .route("/readyz/{check}", any(async |node, query, check| probe_one(node, query, check, "readyz", READYZ).await))
}

async fn probe(
    State(node): State<Arc<Node>>,
    RawQuery(query): RawQuery,
    name: &'static str,
    checks: &[Check],
) -> Response<Body> {
    // A name that is no check excludes nothing, in etcd as here.
    let is_excluded = |check: &&Check| query_values(query.as_deref(), "exclude").any(|name| name == check.name());
    let wanted: Vec<Check> = checks.iter().filter(|check| !is_excluded(check)).copied().collect();
    run(&node, name, &wanted, query.as_deref()).await
}

async fn probe_one(
    State(node): State<Arc<Node>>,
    RawQuery(query): RawQuery,
    Path(wanted): Path<String>,
    name: &'static str,
    checks: &[Check],
) -> Response<Body> {
    match checks.iter().find(|check| check.name() == wanted) {
        Some(check) => run(&node, name, &[*check], query.as_deref()).await,
        None => not_found().await,
    }
}

async fn run(node: &Node, name: &'static str, checks: &[Check], query: Option<&str>) -> Response<Body> {
    let mut outcomes = Vec::with_capacity(checks.len());
    for check in checks {
        let outcome = check.run(node).await;
        metrics::get().checked(name, check.name(), outcome.failure.is_none());
        outcomes.push(outcome);
    }
    describe(name, &outcomes, query_values(query, "verbose").next().is_some())
}

/// The page on these outcomes: details when something failed or the client wants them.
fn describe(name: &str, outcomes: &[Outcome], verbose: bool) -> Response<Body> {
    let mut details = String::new();
    for Outcome { check, failure } in outcomes {
        let check = check.name();
        match failure {
            None => writeln!(details, "[+]{check} ok"),
            Some(reason) => writeln!(details, "[-]{check} failed: {reason}"),
        }
        .expect("a String takes any text");
    }
    if outcomes.iter().any(|outcome| outcome.failure.is_some()) {
        crate::error!("Health check error", path = format!("/{name}"), reason = details);
        return error(StatusCode::SERVICE_UNAVAILABLE, &details);
    }
    page(if verbose { details + "ok\n" } else { "ok\n".to_owned() })
}

async fn health(State(node): State<Arc<Node>>, RawQuery(query): RawQuery) -> Response<Body> {
    let query = query.as_deref();
    let alarms = node.alarms.list(AlarmType::None.into());
    let excluded: Vec<&str> = query_values(query, "exclude").collect();
    let serializable = query_values(query, "serializable").next() == Some("true");
    let failure = match alarm_reason(&alarms, &excluded) {
        Some(reason) => Some(reason.to_owned()),
        None if !serializable && node.consensus.status().leader.is_none() => Some("RAFT NO LEADER".to_owned()),
        None => read(&node, serializable).await.err().map(|reason| format!("RANGE ERROR:{reason}")),
    };
    describe_health(failure.as_deref())
}

fn alarm_reason(alarms: &[AlarmMember], excluded: &[&str]) -> Option<&'static str> {
    let kinds = alarms.iter().map(|alarm| AlarmType::try_from(alarm.alarm));
    let mut counted = kinds.filter(|kind| !kind.is_ok_and(|kind| excluded.contains(&kind.as_str_name())));
    counted.next().map(|kind| match kind {
        Ok(AlarmType::Nospace) => "ALARM NOSPACE",
        Ok(AlarmType::Corrupt) => "ALARM CORRUPT",
        Ok(AlarmType::None) | Err(_) => "ALARM UNKNOWN",
    })
}

fn describe_health(failure: Option<&str>) -> Response<Body> {
    let health = &metrics::get().health;
    let reason = serde_json::Value::from(failure.unwrap_or_default());
    let body = format!(r#"{{"health":"{}","reason":{reason}}}"#, failure.is_none());
    if failure.is_some() {
        health.failures.increment(1);
        crate::warn!("/health error", output = body, "status-code" = 503);
        return error(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    health.successes.increment(1);
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

/// Whether a read is served; else why not.
async fn read(node: &Node, serializable: bool) -> Result<(), String> {
    let served = async {
        if !serializable {
            node.consensus.read_barrier().await?;
        }
        let query = RangeQuery { key: Bytes::from_static(PROBED_KEY), limit: 1, ..RangeQuery::default() };
        node.store.get().range(&query).map_err(crate::rpc::refusal_of)?;
        Ok(())
    };
    served.await.map_err(|refusal: Refusal| status::text(&refusal).into_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::header::X_CONTENT_TYPE_OPTIONS;

    use super::*;

    fn text(response: Response<Body>) -> (u16, String) {
        let code = response.status().as_u16();
        let body = futures::executor::block_on(axum::body::to_bytes(response.into_body(), 1 << 20)).unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    fn passed(check: Check) -> Outcome {
        Outcome { check, failure: None }
    }

    // The texts below were seen on etcd 3.7.3, or follow from its source where a healthy server does not show them.

    #[test]
    fn a_probe_says_ok_and_details_only_when_asked() {
        let outcomes: Vec<Outcome> = READYZ.iter().map(|check| passed(*check)).collect();
        assert_eq!(text(describe("readyz", &outcomes, false)), (200, "ok\n".into()));
        let verbose =
            "[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n";
        let response = describe("readyz", &outcomes, true);
        assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(response.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(text(response), (200, verbose.into()));
    }

    #[test]
    fn a_failed_probe_always_gives_the_details() {
        let failed = Outcome { check: Check::LinearizableRead, failure: Some("etcdserver: no leader".into()) };
        let outcomes = [passed(Check::SerializableRead), failed];
        let details = "[+]serializable_read ok\n[-]linearizable_read failed: etcdserver: no leader\n\n";
        assert_eq!(text(describe("readyz", &outcomes, false)), (503, details.into()));
    }

    #[test]
    fn health_is_json_in_plain_text() {
        let healthy = describe_health(None);
        assert_eq!(healthy.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(text(healthy), (200, r#"{"health":"true","reason":""}"#.into()));
        let reason = "{\"health\":\"false\",\"reason\":\"RAFT NO LEADER\"}\n";
        assert_eq!(text(describe_health(Some("RAFT NO LEADER"))), (503, reason.into()));
    }

    #[test]
    fn an_excluded_alarm_does_not_count() {
        let alarms = [AlarmMember { member_id: 7, alarm: AlarmType::Nospace.into() }];
        assert_eq!(alarm_reason(&alarms, &[]), Some("ALARM NOSPACE"));
        assert_eq!(alarm_reason(&alarms, &["CORRUPT"]), Some("ALARM NOSPACE"));
        assert_eq!(alarm_reason(&alarms, &["NOSPACE"]), None);
    }
}
