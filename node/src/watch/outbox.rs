//! The queue between the watch thread and one client's stream.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

/// Responses on their way to one client. The watch thread keeps the bytes in it below the stream's bound by not adding
/// events past it; control responses are small and answer requests one for one.
// A lock between two owners, the watch thread and the shard of the stream; held for a push or a pop.
#[derive(Clone, Default)]
pub(super) struct Outbox(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    responses: VecDeque<Bytes>,
    bytes: usize,
    reader: Option<Waker>,
    /// Whoever waits for room before it asks for more responses.
    asker: Option<Waker>,
    closed: bool,
}

impl Outbox {
    /// Adds responses and returns the bytes now waiting.
    pub(super) fn push(&self, responses: impl IntoIterator<Item = Bytes>) -> usize {
        let mut state = self.0.lock();
        for response in responses {
            state.bytes += response.len();
            state.responses.push_back(response);
        }
        let (bytes, reader) = (state.bytes, state.reader.take());
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        bytes
    }

    /// Resolves when fewer than so many bytes wait, or nobody will read them any more.
    pub(super) async fn room(&self, bytes_max: usize) {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if state.bytes < bytes_max || state.closed {
                return Poll::Ready(());
            }
            state.asker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// No more will come.
    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// The next response and the bytes that still wait behind it; `None` once closed and empty.
    pub(super) async fn next(&self) -> Option<(Bytes, usize)> {
        poll_fn(|context| {
            let mut state = self.0.lock();
            if let Some(response) = state.responses.pop_front() {
                state.bytes -= response.len();
                if let Some(asker) = state.asker.take() {
                    asker.wake();
                }
                return Poll::Ready(Some((response, state.bytes)));
            }
            if state.closed {
                return Poll::Ready(None);
            }
            state.reader = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}
