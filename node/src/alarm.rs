//! Alarms: raised and cleared through the log, listed by whoever asks, and what they forbid.

use std::collections::BTreeSet;
use std::sync::Arc;

use kuorum_proto::etcdserverpb::{AlarmMember, AlarmType};
use parking_lot::RwLock;

/// Name of the row in the store's `sys` space.
pub(crate) const ROW: &[u8] = b"alarms";

/// The raised alarms. Cheap to clone; apply alone changes them.
// A lock, since every shard and health check reads while apply writes; held for a look.
#[derive(Clone, Default)]
pub(crate) struct Alarms(Arc<RwLock<BTreeSet<(i32, u64)>>>);

impl Alarms {
    /// Raises an alarm for a member. Returns the alarm, which may have been raised before.
    pub(crate) fn activate(&self, member_id: u64, alarm: i32) -> AlarmMember {
        self.0.write().insert((alarm, member_id));
        AlarmMember { member_id, alarm }
    }

    /// Clears an alarm; `None` when it was not raised.
    pub(crate) fn deactivate(&self, member_id: u64, alarm: i32) -> Option<AlarmMember> {
        self.0.write().remove(&(alarm, member_id)).then_some(AlarmMember { member_id, alarm })
    }

    /// The raised alarms of one type, or of every type for `NONE`.
    pub(crate) fn list(&self, alarm: i32) -> Vec<AlarmMember> {
        let all = alarm == i32::from(AlarmType::None);
        let raised = self.0.read();
        let wanted = raised.iter().filter(|(raised, _)| all || *raised == alarm);
        wanted.map(|(alarm, member_id)| AlarmMember { member_id: *member_id, alarm: *alarm }).collect()
    }

    /// Whether writes that need space are refused.
    pub(crate) fn no_space(&self) -> bool {
        self.raised(AlarmType::Nospace)
    }

    /// Whether everything that goes through the log is refused.
    pub(crate) fn corrupt(&self) -> bool {
        self.raised(AlarmType::Corrupt)
    }

    fn raised(&self, alarm: AlarmType) -> bool {
        self.0.read().iter().any(|(raised, _)| *raised == i32::from(alarm))
    }

    /// The row that keeps the alarms over a restart.
    pub(crate) fn to_row(&self) -> Vec<u8> {
        let raised = self.0.read();
        raised.iter().flat_map(|(alarm, member)| [&alarm.to_be_bytes()[..], &member.to_be_bytes()].concat()).collect()
    }

    /// Takes the alarms back from their row. Returns false, changing nothing, when the row is damaged.
    pub(crate) fn recover(&self, row: &[u8]) -> bool {
        let (entries, rest) = row.as_chunks::<12>();
        if !rest.is_empty() {
            return false;
        }
        let parse = |entry: &[u8; 12]| {
            let (alarm, member) = entry.split_at(4);
            Some((i32::from_be_bytes(alarm.try_into().ok()?), u64::from_be_bytes(member.try_into().ok()?)))
        };
        let Some(alarms) = entries.iter().map(parse).collect() else { return false };
        *self.0.write() = alarms;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_come_back_from_their_row() {
        let alarms = Alarms::default();
        alarms.activate(7, AlarmType::Nospace.into());
        alarms.activate(8, AlarmType::Corrupt.into());
        let again = Alarms::default();
        assert!(again.recover(&alarms.to_row()));
        assert_eq!(again.list(0), alarms.list(0));
        assert!(again.no_space() && again.corrupt());
        assert!(!again.recover(b"x"));
    }

    #[test]
    fn an_alarm_of_one_member_outlives_another_members() {
        let alarms = Alarms::default();
        alarms.activate(7, AlarmType::Nospace.into());
        alarms.activate(8, AlarmType::Nospace.into());
        assert!(alarms.deactivate(7, AlarmType::Nospace.into()).is_some());
        assert!(alarms.deactivate(7, AlarmType::Nospace.into()).is_none());
        assert!(alarms.no_space());
    }
}
