//! Plugins as an operator meets them: brought into a cluster, put in force, taken back, over the command line.
//!
//! `golden` are components that every host has to load, `lifecycle` is what members agree on about them, `joining` what
//! becomes of it where members come, sleep and start again, `command_line` what is said of mistakes, `signed` whose plugins
//! are taken, `followed` what is seen of those that are asked, `admission` and `compaction` what they decide, `hostile` what
//! becomes of those that break, `reloads` what changing them often leaves, `activation` and `mixed_load` what clients see of
//! it, and `guide` follows the guide for authors.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod activation;
mod admission;
mod command_line;
mod compaction;
mod followed;
mod golden;
mod guide;
mod hostile;
mod joining;
mod lifecycle;
mod mixed_load;
mod reloads;
mod signed;

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;
use kuorum_proto::kuorum::v1::plugin_upload_request::Part;
use kuorum_proto::kuorum::v1::plugins_client::PluginsClient;
use kuorum_proto::kuorum::v1::{PluginUploadBegin, PluginUploadRequest};
use kuorum_tests::clock::Deadline;
use kuorum_tests::cluster::Cluster;
use kuorum_tests::plugin_command::{Printed, ask, metrics};
use kuorum_tests::plugin_file::PluginFile;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tonic::Status;
use tonic::transport::Channel;

/// Members that share the processors of a busy machine take their time.
const PREPARED_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Runs a test on a runtime of one thread.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built").block_on(test)
}

/// Puts a key by way of a member, and returns the revision.
async fn put(cluster: &Cluster, asked: usize, key: &str, value: impl Into<Bytes>) -> Result<i64, Status> {
    let request = pb::PutRequest { key: key.to_owned().into(), value: value.into(), ..Default::default() };
    let response = cluster.client(asked).kv.put(request).await?;
    Ok(response.into_inner().header.unwrap_or_default().revision)
}

/// A plugin called `guard` that refuses long values, in a file of its own: larger by so many bytes, and different by its
/// version.
fn component(cluster: &Cluster, version: &str, bytes: usize) -> PathBuf {
    let manifest = json!({
        "name": "guard",
        "version": version,
        "description": "Refuses values longer than 1 KiB.",
        "admission": {"match": [{"ops": ["put"], "prefix": "/guarded/"}]},
        "kv_read": ["/a/", "/b/"],
    });
    written(cluster, version, &PluginFile::golden("c-guard").with_manifest(&manifest).with_ballast(bytes))
}

fn written(cluster: &Cluster, name: &str, file: &PluginFile) -> PathBuf {
    let path = cluster.members[0].home().join(format!("{name}.wasm"));
    std::fs::write(&path, file.bytes()).unwrap();
    path
}

/// Loads a component by way of a member.
fn load(cluster: &Cluster, asked: usize, component: &std::path::Path, words: &[&str]) -> Printed {
    ask(&cluster.members[asked], &[&["load", component.to_str().unwrap()], words].concat())
}

/// Brings a file to a member past the command line, and returns its hash.
async fn uploaded(plugins: &mut PluginsClient<Channel>, file: &Bytes) -> Result<Bytes, Status> {
    let sha256 = Bytes::copy_from_slice(&Sha256::digest(file));
    let begin = PluginUploadBegin { sha256, component_bytes: file.len() as u64 };
    let parts = [Part::Begin(begin), Part::Chunk(file.clone())].map(|part| PluginUploadRequest { part: Some(part) });
    Ok(plugins.upload(tokio_stream::iter(parts)).await?.into_inner().sha256)
}

/// A plugin as a member knows it.
fn inspected(cluster: &Cluster, asked: usize, name: &str) -> Value {
    ask(&cluster.members[asked], &["inspect", name]).json()["plugin"].clone()
}

/// Waits until so many members have prepared what stands in a plugin's slot.
async fn prepared(cluster: &Cluster, asked: usize, (name, slot): (&str, &str), members: usize) -> Value {
    let deadline = Deadline::after(PREPARED_WITHIN);
    loop {
        let plugin = inspected(cluster, asked, name);
        let acks = plugin[slot]["acks"].as_array().cloned().unwrap_or_default();
        if acks.iter().filter(|ack| ack["ready"] == true).count() == members {
            return plugin;
        }
        assert!(!deadline.has_passed(), "never prepared by {members}: {plugin}");
        tokio::time::sleep(POLL).await;
    }
}

/// Revision and mode of what stands in a slot; `None` when nothing does.
fn slot(plugin: &Value, slot: &str) -> Option<(u64, String)> {
    let revision = &plugin[slot];
    Some((revision["revision"].as_u64()?, revision["mode"].as_str()?.to_owned()))
}

fn stands(revision: u64, mode: &str) -> Option<(u64, String)> {
    Some((revision, mode.to_owned()))
}
