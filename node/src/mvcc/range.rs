//! From the key-values of a range to the answer: bounds, order, limit. The order of these steps is etcd's
//! (etcdserver/txn/range.go).

use std::cmp::Ordering;

use kuorum_proto::mvccpb::KeyValue;

use crate::mvcc::query::{RangeAnswer, RangeQuery, SortOrder, SortTarget};
use crate::mvcc::revision::Revision;

impl RangeQuery {
    /// How many keys have to be fetched, in key order, to answer; `None` for all. One more than the limit, to know
    /// whether there are more; all when something is filtered or sorted first.
    pub(crate) fn fetch_limit(&self) -> Option<usize> {
        // A target without an order sorts only what the limit has let through, as in etcd.
        let sorted = match self.order {
            SortOrder::None => false,
            SortOrder::Ascend => self.target != SortTarget::Key,
            SortOrder::Descend => true,
        };
        if self.limit <= 0 || sorted || self.has_bounds() {
            return None;
        }
        usize::try_from(self.limit).ok()?.checked_add(1)
    }

    /// Whether values are wanted. Keys alone come from the key index, and without their lease, as in etcd 3.7.
    pub(crate) fn wants_values(&self) -> bool {
        !self.keys_only || self.target == SortTarget::Value
    }

    fn has_bounds(&self) -> bool {
        [self.min_mod_revision, self.max_mod_revision, self.min_create_revision, self.max_create_revision] != [0; 4]
    }
}

/// Turns what was fetched into the answer.
pub(crate) fn finish(query: &RangeQuery, mut kvs: Vec<KeyValue>, count: usize, revision: Revision) -> RangeAnswer {
    if query.has_bounds() {
        kvs.retain(|kv| within_bounds(query, kv));
    }
    sort(query.target, query.order, &mut kvs);
    let mut more = false;
    if let Ok(limit) = usize::try_from(query.limit)
        && limit > 0
        && kvs.len() > limit
    {
        kvs.truncate(limit);
        more = true;
    }
    if query.keys_only {
        for kv in &mut kvs {
            kv.value.clear();
        }
    }
    let count = i64::try_from(count).expect("fewer keys than bytes of memory");
    RangeAnswer { kvs, more, count, revision }
}

fn within_bounds(query: &RangeQuery, kv: &KeyValue) -> bool {
    let within = |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(kv.mod_revision, query.min_mod_revision, query.max_mod_revision)
        && within(kv.create_revision, query.min_create_revision, query.max_create_revision)
}

/// Ties keep key order, which etcd leaves open.
pub(crate) fn sort(target: SortTarget, order: SortOrder, kvs: &mut [KeyValue]) {
    let compare: fn(&KeyValue, &KeyValue) -> Ordering = match target {
        SortTarget::Key if order != SortOrder::Descend => return,
        SortTarget::Key => |a, b| a.key.cmp(&b.key),
        SortTarget::Version => |a, b| a.version.cmp(&b.version),
        SortTarget::Create => |a, b| a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => |a, b| a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => |a, b| a.value.cmp(&b.value),
    };
    match order {
        SortOrder::None | SortOrder::Ascend => kvs.sort_by(compare),
        SortOrder::Descend => kvs.sort_by(|a, b| compare(b, a)),
    }
}
