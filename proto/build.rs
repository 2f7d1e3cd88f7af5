//! Compiles the interface with protox, so that building needs no protoc.

use std::error::Error;
use std::path::PathBuf;

use prost_types::field_descriptor_proto::Type;
use protox::prost::Message;

/// Every file; imports alone would leave out those nobody imports.
const FILES: [&str; 21] = [
    "authpb/auth.proto",
    "etcdserverpb/auth.proto",
    "etcdserverpb/cluster.proto",
    "etcdserverpb/header.proto",
    "etcdserverpb/kv.proto",
    "etcdserverpb/lease.proto",
    "etcdserverpb/maintenance.proto",
    "etcdserverpb/metadata.proto",
    "etcdserverpb/raft_internal.proto",
    "etcdserverpb/watch.proto",
    "kuorum/v1/members.proto",
    "kuorum/v1/plugin_log.proto",
    "kuorum/v1/plugins.proto",
    "leasepb/lease.proto",
    "membershippb/membership.proto",
    "mvccpb/mvcc.proto",
    "raftpb/raft.proto",
    "snappb/snap.proto",
    "v3electionpb/v3election.proto",
    "v3lockpb/v3lock.proto",
    "walpb/record.proto",
];

/// The parts of an InternalRaftRequest kept in place: the commands of the store and its upkeep. The others are rare and
/// boxed, so that every entry does not carry room for all of them.
const UNBOXED: [&str; 10] = [
    "header",
    "put",
    "delete_range",
    "txn",
    "compaction",
    "lease_grant",
    "lease_revoke",
    "lease_checkpoint",
    "alarm",
    "cluster_member_attr_set",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");

    let descriptors = protox::compile(FILES, ["proto"])?;
    // The tests walk it to find the messages that have no proof.
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;

    let mut builder = tonic_prost_build::configure()
        .bytes(".")
        .build_client(true)
        .build_server(true)
        // Connecting is left to whoever brings a channel.
        .build_transport(false)
        // As rare as those below.
        .boxed(".etcdserverpb.RequestHeader.plugin");
    for message in descriptors.file.iter().flat_map(|file| &file.message_type) {
        if message.name() != "InternalRaftRequest" {
            continue;
        }
        for field in &message.field {
            if field.r#type() == Type::Message && !UNBOXED.contains(&field.name()) {
                let path = format!(".etcdserverpb.InternalRaftRequest.{}", field.name());
                builder = builder.boxed(path);
            }
        }
    }

    let mut config = prost_build::Config::new();
    // The tests match each type to its message by name.
    config.enable_type_names();
    builder.compile_fds_with_config(descriptors, config)?;
    Ok(())
}
