//! What plugins read keys through: the store in use.

use bytes::Bytes;
use kuorum_proto::mvccpb::KeyValue;

use crate::mvcc::query::{self, RangeQuery};
use crate::mvcc::revision::Revision;
use crate::mvcc::{CurrentStore, ReadError};
use crate::plugin::{KvError, KvReader, KvRow, end_of};

pub(crate) struct Reader(pub(crate) CurrentStore);

impl KvReader for Reader {
    fn get(&self, key: &[u8], revision: i64) -> Result<Option<KvRow>, KvError> {
        match self.0.get().get_at(key, Revision(revision)) {
            Ok(found) => Ok(found.map(row)),
            Err(error) => Err(failure(&error)),
        }
    }

    fn scan(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        keys_only: bool,
        revision: i64,
    ) -> Result<Vec<KvRow>, KvError> {
        // The key that follows `after` is the same with a zero byte behind it.
        let behind = after.filter(|after| *after >= prefix).map(|after| [after, b"\0"].concat());
        let from = behind.unwrap_or_else(|| prefix.to_vec());
        let end = end_of(prefix);
        if limit == 0 || (end != [0] && from >= end) {
            return Ok(Vec::new());
        }
        let query = RangeQuery {
            // An empty key stands for none.
            key: if from.is_empty() { Bytes::from_static(&[0]) } else { from.into() },
            range_end: end.into(),
            limit: i64::try_from(limit).unwrap_or(i64::MAX),
            revision,
            keys_only,
            ..RangeQuery::default()
        };
        match self.0.get().range(&query) {
            Ok(answer) => Ok(answer.kvs.into_iter().map(row).collect()),
            Err(error) => Err(failure(&error)),
        }
    }
}

fn row(found: KeyValue) -> KvRow {
    KvRow {
        key: found.key,
        value: found.value,
        create_revision: found.create_revision,
        mod_revision: found.mod_revision,
        version: found.version,
        lease: found.lease,
    }
}

fn failure(error: &ReadError) -> KvError {
    match error {
        ReadError::Refused(query::Refusal::Compacted { .. }) => KvError::Compacted,
        other => KvError::Failed(other.to_string()),
    }
}
