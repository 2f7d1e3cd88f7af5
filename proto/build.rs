fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["authpb/auth.proto","etcdserverpb/auth.proto","etcdserverpb/cluster.proto","etcdserverpb/header.proto","etcdserverpb/kv.proto","etcdserverpb/lease.proto","etcdserverpb/maintenance.proto","etcdserverpb/metadata.proto","etcdserverpb/raft_internal.proto","etcdserverpb/watch.proto","leasepb/lease.proto","membershippb/membership.proto","mvccpb/mvcc.proto","raftpb/raft.proto","snappb/snap.proto","v3electionpb/v3election.proto","v3lockpb/v3lock.proto","walpb/record.proto"];
    let descriptors = protox::compile(files, ["proto"])?;
    let mut config = tonic_prost_build::Config::new();
    config.bytes(["."]);
    tonic_prost_build::configure().build_transport(false).compile_fds_with_config(descriptors, config)?;
    Ok(())
}
