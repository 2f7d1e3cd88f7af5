//! What the author of a Kuorum policy plugin builds on.
//!
//! A plugin is a Wasm component that decides a policy of a running cluster: which writes are admitted, when history is
//! compacted, when space runs out, when and where backups are kept. It is a type that implements [`Plugin`] and the trait
//! of each kind that it is asked as:
//!
//! | kind | trait | question |
//! |---|---|---|
//! | [`admission`] | [`Admission`](admission::Admission) | may this write be proposed? |
//! | [`compaction`] | [`Compaction`](compaction::Compaction) | how much history may go? |
//! | [`quota`] | [`Quota`](quota::Quota) | is the space running out? |
//! | [`backup_schedule`] | [`BackupSchedule`](backup_schedule::BackupSchedule) | is it time for a backup? |
//! | [`backup_target`] | [`BackupTarget`](backup_target::BackupTarget) | where are backups kept? |
//!
//! [`export!`] makes the component of it. The page of each kind has a complete plugin.
//!
//! A plugin has no clock, no randomness, no files and no network: the time is in the call's [`Ctx`], and what else there
//! is to reach is in [`host`]. Off wasm32 the host's calls reach the fakes of [`testing`], so `cargo test` runs a plugin
//! as it is.

#![warn(missing_docs)]
#![expect(clippy::test_attr_in_doctest, reason = "the pages show the examples with their tests, which run as examples")]

pub mod admission;
pub mod backup_schedule;
pub mod backup_target;
#[doc(hidden)]
pub mod bindings;
pub mod compaction;
mod export;
pub mod host;
mod key;
mod plugin;
pub mod quota;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;

pub use bindings::lifecycle::{
    exports::kuorum::policy::lifecycle::FieldError,
    kuorum::policy::types::{Ctx, Failure, MemberId, Revision},
};
#[doc(hidden)]
pub use export::{Adapter, Exported, Slot};
pub use key::{KeyRange, Prefix};
pub use plugin::{NoConfig, Plugin};
