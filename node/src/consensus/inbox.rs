//! The raft thread's inbox: a queue taken over whole, so that everything which arrived during one round is one batch.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Client events that may lie in the inbox. Beyond it a request is refused as etcd refuses past its backlog; two rounds
/// of a thousand clients fit several times over.
const CLIENT_EVENTS_MAX: usize = 16_384;

/// A many-to-one queue. Events from clients are bounded by [`CLIENT_EVENTS_MAX`]; events from the log and apply threads
/// are not counted, since each answers work that the raft thread itself gave out and bounds.
// A lock with a condition: std's channels can neither be drained in one step nor bound one kind of sender alone.
pub(crate) struct Inbox<E> {
    state: Mutex<State<E>>,
    arrived: Condvar,
}

struct State<E> {
    events: Vec<E>,
    clients: usize,
}

impl<E> Inbox<E> {
    pub(crate) fn new() -> Inbox<E> {
        Inbox { state: Mutex::new(State { events: Vec::new(), clients: 0 }), arrived: Condvar::new() }
    }

    /// Puts in a client's event, or gives it back when the bound is reached.
    pub(crate) fn offer(&self, event: E) -> Result<(), E> {
        let mut state = self.state.lock();
        if state.clients >= CLIENT_EVENTS_MAX {
            return Err(event);
        }
        state.clients += 1;
        self.put(state, event);
        Ok(())
    }

    /// Puts in an event of the node's own threads.
    pub(crate) fn push(&self, event: E) {
        self.put(self.state.lock(), event);
    }

    fn put(&self, mut state: parking_lot::MutexGuard<'_, State<E>>, event: E) {
        state.events.push(event);
        let first = state.events.len() == 1;
        drop(state);
        if first {
            self.arrived.notify_one();
        }
    }

    /// Waits up to `wait` for the first event, and leaves it in.
    pub(crate) fn wait(&self, wait: Duration) {
        let mut state = self.state.lock();
        if state.events.is_empty() {
            self.arrived.wait_for(&mut state, wait);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().events.is_empty()
    }

    /// Swaps everything that has arrived into `batch` (which must be empty), waiting up to `wait` for the first event.
    pub(crate) fn take(&self, batch: &mut Vec<E>, wait: Duration) {
        let mut state = self.state.lock();
        if state.events.is_empty() && !wait.is_zero() {
            self.arrived.wait_for(&mut state, wait);
        }
        std::mem::swap(&mut state.events, batch);
        state.clients = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_events_are_bounded_and_own_events_are_not() {
        let inbox = Inbox::new();
        for n in 0..CLIENT_EVENTS_MAX {
            inbox.offer(n).unwrap();
        }
        assert_eq!(inbox.offer(7), Err(7));
        inbox.push(8);
        let mut batch = Vec::new();
        inbox.take(&mut batch, Duration::ZERO);
        assert_eq!(batch.len(), CLIENT_EVENTS_MAX + 1);
        assert_eq!(inbox.offer(9), Ok(()));
    }
}
