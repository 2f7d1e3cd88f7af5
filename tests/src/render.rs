//! Answers as text in the script's own words, so that the answers of two servers compare as strings.
//!
//! Every field is written or explicitly named here and left out: responses are taken apart without `..`, so that a
//! field the interface gains cannot be missed. Ids, sizes and remaining times differ between servers and are reduced to
//! what must hold.

use kuorum_proto::etcdserverpb as pb;
use kuorum_proto::mvccpb;

use crate::names::Names;

mod upkeep;

pub(crate) use upkeep::{alarms, downgrade, hash_kv, members, status};

/// Byte strings up to this length are written out.
const SHOWN_BYTES_MAX: usize = 64;

/// `error Code "message"`.
pub fn refusal(status: &tonic::Status, names: &Names) -> String {
    format!("error {:?} {:?}", status.code(), names.show_text(status.message()))
}

/// The header as `rev=...`; as `at=...` where it has a revision but no ids, as inside a txn.
pub(crate) fn header(header: Option<&pb::ResponseHeader>, names: &Names) -> String {
    let Some(header) = header else {
        return "no-header".to_owned();
    };
    let pb::ResponseHeader { cluster_id, member_id, revision, raft_term } = header;
    let own = &names.own;
    let revision = names.show_revision(*revision);
    if (*cluster_id, *member_id, *raft_term) == (own.cluster_id, own.member_id, own.raft_term) {
        return format!("rev={revision}");
    }
    if (*cluster_id, *member_id, *raft_term) == (0, 0, 0) {
        return format!("at={revision}");
    }
    format!("rev={revision} (cluster {cluster_id} member {member_id} term {raft_term})")
}

/// Letters as they are, other bytes as `\xNN`, long strings as a repetition or by length and checksum.
pub fn show_bytes(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "\"\"".to_owned();
    }
    if bytes.len() <= SHOWN_BYTES_MAX {
        return bytes.iter().map(|byte| show_byte(*byte)).collect();
    }
    match bytes.iter().all(|byte| *byte == bytes[0]) {
        true => format!("{}*{}", show_byte(bytes[0]), bytes.len()),
        false => format!("<{} bytes, fnv {:016x}>", bytes.len(), fnv(bytes)),
    }
}

