//! `--initial-cluster`: who is in the cluster at its first start.
//!
//! The checks are those etcd makes before it writes a new data directory, in its order and words. Host names are
//! not looked up: only `localhost` and 127.0.0.1 are known to be the same.

use std::collections::{BTreeMap, BTreeSet};

use super::ConfigError;
use super::settings::{self, Settings};
use super::url::{self, Url};
use super::validate::{refuse_tls, refused};

pub(super) fn initial_cluster(
    settings: &Settings,
    advertised: &[Url],
) -> Result<BTreeMap<String, Vec<Url>>, ConfigError> {
    let name = settings.text("name");
    let cluster = parse(&text(settings, name, advertised))
        .map_err(|words| refused(format!("error setting up initial cluster: {words}")))?;
    let Some(own) = cluster.get(name) else {
        return Err(refused(format!("couldn't find local name {name:?} in the initial cluster configuration")));
    };
    check_own_urls(name, own, advertised)?;
    if has_duplicate(&cluster) {
        return Err(refused(format!("initial cluster {} has duplicate url", written(&cluster))));
    }
    for urls in cluster.values() {
        refuse_tls("initial-cluster", urls)?;
    }
    Ok(cluster)
}

/// The flag's value; its default follows `--name` and the advertised URLs once a name is given.
fn text(settings: &Settings, name: &str, advertised: &[Url]) -> String {
    let given = settings.text("initial-cluster");
    if name == settings::default_text("name") || given != settings::default_text("initial-cluster") {
        return given.to_owned();
    }
    // etcd's rule: an empty name stands for the default one here, and is then not found.
    let name = if name.is_empty() { settings::default_text("name") } else { name };
    advertised.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",")
}

/// `a=http://1,a=http://2,b=http://3`. A name without `=` has the URL "", which is none.
fn parse(text: &str) -> Result<BTreeMap<String, Vec<Url>>, String> {
    let mut cluster: BTreeMap<String, Vec<Url>> = BTreeMap::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (name, url) = pair.split_once('=').unwrap_or((pair, ""));
        cluster.entry(name.to_owned()).or_default().push(Url::parse(url)?);
    }
    for urls in cluster.values_mut() {
        urls.sort();
    }
    Ok(cluster)
}

fn check_own_urls(name: &str, own: &[Url], advertised: &[Url]) -> Result<(), ConfigError> {
    let reason = if own.len() != advertised.len() {
        format!("len({}) != len({})", quoted(advertised), quoted(own))
    } else {
        match advertised.iter().zip(own).find(|(left, right)| !left.is_same_endpoint(right)) {
            Some((left, right)) => {
                format!("resolved urls: {:?} != {:?}", left.text(), right.text())
            }
            None => return Ok(()),
        }
    };
    let advertised_text = url::join(advertised);
    let missing = difference(own, advertised);
    if !missing.is_empty() {
        let missing = missing.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",");
        return Err(refused(format!(
            "--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised_text} ({reason})"
        )));
    }
    let wanted = advertised.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",");
    let missing = difference(advertised, own);
    if !missing.is_empty() {
        return Err(refused(format!(
            "--initial-advertise-peer-urls has {} but missing from --initial-cluster={wanted}",
            missing.join(",")
        )));
    }
    Err(refused(format!("failed to resolve {advertised_text} to match --initial-cluster={wanted} ({reason})")))
}

fn difference<'a>(left: &'a [Url], right: &[Url]) -> Vec<&'a str> {
    let left: BTreeSet<&str> = left.iter().map(Url::text).collect();
    left.into_iter().filter(|text| right.iter().all(|url| url.text() != *text)).collect()
}

/// Go's `%q` of a list.
fn quoted(urls: &[Url]) -> String {
    let urls: Vec<String> = urls.iter().map(|url| format!("{:?}", url.text())).collect();
    format!("[{}]", urls.join(" "))
}

fn has_duplicate(cluster: &BTreeMap<String, Vec<Url>>) -> bool {
    let mut seen = BTreeSet::new();
    !cluster.values().flatten().all(|url| seen.insert(url.text()))
}

fn written(cluster: &BTreeMap<String, Vec<Url>>) -> String {
    let pairs = cluster.iter().flat_map(|(name, urls)| urls.iter().map(move |url| format!("{name}={url}")));
    pairs.collect::<Vec<_>>().join(",")
}
