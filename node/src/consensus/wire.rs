//! How what members say to each other is written: messages of Raft, commands for the leader, its verdicts on them.
//!
//! A format of our own. The crate `raft` could write protobuf, but through protobuf 2.x, whose reader must never see bytes
//! from a network (RUSTSEC-2024-0437). All numbers are little-endian and of fixed width:
//!
//! ```text
//! message  kind u8, flags u8 (1: reject), to, from, term, log_term, index, commit, commit_term, request_snapshot,
//!          reject_hint, priority: u64 each, context: u16 and that many bytes, entries: u32 and that many
//! entry    kind u8, term u64, index u64, data: u32 and that many bytes
//! forward  for each command: number u64, kind u8 (0 command, 1 change of the members), data: u32 and that many bytes
//! verdict  outcome u8 (0 placed, 1 not the leader, 2 too many requests, 3 another change of the members is under way),
//!          index u64, term u64, numbers: u64 each
//! ```
//!
//! [`decode`] takes nothing on trust: what it returns has a kind that belongs on a wire, and entries that follow each
//! other and the message's index. What only the receiver's own log can tell is looked at by the driver.

use bytes::{Buf, BufMut, Bytes};
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use crate::cluster::Change;
use crate::consensus::proposals::{Declined, Payload, Place, Verdict};
use crate::log::EntryKind;

const REJECT: u8 = 1;
/// Bytes of a message without context and entries.
const HEAD_BYTES: usize = 2 + 10 * 8;
/// Bytes of an entry without its data.
const ENTRY_HEAD_BYTES: usize = 1 + 2 * 8 + 4;

/// The kinds that members send each other. The others are a member's own affair: raft would take them for its own.
const KINDS: [(MessageType, u8); 11] = [
    (MessageType::MsgAppend, 1),
    (MessageType::MsgAppendResponse, 2),
    (MessageType::MsgRequestVote, 3),
    (MessageType::MsgRequestVoteResponse, 4),
    (MessageType::MsgHeartbeat, 6),
    (MessageType::MsgHeartbeatResponse, 7),
    (MessageType::MsgTimeoutNow, 8),
    (MessageType::MsgReadIndex, 9),
    (MessageType::MsgReadIndexResp, 10),
    (MessageType::MsgRequestPreVote, 11),
    (MessageType::MsgRequestPreVoteResponse, 12),
];

/// Whether the message may not wait behind a long append: losing a leader or a read for want of it would cost more.
pub(crate) fn is_urgent(kind: MessageType) -> bool {
    !matches!(kind, MessageType::MsgAppend | MessageType::MsgAppendResponse | MessageType::MsgSnapshot)
}

/// Bytes that [`encode`] adds.
pub(crate) fn encoded_len(message: &Message) -> usize {
    let entries: usize = message.entries.iter().map(|entry| ENTRY_HEAD_BYTES + entry.data.len()).sum();
    HEAD_BYTES + 2 + message.context.len() + 4 + entries
}

/// Appends the message to `out`.
///
/// # Panics
/// When the message is of a kind that stays within a member.
pub(crate) fn encode(message: &Message, out: &mut Vec<u8>) {
    let kind = KINDS.iter().find(|(kind, _)| *kind == message.get_msg_type());
    let (_, code) = kind.expect("raft sends only kinds that belong on a wire");
    out.reserve(encoded_len(message));
    out.put_u8(*code);
    out.put_u8(if message.reject { REJECT } else { 0 });
    for number in [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
        message.priority.cast_unsigned(),
    ] {
        out.put_u64_le(number);
    }
    out.put_u16_le(u16::try_from(message.context.len()).expect("a context is a few numbers"));
    out.put_slice(&message.context);
    out.put_u32_le(u32::try_from(message.entries.len()).expect("an append holds far fewer entries"));
    for entry in &message.entries {
        out.put_u8(match entry.get_entry_type() {
            EntryType::EntryNormal => 0,
            EntryType::EntryConfChange => 1,
            EntryType::EntryConfChangeV2 => 2,
        });
        out.put_u64_le(entry.term);
        out.put_u64_le(entry.index);
        out.put_u32_le(u32::try_from(entry.data.len()).expect("admission bounds an entry far below"));
        out.put_slice(&entry.data);
    }
}

