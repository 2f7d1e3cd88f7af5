//! The light client's side of HTTP/2: frames built and taken apart by hand, so that the servers and not the client are
//! what a row measures.
//!
//! Sends requests whose header block is a few indexed bytes after the first of its kind, as long-lived gRPC clients do.
//! Response headers are not decoded: a call that ends without a message is a refusal, and no row expects one. Owns
//! bytes only; [`super::load`] moves them.

use std::collections::{HashMap, VecDeque};

use bytes::{Buf as _, BytesMut};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
/// A flag byte and a length before each gRPC message.
const MESSAGE_HEADER_BYTES: usize = 5;
/// The largest frame either side sends: HTTP/2's default.
const FRAME_BYTES_MAX: usize = 16_384;
/// Memory taken at once for a message that comes in several frames.
const MESSAGE_RESERVE_BYTES: usize = 8 << 20;
/// What the server may send of one call: no row should wait for a window.
const STREAM_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// Received bytes after which the connection's window is opened again by as many.
const WINDOW_UPDATE_BYTES: u32 = 16 << 20;
/// HTTP/2's window of a connection before any update.
const WINDOW_BYTES_DEFAULT: u32 = 65_535;
/// The first index of HPACK's dynamic table.
const DYNAMIC_INDEX_FIRST: usize = 62;
/// Indices of HPACK's static table.
const STATIC_AUTHORITY: u8 = 1;
const STATIC_POST: u8 = 3;
const STATIC_PATH: u8 = 4;
const STATIC_HTTP: u8 = 6;
const STATIC_CONTENT_TYPE: u8 = 31;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

const SETTING_STREAM_WINDOW: u16 = 4;

/// What the server said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    /// One whole message of a call.
    Message { stream: u32, message: &'a [u8] },
    /// The call is over, after this many messages.
    End { stream: u32, messages: u32 },
}

/// A connection without its socket.
pub(crate) struct Wire {
    /// Bytes to be written.
    pub(crate) out: Vec<u8>,
    /// Bytes that were read.
    pub(crate) input: BytesMut,
    authority: String,
    /// What the server's dynamic table holds, oldest first: paths, and names for the headers that all requests have.
    table: Vec<&'static str>,
    next_stream: u32,
    /// Bytes of DATA that the server takes now.
    send_window: i64,
    /// DATA frames that wait for the window.
    waiting: VecDeque<Vec<u8>>,
    received_bytes: u32,
    calls: HashMap<u32, Partial>,
}

/// What came of a call's present message.
#[derive(Default)]
struct Partial {
    bytes: Vec<u8>,
    messages: u32,
}

impl Partial {
    fn has_message(&self) -> bool {
        match self.bytes.split_first_chunk::<MESSAGE_HEADER_BYTES>() {
            Some((header, rest)) => rest.len() >= message_bytes(header),
            None => false,
        }
    }
}

fn message_bytes(header: &[u8; MESSAGE_HEADER_BYTES]) -> usize {
    u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize
}

impl Wire {
    pub(crate) fn new(authority: &str) -> Wire {
        let mut wire = Wire {
            out: PREFACE.to_vec(),
            input: BytesMut::with_capacity(1 << 18),
            authority: authority.to_owned(),
            table: Vec::new(),
            next_stream: 1,
            send_window: i64::from(WINDOW_BYTES_DEFAULT),
            waiting: VecDeque::new(),
            received_bytes: 0,
            calls: HashMap::new(),
        };
        let mut window = SETTING_STREAM_WINDOW.to_be_bytes().to_vec();
        window.extend_from_slice(&STREAM_WINDOW_BYTES.to_be_bytes());
        wire.frame(SETTINGS, 0, 0, &window);
        wire.frame(WINDOW_UPDATE, 0, 0, &(STREAM_WINDOW_BYTES - WINDOW_BYTES_DEFAULT).to_be_bytes());
        wire
    }

    /// Starts a call with one message. A unary call is closed at once, a stream stays open for more.
    pub(crate) fn call(&mut self, path: &'static str, message: &[u8], unary: bool) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        let block = self.header_block(path);
        self.frame(HEADERS, END_HEADERS, stream, &block);
        self.calls.insert(stream, Partial::default());
        self.send(stream, message, unary);
        stream
    }

