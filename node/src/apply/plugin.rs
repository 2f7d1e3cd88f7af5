//! Changes of plugins: the rules are `policy::plugins`', the rows are kept here.

use bytes::{Bytes, BytesMut};
use kuorum_proto::kuorum::v1::{PluginCommand, plugin_command};

use super::{Applier, Failure, Reply};
use crate::mvcc::Store;
use crate::policy::epoch;
use crate::policy::plugins::{self, COMPONENTS_ROW, PLUGIN_ROWS, State};
use crate::refusal::Refusal;
use crate::storage::StorageError;

/// What brings more into the store; the rest must go on in a full one, or an operator could not help it.
pub(super) fn needs_space(command: &PluginCommand) -> bool {
    use plugin_command::Change;
    match command.change {
        Some(Change::Chunk(_) | Change::Load(_)) => true,
        Some(Change::Acknowledge(_) | Change::SetMode(_) | Change::Rollback(_) | Change::Remove(_)) | None => false,
    }
}

impl Applier {
    pub(super) fn plugin(&mut self, command: &PluginCommand) -> Result<Reply, Failure> {
        let changed = self.registry.change(command, &self.members.list()).map_err(Refusal::from)?;
        self.plugins_changed |= !changed.rows.is_empty();
        for (name, row) in changed.rows {
            match row {
                Some(row) => self.writer.sys_put(&name, row),
                None => self.writer.sys_remove(&name),
            }
        }
        // After the plugins: whoever looks the epoch up before judging, as all do, judges by nothing older.
        if changed.epoch != self.registry.epoch().get() {
            let row = self.registry.epoch().set(changed.epoch);
            self.writer.sys_put(epoch::ROW, row);
        }
        Ok(Reply::Plugin(changed.outcome, changed.epoch))
    }
}

/// The plugins as a store has them.
///
/// # Errors
/// When a row can't be read.
pub(crate) fn read(store: &Store) -> Result<State, StorageError> {
    let components = store.sys_get(COMPONENTS_ROW)?;
    let state = State::from_rows(components.as_deref(), store.sys_scan(PLUGIN_ROWS)?);
    state.ok_or(StorageError::Damaged { what: "a plugin's row" })
}

/// A component of so many bytes; `None` when a piece of it is missing, as after the revision was removed.
///
/// # Errors
/// When a row can't be read.
pub(crate) fn component(store: &Store, sha256: &[u8], bytes: u64) -> Result<Option<Bytes>, StorageError> {
    let mut component = BytesMut::new();
    for number in 0..plugins::chunk_count(bytes) {
        let Some(piece) = store.sys_get(&plugins::chunk_row(sha256, number))? else { return Ok(None) };
        component.extend_from_slice(&piece);
    }
    Ok(Some(component.freeze()))
}
