//! Messages out of a request body: gRPC's length-prefixed framing.
//!
//! Hand-written rather than tonic's, since clients match on grpc-go's texts and code for a message that is too large,
//! and since the framing of an empty call costs a microsecond this way. A message that came in one DATA frame is handed
//! on without a copy. Holds at most the size limit and one DATA frame; a length above the limit is refused when its
//! header is read, before the bytes are.

use std::future::poll_fn;
use std::io::Read as _;
use std::pin::Pin;

use bytes::{Buf as _, Bytes, BytesMut};
use flate2::read::GzDecoder;
use hyper::body::Body;

use super::status::Fault;

/// A flag byte and a length.
const HEADER_BYTES: usize = 5;

/// How the client compresses the messages that it flags as compressed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Encoding {
    Identity,
    Gzip,
}

/// The messages of one request body, in order.
pub(crate) struct Messages<B> {
    body: B,
    encoding: Encoding,
    message_bytes_max: usize,
    /// What was received and not yet handed out: one slice as it arrived, or joined from several. Never both.
    slice: Bytes,
    joined: BytesMut,
}

impl<B> Messages<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(crate) fn new(body: B, encoding: Encoding, message_bytes_max: usize) -> Messages<B> {
        Messages { body, encoding, message_bytes_max, slice: Bytes::new(), joined: BytesMut::new() }
    }

    /// The next message, or nothing when the client has sent its last. May be dropped while it waits; what was received
    /// stays.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await {
                Some(Ok(frame)) => {
                    // Trailers from a client mean nothing in gRPC.
                    if let Ok(data) = frame.into_data() {
                        self.hold(data);
                    }
                }
                Some(Err(_)) => return Err(Fault::Canceled),
                None if self.slice.is_empty() && self.joined.is_empty() => return Ok(None),
                None => return Err(Fault::Truncated),
            }
        }
    }

    fn hold(&mut self, data: Bytes) {
        if self.slice.is_empty() && self.joined.is_empty() {
            self.slice = data;
            return;
        }
        if !self.slice.is_empty() {
            self.joined.extend_from_slice(&self.slice);
            self.slice = Bytes::new();
        }
        self.joined.extend_from_slice(&data);
    }

    /// Cuts the first message off what is held, if all of it is there.
    fn take(&mut self) -> Result<Option<Bytes>, Fault> {
        let held: &[u8] = if self.joined.is_empty() { &self.slice } else { &self.joined };
        let Some(header) = held.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [flag, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        if length > self.message_bytes_max {
            return Err(Fault::MessageTooLarge { bytes: length, bytes_max: self.message_bytes_max });
        }
        if held.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        if !self.joined.is_empty() {
            self.slice = self.joined.split().freeze();
        }
        let mut message = self.slice.split_to(HEADER_BYTES + length);
        message.advance(HEADER_BYTES);
        match (flag, &self.encoding) {
            (0, _) => Ok(Some(message)),
            (1, Encoding::Gzip) => self.inflate(&message).map(Some),
            (1, Encoding::Identity) => Err(Fault::CompressedWithoutEncoding),
            (flag, _) => Err(Fault::UnknownFlag(flag)),
        }
    }

    fn inflate(&self, message: &[u8]) -> Result<Bytes, Fault> {
        let mut inflated = Vec::new();
        // One byte more than allowed tells "just fits" from "too large" without inflating a bomb.
        let bytes_max = self.message_bytes_max as u64 + 1;
        GzDecoder::new(message).take(bytes_max).read_to_end(&mut inflated).map_err(Fault::Inflate)?;
        if inflated.len() > self.message_bytes_max {
            return Err(Fault::InflatedTooLarge { bytes_max: self.message_bytes_max });
        }
        Ok(inflated.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::io::Write as _;
    use std::task::{Context, Poll};

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use hyper::body::Frame;

    use super::*;

    struct Frames(VecDeque<Bytes>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
        }
    }

    const BYTES_MAX: usize = 1000;

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[flag], length.as_slice(), message].concat()
    }

    /// What comes out of `stream` when it arrives in frames of `step` bytes.
    fn check(stream: &[u8], step: usize, encoding: Encoding) -> Result<Vec<Bytes>, String> {
        let frames = stream.chunks(step).map(Bytes::copy_from_slice).collect();
        let mut messages = Messages::new(Frames(frames), encoding, BYTES_MAX);
        futures::executor::block_on(async {
            let mut out = Vec::new();
            while let Some(message) = messages.next().await.map_err(|fault| fault.to_string())? {
                out.push(message);
            }
            Ok(out)
        })
    }

    #[test]
    fn messages_are_the_same_however_the_stream_is_cut() {
        let stream = [framed(0, b"one"), framed(0, b""), framed(0, &[7; 300])].concat();
        for step in 1..=stream.len() {
            let out = check(&stream, step, Encoding::Identity).unwrap();
            assert_eq!(out, [&b"one"[..], b"", &[7; 300]], "in frames of {step}");
        }
    }

    #[test]
    fn a_message_above_the_limit_is_refused_by_its_header_alone() {
        let refusal = check(&framed(0, &[0; BYTES_MAX + 1])[..5], 5, Encoding::Identity).unwrap_err();
        assert_eq!(refusal, "grpc: received message larger than max (1001 vs. 1000)");
        assert_eq!(check(&framed(0, &[0; BYTES_MAX]), 64, Encoding::Identity).unwrap().len(), 1);
    }

    #[test]
    fn a_stream_that_ends_inside_a_message_is_refused() {
        assert!(check(&framed(0, b"one")[..6], 6, Encoding::Identity).is_err());
    }

    #[test]
    fn gzip_is_inflated_within_the_limit() {
        let gzip = |message: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(message).unwrap();
            framed(1, &encoder.finish().unwrap())
        };
        assert_eq!(check(&gzip(&[7; BYTES_MAX]), 10, Encoding::Gzip).unwrap(), [vec![7; BYTES_MAX]]);
        assert!(check(&gzip(&[7; BYTES_MAX + 1]), 10, Encoding::Gzip).unwrap_err().contains("after decompression"));
        assert!(check(&framed(1, b"no gzip"), 99, Encoding::Gzip).is_err());
        assert!(check(&gzip(b"x"), 99, Encoding::Identity).unwrap_err().contains("compressed flag set"));
    }
}