/// Reads one message that fills `bytes`. Data is copied out: a slice would keep the whole network buffer alive.
///
/// # Errors
/// What is wrong with it, in a few words.
pub(crate) fn decode(mut bytes: &[u8]) -> Result<Message, &'static str> {
    let bytes = &mut bytes;
    if bytes.remaining() < HEAD_BYTES + 2 {
        return Err("cut short");
    }
    let mut message = Message::default();
    let code = bytes.get_u8();
    let (kind, _) = KINDS.iter().find(|(_, known)| *known == code).ok_or("of an unknown kind")?;
    message.set_msg_type(*kind);
    message.reject = match bytes.get_u8() {
        0 => false,
        REJECT => true,
        _ => return Err("with an unknown flag"),
    };
    for field in [
        &mut message.to,
        &mut message.from,
        &mut message.term,
        &mut message.log_term,
        &mut message.index,
        &mut message.commit,
        &mut message.commit_term,
        &mut message.request_snapshot,
        &mut message.reject_hint,
    ] {
        *field = bytes.get_u64_le();
    }
    message.priority = bytes.get_i64_le();
    let context_bytes = usize::from(bytes.get_u16_le());
    if bytes.remaining() < context_bytes + 4 {
        return Err("cut short");
    }
    message.context = Bytes::copy_from_slice(&bytes[..context_bytes]);
    bytes.advance(context_bytes);
    let count = bytes.get_u32_le();
    for _ in 0..count {
        message.entries.push(entry(bytes)?);
    }
    if bytes.has_remaining() {
        return Err("with bytes after its end");
    }
    check(&message)?;
    Ok(message)
}

fn entry(bytes: &mut &[u8]) -> Result<Entry, &'static str> {
    if bytes.remaining() < ENTRY_HEAD_BYTES {
        return Err("cut short");
    }
    let mut entry = Entry::default();
    entry.set_entry_type(match bytes.get_u8() {
        0 => EntryType::EntryNormal,
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        _ => return Err("with an entry of an unknown kind"),
    });
    entry.term = bytes.get_u64_le();
    entry.index = bytes.get_u64_le();
    let length = usize::try_from(bytes.get_u32_le()).unwrap_or(usize::MAX);
    if bytes.remaining() < length {
        return Err("cut short");
    }
    entry.data = Bytes::copy_from_slice(&bytes[..length]);
    bytes.advance(length);
    Ok(entry)
}

/// What raft takes for granted of a message, whoever its receiver is.
fn check(message: &Message) -> Result<(), &'static str> {
    let kind = message.get_msg_type();
    // Without a term raft takes a message for one of the member's own.
    if message.term == 0 && kind != MessageType::MsgReadIndex {
        return Err("without a term");
    }
    match kind {
        MessageType::MsgAppend => {
            let (mut index, mut term) = (message.index, message.log_term);
            for entry in &message.entries {
                if Some(entry.index) != index.checked_add(1) || entry.term < term || entry.term > message.term {
                    return Err("with entries that do not follow each other");
                }
                (index, term) = (entry.index, entry.term);
            }
            Ok(())
        }
        // The context of a read travels as the data of an entry.
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp if message.entries.len() == 1 => Ok(()),
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => Err("without the context of its read"),
        _ if message.entries.is_empty() => Ok(()),
        _ => Err("with entries that its kind has no use for"),
    }
}

/// Appends commands for the leader to `out`.
pub(crate) fn encode_forward(entries: &[Payload], out: &mut Vec<u8>) {
    for Payload { number, kind, data } in entries {
        out.put_u64_le(*number);
        out.put_u8(match kind {
            EntryKind::Normal => 0,
            EntryKind::ConfChange => 1,
            EntryKind::ConfChangeV2 => unreachable!("no member proposes such a change"),
        });
        out.put_u32_le(u32::try_from(data.len()).expect("admission bounds a command far below"));
        out.put_slice(data);
    }
}

