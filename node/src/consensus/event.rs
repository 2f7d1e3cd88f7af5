//! Everything that can wake the driver.

use bytes::Bytes;

use crate::consensus::answers::Waiter;

#[derive(Debug)]
pub(crate) enum Event {
    /// A command that passed admission, encoded. The waiter is answered once the entry is applied here, or refused.
    Propose { data: Bytes, waiter: Waiter },
    /// A request to be told when everything committed before now is applied here.
    Read { waiter: Waiter },
    /// The log holds this append, and everything before it, durably.
    Persisted { number: u64 },
    /// The state machine is durable up to this index: the log may let go of what came before.
    StoreDurable { index: u64 },
    /// The process stops: refuse what waits.
    Stop,
}
