//! The roster: the plugins that this member asks, each with what it has made of them.
//!
//! ```text
//!   registry (replicated: revisions, modes, epoch) --+
//!                                                    +--> table --> whoever asks plugins
//!   prepare thread (local: scopes, what is ready) ---+
//! ```
//!
//! The table changes in the same step as the registry, before the policy epoch does: who looks the epoch up first and then
//! takes the table judges by that epoch's policies or by later ones, and apply refuses what later ones have to judge.
//! A plugin in force that is not ready here stands in the table all the same, so that nothing slips by.

pub(crate) mod judge;
pub(crate) mod reader;
mod standing;
pub(crate) mod tail;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use kuorum_proto::kuorum::v1::PluginMode;
use parking_lot::{Mutex, RwLock};

use crate::cluster::MemberId;
use crate::consensus::handle::RaftStatus;
use crate::maintenance::clock;
use crate::mvcc::Store;
use crate::plugin::{Ctx, Kind, Op, Prepared, Scope};
use crate::policy::plugins::{InForce, Registry};
use tail::Tail;

/// What every plugin is told of the moment and of the member that asks it. `seed` is a number that nobody can foretell. The
/// deadline is the host's to set.
pub(crate) fn context(store: &Store, raft: &RaftStatus, member: MemberId, registry: &Registry, seed: u64) -> Ctx {
    Ctx {
        now_ms: clock::unix_ms(),
        seed,
        revision: store.revision().0,
        compact_revision: store.compacted().0,
        raft_term: raft.term,
        raft_index: raft.applied,
        member: member.0,
        leader: raft.is_leader,
        policy_epoch: registry.epoch().get(),
        deadline_ms: 0,
    }
}

/// What this member has made of a revision so far.
#[derive(Clone, Default)]
struct Made {
    /// What it wants to be asked about. `None` until its file was looked at: then everything may concern it.
    scope: Option<Arc<Scope>>,
    outcome: Option<Result<Prepared, String>>,
    /// Why there is no outcome yet, if something of this member's own is in the way.
    hindrance: Option<Arc<str>>,
}

/// Whether a plugin's answer counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weight {
    Enforced,
    /// Noted, and not followed.
    Shadow,
}

/// How a plugin in force stands on this member.
pub(crate) enum Standing<'a> {
    Ready(&'a Prepared),
    /// It could not be prepared; why.
    Failed(&'a str),
    /// Something of this member's own keeps it from being prepared, which is tried again.
    Hindered(&'a str),
    Preparing,
}

/// A plugin in force.
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) weight: Weight,
    made: Made,
}

impl Asked {
    pub(crate) fn standing(&self) -> Standing<'_> {
        match &self.made.outcome {
            Some(Ok(prepared)) => Standing::Ready(prepared),
            Some(Err(failure)) => Standing::Failed(failure),
            None => self.made.hindrance.as_deref().map_or(Standing::Preparing, Standing::Hindered),
        }
    }

    /// Whether it is to be asked about a request with this operation.
    #[inline]
    pub(crate) fn concerns(&self, op: &Op<'_>) -> bool {
        match (&self.made.outcome, &self.made.scope) {
            (Some(Ok(prepared)), _) => prepared.matches(op),
            (_, Some(scope)) => scope.matches(op),
            (_, None) => true,
        }
    }

    /// Whether it lets pass what it can't judge. A plugin whose manifest is unknown does not.
    pub(crate) fn fails_open(&self) -> bool {
        self.made.scope.as_ref().is_some_and(|scope| scope.fails_open())
    }

    fn may_take_long(&self) -> bool {
        matches!(self.standing(), Standing::Ready(prepared) if prepared.may_take_long())
    }

    fn may_answer(&self, kind: Kind) -> bool {
        match (&self.made.outcome, &self.made.scope) {
            (Some(Ok(prepared)), _) => prepared.kinds().contains(&kind),
            (_, Some(scope)) => scope.may_answer(kind),
            (_, None) => true,
        }
    }
}

/// The plugins in force, those that are enforced first, by name.
#[derive(Default)]
pub(crate) struct Table {
    admission: Vec<Arc<Asked>>,
    /// Whether one of these may take long to answer.
    has_slow_admission: bool,
    compaction: Vec<Arc<Asked>>,
}

impl Table {
    pub(crate) fn admission(&self) -> &[Arc<Asked>] {
        &self.admission
    }

    pub(crate) fn compaction(&self) -> &[Arc<Asked>] {
        &self.compaction
    }

