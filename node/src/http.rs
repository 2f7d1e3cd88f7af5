//! Pages: health, version and metrics on client and metrics URLs; version and members on peer URLs.
//!
//! Paths, codes, headers and texts are those of etcd 3.7.3, since probes and load balancers read them. The JSON gateway
//! (`/v3/`) is not in this release and says so. Nothing here changes anything.

pub(crate) mod health;
mod scrape;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CONTENT_TYPE, HOST,
    ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use axum::middleware::{self, Next};
use axum::routing::any;
use serde::Serialize;

use crate::config::ETCD_VERSION;
use crate::rpc::{CLUSTER_VERSION, Node, Options};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
pub(crate) const CLUSTER_ID: HeaderName = HeaderName::from_static("x-etcd-cluster-id");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// Stands for every origin or host in the flags.
const ALL: &str = "*";

/// What a client URL serves beside gRPC.
pub(crate) fn client_pages(node: Arc<Node>, options: &Options) -> Router {
    for_clients(pages(node), options)
}

/// Adds what only clients are served, and the checks that only they need.
fn for_clients(pages: Router, options: &Options) -> Router {
    pages
        .merge(version_page())
        .route("/v3/{*path}", any(no_gateway))
        .route("/v3beta/{*path}", any(no_gateway))
        .layer(middleware::from_fn_with_state(Arc::new(options.clone()), check_access))
}

/// What a metrics URL serves.
pub(crate) fn metrics_pages(node: Arc<Node>) -> Router {
    pages(node)
}

/// What a peer URL serves: who this member is and whom it knows.
pub(crate) fn peer_pages(node: Arc<Node>) -> Router {
    let members = Router::new().route("/members", any(members)).layer(middleware::from_fn(only_get));
    members.merge(version_page()).fallback(not_found).with_state(node)
}

fn version_page<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/version", any(version)).layer(middleware::from_fn(only_get))
}

fn pages(node: Arc<Node>) -> Router {
    let health = health::pages().layer(middleware::from_fn(only_get));
    // etcd answers every method on /metrics.
    health.route("/metrics", any(scrape::metrics)).fallback(not_found).with_state(node)
}

async fn version() -> Response<Body> {
    let body =
        format!(r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{CLUSTER_VERSION}","storage":"{CLUSTER_VERSION}"}}"#);
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// A member as etcd writes it for its peers: what is empty is left out.
#[derive(Serialize)]
struct PeerMember {
    id: u64,
    #[serde(rename = "peerURLs")]
    peer_urls: Vec<String>,
    #[serde(rename = "isLearner", skip_serializing_if = "std::ops::Not::not")]
    is_learner: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(rename = "clientURLs", skip_serializing_if = "Vec::is_empty")]
    client_urls: Vec<String>,
}

async fn members(State(node): State<Arc<Node>>) -> Response<Body> {
    let members = node.members.list().into_iter().map(|member| PeerMember {
        id: member.id.0,
        peer_urls: member.peer_urls,
        is_learner: member.is_learner,
        name: member.name,
        client_urls: member.client_urls,
    });
    let text = serde_json::to_string(&members.collect::<Vec<_>>()).expect("numbers and texts are always JSON");
    let mut response = Response::new(format!("{text}\n").into());
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    let cluster = HeaderValue::from_str(&node.facts.cluster_id.to_string()).expect("hexadecimal digits are a header");
    response.headers_mut().insert(CLUSTER_ID, cluster);
    response
}

async fn not_found() -> Response<Body> {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

async fn no_gateway() -> Response<Body> {
    error(StatusCode::NOT_IMPLEMENTED, "the JSON gateway is not in this release; use gRPC")
}

async fn only_get(request: Request, next: Next) -> Response<Body> {
    if request.method() == Method::GET {
        return next.run(request).await;
    }
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    response
}

/// Keeps to --host-whitelist and --cors. A browser of a foreign page must not reach a server on its user's machine
/// (CVE-2018-5702).
async fn check_access(State(options): State<Arc<Options>>, request: Request, next: Next) -> Response<Body> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_known_host(&options, host) {
        let sentence = format!("host {host:?} is not in --host-whitelist");
        return error(StatusCode::MISDIRECTED_REQUEST, &sentence);
    }
    let origin = allowed_origin(&options, request.headers());
    let mut response =
        if request.method() == Method::OPTIONS { Response::new(Body::empty()) } else { next.run(request).await };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        let allowed = HeaderValue::from_static("accept, content-type, authorization");
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, allowed);
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"));
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    response
}

