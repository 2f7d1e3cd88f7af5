//! What goes over a connection between two members: frames, each with its length and a checksum.
//!
//! ```text
//! length u32 (of kind and payload)   crc32c u32 (of kind and payload)   kind u8   payload
//! ```
//!
//! Numbers are little-endian. A connection on which anything else is found is closed: where one frame is wrong the place
//! of the next is not known.

use std::io::{self, Read};

/// Bytes of length and checksum.
const HEAD_BYTES: usize = 8;
/// Kind and payload of one frame. An append holds a mebibyte of entries, or a single larger one; a request of more than
/// this many bytes can't be replicated.
pub(super) const FRAME_BYTES_MAX: usize = 512 << 20;
/// Bytes asked for in one read.
const READ_BYTES: usize = 256 << 10;
/// A buffer that has grown beyond this for one large frame is given back afterwards.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// What a frame is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Nothing: the sender is still there.
    Ping,
    /// A message of Raft.
    Message,
    /// Commands that the sender's clients want proposed by the leader.
    Forward,
    /// Where the leader put forwarded commands, or why it did not.
    Placed,
    /// A question only the leader can answer.
    Ask,
    /// The answer to a question.
    Answer,
    /// Who calls whom, and what for; the first frame of a connection.
    Hello,
    /// The connection is taken.
    Welcome,
    /// The connection is refused, and why.
    Refused,
    /// What the rows that follow are.
    Head,
    /// Rows of a store.
    Rows,
    /// There are no more.
    End,
    /// They are safe.
    Taken,
}

const KINDS: [Kind; 13] = [
    Kind::Ping,
    Kind::Message,
    Kind::Forward,
    Kind::Placed,
    Kind::Ask,
    Kind::Answer,
    Kind::Hello,
    Kind::Welcome,
    Kind::Refused,
    Kind::Head,
    Kind::Rows,
    Kind::End,
    Kind::Taken,
];

/// Appends a frame to `out` whose payload `write` appends.
///
/// # Panics
/// When the payload is larger than a frame may be, which admission rules out.
pub(super) fn write(out: &mut Vec<u8>, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    out.push(kind as u8);
    write(out);
    let (head, body) = out[start..].split_at_mut(HEAD_BYTES);
    assert!(body.len() <= FRAME_BYTES_MAX, "a frame of {} bytes", body.len());
    let length = u32::try_from(body.len()).expect("FRAME_BYTES_MAX fits");
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// Reads frames off a connection.
pub(super) struct Reader<R> {
    source: R,
    /// Bytes read and not yet given out lie at `start..end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(source: R) -> Reader<R> {
        Reader { source, buffer: Vec::new(), start: 0, end: 0 }
    }

    /// The next frame, waiting for it.
    ///
    /// # Errors
    /// `InvalidData` when what came is no frame, `UnexpectedEof` at the end, and whatever the connection reports.
    pub(super) fn next(&mut self) -> io::Result<(Kind, &[u8])> {
        let length = loop {
            match self.length()? {
                Some(length) if self.end - self.start >= HEAD_BYTES + length => break length,
                wanted => self.fill(HEAD_BYTES + wanted.unwrap_or(0))?,
            }
        };
        let start = self.start;
        self.start += HEAD_BYTES + length;
        let body = &self.buffer[start + HEAD_BYTES..start + HEAD_BYTES + length];
        let sum = u32::from_le_bytes(self.buffer[start + 4..start + 8].try_into().expect("four bytes"));
        if crc32c::crc32c(body) != sum {
            return Err(invalid("a frame whose checksum does not fit"));
        }
        let (code, payload) = body.split_first().ok_or_else(|| invalid("an empty frame"))?;
        let kind =
            KINDS.iter().find(|kind| **kind as u8 == *code).ok_or_else(|| invalid("a frame of an unknown kind"))?;
        Ok((*kind, payload))
    }

    fn length(&self) -> io::Result<Option<usize>> {
        let Some(head) = self.buffer[self.start..self.end].first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if length == 0 || length > FRAME_BYTES_MAX {
            return Err(invalid("no frame of this protocol"));
        }
        Ok(Some(length))
    }

    /// Reads some more of the frame at `start`, which is `wanted` bytes long. Takes memory as bytes arrive, not as a length
    /// claims.
    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.buffer.len() > KEPT_BYTES_MAX {
                self.buffer = Vec::new();
            }
        }
        if self.start > 0 && self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() - self.end < READ_BYTES / 2 {
            self.buffer.resize(self.end + READ_BYTES, 0);
        }
        match self.source.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(into.len());
            self.0.read(&mut into[..count])
        }
    }

    fn frames() -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Ping, |_| ());
        write(&mut bytes, Kind::Message, |out| out.extend_from_slice(&[7; 1_000]));
        write(&mut bytes, Kind::Refused, |out| out.extend_from_slice(b"no"));
        bytes
    }

    #[test]
    fn frames_come_back_however_they_arrive() {
        let bytes = frames();
        for step in [1, 7, 1_000, 1 << 20] {
            let mut reader = Reader::new(Trickle(&bytes, step));
            assert_eq!(reader.next().unwrap(), (Kind::Ping, &[][..]));
            assert_eq!(reader.next().unwrap(), (Kind::Message, &[7; 1_000][..]));
            assert_eq!(reader.next().unwrap(), (Kind::Refused, &b"no"[..]));
            assert_eq!(reader.next().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn a_large_frame_takes_memory_for_its_time_only() {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Message, |out| out.resize(out.len() + 2 * KEPT_BYTES_MAX, 1));
        write(&mut bytes, Kind::Ping, |_| ());
        bytes.extend(frames());
        let mut reader = Reader::new(Trickle(&bytes, 100_000));
        assert_eq!(reader.next().unwrap().1.len(), 2 * KEPT_BYTES_MAX);
        for kind in [Kind::Ping, Kind::Ping, Kind::Message, Kind::Refused] {
            assert_eq!(reader.next().unwrap().0, kind);
        }
        drop(reader.next().unwrap_err());
        assert!(reader.buffer.len() <= KEPT_BYTES_MAX);
    }

    #[test]
    fn damage_is_found() {
        let bytes = frames();
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x40;
            let mut reader = Reader::new(&damaged[..]);
            let found = (0..3).find_map(|_| reader.next().err());
            assert!(found.is_some(), "a flipped bit in byte {place} went unseen");
        }
        let claims_much = [&u32::MAX.to_le_bytes()[..], &[0; 4]].concat();
        let error = Reader::new(&claims_much[..]).next().unwrap_err();
        assert_eq!(error.to_string(), "no frame of this protocol");
        assert_eq!(Reader::new(&[0; 8][..]).next().unwrap_err().to_string(), "no frame of this protocol");
        let mut unknown = 2_u32.to_le_bytes().to_vec();
        unknown.extend(crc32c::crc32c(&[99, 0]).to_le_bytes());
        unknown.extend([99, 0]);
        assert_eq!(Reader::new(&unknown[..]).next().unwrap_err().to_string(), "a frame of an unknown kind");
    }
}
