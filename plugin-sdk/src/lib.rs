//! What the author of a Kuorum policy plugin builds on.
pub mod admission;
#[doc(hidden)]
pub mod bindings;
pub mod compaction;
mod export;
mod plugin;

pub use bindings::lifecycle::{
    exports::kuorum::policy::lifecycle::FieldError,
    kuorum::policy::types::{Ctx, Failure, MemberId, Revision},
};
#[doc(hidden)]
pub use export::{Adapter, Exported, Slot};
pub use plugin::{NoConfig, Plugin};
