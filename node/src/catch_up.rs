//! A member's whole state on its way to another that lacks more than the log holds.
//!
//! The leader takes all rows of its store as of its last commit and streams them over a connection of their own, at a
//! bounded pace ([`send`]). The receiver makes a store of them beside the one in use ([`receive`]), and says so once it is
//! durable. Raft then decides whether it takes the store's place; the apply thread puts it there. A transfer that breaks off
//! begins anew. At most one is under way in each direction.
//!
//! ```text
//! leader                                   the other member
//!   Head  term, entry, members      ->
//!   Rows  space, rows ...           ->     rows are taken into a store of their own
//!   End   how many, their checksum  ->     it is made durable and opened, raft is told
//!                                   <-     Taken
//! ```

mod head;
mod receive;
mod send;

pub(crate) use receive::{Arrival, Receiver, index_dump};
pub(crate) use send::Sender;