/// # Errors
/// What is wrong with the bytes.
pub(crate) fn decode_forward(mut bytes: &[u8]) -> Result<Vec<Payload>, &'static str> {
    let mut entries = Vec::new();
    while bytes.has_remaining() {
        if bytes.remaining() < 8 + 1 + 4 {
            return Err("cut short");
        }
        let number = bytes.get_u64_le();
        let kind = match bytes.get_u8() {
            0 => EntryKind::Normal,
            1 => EntryKind::ConfChange,
            _ => return Err("of an unknown kind"),
        };
        let length = usize::try_from(bytes.get_u32_le()).unwrap_or(usize::MAX);
        if bytes.remaining() < length {
            return Err("cut short");
        }
        // An entry without data is a leader's own.
        if length == 0 {
            return Err("with an empty command");
        }
        let data = Bytes::copy_from_slice(&bytes[..length]);
        bytes.advance(length);
        // Read whole here, since raft reads it with a decoder that must see no bytes from a network.
        let data = match kind {
            EntryKind::Normal => data,
            _ => match Change::decode(&data) {
                Ok(change) => change.encode(number),
                Err(_) => return Err("with a change of the members that can't be read"),
            },
        };
        entries.push(Payload { number, kind, data });
    }
    Ok(entries)
}

/// Appends a leader's verdict to `out`.
pub(crate) fn encode_verdict(verdict: &Verdict, out: &mut Vec<u8>) {
    let (outcome, place) = match verdict.outcome {
        Ok(place) => (0, place),
        Err(Declined::NotLeader) => (1, Place { index: 0, term: 0 }),
        Err(Declined::TooManyRequests) => (2, Place { index: 0, term: 0 }),
        Err(Declined::ReconfigurationPending) => (3, Place { index: 0, term: 0 }),
    };
    out.put_u8(outcome);
    out.put_u64_le(place.index);
    out.put_u64_le(place.term);
    for number in &verdict.numbers {
        out.put_u64_le(*number);
    }
}

