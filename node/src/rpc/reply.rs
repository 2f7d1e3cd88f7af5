//! Response bodies: framed messages and the trailers that carry the status.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use futures::stream::{BoxStream, StreamExt as _};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use prost::Message;
use tonic::Status;

use super::range_answer::RangeAnswer;

const CONTENT_TYPE_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const STATUS_OK: HeaderValue = HeaderValue::from_static("0");

/// A flag byte and a length.
const HEADER_BYTES: usize = 5;

/// The answer to one request, on either protocol.
pub(crate) enum Reply {
    /// The one message of a unary call, framed and perhaps in several pieces, then the trailers of success.
    Unary { first: Option<Bytes>, rest: std::vec::IntoIter<Bytes> },
    /// Messages as they come, not framed yet; the first error, or the end, becomes the trailers.
    Stream(BoxStream<'static, Result<Bytes, Status>>),
    /// All has been said.
    Done,
    /// A page.
    Page(axum::body::Body),
}

/// What answers a unary call.
pub(crate) trait UnaryAnswer {
    /// The framed message, and its length.
    fn framed(self) -> (Reply, usize);
}

impl<M: Message> UnaryAnswer for M {
    fn framed(self) -> (Reply, usize) {
        let bytes = self.encoded_len();
        let mut framed = BytesMut::with_capacity(HEADER_BYTES + bytes);
        framed.put_slice(&header(bytes));
        self.encode_raw(&mut framed);
        (Reply::Unary { first: Some(framed.freeze()), rest: Vec::new().into_iter() }, bytes)
    }
}

impl UnaryAnswer for RangeAnswer {
    fn framed(self) -> (Reply, usize) {
        let (mut first, rest, bytes) = self.pieces(HEADER_BYTES);
        first[..HEADER_BYTES].copy_from_slice(&header(bytes));
        (Reply::Unary { first: Some(first.freeze()), rest: rest.into_iter() }, bytes)
    }
}

/// Answers with one message.
pub(crate) fn unary(answer: impl UnaryAnswer) -> (Response<Reply>, usize) {
    let (reply, bytes) = answer.framed();
    (with_headers(reply), bytes)
}

/// Answers with a stream of messages.
pub(crate) fn stream(messages: BoxStream<'static, Result<Bytes, Status>>) -> Response<Reply> {
    with_headers(Reply::Stream(messages))
}

/// Refuses before the first message: the status goes in the headers and nothing follows.
pub(crate) fn refused(status: &Status) -> Response<Reply> {
    let mut response = with_headers(Reply::Done);
    put_status(status, response.headers_mut());
    response
}

/// Refuses a request that is not gRPC at all, as grpc-go does.
pub(crate) fn not_grpc(code: StatusCode, status: &Status) -> Response<Reply> {
    let mut response = refused(status);
    *response.status_mut() = code;
    response
}

fn with_headers(reply: Reply) -> Response<Reply> {
    let mut response = Response::new(reply);
    response.headers_mut().insert(CONTENT_TYPE, CONTENT_TYPE_GRPC);
    response
}

fn put_status(status: &Status, headers: &mut HeaderMap) {
    // A text that can't be a header even in percent encoding is impossible; tonic answers with a status of its own then.
    if let Err(substitute) = status.add_header(headers) {
        headers.insert(STATUS, HeaderValue::from(i32::from(substitute.code())));
    }
}

fn header(bytes: usize) -> [u8; HEADER_BYTES] {
    let length = u32::try_from(bytes).expect("a message is built in memory and stays below 4 GiB");
    let [a, b, c, d] = length.to_be_bytes();
    [0, a, b, c, d]
}

fn ok_trailers() -> Frame<Chunk> {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, STATUS_OK);
    Frame::trailers(trailers)
}

impl Body for Reply {
    type Data = Chunk;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, axum::Error>>> {
        let (frame, last) = match &mut *self {
            Reply::Unary { first, rest } => match first.take().or_else(|| rest.next()) {
                Some(piece) => (Frame::data(Chunk::Whole(piece)), false),
                None => (ok_trailers(), true),
            },
            Reply::Stream(messages) => match ready!(messages.poll_next_unpin(context)) {
                Some(Ok(message)) => (Frame::data(Chunk::framed(message)), false),
                Some(Err(status)) => {
                    let mut trailers = HeaderMap::with_capacity(2);
                    put_status(&status, &mut trailers);
                    (Frame::trailers(trailers), true)
                }
                None => (ok_trailers(), true),
            },
            Reply::Done => return Poll::Ready(None),
            Reply::Page(page) => {
                let frame = ready!(Pin::new(page).poll_frame(context));
                return Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(Chunk::Whole))));
            }
        };
        if last {
            *self = Reply::Done;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Done => true,
            Reply::Page(page) => page.is_end_stream(),
            Reply::Unary { .. } | Reply::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Page(page) => page.size_hint(),
            Reply::Done | Reply::Unary { .. } | Reply::Stream(_) => SizeHint::default(),
        }
    }
}

/// Bytes to write: a message framed in place, or a header before a message that others share.
pub(crate) enum Chunk {
    Whole(Bytes),
    Framed { header: [u8; HEADER_BYTES], sent: usize, message: Bytes },
}

impl Chunk {
    fn framed(message: Bytes) -> Chunk {
        Chunk::Framed { header: header(message.len()), sent: 0, message }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        match self {
            Chunk::Whole(bytes) => bytes.len(),
            Chunk::Framed { sent, message, .. } => HEADER_BYTES - sent + message.len(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Chunk::Whole(bytes) => bytes,
            Chunk::Framed { header, sent, .. } if *sent < HEADER_BYTES => &header[*sent..],
            Chunk::Framed { message, .. } => message,
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        match self {
            Chunk::Framed { header, sent, message } if *sent < HEADER_BYTES && slices.len() > 1 => {
                slices[0] = IoSlice::new(&header[*sent..]);
                slices[1] = IoSlice::new(message);
                2
            }
            Chunk::Whole(_) | Chunk::Framed { .. } => {
                let Some(first) = slices.first_mut() else { return 0 };
                *first = IoSlice::new(self.chunk());
                1
            }
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Chunk::Whole(bytes) => bytes.advance(count),
            Chunk::Framed { sent, message, .. } => {
                let of_header = count.min(HEADER_BYTES - *sent);
                *sent += of_header;
                message.advance(count - of_header);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_message_is_written_behind_its_header_however_it_is_cut() {
        for step in 1..12 {
            let mut chunk = Chunk::framed(Bytes::from_static(b"message"));
            let mut written = Vec::new();
            while chunk.has_remaining() {
                let piece = chunk.chunk().len().min(step);
                written.extend_from_slice(&chunk.chunk()[..piece]);
                chunk.advance(piece);
            }
            assert_eq!(written, b"\0\0\0\0\x07message", "in steps of {step}");
        }
    }

    #[test]
    fn a_vectored_write_offers_header_and_message_at_once() {
        let mut chunk = Chunk::framed(Bytes::from_static(b"message"));
        chunk.advance(2);
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(chunk.chunks_vectored(&mut slices), 2);
        assert_eq!((&*slices[0], &*slices[1]), (&b"\0\0\x07"[..], &b"message"[..]));
    }
}
