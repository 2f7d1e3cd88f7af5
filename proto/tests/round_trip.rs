//! Holds our text of the interface, and the code generated from it, against what etcd's own Go code says and writes.
//!
//! `data/etcd-3.7.3.txt` tells how it was made. The facts in it (enum values, methods, fields) must equal those of our
//! descriptors line by line, so that neither side has anything the other lacks but for the lists below. The bytes in it
//! must pass the generated types without loss: prost drops what it does not know, so a field that is missing, or
//! is read as another type, does not come back. A message in our files that no line of bytes proves fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use kuorum_proto::etcdserverpb::{ReadSetEntry, RequestHeader};
use kuorum_proto::membershippb::Attributes;
use prost::{Message, Name};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};

const ETCD: &str = include_str!("data/etcd-3.7.3.txt");

/// Ours, as the build compiled it.
const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// What etcd's members say only to each other.
const NOT_CARRIED: [&str; 4] =
    ["leasepb.LeaseInternalRequest", "leasepb.LeaseInternalResponse", "raftpb.Message", "raftpb.MessageType"];

/// What etcd has not.
const ADDED: [&str; 7] = [
    "field etcdserverpb.ReadSetEntry 1 key bytes optional",
    "field etcdserverpb.ReadSetEntry 2 mod_revision int64 optional",
    "field etcdserverpb.RequestHeader 2000 policy_epoch uint64 optional",
    "field etcdserverpb.RequestHeader 2001 read_set etcdserverpb.ReadSetEntry repeated",
    "field etcdserverpb.RequestHeader 2003 plugin kuorum.v1.PluginCommand optional",
    "field etcdserverpb.RequestHeader 2004 mark kuorum.v1.TimelineMark optional",
    "field membershippb.Attributes 2000 data_dir uint64 optional",
];

/// Takes bytes that etcd wrote through one generated type; the outcome is what got lost.
type Proof = fn(&[u8]) -> Result<(), String>;

/// The order of fields may change: etcd writes a oneof after the other fields, prost by its number. Nothing else may.
fn proof<T: Message + Default + PartialEq + Debug>(bytes: &[u8]) -> Result<(), String> {
    let message = T::decode(bytes).map_err(|error| error.to_string())?;
    let encoded = message.encode_to_vec();
    if encoded.len() != bytes.len() {
        return Err(format!("{} came back as {}", hex(bytes), hex(&encoded)));
    }
    match T::decode(encoded.as_slice()) {
        Ok(again) if again == message => Ok(()),
        other => Err(format!("{message:?} came back as {other:?}")),
    }
}

macro_rules! generated_types {
    ($($package:ident: $($message:ident),+;)+) => {
        /// Every generated message by its name in the interface.
        fn generated_types() -> BTreeMap<String, Proof> {
            let types: &[(String, Proof)] = &[$($((
                kuorum_proto::$package::$message::full_name(),
                proof::<kuorum_proto::$package::$message>,
            )),+),+];
            types.iter().cloned().collect()
        }
    };
}

generated_types! {
    etcdserverpb:
        AlarmMember, AlarmRequest, AlarmResponse, AuthDisableRequest, AuthDisableResponse, AuthEnableRequest,
        AuthEnableResponse, AuthRoleAddRequest, AuthRoleAddResponse, AuthRoleDeleteRequest,
        AuthRoleDeleteResponse, AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
        AuthRoleGrantPermissionResponse, AuthRoleListRequest, AuthRoleListResponse,
        AuthRoleRevokePermissionRequest, AuthRoleRevokePermissionResponse, AuthStatusRequest,
        AuthStatusResponse, AuthUserAddRequest, AuthUserAddResponse, AuthUserChangePasswordRequest,
        AuthUserChangePasswordResponse, AuthUserDeleteRequest, AuthUserDeleteResponse, AuthUserGetRequest,
        AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserGrantRoleResponse, AuthUserListRequest,
        AuthUserListResponse, AuthUserRevokeRoleRequest, AuthUserRevokeRoleResponse, AuthenticateRequest,
        AuthenticateResponse, CompactionRequest, CompactionResponse, Compare, DefragmentRequest,
        DefragmentResponse, DeleteRangeRequest, DeleteRangeResponse, DowngradeInfo, DowngradeRequest,
        DowngradeResponse, DowngradeVersionTestRequest, EmptyResponse, HashKvRequest, HashKvResponse,
        HashRequest, HashResponse, InternalAuthenticateRequest, InternalRaftRequest, LeaseCheckpoint,
        LeaseCheckpointRequest, LeaseCheckpointResponse, LeaseGrantRequest, LeaseGrantResponse,
        LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest, LeaseLeasesResponse,
        LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
        Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
        MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
        MemberUpdateRequest, MemberUpdateResponse, Metadata, MoveLeaderRequest, MoveLeaderResponse, PutRequest,
        PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, ReadSetEntry, RequestHeader, RequestOp,
        ResponseHeader, ResponseOp, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
        TxnRequest, TxnResponse, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
        WatchResponse;
    mvccpb: Event, KeyValue;
    authpb: Permission, Role, User, UserAddOptions;
    membershippb:
        Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest, DowngradeInfoSetRequest, Member,
        RaftAttributes;
    v3electionpb:
        CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
        ProclaimResponse, ResignRequest, ResignResponse;
    v3lockpb: LockRequest, LockResponse, UnlockRequest, UnlockResponse;
    walpb: Record, Snapshot;
    raftpb: ConfChange, ConfChangeSingle, ConfChangeV2, ConfState, Entry, HardState, Snapshot, SnapshotMetadata;
    snappb: Snapshot;
    leasepb: Lease;
}