fn is_known_host(options: &Options, host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        // A colon inside brackets belongs to an IPv6 address.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let name = name.trim_matches(['[', ']']);
    options.hosts.is_empty() || options.hosts.iter().any(|known| known == ALL || known.is_empty() || known == name)
}

fn allowed_origin(options: &Options, headers: &HeaderMap) -> Option<HeaderValue> {
    if options.origins.contains(ALL) {
        return Some(HeaderValue::from_static(ALL));
    }
    let origin = headers.get(ORIGIN)?;
    options.origins.contains(origin.to_str().ok()?).then(|| origin.clone())
}

/// A page as Go's `http.Error` writes it.
fn error(code: StatusCode, text: &str) -> Response<Body> {
    let mut response = page(format!("{text}\n"));
    *response.status_mut() = code;
    response
}

fn page(text: String) -> Response<Body> {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    response
}

/// The values that a query gives a name, in order. Names and values on these pages are plain words, so nothing is
/// unescaped.
fn query_values<'a>(query: Option<&'a str>, name: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = query.unwrap_or_default().split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(move |(key, _)| *key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tower::Service as _;

    use super::*;

    /// What a client URL answers, as a code and text, and the names of the headers.
    fn check(options: &Options, request: Request) -> (u16, String, Vec<String>) {
        let mut pages = for_clients(Router::new().fallback(not_found), options);
        let response = futures::executor::block_on(pages.call(request)).unwrap();
        let (code, headers) =
            (response.status().as_u16(), response.headers().keys().map(ToString::to_string).collect());
        let body = futures::executor::block_on(axum::body::to_bytes(response.into_body(), 1 << 20)).unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap(), headers)
    }

    fn options(origins: &[&str], hosts: &[&str]) -> Options {
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Options::for_tests(Duration::from_secs(1), set(origins), set(hosts))
    }

    fn request(method: &str, path: &str) -> Request {
        let request = Request::builder().method(method).uri(path).header(HOST, "[::1]:2379").header(ORIGIN, "http://a");
        request.body(Body::empty()).unwrap()
    }

    // Codes, texts and headers as seen on etcd 3.7.3.

    #[test]
    fn version_is_got_and_nothing_else() {
        let options = options(&["*"], &["*"]);
        let version = r#"{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}"#;
        let (code, text, headers) = check(&options, request("GET", "/version"));
        assert_eq!((code, text.as_str()), (200, version));
        for name in ["access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin"] {
            assert!(headers.iter().any(|header| header == name), "no {name} in {headers:?}");
        }
        let (code, text, headers) = check(&options, request("POST", "/version"));
        assert_eq!((code, text.as_str()), (405, "Method Not Allowed\n"));
        assert!(headers.iter().any(|header| header == "allow"));
    }

    #[test]
    fn other_paths_lead_nowhere_and_the_gateway_says_it_is_absent() {
        let options = options(&["*"], &["*"]);
        for path in ["/", "/foo", "/version/", "/v2/keys"] {
            let (code, text, _) = check(&options, request("GET", path));
            assert_eq!((code, text.as_str()), (404, "404 page not found\n"), "{path}");
        }
        assert_eq!(check(&options, request("POST", "/v3/kv/range")).0, 501);
    }

    #[test]
    fn only_listed_hosts_and_origins_are_served() {
        let version = || request("GET", "/version");
        assert_eq!(check(&options(&["*"], &["localhost"]), version()).0, 421);
        assert_eq!(check(&options(&["*"], &["::1"]), version()).0, 200);
        let (_, _, headers) = check(&options(&["http://b"], &["*"]), version());
        assert!(!headers.iter().any(|header| header == "access-control-allow-origin"));
    }
}
