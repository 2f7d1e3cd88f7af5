//! What a log entry says: one command, encoded as etcd's `InternalRaftRequest`.
//!
//! The field numbers are etcd's, so that etcd's tools can read our log; Kuorum's additions (policy epoch, read set,
//! changes of plugins, marks of the timeline) use numbers from 2000 up in the request header. Decoding never trusts its
//! input: the nesting of transactions, the one recursive part of the interface, is decoded here with a bound of its own.

use std::fmt;

use bytes::{Buf, Bytes};
use kuorum_proto::etcdserverpb::{
    AlarmRequest, CompactionRequest, Compare, DeleteRangeRequest, InternalRaftRequest, LeaseCheckpointRequest,
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RangeRequest, ReadSetEntry, RequestHeader, RequestOp,
    TxnRequest, request_op,
};
use kuorum_proto::kuorum::v1::{PluginCommand, TimelineMark};
use kuorum_proto::membershippb::ClusterMemberAttrSetRequest;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, check_wire_type, decode_key, decode_varint, skip_field};

use crate::cluster::Change;
use crate::log::EntryKind;

/// Transactions may nest this deep on the wire, far past what `max-txn-ops` can admit (each level costs at least one
/// operation of its budget) and far below what a stack of [`TXN_STACK_BYTES`] holds.
pub(crate) const TXN_DEPTH_MAX: usize = 1_024;
/// Stack of every thread that decodes, checks, carries out or answers transactions: all of that recurses. The deepest
/// one was measured to need between 4 and 6 MiB in a build without optimisation, where a thread has 2 MiB unless it is
/// given more. Memory is taken only for what is touched.
pub(crate) const TXN_STACK_BYTES: usize = 16 << 20;

/// Tag of `txn` in `InternalRaftRequest`.
const TXN_TAG: u32 = 6;
/// Tag of `header` in `InternalRaftRequest`: the last but for numbers that no entry of ours has.
const HEADER_TAG: u32 = 100;
/// What comes before `ID` in `InternalRaftRequest`: tag 1, a varint. prost writes fields in the order of their tags.
const NUMBER_KEY: u8 = 1 << 3;

/// What the policies' consent to a command rests on: it holds while neither has changed.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Judgement {
    /// The policy epoch; 0 while none was ever in force, and of what policies are not asked about.
    pub(crate) epoch: u64,
    /// Keys that policies read, as they found them.
    pub(crate) read_set: Vec<ReadSetEntry>,
}

#[cfg(test)]
impl Judgement {
    /// Of policies that read nothing.
    pub(crate) fn under(epoch: u64) -> Judgement {
        Judgement { epoch, read_set: Vec::new() }
    }
}

/// A change to the replicated state.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Command {
    Put(PutRequest),
    DeleteRange(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    LeaseGrant(LeaseGrantRequest),
    LeaseRevoke(LeaseRevokeRequest),
    LeaseCheckpoint(LeaseCheckpointRequest),
    Alarm(AlarmRequest),
    /// A member tells the cluster its name and client URLs, once it has started.
    MemberAttributes(ClusterMemberAttrSetRequest),
    /// A change of the plugins. Rare, and boxed so that others need no room for it.
    Plugin(Box<PluginCommand>),
    /// The leader notes which revision there is, and what time it is.
    Mark(TimelineMark),
    /// A change of who the members are. Its entries are of a kind of their own, as raft must know of them.
    Membership(Change),
}