    /// Whether a plugin is enforced that may be asked what to compact.
    pub(crate) fn decides_compaction(&self) -> bool {
        self.compaction.first().is_some_and(|asked| asked.weight == Weight::Enforced)
    }
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Roster(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// By identity, of the revisions that are kept. A lock, since apply and the prepare thread both make the table.
    made: Mutex<BTreeMap<Bytes, Made>>,
    /// Replaced as a whole; held for the copy of a pointer.
    table: RwLock<Arc<Table>>,
    /// Whether anything is in the table, for those who ask about every request.
    has_admission: AtomicBool,
    tail: Tail,
}

impl Roster {
    /// Follows a registry from now on.
    pub(crate) fn follow(&self, registry: &Registry) {
        let roster = self.clone();
        registry.observe(move |in_force| roster.make_table(in_force));
    }

    /// Whether a plugin of admission is in force.
    #[inline]
    pub(crate) fn has_admission(&self) -> bool {
        self.0.has_admission.load(Ordering::Acquire)
    }

    /// The table, unless no plugin of admission is in force.
    #[inline]
    pub(crate) fn admission(&self) -> Option<Arc<Table>> {
        self.has_admission().then(|| self.table())
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.0.table.read())
    }

    /// Where to tell what plugins decide.
    pub(crate) fn tail(&self) -> &Tail {
        &self.0.tail
    }

    // ---- the prepare thread

    /// What a revision wants to be asked about is known.
    pub(crate) fn set_scope(&self, registry: &Registry, identity: &Bytes, scope: Scope) {
        self.0.made.lock().entry(identity.clone()).or_default().scope = Some(Arc::new(scope));
        registry.tell();
    }

    /// A revision is ready, or can't be.
    pub(crate) fn set_outcome(&self, registry: &Registry, identity: &Bytes, outcome: Result<Prepared, String>) {
        let mut made = self.0.made.lock();
        let entry = made.entry(identity.clone()).or_default();
        (entry.outcome, entry.hindrance) = (Some(outcome), None);
        drop(made);
        registry.tell();
    }

    /// A revision can't be made ready for now.
    pub(crate) fn set_hindrance(&self, registry: &Registry, identity: &Bytes, hindrance: &str) {
        self.0.made.lock().entry(identity.clone()).or_default().hindrance = Some(hindrance.into());
        registry.tell();
    }

    pub(crate) fn has_scope(&self, identity: &[u8]) -> bool {
        self.0.made.lock().get(identity).is_some_and(|made| made.scope.is_some())
    }

    /// Forgets all revisions but these.
    pub(crate) fn retain(&self, is_kept: impl Fn(&Bytes) -> bool) {
        let mut gone = Vec::new();
        {
            let mut made = self.0.made.lock();
            made.retain(|identity, made| {
                let stays = is_kept(identity);
                if !stays {
                    gone.push(std::mem::take(made));
                }
                stays
            });
        }
        for prepared in gone.iter().filter_map(|made| made.outcome.as_ref()?.as_ref().ok()) {
            // Another revision of the plugin may rest; that is set again whenever somebody looks.
            prepared.counts().quarantined.set(0.0);
        }
        // Instances are freed without the lock, which apply may be waiting for.
        drop(gone);
    }

    /// Those among these revisions that are prepared give back what they need only to be asked often.
    pub(crate) fn rest<'a>(&self, off: impl Iterator<Item = &'a Bytes>) {
        for identity in off {
            let prepared = match self.0.made.lock().get(identity).and_then(|made| made.outcome.clone()) {
                Some(Ok(prepared)) => prepared,
                Some(Err(_)) | None => continue,
            };
            prepared.rest();
        }
    }

    fn make_table(&self, in_force: &[InForce]) {
        let made = self.0.made.lock();
        let asked = |InForce { name, revision }: &InForce| {
            let weight = match revision.mode() {
                PluginMode::Enforce => Weight::Enforced,
                PluginMode::Shadow | PluginMode::Off => Weight::Shadow,
            };
            let made = made.get(&revision.identity).cloned().unwrap_or_default();
            Arc::new(Asked { name: name.clone(), revision: revision.number, weight, made })
        };
        let mut all: Vec<Arc<Asked>> = in_force.iter().map(asked).collect();
        all.sort_by_key(|asked| asked.weight == Weight::Shadow);
        let of = |kind| all.iter().filter(|asked| asked.may_answer(kind)).cloned().collect();
        let admission: Vec<Arc<Asked>> = of(Kind::Admission);
        let has_slow_admission = admission.iter().any(|asked| asked.may_take_long());
        let table = Table { admission, has_slow_admission, compaction: of(Kind::Compaction) };
        let has_admission = !table.admission.is_empty();
        let before = std::mem::replace(&mut *self.0.table.write(), Arc::new(table));
        self.0.has_admission.store(has_admission, Ordering::Release);
        drop(made);
        drop(before);
    }
}
