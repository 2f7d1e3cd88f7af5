//! etcd's v3.7 interface in Kuorum's own words, and the types, clients and servers generated from it.
//!
//! The files under `proto/` are ours; the names, field numbers and enum values in them are etcd's, read from the Go
//! modules `go.etcd.io/etcd/api/v3` and `go.etcd.io/etcd/server/v3` at 3.7.3 and `go.etcd.io/raft/v3` at 3.7.0. What
//! Kuorum adds has field numbers from 2000 up; `proto/etcdserverpb/raft_internal.proto` lists them.
//! `tests/round_trip.rs` holds every message of etcd's against bytes that etcd's own Go code wrote. The package `kuorum` is
//! ours alone.
//!
//! Every bytes field is [`bytes::Bytes`], so decoding from one shares its memory. Messages are copies of the wire:
//! nothing here checks a value. Clients take a channel made elsewhere; there is no `connect`.

#![allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "the crate is generated code"
)]

/// Keys, watches, leases, members, maintenance and users, and what the log holds of them.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

/// Keys and events.
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}

/// Users, roles and permissions.
pub mod authpb {
    tonic::include_proto!("authpb");
}

/// Members and cluster settings in the log.
pub mod membershippb {
    tonic::include_proto!("membershippb");
}

/// Elections kept on the server.
pub mod v3electionpb {
    tonic::include_proto!("v3electionpb");
}

/// Locks kept on the server.
pub mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}

/// Frames of an etcd write-ahead log.
pub mod walpb {
    tonic::include_proto!("walpb");
}

/// Consensus records on an etcd disk.
pub mod raftpb {
    tonic::include_proto!("raftpb");
}

/// The frame of an etcd `.snap` file.
pub mod snappb {
    tonic::include_proto!("snappb");
}

/// Leases as stored.
pub mod leasepb {
    tonic::include_proto!("leasepb");
}

/// What is Kuorum's own.
pub mod kuorum {
    /// Plugins: the service, and what the log holds of them.
    pub mod v1 {
        tonic::include_proto!("kuorum.v1");
    }
}
