#![allow(missing_docs, clippy::all, unreachable_pub, unused_lifetimes, reason = "generated")]
pub mod authpb { tonic::include_proto!("authpb"); }
pub mod etcdserverpb { tonic::include_proto!("etcdserverpb"); }
pub mod leasepb { tonic::include_proto!("leasepb"); }
pub mod membershippb { tonic::include_proto!("membershippb"); }
pub mod mvccpb { tonic::include_proto!("mvccpb"); }
pub mod raftpb { tonic::include_proto!("raftpb"); }
pub mod v3electionpb { tonic::include_proto!("v3electionpb"); }
pub mod v3lockpb { tonic::include_proto!("v3lockpb"); }
pub mod walpb { tonic::include_proto!("walpb"); }
