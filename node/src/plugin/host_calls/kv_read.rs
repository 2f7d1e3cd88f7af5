//! `kv-read`: keys below the prefixes that a plugin was granted, as of the revision that its call is about.

use super::super::admission::ReadKey;
use crate::admission::shape::KEY_BYTES_MAX;
use crate::plugin::bindings::kuorum::policy::kv_read::{Host, Kv, ReadError};
use crate::plugin::instance::{CallKind, State};
use crate::plugin::kv::{KvError, KvRow};

/// Keys that one admission may read, and their bytes: they travel with the write, and are compared when it is applied.
const READ_SET_MAX: usize = 64;
const READ_SET_BYTES_MAX: usize = 128 << 10;
const KV_VALUE_BYTES_MAX: usize = 1 << 20;
/// Keys and values that one call may read in all.
const READ_BYTES_MAX: usize = 4 << 20;
const SCAN_KEYS_MAX: usize = 1_000;
/// Keys that a scan reads before it looks at its budget: with the largest values some 24 MiB.
const SCAN_PIECE: usize = 16;

impl State {
    fn is_granted(&self, key: &[u8]) -> bool {
        self.call.kind != CallKind::Setup && self.plugin.grants.cover(key)
    }

    fn may_read(&self) -> bool {
        self.call.read_bytes <= READ_BYTES_MAX
    }

    /// Whether the read set has the key or takes one more.
    fn may_remember(&self, key: &[u8]) -> bool {
        let reads = &self.call.reads;
        let bytes: usize = reads.iter().map(|read| read.key.len()).sum();
        reads.len() < READ_SET_MAX && bytes + key.len() <= READ_SET_BYTES_MAX
            || reads.iter().any(|read| read.key[..] == *key)
    }

    /// Takes what was read from the call's budget, and makes it what the plugin gets.
    fn take(&mut self, row: KvRow) -> Result<Kv, ReadError> {
        self.call.read_bytes += row.key.len() + row.value.len();
        if !self.may_read() {
            return Err(ReadError::Budget);
        }
        Ok(Kv {
            key: row.key.to_vec(),
            value: row.value.to_vec(),
            create_revision: row.create_revision,
            mod_revision: row.mod_revision,
            version: row.version,
            lease: row.lease,
        })
    }

    /// Adds the key to the read set.
    fn remember(&mut self, key: &[u8], mod_revision: i64) {
        let reads = &mut self.call.reads;
        if !reads.iter().any(|read| read.key[..] == *key) {
            reads.push(ReadKey { key: key.to_vec(), mod_revision });
        }
    }
}

/// A revision that is compacted by now is the plugin's to know; that the store can't be read ends the call.
fn read_error(error: KvError) -> wasmtime::Result<ReadError> {
    match error {
        KvError::Compacted => Ok(ReadError::Compacted),
        KvError::Failed(problem) => Err(wasmtime::Error::msg(format!("the store can't be read: {problem}"))),
    }
}

impl Host for State {
    fn get(&mut self, key: Vec<u8>) -> wasmtime::Result<Result<Option<Kv>, ReadError>> {
        self.count_host_call(key.len())?;
        if !self.is_granted(&key) {
            return Ok(Err(ReadError::Denied));
        }
        // No such key can be written, so that there is none needs neither a look nor a watch on it.
        if key.len() > KEY_BYTES_MAX {
            return Ok(Ok(None));
        }
        // Looked at before the store is: what is read in vain takes as long.
        let is_remembered = self.call.kind == CallKind::Admission;
        if !self.may_read() || is_remembered && !self.may_remember(&key) {
            return Ok(Err(ReadError::Budget));
        }
        let row = match self.plugin.reader.get(&key, self.call.revision) {
            Ok(row) => row,
            Err(error) => return read_error(error).map(Err),
        };
        if is_remembered {
            self.remember(&key, row.as_ref().map_or(0, |row| row.mod_revision));
        }
        if let Some(row) = row.as_ref().filter(|row| row.value.len() > KV_VALUE_BYTES_MAX) {
            self.call.read_bytes += row.value.len();
            return Ok(Err(ReadError::TooLarge));
        }
        Ok(row.map(|row| self.take(row)).transpose())
    }

    fn scan(
        &mut self,
        prefix: Vec<u8>,
        after: Option<Vec<u8>>,
        limit: u32,
        keys_only: bool,
    ) -> wasmtime::Result<Result<Vec<Kv>, ReadError>> {
        self.count_host_call(prefix.len() + after.as_ref().map_or(0, Vec::len))?;
        // What a scan finds can't be compared when the write is applied, so no verdict may rest on it.
        if self.call.kind == CallKind::Admission || !self.is_granted(&prefix) {
            return Ok(Err(ReadError::Denied));
        }
        let limit = usize::try_from(limit).unwrap_or(SCAN_KEYS_MAX).min(SCAN_KEYS_MAX);
        let mut kvs: Vec<Kv> = Vec::new();
        let mut after = after;
        while kvs.len() < limit {
            let piece = SCAN_PIECE.min(limit - kvs.len());
            let rows = match self.plugin.reader.scan(&prefix, after.as_deref(), piece, keys_only, self.call.revision) {
                Ok(rows) => rows,
                Err(error) => return read_error(error).map(Err),
            };
            let is_last = rows.len() < piece;
            for row in rows {
                match self.take(row) {
                    Ok(kv) => kvs.push(kv),
                    Err(error) => return Ok(Err(error)),
                }
            }
            if is_last {
                break;
            }
            after = kvs.last().map(|kv| kv.key.clone());
        }
        Ok(Ok(kvs))
    }
}