/// An entry whose bytes are no command. Every member finds the same, so the entry counts as applied and changes
/// nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DecodeError {
    /// Not a protobuf message of the expected shape.
    Malformed(String),
    /// No command that this version knows.
    Unknown,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Malformed(what) => write!(f, "malformed command: {what}"),
            DecodeError::Unknown => write!(f, "a command this version does not know"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<prost::DecodeError> for DecodeError {
    fn from(error: prost::DecodeError) -> DecodeError {
        DecodeError::Malformed(error.to_string())
    }
}

impl Command {
    /// The entry's payload. By `number` whoever proposed the command finds it again, 0 being none.
    pub(crate) fn encode(self, number: u64, judgement: Judgement) -> Bytes {
        if let Command::Membership(change) = self {
            return change.encode(number);
        }
        let Judgement { epoch: policy_epoch, read_set } = judgement;
        let mut header = RequestHeader { policy_epoch, read_set, ..RequestHeader::default() };
        let command = match self {
            Command::Plugin(change) => {
                header.plugin = Some(change);
                None
            }
            Command::Mark(mark) => {
                header.mark = Some(mark);
                None
            }
            command => Some(command),
        };
        let header = (header != RequestHeader::default()).then_some(header);
        let mut request = InternalRaftRequest { header, id: number, ..InternalRaftRequest::default() };
        let Some(command) = command else { return request.encode_to_vec().into() };
        match command {
            Command::Put(put) => request.put = Some(put),
            Command::DeleteRange(delete) => request.delete_range = Some(delete),
            Command::Txn(txn) => request.txn = Some(txn),
            Command::Compact(compaction) => request.compaction = Some(compaction),
            Command::LeaseGrant(grant) => request.lease_grant = Some(grant),
            Command::LeaseRevoke(revoke) => request.lease_revoke = Some(revoke),
            Command::LeaseCheckpoint(checkpoint) => request.lease_checkpoint = Some(checkpoint),
            Command::Alarm(alarm) => request.alarm = Some(alarm),
            Command::MemberAttributes(attributes) => request.cluster_member_attr_set = Some(attributes),
            Command::Plugin(_) | Command::Mark(_) | Command::Membership(_) => unreachable!("encoded above"),
        }
        request.encode_to_vec().into()
    }

    /// The kind of its entry.
    pub(crate) fn kind(&self) -> EntryKind {
        match self {
            Command::Membership(_) => EntryKind::ConfChange,
            _ => EntryKind::Normal,
        }
    }

    /// Reads an entry's payload. Keys and values are slices of it.
    pub(crate) fn decode(kind: EntryKind, payload: Bytes) -> Result<(RequestHeader, Command), DecodeError> {
        match kind {
            EntryKind::Normal => Command::decode_normal(payload),
            EntryKind::ConfChange => match Change::decode(&payload) {
                Ok(change) => Ok((RequestHeader::default(), Command::Membership(change))),
                Err(what) => Err(DecodeError::Malformed(what)),
            },
            EntryKind::ConfChangeV2 => Err(DecodeError::Unknown),
        }
    }

    fn decode_normal(payload: Bytes) -> Result<(RequestHeader, Command), DecodeError> {
        if let Some((header, txn)) = sole_txn(&payload)? {
            return Ok((header, Command::Txn(txn)));
        }
        let request = InternalRaftRequest::decode(payload)?;
        let mut header = request.header.unwrap_or_default();
        let command = if let Some(put) = request.put {
            Command::Put(put)
        } else if let Some(txn) = request.txn {
            Command::Txn(txn)
        } else if let Some(delete) = request.delete_range {
            Command::DeleteRange(delete)
        } else if let Some(compaction) = request.compaction {
            Command::Compact(compaction)
        } else if let Some(grant) = request.lease_grant {
            Command::LeaseGrant(grant)
        } else if let Some(revoke) = request.lease_revoke {
            Command::LeaseRevoke(revoke)
        } else if let Some(checkpoint) = request.lease_checkpoint {
            Command::LeaseCheckpoint(checkpoint)
        } else if let Some(alarm) = request.alarm {
            Command::Alarm(alarm)
        } else if let Some(attributes) = request.cluster_member_attr_set {
            Command::MemberAttributes(attributes)
        } else if let Some(change) = header.plugin.take() {
            Command::Plugin(change)
        } else if let Some(mark) = header.mark.take() {
            Command::Mark(mark)
        } else {
            return Err(DecodeError::Unknown);
        };
        Ok((header, command))
    }
}

/// The payload's header and transaction when that is all the payload holds, decoded past the depth that prost allows.
fn sole_txn(payload: &Bytes) -> Result<Option<(RequestHeader, TxnRequest)>, DecodeError> {
    let mut rest = payload.clone();
    take_number(&mut rest)?;
    if !rest.has_remaining() {
        return Ok(None);
    }
    let (tag, wire_type) = decode_key(&mut rest)?;
    if tag != TXN_TAG || wire_type != WireType::LengthDelimited {
        return Ok(None);
    }
    let body = take_delimited(&mut rest)?;
    let mut header = RequestHeader::default();
    if rest.has_remaining() {
        let (tag, wire_type) = decode_key(&mut rest)?;
        if tag != HEADER_TAG || wire_type != WireType::LengthDelimited {
            return Ok(None);
        }
        header = RequestHeader::decode(take_delimited(&mut rest)?)?;
        if rest.has_remaining() {
            return Ok(None);
        }
    }
    decode_txn(body).map(|txn| Some((header, txn)))
}

/// The number that the payload was encoded with, if it was.
pub(crate) fn number(payload: &Bytes) -> Option<u64> {
    take_number(&mut payload.clone()).ok().flatten()
}

/// Takes the number off the front of a payload.
fn take_number(payload: &mut Bytes) -> Result<Option<u64>, DecodeError> {
    if payload.first() != Some(&NUMBER_KEY) {
        return Ok(None);
    }
    payload.advance(1);
    Ok(Some(decode_varint(payload)?))
}

/// Decodes a transaction nested up to [`TXN_DEPTH_MAX`] deep.
///
/// prost stops at a hundred nested messages, which is fifty nested transactions; etcd takes a hundred and twenty-seven.
///
/// # Errors
/// `Malformed` when the bytes are no transaction or nest deeper.
pub(crate) fn decode_txn(bytes: Bytes) -> Result<TxnRequest, DecodeError> {
    decode_txn_at(bytes, 1)
}

fn decode_txn_at(mut bytes: Bytes, depth: usize) -> Result<TxnRequest, DecodeError> {
    if depth > TXN_DEPTH_MAX {
        return Err(DecodeError::Malformed(format!("transactions nest more than {TXN_DEPTH_MAX} deep")));
    }
    let mut txn = TxnRequest::default();
    while bytes.has_remaining() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        match tag {
            1..=3 => {
                check_wire_type(WireType::LengthDelimited, wire_type)?;
                let field = take_delimited(&mut bytes)?;
                match tag {
                    1 => txn.compare.push(Compare::decode(field)?),
                    2 => txn.success.push(decode_op(field, depth)?),
                    _ => txn.failure.push(decode_op(field, depth)?),
                }
            }
            _ => skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?,
        }
    }
    Ok(txn)
}