    /// Sends one message on an open call.
    pub(crate) fn send(&mut self, stream: u32, message: &[u8], last: bool) {
        let length = u32::try_from(message.len()).expect("a benchmark's message is small");
        let mut framed = Vec::with_capacity(MESSAGE_HEADER_BYTES + message.len());
        framed.push(0);
        framed.extend_from_slice(&length.to_be_bytes());
        framed.extend_from_slice(message);
        let pieces = framed.len().div_ceil(FRAME_BYTES_MAX);
        for (number, piece) in framed.chunks(FRAME_BYTES_MAX).enumerate() {
            let flags = if last && number + 1 == pieces { END_STREAM } else { 0 };
            let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + piece.len());
            put_frame(&mut frame, DATA, flags, stream, piece);
            self.waiting.push_back(frame);
        }
        self.send_waiting();
    }

    /// Takes apart what was read, and hands over what the server said.
    ///
    /// # Errors
    /// A sentence when the server ended the connection or a call.
    pub(crate) fn hear(&mut self, mut said: impl FnMut(Said<'_>)) -> Result<(), String> {
        while let Some(header) = self.input.first_chunk::<FRAME_HEADER_BYTES>() {
            let length = usize::from(header[0]) << 16 | usize::from(header[1]) << 8 | usize::from(header[2]);
            let (kind, flags) = (header[3], header[4]);
            let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]) & (u32::MAX >> 1);
            if self.input.len() < FRAME_HEADER_BYTES + length {
                break;
            }
            self.input.advance(FRAME_HEADER_BYTES);
            let payload = self.input.split_to(length);
            match kind {
                DATA => self.data(stream, flags, &payload, &mut said)?,
                HEADERS if flags & END_STREAM != 0 => self.end(stream, &mut said),
                // grpc-go sends one behind its answer when it has not noticed yet that the request is over.
                RST_STREAM if !self.calls.contains_key(&stream) => {}
                RST_STREAM => return Err(format!("stream {stream} was reset: {}", payload.escape_ascii())),
                GOAWAY => return Err(format!("the server went away: {}", payload.escape_ascii())),
                SETTINGS if flags & ACK == 0 => {
                    self.settings(&payload)?;
                    self.frame(SETTINGS, ACK, 0, &[]);
                }
                PING if flags & ACK == 0 => self.frame(PING, ACK, 0, &payload),
                WINDOW_UPDATE if stream == 0 => {
                    self.send_window += i64::from(number(&payload)?);
                    self.send_waiting();
                }
                _ => {}
            }
        }
        if self.received_bytes >= WINDOW_UPDATE_BYTES {
            let received = std::mem::take(&mut self.received_bytes);
            self.frame(WINDOW_UPDATE, 0, 0, &received.to_be_bytes());
        }
        Ok(())
    }

    fn data(&mut self, stream: u32, flags: u8, data: &[u8], said: &mut impl FnMut(Said<'_>)) -> Result<(), String> {
        if flags & PADDED != 0 {
            return Err(format!("stream {stream}: padding, which neither server sends"));
        }
        self.received_bytes += u32::try_from(data.len()).expect("a frame is below 16 MiB");
        let Some(call) = self.calls.get_mut(&stream) else { return Ok(()) };
        // Nearly every message comes in a frame of its own and needs no copy.
        let joined;
        let mut left = match call.bytes.is_empty() {
            true => data,
            false => {
                call.bytes.extend_from_slice(data);
                if flags & END_STREAM == 0 && !call.has_message() {
                    return Ok(());
                }
                joined = std::mem::take(&mut call.bytes);
                &joined
            }
        };
        while let Some((header, rest)) = left.split_first_chunk::<MESSAGE_HEADER_BYTES>() {
            let Some((message, rest)) = rest.split_at_checked(message_bytes(header)) else { break };
            call.messages += 1;
            said(Said::Message { stream, message });
            left = rest;
        }
        call.bytes.extend_from_slice(left);
        if let Some(header) = left.first_chunk::<MESSAGE_HEADER_BYTES>() {
            // The rest of a long message comes frame by frame.
            call.bytes.reserve(message_bytes(header).min(MESSAGE_RESERVE_BYTES));
        }
        if flags & END_STREAM != 0 {
            self.end(stream, said);
        }
        Ok(())
    }

    fn end(&mut self, stream: u32, said: &mut impl FnMut(Said<'_>)) {
        if let Some(call) = self.calls.remove(&stream) {
            said(Said::End { stream, messages: call.messages });
        }
    }

    fn settings(&mut self, settings: &[u8]) -> Result<(), String> {
        for setting in settings.chunks(6) {
            let (id, value) = setting.split_at_checked(2).ok_or("half a setting")?;
            // A window per call smaller than a request would need bookkeeping that no server here asks for.
            if id == SETTING_STREAM_WINDOW.to_be_bytes() && (number(value)? as usize) < FRAME_BYTES_MAX {
                return Err(format!("the server takes {} bytes a call, fewer than a request has", number(value)?));
            }
        }
        Ok(())
    }

    fn send_waiting(&mut self) {
        while let Some(frame) = self.waiting.front() {
            let bytes = i64::try_from(frame.len() - FRAME_HEADER_BYTES).expect("a frame is below 16 MiB");
            if bytes > self.send_window {
                break;
            }
            self.send_window -= bytes;
            self.out.extend_from_slice(frame);
            self.waiting.pop_front();
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        put_frame(&mut self.out, kind, flags, stream, payload);
    }

    /// The headers of a request, in HPACK. What is sent for the first time enters the table and is a byte from then on.
    fn header_block(&mut self, path: &'static str) -> Vec<u8> {
        let mut block = vec![0x80 | STATIC_POST, 0x80 | STATIC_HTTP];
        let authority = self.authority.clone();
        self.field(&mut block, path, |block| put_named(block, STATIC_PATH, path));
        self.field(&mut block, "authority", |block| put_named(block, STATIC_AUTHORITY, &authority));
        self.field(&mut block, "type", |block| put_named(block, STATIC_CONTENT_TYPE, "application/grpc"));
        self.field(&mut block, "te", |block| {
            block.push(0x40);
            put_text(block, "te");
            put_text(block, "trailers");
        });
        block
    }

    fn field(&mut self, block: &mut Vec<u8>, known_as: &'static str, whole: impl FnOnce(&mut Vec<u8>)) {
        match self.table.iter().rposition(|known| *known == known_as) {
            Some(position) => block.push(indexed(self.table.len() - 1 - position)),
            None => {
                whole(block);
                self.table.push(known_as);
            }
        }
    }
}

/// An entry of the dynamic table by its age: 0 is the newest.
fn indexed(age: usize) -> u8 {
    0x80 | u8::try_from(DYNAMIC_INDEX_FIRST + age).expect("the table holds a few paths")
}

fn put_named(block: &mut Vec<u8>, name: u8, value: &str) {
    block.push(0x40 | name);
    put_text(block, value);
}

fn put_text(block: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 127, "a header of {} bytes needs a longer length", text.len());
    block.push(u8::try_from(text.len()).expect("below 127"));
    block.extend_from_slice(text.as_bytes());
}

fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a frame is below 16 MiB").to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

fn number(bytes: &[u8]) -> Result<u32, String> {
    let bytes = bytes.try_into().map_err(|_| format!("a number of {} bytes", bytes.len()))?;
    Ok(u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_frame(&mut out, kind, flags, stream, payload);
        out
    }

    /// What is heard when `bytes` arrive in pieces of `step`.
    fn heard(bytes: &[u8], step: usize) -> Result<Vec<String>, String> {
        let mut wire = Wire::new("host:1");
        assert_eq!(wire.call("/a", b"x", true), 1);
        let mut heard = Vec::new();
        for piece in bytes.chunks(step) {
            wire.input.extend_from_slice(piece);
            wire.hear(|said| heard.push(format!("{said:?}")))?;
        }
        Ok(heard)
    }

    #[test]
    fn an_answer_is_the_same_however_it_is_cut() {
        let answer = [
            frame(HEADERS, END_HEADERS, 1, &[0x88]),
            frame(DATA, 0, 1, b"\0\0\0\0\x02o"),
            frame(DATA, 0, 1, b"k\0\0\0\0\0"),
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x80]),
        ]
        .concat();
        for step in 1..=answer.len() {
            let heard = heard(&answer, step).unwrap();
            assert_eq!(
                heard,
                [
                    "Message { stream: 1, message: [111, 107] }",
                    "Message { stream: 1, message: [] }",
                    "End { stream: 1, messages: 2 }",
                ]
            );
        }
    }

    #[test]
    fn a_refusal_has_no_message_and_a_lost_connection_is_an_error() {
        let refusal = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x88]);
        assert_eq!(heard(&refusal, 64).unwrap(), ["End { stream: 1, messages: 0 }"]);
        assert!(heard(&frame(GOAWAY, 0, 0, b"00000000"), 64).unwrap_err().contains("went away"));
        assert!(heard(&frame(RST_STREAM, 0, 1, b"0000"), 64).unwrap_err().contains("reset"));
        let answered = [refusal, frame(RST_STREAM, 0, 1, b"0000")].concat();
        assert_eq!(heard(&answered, 64).unwrap(), ["End { stream: 1, messages: 0 }"]);
    }

    #[test]
    fn data_waits_for_the_window() {
        let mut wire = Wire::new("host:1");
        let stream = wire.call("/a", &[7; 65_000], true);
        wire.out.clear();
        wire.send(stream, &[7; 1_000], true);
        assert!(wire.out.is_empty());
        wire.input.extend_from_slice(&frame(WINDOW_UPDATE, 0, 0, &1_000u32.to_be_bytes()));
        wire.hear(|_| ()).unwrap();
        assert_eq!(wire.out.len(), FRAME_HEADER_BYTES + MESSAGE_HEADER_BYTES + 1_000);
    }
}
