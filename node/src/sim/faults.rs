//! What goes wrong, and when it is over.

use crate::sim::checker::Violation;
use crate::sim::member::End;
use crate::sim::world::{DEPART_POLL_US, Happening, World};

/// How long things stay broken, in milliseconds.
const BROKEN_MS: (u64, u64) = (50, 6_000);

/// The end of something that went wrong.
#[derive(Debug)]
pub(super) enum Fault {
    Heal,
    Start(u64),
    /// A removed member leaves, once it leads no more or has waited for that long enough.
    Depart {
        id: u64,
        boot: u64,
        until_us: u64,
    },
}

impl World {
    /// Something goes wrong.
    pub(super) fn begin_fault(&mut self) -> Result<(), Violation> {
        let now_ms = self.now_ms();
        if now_ms >= self.plan.storm_ms {
            return Ok(());
        }
        let id = self.any();
        let leader = self.leader().unwrap_or(id);
        // What happens to the leader matters most.
        let id = if self.random.permille(400) { leader } else { id };
        let broken_us = self.random.between(BROKEN_MS.0, BROKEN_MS.1) * 1_000;
        match self.random.below(10) {
            0..4 => {
                let how = self.random.pick(&[End::PowerLost, End::PowerLost, End::Killed, End::Stopped]);
                self.end(id, how);
                self.later(broken_us / 2, Happening::Fault(Fault::Start(id)));
            }
            4 => {
                // The whole cluster at once.
                for id in self.ids() {
                    self.end(id, End::PowerLost);
                    self.later(broken_us / 4, Happening::Fault(Fault::Start(id)));
                }
            }
            5 | 6 => {
                self.partition(id);
                self.later(broken_us, Happening::Fault(Fault::Heal));
            }
            7 => {
                let until = self.now_us + broken_us;
                self.note(format_args!("m{id} stands still for {} ms", broken_us / 1_000));
                self.paused_until_us.insert(id, until);
            }
            8 => {
                let until = self.now_us + broken_us;
                self.note(format_args!("the disk of m{id} stands still for {} ms", broken_us / 1_000));
                self.disk_stalled_until_us.insert(id, until);
            }
            _ => {
                if let Some(process) = &self.member(id).process {
                    process.hand_over();
                    process.defragment();
                }
            }
        }
        let next_us = self.random.between(1_000, 2 * self.plan.fault_ms * 1_000);
        self.later(next_us, Happening::NextFault);
        Ok(())
    }

    pub(super) fn end_fault(&mut self, fault: Fault) -> Result<(), Violation> {
        match fault {
            Fault::Heal => {
                self.note(format_args!("the network is whole again"));
                self.network.heal();
                Ok(())
            }
            Fault::Start(id) if self.member(id).process.is_none() && !self.member(id).is_gone => self.start(id),
            Fault::Start(_) => Ok(()),
            Fault::Depart { id, boot, until_us } => {
                let member = self.member(id);
                let leads = member.process.as_ref().is_some_and(|process| process.leads_in().is_some());
                if member.boots != boot {
                    // Ended before; the next start finds out.
                } else if leads && self.now_us < until_us {
                    self.later(DEPART_POLL_US, Happening::Fault(Fault::Depart { id, boot, until_us }));
                } else {
                    self.depart(id);
                }
                Ok(())
            }
        }
    }

    /// Cuts links: of one member with all others, both ways or one, or between two halves.
    fn partition(&mut self, id: u64) {
        let shape = self.random.below(4);
        self.note(format_args!("the network is cut around m{id}, shape {shape}"));
        for other in self.ids().into_iter().filter(|other| *other != id) {
            match shape {
                0 => self.network.cut(id, other),
                1 => self.network.cut(other, id),
                2 => {
                    self.network.cut(id, other);
                    self.network.cut(other, id);
                }
                // One link only.
                _ => {
                    self.network.cut(id, other);
                    self.network.cut(other, id);
                    return;
                }
            }
        }
    }

    /// A member that believes to lead, the one of the latest term.
    fn leader(&self) -> Option<u64> {
        let leaders = self.members.values().filter_map(|member| {
            let term = member.process.as_ref()?.leads_in()?;
            Some((term, member.id))
        });
        leaders.max().map(|(_, id)| id)
    }
}
