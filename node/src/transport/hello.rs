//! The first words on a connection between members: who calls whom and what for, and whether that is welcome.
//!
//! ```text
//! magic (8 bytes), then a Hello frame: protocol u16, stream u8, cluster u64, from u64, to u64, data directory u64,
//! the caller's peer URLs, separated by commas
//! answered by a Welcome frame, or a Refused frame: reason u8 and a sentence
//! ```

use bytes::{Buf, BufMut};

use crate::cluster::{ClusterId, MemberId};

/// Starts every connection between members; no HTTP request begins like this.
pub(crate) const MAGIC: [u8; 8] = *b"kuorum\0\x01";
/// The protocol that both sides must speak.
const PROTOCOL: u16 = 2;
/// Bytes of a greeting without the URLs.
const HELLO_BYTES: usize = 2 + 1 + 4 * 8;
/// Bytes of the URLs in a greeting.
const URLS_BYTES_MAX: usize = 4_096;

/// What a connection is for. Each pair of members has one of each, in each direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Stream {
    /// Messages of Raft.
    Messages,
    /// What one member asks of another on behalf of clients, and the answers.
    Requests,
    /// All rows of the caller's store; one connection for each transfer.
    Snapshot,
}

impl Stream {
    pub(crate) const ALL: [Stream; 3] = [Stream::Messages, Stream::Requests, Stream::Snapshot];
}

/// Who calls whom, and what for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hello {
    pub(crate) stream: Stream,
    pub(crate) cluster: ClusterId,
    pub(crate) from: MemberId,
    pub(crate) to: MemberId,
    /// Of the caller; 0 when it does not know.
    pub(crate) data_dir: u64,
    /// Where the caller is to be answered by a member that does not know it yet.
    pub(crate) peer_urls: Vec<String>,
}

/// Why a connection is refused, so that the caller knows whether to call again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reason {
    /// The caller belongs to another cluster, or took this member for another.
    Stranger,
    /// The caller was removed from the cluster for good.
    Removed,
    /// The caller has another data directory than the one it joined with.
    Wiped,
    /// The caller speaks another protocol.
    Protocol,
}

const REASONS: [Reason; 4] = [Reason::Stranger, Reason::Removed, Reason::Wiped, Reason::Protocol];

impl Hello {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16_le(PROTOCOL);
        out.put_u8(self.stream as u8);
        for number in [self.cluster.0, self.from.0, self.to.0, self.data_dir] {
            out.put_u64_le(number);
        }
        let urls = self.peer_urls.join(",");
        // Longer ones are known from the log alone.
        if urls.len() <= URLS_BYTES_MAX {
            out.put_slice(urls.as_bytes());
        }
    }

    /// # Errors
    /// Why the caller can't be understood.
    pub(super) fn decode(mut bytes: &[u8]) -> Result<Hello, (Reason, String)> {
        let wrong = |what: String| (Reason::Protocol, what);
        if bytes.len() < 2 {
            return Err(wrong("a greeting cut short".to_owned()));
        }
        let protocol = bytes.get_u16_le();
        if protocol != PROTOCOL {
            return Err(wrong(format!(
                "the caller speaks protocol {protocol} of members, this member speaks {PROTOCOL}; run the same version"
            )));
        }
        if !(HELLO_BYTES - 2..=HELLO_BYTES - 2 + URLS_BYTES_MAX).contains(&bytes.len()) {
            return Err(wrong("a greeting of the wrong length".to_owned()));
        }
        let code = bytes.get_u8();
        let stream = Stream::ALL.into_iter().find(|stream| *stream as u8 == code);
        let stream = stream.ok_or_else(|| wrong(format!("the caller wants a stream of unknown kind {code}")))?;
        let mut number = || bytes.get_u64_le();
        let (cluster, from, to) = (ClusterId(number()), MemberId(number()), MemberId(number()));
        let data_dir = number();
        let urls = str::from_utf8(bytes).map_err(|_| wrong("a greeting with URLs that are no text".to_owned()))?;
        let peer_urls = urls.split(',').filter(|url| !url.is_empty()).map(str::to_owned).collect();
        Ok(Hello { stream, cluster, from, to, data_dir, peer_urls })
    }
}

pub(super) fn encode_refusal(reason: Reason, sentence: &str, out: &mut Vec<u8>) {
    out.put_u8(reason as u8);
    out.put_slice(sentence.as_bytes());
}

pub(super) fn decode_refusal(bytes: &[u8]) -> (Reason, String) {
    let (code, sentence) = bytes.split_first().unwrap_or((&u8::MAX, &[]));
    let reason = REASONS.into_iter().find(|reason| *reason as u8 == *code).unwrap_or(Reason::Protocol);
    (reason, String::from_utf8_lossy(sentence).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back_as_they_were() {
        for stream in Stream::ALL {
            let (from, to) = (MemberId(u64::MAX), MemberId(2));
            let peer_urls = vec!["http://a:1".to_owned(), "http://b:2".to_owned()];
            let hello = Hello { stream, cluster: ClusterId(7), from, to, data_dir: 3, peer_urls };
            let mut bytes = Vec::new();
            hello.encode(&mut bytes);
            assert_eq!(Hello::decode(&bytes), Ok(hello));
            for length in 0..HELLO_BYTES {
                assert_eq!(Hello::decode(&bytes[..length]).unwrap_err().0, Reason::Protocol);
            }
            assert_eq!(Hello::decode(&bytes[..HELLO_BYTES]).unwrap().peer_urls, [""; 0]);
            bytes[HELLO_BYTES] = 0xff;
            assert_eq!(Hello::decode(&bytes).unwrap_err().1, "a greeting with URLs that are no text");
            bytes.resize(HELLO_BYTES + URLS_BYTES_MAX + 1, b'u');
            assert_eq!(Hello::decode(&bytes).unwrap_err().1, "a greeting of the wrong length");
            bytes[0] = 9;
            let words = "the caller speaks protocol 9 of members, this member speaks 2; run the same version";
            assert_eq!(Hello::decode(&bytes).unwrap_err().1, words);
        }
        for reason in REASONS {
            let mut bytes = Vec::new();
            encode_refusal(reason, "no", &mut bytes);
            assert_eq!(decode_refusal(&bytes), (reason, "no".to_owned()));
        }
        assert_eq!(decode_refusal(&[]), (Reason::Protocol, String::new()));
    }
}
