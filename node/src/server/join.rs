//! What a member that has no data yet asks of the others: whom they know, and by what ids.

use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::body::{Body, to_bytes};
use axum::http::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use crate::cluster::{ClusterId, Identity, MemberId};
use crate::config::{Config, Scheme, Url};

/// How long one member may take to answer (etcd: 10 s for a member that joins).
const PATIENCE_TO_JOIN: Duration = Duration::from_secs(10);
/// How long the others may keep a member of a new cluster waiting (etcd: --bootstrap-timeout, 1 s), who are as a rule
/// starting too.
const PATIENCE_TO_BOOTSTRAP: Duration = Duration::from_secs(1);
/// Bytes of a list of members: thousands of them.
const LIST_BYTES_MAX: usize = 1 << 20;

/// What a member's page `/members` says.
struct Others {
    cluster_id: ClusterId,
    members: Vec<Other>,
}

#[derive(Deserialize)]
struct Other {
    id: u64,
    #[serde(rename = "peerURLs", default)]
    peer_urls: Vec<String>,
    #[serde(rename = "clientURLs", default)]
    client_urls: Vec<String>,
}

/// The ids that the running cluster has given this member and itself.
///
/// # Errors
/// A sentence, when no member answers, or the members are not those that --initial-cluster names.
pub(super) fn existing(config: &Config) -> anyhow::Result<Identity> {
    let others = ask_any(config, PATIENCE_TO_JOIN).context(
        "--initial-cluster-state is \"existing\", but no member of --initial-cluster says who the members are: correct the \
         peer URLs, or start the others first",
    )?;
    let named = &config.cluster.initial;
    if others.members.len() != named.len() {
        bail!(
            "error validating peerURLs: member count is unequal: the running cluster {} has {} members, --initial-cluster \
             names {}; add this member first (member add) and use the --initial-cluster that the answer prints",
            others.cluster_id,
            others.members.len(),
            named.len()
        );
    }
    for (name, urls) in named {
        if find(&others, urls).is_none() {
            bail!(
                "error validating peerURLs: no member of the running cluster {} is at {}, as --initial-cluster says of {name}; \
                 add this member first (member add) and use the --initial-cluster that the answer prints",
                others.cluster_id,
                texts(urls).join(",")
            );
        }
    }
    let own = find(&others, &named[&config.member.name]).expect("every name was found above, this member's too");
    Ok(Identity { cluster_id: others.cluster_id, member_id: MemberId(own.id) })
}

/// Refuses to found a cluster that runs already and knows this member: its data is gone, and starting it as if it had
/// never had any could lose what it has acknowledged.
///
/// # Errors
/// A sentence that says so.
pub(super) fn check_not_bootstrapped(config: &Config, identity: Identity) -> anyhow::Result<()> {
    if config.cluster.initial.len() < 2 {
        return Ok(());
    }
    // Nobody answers: then there is no such cluster, or it is starting as this member is.
    let Ok(others) = ask_any(config, PATIENCE_TO_BOOTSTRAP) else { return Ok(()) };
    let known = others.members.iter().find(|other| MemberId(other.id) == identity.member_id);
    if others.cluster_id == identity.cluster_id && known.is_some_and(|known| !known.client_urls.is_empty()) {
        bail!(
            "member {} has already been bootstrapped, and its data directory {} is gone or empty: put the directory back, or \
             remove the member from the cluster and add it anew (member remove {}, member add), then start it with \
             --initial-cluster-state=existing",
            identity.member_id,
            config.member.data_dir.display(),
            identity.member_id
        );
    }
    Ok(())
}

fn texts(urls: &[Url]) -> Vec<&str> {
    urls.iter().map(Url::text).collect()
}

/// The member at these URLs, in whatever order.
fn find<'a>(others: &'a Others, urls: &[Url]) -> Option<&'a Other> {
    let is_at = |known: &[Url], url: &Url| known.iter().any(|other| other.is_same_endpoint(url));
    others.members.iter().find(|other| {
        let known: Vec<Url> = other.peer_urls.iter().filter_map(|text| Url::parse(text).ok()).collect();
        known.len() == urls.len()
            && urls.iter().all(|url| is_at(&known, url))
            && known.iter().all(|url| is_at(urls, url))
    })
}

/// Asks the other members of --initial-cluster one after the other, and returns the first answer.
fn ask_any(config: &Config, patience: Duration) -> anyhow::Result<Others> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let others = config.cluster.initial.iter().filter(|(name, _)| **name != config.member.name);
    let mut last = anyhow::anyhow!("it names no other member");
    for url in others.flat_map(|(_, urls)| urls) {
        let answer = runtime.block_on(async { tokio::time::timeout(patience, ask(url)).await });
        match answer.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {} s", patience.as_secs()))) {
            Ok(others) => return Ok(others),
            Err(error) => last = error.context(url.text().to_owned()),
        }
    }
    Err(last)
}

async fn ask(url: &Url) -> anyhow::Result<Others> {
    if url.scheme() != Scheme::Http {
        bail!("only http:// is dialed");
    }
    let connection = TcpStream::connect((url.host(), url.port())).await?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(driver);
    let host = format!("{}:{}", url.host(), url.port());
    let request = Request::get("/members").header("host", host).body(Body::empty())?;
    let response = sender.send_request(request).await?;
    let cluster = response.headers().get(crate::http::CLUSTER_ID).context("the answer names no cluster")?;
    let cluster_id = u64::from_str_radix(cluster.to_str()?, 16).context("the cluster's id can't be read")?;
    let body = to_bytes(Body::new(response.into_body()), LIST_BYTES_MAX).await?;
    let members: Vec<Other> = serde_json::from_slice(&body).context("the list of members can't be read")?;
    if members.is_empty() {
        bail!("the list of members is empty");
    }
    Ok(Others { cluster_id: ClusterId(cluster_id), members })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_found_by_where_it_is() {
        let other = |id, urls: &[&str]| {
            let peer_urls = urls.iter().map(|url| (*url).to_owned()).collect();
            Other { id, peer_urls, client_urls: Vec::new() }
        };
        let members =
            vec![other(1, &["http://127.0.0.1:1", "http://a:2"]), other(2, &["http://a:1"]), other(3, &["?"])];
        let others = Others { cluster_id: ClusterId(1), members };
        let found = |urls: &[&str]| {
            let urls: Vec<Url> = urls.iter().map(|url| Url::parse(url).unwrap()).collect();
            find(&others, &urls).map(|other| other.id)
        };
        assert_eq!(found(&["http://a:2", "http://localhost:1"]), Some(1));
        assert_eq!(found(&["http://a:1"]), Some(2));
        assert_eq!(found(&["http://a:2"]), None, "one of two URLs");
        assert_eq!(found(&["http://b:1"]), None);
    }
}
