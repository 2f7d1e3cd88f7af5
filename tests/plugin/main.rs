//! Plugins as an operator meets them: brought into a cluster, put in force, taken back, over the command line.
//!
//! `lifecycle` is what members agree on about them, `joining` what becomes of it where members come, sleep and start
//! again, `command_line` what is said of mistakes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod admission;
mod command_line;
mod hostile;
mod joining;
mod lifecycle;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use kuorum_tests::cluster::Cluster;
use kuorum_tests::member::Member;
use kuorum_tests::plugin_command::{Printed, ask};
use serde_json::Value;

/// Runs a test on a runtime of one thread.
fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built").block_on(test)
}

/// What a member counts.
fn metrics(member: &Member) -> String {
    let mut stream = TcpStream::connect(member.endpoint()).expect("the port takes connections");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page is text");
    page
}

/// A component that does nothing, made as large as this by a section that nobody reads, and different by its name.
fn component(cluster: &Cluster, name: &str, bytes: usize) -> PathBuf {
    let mut file = b"\0asm\x0d\0\x01\0".to_vec();
    let section = [&[u8::try_from(name.len()).unwrap()], name.as_bytes(), &vec![b'.'; bytes]].concat();
    file.push(0);
    // LEB128, five bytes of it.
    let size = section.len();
    file.extend((0..5).map(|place| {
        let seven = u8::try_from((size >> (7 * place)) & 0x7f).unwrap();
        if place < 4 { seven | 0x80 } else { seven }
    }));
    file.extend(section);
    let path = cluster.members[0].home().join(format!("{name}.wasm"));
    std::fs::write(&path, file).unwrap();
    path
}

/// Loads a component by way of a member.
fn load(cluster: &Cluster, asked: usize, component: &std::path::Path, words: &[&str]) -> Printed {
    ask(&cluster.members[asked], &[&["load", component.to_str().unwrap()], words].concat())
}

/// A plugin as a member knows it.
fn inspected(cluster: &Cluster, asked: usize, name: &str) -> Value {
    ask(&cluster.members[asked], &["inspect", name]).json()["plugin"].clone()
}

/// Revision and mode of what stands in a slot; `None` when nothing does.
fn slot(plugin: &Value, slot: &str) -> Option<(u64, String)> {
    let revision = &plugin[slot];
    Some((revision["revision"].as_u64()?, revision["mode"].as_str()?.to_owned()))
}

fn stands(revision: u64, mode: &str) -> Option<(u64, String)> {
    Some((revision, mode.to_owned()))
}