/// # Errors
/// What is wrong with the bytes.
pub(crate) fn decode_verdict(mut bytes: &[u8]) -> Result<Verdict, &'static str> {
    if bytes.remaining() < 1 + 2 * 8 || !(bytes.remaining() - 1).is_multiple_of(8) {
        return Err("cut short");
    }
    let outcome = bytes.get_u8();
    let place = Place { index: bytes.get_u64_le(), term: bytes.get_u64_le() };
    let outcome = match outcome {
        0 if place.index > u64::MAX / 2 => return Err("with a place that no log has"),
        0 => Ok(place),
        1 => Err(Declined::NotLeader),
        2 => Err(Declined::TooManyRequests),
        3 => Err(Declined::ReconfigurationPending),
        _ => return Err("with an unknown outcome"),
    };
    let mut numbers = Vec::with_capacity(bytes.remaining() / 8);
    while bytes.has_remaining() {
        numbers.push(bytes.get_u64_le());
    }
    Ok(Verdict { numbers, outcome })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::MemberId;

    fn append() -> Message {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgAppend);
        (message.to, message.from, message.term, message.log_term, message.index) = (1, u64::MAX, 7, 5, 10);
        (message.commit, message.priority) = (9, -3);
        for (index, term, data) in [(11, 5, &b"first"[..]), (12, 7, b"")] {
            let mut entry = Entry::default();
            (entry.index, entry.term, entry.data) = (index, term, data.into());
            message.entries.push(entry);
        }
        message
    }

    fn encoded(message: &Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        assert_eq!(bytes.len(), encoded_len(message));
        bytes
    }

    #[test]
    fn messages_come_back_as_they_were() {
        assert_eq!(decode(&encoded(&append())), Ok(append()));
        let mut vote = Message::default();
        vote.set_msg_type(MessageType::MsgRequestVoteResponse);
        (vote.to, vote.from, vote.term, vote.reject, vote.reject_hint) = (2, 3, 4, true, 5);
        vote.context = b"CampaignTransfer"[..].into();
        assert_eq!(decode(&encoded(&vote)), Ok(vote));
    }

    #[test]
    fn a_message_cut_short_anywhere_is_refused() {
        let bytes = encoded(&append());
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), Err("cut short"), "at {length}");
        }
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), Err("with bytes after its end"));
    }

    #[test]
    fn what_raft_would_die_of_is_refused() {
        let refused = |change: &dyn Fn(&mut Message)| {
            let mut message = append();
            change(&mut message);
            decode(&encoded(&message)).unwrap_err()
        };
        assert_eq!(refused(&|message| message.term = 0), "without a term");
        let apart = "with entries that do not follow each other";
        assert_eq!(refused(&|message| message.index = 9), apart);
        assert_eq!(refused(&|message| message.index = u64::MAX), apart);
        assert_eq!(refused(&|message| message.entries[1].term = 4), apart);
        assert_eq!(refused(&|message| message.entries[1].term = 8), apart);
        let useless = "with entries that its kind has no use for";
        assert_eq!(refused(&|message| message.set_msg_type(MessageType::MsgHeartbeat)), useless);
        let no_context = "without the context of its read";
        assert_eq!(refused(&|message| message.set_msg_type(MessageType::MsgReadIndexResp)), no_context);
    }

    #[test]
    fn bytes_that_mean_nothing_are_refused() {
        let mut bytes = encoded(&append());
        for (place, value, words) in
            [(0, 0, "of an unknown kind"), (0, 99, "of an unknown kind"), (1, 2, "with an unknown flag")]
        {
            let before = std::mem::replace(&mut bytes[place], value);
            assert_eq!(decode(&bytes), Err(words));
            bytes[place] = before;
        }
        let first_entry = HEAD_BYTES + 2 + 4;
        bytes[first_entry] = 3;
        assert_eq!(decode(&bytes), Err("with an entry of an unknown kind"));
    }

    #[test]
    fn commands_and_verdicts_come_back_as_they_were() {
        let change = Change::Remove(MemberId(5)).encode(u64::MAX);
        let change_bytes = change.len();
        let payload = |number, kind, data| Payload { number, kind, data };
        let entries = vec![
            payload(7, EntryKind::Normal, Bytes::from_static(b"put")),
            payload(u64::MAX, EntryKind::ConfChange, change),
        ];
        let mut bytes = Vec::new();
        encode_forward(&entries, &mut bytes);
        assert_eq!(decode_forward(&bytes), Ok(entries));
        let whole: Vec<usize> = (0..bytes.len()).filter(|length| decode_forward(&bytes[..*length]).is_ok()).collect();
        assert_eq!(whole, [0, 8 + 1 + 4 + 3], "only whole commands");
        assert_eq!(decode_forward(&[0; 13]), Err("with an empty command"));
        let kind_of_change = 8 + 1 + 4 + 3 + 8;
        let before = std::mem::replace(&mut bytes[kind_of_change], 2);
        assert_eq!(decode_forward(&bytes), Err("of an unknown kind"));
        bytes[kind_of_change] = before;
        let last = bytes.len() - change_bytes;
        bytes[last] = 0xff;
        assert_eq!(decode_forward(&bytes), Err("with a change of the members that can't be read"));

        let place = Place { index: 5, term: 2 };
        let declined = [Declined::NotLeader, Declined::TooManyRequests, Declined::ReconfigurationPending];
        for outcome in declined.into_iter().map(Err).chain([Ok(place)]) {
            let verdict = Verdict { numbers: vec![1, u64::MAX], outcome };
            let mut bytes = Vec::new();
            encode_verdict(&verdict, &mut bytes);
            assert_eq!(decode_verdict(&bytes), Ok(verdict));
            assert_eq!(decode_verdict(&bytes[..bytes.len() - 1]), Err("cut short"));
            bytes[0] = 4;
            assert_eq!(decode_verdict(&bytes), Err("with an unknown outcome"));
        }
    }
}
