//! The whole store as rows, for another member, and back.

use std::ops::Bound;
use std::path::Path;

use bytes::Bytes;

use crate::mvcc::filter::Floor;
use crate::mvcc::store::Store;
use crate::mvcc::writer::{STATE_ROW, State, Writer};
use crate::mvcc::{AppliedMark, MvccOptions, startup};
use crate::storage::{Row, Space, Storage, StorageError, View};

type Rows = Box<dyn Iterator<Item = Result<Row, StorageError>> + Send>;

/// All rows as of one commit, in the order in which [`import`] takes them. What the store drops or writes meanwhile does not
/// show. To be dropped soon: it keeps old tables alive.
pub(crate) struct Export {
    /// The last entry whose effects are in it.
    pub(crate) applied: AppliedMark,
    view: View,
    /// Those not begun yet, the next one last. All are opened at the beginning: an open one keeps the tables as they were.
    spaces: Vec<(Space, Rows)>,
}

impl Store {
    /// The rows as of the last commit.
    pub(crate) fn export(&self) -> Result<Export, StorageError> {
        let view = self.0.storage.view();
        let open = |space| (space, Box::new(view.scan(space, (Bound::Unbounded, Bound::Unbounded))) as Rows);
        let spaces = Space::ALL.into_iter().rev().map(open).collect();
        let state = match view.get(Space::Sys, STATE_ROW)? {
            Some(row) => State::decode(&row).ok_or(StorageError::Damaged { what: "the state row" })?,
            None => State::EMPTY,
        };
        Ok(Export { applied: state.applied, view, spaces })
    }
}

impl Export {
    /// A row of the `sys` space.
    pub(crate) fn sys_get(&self, name: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.view.get(Space::Sys, name)
    }
}

impl Iterator for Export {
    type Item = Result<(Space, Row), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (space, rows) = self.spaces.last_mut()?;
            if let Some(row) = rows.next() {
                let space = *space;
                return Some(row.map(|row| (space, row)));
            }
            self.spaces.pop();
        }
    }
}

/// Makes a store from another member's rows, with one row of the `sys` space being this member's own, and opens it.
/// Durable when this returns.
///
/// # Errors
/// What the source or the disk reports, and what is wrong with the rows.
pub(crate) fn import(
    path: &Path,
    own_row: (&'static [u8], Vec<u8>),
    options: MvccOptions,
    next: &mut dyn FnMut() -> Result<Option<(Space, Row)>, StorageError>,
) -> Result<(Store, Writer, AppliedMark), StorageError> {
    let floor = Floor::new();
    let storage = Storage::fill(path, floor.filters(), next)?;
    let mut batch = storage.batch();
    batch.put(Space::Sys, Bytes::from_static(own_row.0), own_row.1);
    batch.commit()?;
    storage.persist()?;
    startup::open(storage, floor, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::HistoryLimit;
    use crate::mvcc::query::RangeQuery;
    use crate::mvcc::revision::Revision;

    fn opened(dir: &Path) -> (Store, Writer, AppliedMark) {
        let floor = Floor::new();
        let storage = Storage::open(&dir.join("store"), floor.filters()).unwrap();
        startup::open(storage, floor, MvccOptions::new(dir.join("index"), 3)).unwrap()
    }

    fn put(writer: &mut Writer, key: String, value: String) {
        let mut txn = writer.txn();
        txn.put(key.into(), value.into(), 0);
        txn.finish();
    }

    #[test]
    fn a_store_made_of_anothers_rows_answers_as_that_did() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (store, mut writer, _) = opened(from.path());
        for round in 0..3 {
            for number in 0..500 {
                put(&mut writer, format!("k{number}"), format!("{round}/{number}"));
            }
            writer.commit(AppliedMark { index: round + 5, term: 2 }).unwrap();
        }
        let mut txn = writer.txn();
        txn.delete_range(b"k7", b"");
        txn.finish();
        writer.sys_put(b"own", b"theirs".to_vec());
        writer.compact(Revision(700)).unwrap();
        writer.commit(AppliedMark { index: 9, term: 3 }).unwrap();
        let mut export = store.export().unwrap();
        // What happens later does not show, not even what makes rows go.
        put(&mut writer, "later".to_owned(), String::new());
        writer.compact(Revision(1_400)).unwrap();
        writer.commit(AppliedMark { index: 10, term: 3 }).unwrap();
        store.compact_physically(Revision(1_400), &mut || {}).unwrap();
        store.defragment().unwrap();

        assert_eq!(export.applied, AppliedMark { index: 9, term: 3 });
        assert_eq!(export.sys_get(b"own").unwrap().unwrap(), "theirs");
        let options = MvccOptions::new(to.path().join("index"), 3);
        let own = (&b"own"[..], b"mine".to_vec());
        let (copy, _, applied) =
            import(&to.path().join("store"), own, options, &mut || export.next().transpose()).unwrap();
        assert_eq!(applied, AppliedMark { index: 9, term: 3 });
        assert_eq!((copy.revision(), copy.compacted(), copy.key_count()), (Revision(1_502), Revision(700), 499));
        assert_eq!(copy.sys_get(b"own").unwrap().unwrap(), "mine");
        let read = |revision| {
            let query = RangeQuery { key: "k7".into(), revision, ..RangeQuery::default() };
            copy.range(&query).unwrap().kvs.pop().map(|kv| kv.value)
        };
        assert_eq!(
            [read(0), read(1_501), read(800)].map(|value| value.map(|value| value.to_vec())),
            [None, Some(b"2/7".to_vec()), Some(b"1/7".to_vec())]
        );
        let limit = HistoryLimit { revisions_max: 10_000, bytes_max: 1 << 30, rows_max: 10_000 };
        let history = copy.history(Revision(701), copy.revision(), limit, &mut |_| true).unwrap();
        assert_eq!(history.changes.len(), 802);
        drop(copy);
        let (again, _, _) = opened(to.path());
        assert_eq!(again.revision(), Revision(1_502));
    }

    #[test]
    fn rows_out_of_order_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let row = |space, key: &'static str| Ok(Some((space, (Bytes::from(key), Bytes::new()))));
        for (number, rows) in [
            [(Space::Kv, "b"), (Space::Kv, "a")],
            [(Space::Kv, "a"), (Space::Kv, "a")],
            [(Space::Sys, "a"), (Space::Kv, "b")],
        ]
        .into_iter()
        .enumerate()
        {
            let mut rows = rows.into_iter();
            let mut next = || rows.next().map_or(Ok(None), |(space, key)| row(space, key));
            let path = dir.path().join(number.to_string());
            let refused = Storage::fill(&path, Floor::new().filters(), &mut next);
            assert!(matches!(refused.err(), Some(StorageError::Damaged { .. })), "{number}");
        }
    }
}