fn decode_op(mut bytes: Bytes, depth: usize) -> Result<RequestOp, DecodeError> {
    let mut request = None;
    while bytes.has_remaining() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        if !(1..=4).contains(&tag) {
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
            continue;
        }
        check_wire_type(WireType::LengthDelimited, wire_type)?;
        let field = take_delimited(&mut bytes)?;
        // As in every oneof, the last field on the wire counts.
        request = Some(match tag {
            1 => request_op::Request::RequestRange(RangeRequest::decode(field)?),
            2 => request_op::Request::RequestPut(PutRequest::decode(field)?),
            3 => request_op::Request::RequestDeleteRange(DeleteRangeRequest::decode(field)?),
            _ => request_op::Request::RequestTxn(decode_txn_at(field, depth + 1)?),
        });
    }
    Ok(RequestOp { request })
}

/// How deep transactions nest in these bytes, found without recursion; malformed parts end the search. For refusing a
/// request whose depth alone says that it holds too many operations.
pub(crate) fn txn_depth(bytes: &Bytes) -> usize {
    let mut deepest = 0;
    let mut open = vec![(bytes.clone(), 1)];
    while let Some((mut txn, depth)) = open.pop() {
        deepest = deepest.max(depth);
        while let Ok(Some((tag, field))) = next_delimited(&mut txn) {
            if !(2..=3).contains(&tag) {
                continue;
            }
            let mut op = field;
            while let Ok(Some((tag, nested))) = next_delimited(&mut op) {
                if tag == 4 {
                    open.push((nested, depth + 1));
                }
            }
        }
    }
    deepest
}

/// The next length-delimited field; other fields are passed over.
fn next_delimited(bytes: &mut Bytes) -> Result<Option<(u32, Bytes)>, DecodeError> {
    while bytes.has_remaining() {
        let (tag, wire_type) = decode_key(bytes)?;
        if wire_type == WireType::LengthDelimited {
            return Ok(Some((tag, take_delimited(bytes)?)));
        }
        skip_field(wire_type, tag, bytes, DecodeContext::default())?;
    }
    Ok(None)
}

