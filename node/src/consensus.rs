//! Agreement on the order of entries: who leads, what is committed, when a read is linearizable.
//!
//! [`driver`] owns the raft state machine and is a plain function from an event to effects; nothing in it does I/O,
//! reads a clock or draws a random number, so a simulation can replay it. [`runner`] is the thread around it: it
//! collects events, carries out the effects (log, apply queue, answers) and keeps the order that safety asks for.
//! [`inlet`] is where other members' messages come in, in the form that [`wire`] gives them. Everyone else holds a
//! [`Handle`].
//!
//! Only the modules below name the crate `raft`.

pub(crate) mod answers;
pub(crate) mod driver;
pub(crate) mod effects;
pub(crate) mod event;
pub(crate) mod handle;
pub(crate) mod inbox;
pub(crate) mod inlet;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod promise;
pub(crate) mod proposals;
mod read_index;
pub(crate) mod runner;
pub(crate) mod tail;
pub(crate) mod wire;

pub(crate) use handle::Handle;
