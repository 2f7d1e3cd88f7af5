//! Revisions and the two row keys they appear in. The only place that encodes them.

use std::fmt;

/// A main revision: the store's logical clock. It grows by exactly one with every applied request that wrote.
///
/// An empty store is at revision 1 and the first write makes revision 2, as in etcd.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct Revision(pub(crate) i64);

impl Revision {
    /// The revision of an empty store.
    pub(crate) const INITIAL: Revision = Revision(1);

    /// The revision after this one.
    pub(crate) fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One change: the main revision of its request and its place among the changes of that request, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(crate) struct ChangeId {
    pub(crate) main: Revision,
    pub(crate) sub: u32,
}