/// The lines of `data/etcd-3.7.3.txt`, without its head and what we do not carry.
fn etcd_lines() -> impl Iterator<Item = &'static str> {
    ETCD.lines()
        .filter(|line| !line.starts_with('#'))
        .filter(|line| !line.split(' ').any(|word| NOT_CARRIED.contains(&word)))
}

/// The bytes etcd wrote, each with the name of its message.
fn etcd_bytes() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    etcd_lines().filter_map(|line| {
        let (name, hex) = line.strip_prefix("bytes ")?.split_once(' ').expect("a name and the bytes");
        Some((name, if hex == "-" { Vec::new() } else { unhex(hex) }))
    })
}

fn unhex(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ascii");
            u8::from_str_radix(pair, 16).expect("two hex digits")
        })
        .collect()
}

/// The files of packages that etcd has too.
fn our_files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(DESCRIPTORS).expect("the build wrote it");
    set.file.into_iter().filter(|file| !file.package().starts_with("kuorum.")).collect()
}

/// Our descriptors in the words of `data/etcd-3.7.3.txt`.
fn our_lines() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in our_files() {
        let package = file.package();
        lines.extend(file.enum_type.iter().flat_map(|e| enum_lines(package, e)));
        lines.extend(file.service.iter().flat_map(|s| service_lines(package, s)));
        for message in &file.message_type {
            let name = format!("{package}.{}", message.name());
            lines.extend(message.enum_type.iter().flat_map(|e| enum_lines(&name, e)));
            lines.extend(message.field.iter().map(|f| field_line(&name, message, f)));
        }
    }
    lines
}

fn enum_lines(scope: &str, values: &EnumDescriptorProto) -> Vec<String> {
    let line = |value: &prost_types::EnumValueDescriptorProto| {
        format!("enum {scope}.{} {} {}", values.name(), value.name(), value.number())
    };
    values.value.iter().map(line).collect()
}

fn service_lines(package: &str, service: &ServiceDescriptorProto) -> Vec<String> {
    let side = |stream: bool, message: &str| {
        let message = message.trim_start_matches('.');
        if stream { format!("stream:{message}") } else { message.to_owned() }
    };
    let line = |method: &prost_types::MethodDescriptorProto| {
        format!(
            "method /{package}.{}/{} {} {}",
            service.name(),
            method.name(),
            side(method.client_streaming(), method.input_type()),
            side(method.server_streaming(), method.output_type()),
        )
    };
    service.method.iter().map(line).collect()
}

fn field_line(name: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => field.type_name().trim_start_matches('.').to_owned(),
        scalar => scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase(),
    };
    let label = match (field.oneof_index, field.label()) {
        (Some(index), _) => {
            let index = usize::try_from(index).expect("an index is not negative");
            format!("oneof:{}", message.oneof_decl[index].name())
        }
        (None, Label::Repeated) => "repeated".to_owned(),
        (None, _) => "optional".to_owned(),
    };
    format!("field {name} {} {} {kind} {label}", field.number(), field.name())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn names_numbers_and_types_are_those_of_etcd() {
    let ours = our_lines();
    let theirs: BTreeSet<String> =
        etcd_lines().filter(|line| !line.starts_with("bytes ")).chain(ADDED).map(str::to_owned).collect();
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let unknown: Vec<_> = ours.difference(&theirs).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:#?}, unknown {unknown:#?}");
}

#[test]
fn every_message_has_a_proof() {
    let ours: BTreeSet<String> = our_files()
        .iter()
        .flat_map(|file| {
            let name = |message: &DescriptorProto| format!("{}.{}", file.package(), message.name());
            file.message_type.iter().map(name).collect::<Vec<_>>()
        })
        .collect();
    let types: BTreeSet<String> = generated_types().into_keys().collect();
    assert_eq!(types, ours, "the list of generated types is not that of the messages");

    let mut proven: BTreeSet<String> = etcd_bytes().map(|(name, _)| name.to_owned()).collect();
    // By `additions_travel_under_their_numbers`.
    proven.insert(ReadSetEntry::full_name());
    assert_eq!(proven, ours, "the bytes do not cover the messages");
}

#[test]
fn nothing_that_etcd_writes_is_lost() {
    let types = generated_types();
    for (name, bytes) in etcd_bytes() {
        let proof = types.get(name).unwrap_or_else(|| panic!("no generated type for {name}"));
        assert_eq!(proof(&bytes), Ok(()), "{name}");
    }
}

#[test]
fn additions_travel_under_their_numbers() {
    let entry = |key: &'static str, mod_revision| ReadSetEntry { key: key.into(), mod_revision };
    let header = RequestHeader {
        mark: None,
        id: 1,
        username: "u".to_owned(),
        auth_revision: 3,
        policy_epoch: 4,
        read_set: vec![entry("a", 5), entry("b", 6)],
        plugin: None,
    };
    // Tags 2000 (varint) and 2001 (length-delimited) are 0x80fd and 0x8afd, low seven bits first.
    let bytes = "08011201751803807d048a7d050a01611005".to_owned() + "8a7d050a01621006";
    assert_eq!(hex(&header.encode_to_vec()), bytes);
    assert_eq!(RequestHeader::decode(unhex(&bytes).as_slice()), Ok(header));

    let attributes = Attributes { name: "n".to_owned(), data_dir: 5, ..Attributes::default() };
    assert_eq!(hex(&attributes.encode_to_vec()), "0a016e807d05");
    assert_eq!(Attributes::decode(unhex("0a016e807d05").as_slice()), Ok(attributes));
}