fn show_byte(byte: u8) -> String {
    match byte {
        b'\\' | b';' | b'[' | b']' | b'*' | b'"' => format!("\\x{byte:02x}"),
        0x21..=0x7e => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// `key=value c=r1 m=r2 v=2 l=L1`; what is zero is left out.
pub(crate) fn key_value(kv: &mvccpb::KeyValue, names: &Names) -> String {
    let mvccpb::KeyValue { key, create_revision, mod_revision, version, value, lease } = kv;
    let mut text = show_bytes(key);
    if !value.is_empty() {
        text.push_str(&format!("={}", show_bytes(value)));
    }
    for (letter, revision) in [("c", create_revision), ("m", mod_revision)] {
        if *revision != 0 {
            text.push_str(&format!(" {letter}={}", names.show_revision(*revision)));
        }
    }
    if *version != 0 {
        text.push_str(&format!(" v={version}"));
    }
    if *lease != 0 {
        text.push_str(&format!(" l={}", names.show_lease(*lease)));
    }
    text
}

fn key_values(kvs: &[mvccpb::KeyValue], names: &Names) -> String {
    let shown: Vec<String> = kvs.iter().map(|kv| key_value(kv, names)).collect();
    format!("[{}]", shown.join("; "))
}

fn previous(kv: Option<&mvccpb::KeyValue>, names: &Names) -> String {
    match kv {
        None => String::new(),
        Some(kv) => format!(" prev [{}]", key_value(kv, names)),
    }
}

pub(crate) fn put(answer: &pb::PutResponse, names: &Names) -> String {
    let pb::PutResponse { header: head, prev_kv } = answer;
    format!("put {}{}", header(head.as_ref(), names), previous(prev_kv.as_ref(), names))
}

pub(crate) fn range(answer: &pb::RangeResponse, names: &Names) -> String {
    let pb::RangeResponse { header: head, kvs, more, count } = answer;
    format!(
        "range {} count={count}{} {}",
        header(head.as_ref(), names),
        if *more { " more" } else { "" },
        key_values(kvs, names)
    )
}

/// The chunks of a stream as one answer. Where chunks end depends on sizes and is not compared; that header, count and
/// `more` stand on the last one only is.
pub(crate) fn range_stream(chunks: &[pb::RangeResponse], names: &Names) -> String {
    let Some((last, before)) = chunks.split_last() else {
        return "stream without a message".to_owned();
    };
    let early = before.iter().position(|chunk| chunk.header.is_some() || chunk.count != 0 || chunk.more);
    let kvs: Vec<mvccpb::KeyValue> = chunks.iter().flat_map(|chunk| chunk.kvs.iter().cloned()).collect();
    format!(
        "stream {} count={}{} {}{}",
        header(last.header.as_ref(), names),
        last.count,
        if last.more { " more" } else { "" },
        key_values(&kvs, names),
        match early {
            Some(position) => format!(" (chunk {position} has a header, count or more)"),
            None => String::new(),
        }
    )
}

pub(crate) fn delete_range(answer: &pb::DeleteRangeResponse, names: &Names) -> String {
    let pb::DeleteRangeResponse { header: head, deleted, prev_kvs } = answer;
    let previous = match prev_kvs.is_empty() {
        true => String::new(),
        false => format!(" prev {}", key_values(prev_kvs, names)),
    };
    format!("delete {} deleted={deleted}{previous}", header(head.as_ref(), names))
}

pub(crate) fn txn(answer: &pb::TxnResponse, names: &Names) -> String {
    use pb::response_op::Response;
    let pb::TxnResponse { header: head, succeeded, responses } = answer;
    let shown: Vec<String> = responses
        .iter()
        .map(|op| match &op.response {
            None => "nothing".to_owned(),
            Some(Response::ResponsePut(answer)) => put(answer, names),
            Some(Response::ResponseRange(answer)) => range(answer, names),
            Some(Response::ResponseDeleteRange(answer)) => delete_range(answer, names),
            Some(Response::ResponseTxn(answer)) => txn(answer, names),
        })
        .collect();
    format!(
        "txn {} {} {{{}}}",
        header(head.as_ref(), names),
        if *succeeded { "then" } else { "else" },
        shown.join("; ")
    )
}

pub(crate) fn compact(answer: &pb::CompactionResponse, names: &Names) -> String {
    let pb::CompactionResponse { header: head } = answer;
    format!("compact {}", header(head.as_ref(), names))
}

pub(crate) fn lease_grant(answer: &pb::LeaseGrantResponse, names: &Names) -> String {
    let pb::LeaseGrantResponse { header: head, id, ttl, error } = answer;
    let error = match error.as_str() {
        "" => String::new(),
        text => format!(" error {text:?}"),
    };
    let sign = if *id > 0 { "" } else { " (not positive)" };
    format!("grant {} {}{sign} ttl={ttl}{error}", header(head.as_ref(), names), names.show_lease(*id))
}

pub(crate) fn lease_revoke(answer: &pb::LeaseRevokeResponse, names: &Names) -> String {
    let pb::LeaseRevokeResponse { header: head } = answer;
    format!("revoke {}", header(head.as_ref(), names))
}

pub(crate) fn lease_keep_alive(answer: &pb::LeaseKeepAliveResponse, names: &Names) -> String {
    let pb::LeaseKeepAliveResponse { header: head, id, ttl } = answer;
    format!("keepalive {} {} ttl={ttl}", header(head.as_ref(), names), names.show_lease(*id))
}

/// The remaining time is only said to lie within what was granted. Keys come in any order.
pub(crate) fn lease_time_to_live(answer: &pb::LeaseTimeToLiveResponse, names: &Names) -> String {
    let pb::LeaseTimeToLiveResponse { header: head, id, ttl, granted_ttl, keys } = answer;
    let remaining = match *ttl {
        ttl if ttl > 0 && ttl <= *granted_ttl => "running".to_owned(),
        ttl => format!("ttl={ttl}"),
    };
    let mut shown: Vec<String> = keys.iter().map(|key| show_bytes(key)).collect();
    shown.sort_unstable();
    format!(
        "ttl {} {} {remaining} granted={granted_ttl} [{}]",
        header(head.as_ref(), names),
        names.show_lease(*id),
        shown.join("; ")
    )
}

pub(crate) fn lease_leases(answer: &pb::LeaseLeasesResponse, names: &Names) -> String {
    let pb::LeaseLeasesResponse { header: head, leases } = answer;
    let mut shown: Vec<String> = leases.iter().map(|pb::LeaseStatus { id }| names.show_lease(*id)).collect();
    shown.sort_unstable();
    format!("leases {} [{}]", header(head.as_ref(), names), shown.join("; "))
}

/// A watch response that is about the watcher and not about events.
pub(crate) fn watch_control(answer: &pb::WatchResponse, names: &Names) -> String {
    let pb::WatchResponse {
        header: head,
        watch_id,
        created,
        canceled,
        compact_revision,
        cancel_reason,
        fragment,
        events,
    } = answer;
    let mut text = format!("watch {watch_id} {}", header(head.as_ref(), names));
    for (set, word) in [(*created, " created"), (*canceled, " canceled"), (*fragment, " fragment")] {
        if set {
            text.push_str(word);
        }
    }
    if *compact_revision != 0 {
        text.push_str(&format!(" compacted={}", names.show_revision(*compact_revision)));
    }
    if !cancel_reason.is_empty() {
        text.push_str(&format!(" {:?}", names.show_text(cancel_reason)));
    }
    if !events.is_empty() {
        text.push_str(&format!(" with {} events", events.len()));
    }
    text
}

/// `PUT key=value ... prev [...]`.
pub(crate) fn event(event: &mvccpb::Event, names: &Names) -> String {
    let mvccpb::Event { r#type, kv, prev_kv } = event;
    let kind = match *r#type {
        0 => "PUT".to_owned(),
        1 => "DELETE".to_owned(),
        other => format!("event type {other}"),
    };
    let kv = match kv {
        None => "no kv".to_owned(),
        Some(kv) => key_value(kv, names),
    };
    format!("{kind} {kv}{}", previous(prev_kv.as_ref(), names))
}
