//! The raft thread's inbox: a queue taken over whole, so that everything which arrived during one round is one batch.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Client events that may lie in the inbox. Beyond it a request is refused as etcd refuses past its backlog; two rounds
/// of a thousand clients fit several times over.
const CLIENT_EVENTS_MAX: usize = 16_384;
/// Bytes from other members that may lie in the inbox. Beyond it their connections are read no further: several rounds of
/// appends, each of at most a mebibyte or one entry.
const PEER_BYTES_MAX: usize = 64 << 20;

/// A many-to-one queue. Events from clients are bounded by [`CLIENT_EVENTS_MAX`]; events from the log and apply threads
/// are not counted, since each answers work that the raft thread itself gave out and bounds. What comes from other members
/// waits at [`PEER_BYTES_MAX`].
// A lock with a condition: std's channels can neither be drained in one step nor bound one kind of sender alone.
pub(crate) struct Inbox<E> {
    state: Mutex<State<E>>,
    arrived: Condvar,
    taken: Condvar,
}

struct State<E> {
    events: Vec<E>,
    clients: usize,
    peer_bytes: usize,
    closed: bool,
}

impl<E> Inbox<E> {
    pub(crate) fn new() -> Inbox<E> {
        let state = State { events: Vec::new(), clients: 0, peer_bytes: 0, closed: false };
        Inbox { state: Mutex::new(state), arrived: Condvar::new(), taken: Condvar::new() }
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

    /// Puts in an event from another member, which took so many bytes on the way. Waits while too much is here already;
    /// nothing is put in once the inbox is closed.
    pub(crate) fn push_from_peer(&self, event: E, bytes: usize) {
        let mut state = self.state.lock();
        self.taken.wait_while(&mut state, |state| state.peer_bytes > PEER_BYTES_MAX && !state.closed);
        if !state.closed {
            state.peer_bytes += bytes;
            self.put(state, event);
        }
    }

    /// Nobody will take what comes from other members any more.
    pub(crate) fn close_to_peers(&self) {
        self.state.lock().closed = true;
        self.taken.notify_all();
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
        if std::mem::take(&mut state.peer_bytes) > PEER_BYTES_MAX {
            self.taken.notify_all();
        }
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

    #[test]
    fn what_members_send_waits_until_there_is_room() {
        let inbox = std::sync::Arc::new(Inbox::new());
        inbox.push_from_peer(1, PEER_BYTES_MAX + 1);
        let sender = std::thread::spawn({
            let inbox = std::sync::Arc::clone(&inbox);
            move || inbox.push_from_peer(2, 1)
        });
        let mut batch = Vec::new();
        inbox.take(&mut batch, Duration::from_secs(60));
        assert_eq!(batch, [1]);
        sender.join().unwrap();
        batch.clear();
        inbox.take(&mut batch, Duration::from_secs(60));
        assert_eq!(batch, [2]);
        inbox.push_from_peer(3, PEER_BYTES_MAX + 1);
        inbox.close_to_peers();
        inbox.push_from_peer(4, 1);
        batch.clear();
        inbox.take(&mut batch, Duration::ZERO);
        assert_eq!(batch, [3]);
    }
}