fn take_delimited(bytes: &mut Bytes) -> Result<Bytes, DecodeError> {
    let length = decode_varint(bytes)?;
    match usize::try_from(length) {
        Ok(length) if length <= bytes.len() => Ok(bytes.split_to(length)),
        _ => Err(DecodeError::Malformed(format!("a field of {length} bytes in the {} that are left", bytes.len()))),
    }
}

#[cfg(test)]
mod tests {
    use kuorum_proto::kuorum::v1::{PluginChunk, plugin_command};

    use super::*;

    fn nested(depth: usize) -> TxnRequest {
        let put = PutRequest { key: "k".into(), ..PutRequest::default() };
        let mut txn = TxnRequest {
            success: vec![RequestOp { request: Some(request_op::Request::RequestPut(put)) }],
            ..TxnRequest::default()
        };
        for _ in 1..depth {
            let request = Some(request_op::Request::RequestTxn(txn));
            txn = TxnRequest { success: vec![RequestOp { request }], ..TxnRequest::default() };
        }
        txn
    }

    #[test]
    fn deep_transactions_survive_the_log() {
        for depth in [1, 2, 49, 50, 51, 127, 300] {
            for epoch in [0, 3] {
                let command = Command::Txn(nested(depth));
                let (header, decoded) =
                    Command::decode(EntryKind::Normal, command.clone().encode(9, Judgement::under(epoch))).unwrap();
                assert_eq!((header.policy_epoch, decoded), (epoch, command), "nested {depth} deep");
            }
        }
    }

    #[test]
    fn depth_is_found_without_decoding() {
        assert_eq!(txn_depth(&nested(1).encode_to_vec().into()), 1);
        assert_eq!(txn_depth(&nested(300).encode_to_vec().into()), 300);
        assert_eq!(txn_depth(&Bytes::from_static(&[0x12, 0xff])), 1);
    }

    #[test]
    fn a_command_with_an_epoch_keeps_it() {
        let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
        let (header, command) =
            Command::decode(EntryKind::Normal, Command::Put(put.clone()).encode(0, Judgement::under(7))).unwrap();
        assert_eq!((header.policy_epoch, command), (7, Command::Put(put)));
    }

    #[test]
    fn a_change_of_plugins_survives_the_log() {
        let chunk = PluginChunk { number: 3, data: "bytes".into(), ..PluginChunk::default() };
        let change = PluginCommand { change: Some(plugin_command::Change::Chunk(chunk)) };
        let encoded = Command::Plugin(Box::new(change.clone())).encode(5, Judgement::default());
        assert_eq!(number(&encoded), Some(5));
        let (_, command) = Command::decode(EntryKind::Normal, encoded).unwrap();
        assert_eq!(command, Command::Plugin(Box::new(change)));
    }

    #[test]
    fn a_mark_survives_the_log() {
        let mark = Command::Mark(TimelineMark { revision: 7, at_ms: 1_700_000_000_000 });
        let (header, command) =
            Command::decode(EntryKind::Normal, mark.clone().encode(0, Judgement::default())).unwrap();
        assert_eq!((header, command), (RequestHeader::default(), mark));
    }

    proptest::proptest! {
        /// The fuzz target of commands: whatever stands in an entry, decoding ends, and what it gives encodes again.
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            for kind in [EntryKind::Normal, EntryKind::ConfChange, EntryKind::ConfChangeV2] {
                if let Ok((_, command)) = Command::decode(kind, bytes.clone()) {
                    drop(command.encode(0, Judgement::default()));
                }
            }
        }

        #[test]
        fn mutated_commands_are_decoded_or_refused(at: proptest::sample::Index, byte: u8, cut: proptest::sample::Index) {
            let mut bytes = Command::Txn(nested(9)).encode(0, Judgement::under(5)).to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut.index(bytes.len()) + 1);
            drop(Command::decode(EntryKind::Normal, bytes.clone().into()));
            txn_depth(&bytes.into());
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let seed = Command::Txn(nested(3)).encode(u64::MAX, Judgement::default());
        for at in 0..seed.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = seed.to_vec();
                bytes[at] ^= flip;
                drop(Command::decode(EntryKind::Normal, bytes.clone().into()));
                txn_depth(&bytes.into());
            }
        }
        assert_eq!(Command::decode(EntryKind::Normal, Bytes::new()), Err(DecodeError::Unknown));
    }
}
