//! Upkeep: what a member does by itself, beside serving requests.
//!
//! Four threads. The *disk* thread ([`disk`]) does what may take long, one thing at a time: carry compactions out on
//! disk, defragment, make the store durable, dump the key index. The *clock* thread ([`clock`]) looks at the time ten
//! times a second: leases that ran out, compactions that are due, the room on the disk, a commit that hangs. The
//! *prepare* thread ([`preparation`]) makes plugins ready that were loaded, and the *plan* thread ([`planning`]) asks those
//! of compaction what to do. None touches the replicated state; what they
//! find becomes a proposal.

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod planning;
pub(crate) mod preparation;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use tokio::sync::{oneshot, watch};

use crate::mvcc::revision::Revision;
use crate::refusal::Refusal;

/// Jobs that may wait for the disk thread. A defragmentation past it is refused; its own jobs are never lost, since a
/// later one of a kind covers an earlier one.
const JOBS_MAX: usize = 16;

/// Compactions that may wait for the disk thread.
pub(crate) const COMPACTIONS_MAX: usize = 1_024;

/// What the disk thread is asked to do on behalf of a client.
pub(crate) enum Job {
    /// Rewrite the store without what is dead in it; answers once done.
    Defragment(oneshot::Sender<Result<(), Refusal>>, Defragmenting),
}

/// Held as long as a defragmentation waits or is under way, be there anybody who waits for it or not.
pub(crate) struct Defragmenting(Arc<AtomicUsize>);

impl Defragmenting {
    fn begin(count: &Arc<AtomicUsize>) -> Defragmenting {
        count.fetch_add(1, Ordering::Relaxed);
        Defragmenting(Arc::clone(count))
    }
}

impl Drop for Defragmenting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How handlers reach the upkeep. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Upkeep {
    jobs: Sender<Job>,
    /// The revision up to which compactions have been carried out on disk.
    compacted: watch::Receiver<i64>,
    /// How many defragmentations wait or are under way.
    defragmenting: Arc<AtomicUsize>,
}

impl Upkeep {
    /// The handlers' side, and the disk thread's: its jobs, and where it tells of compactions.
    pub(crate) fn with_queue() -> (Upkeep, Receiver<Job>, watch::Sender<i64>) {
        let (jobs, queue) = crossbeam_channel::bounded(JOBS_MAX);
        let (tell, compacted) = watch::channel(0);
        (Upkeep { jobs, compacted, defragmenting: Arc::default() }, queue, tell)
    }

    /// Defragments the store while it serves.
    ///
    /// # Errors
    /// `TooManyRequests` when [`JOBS_MAX`] wait already; what the store says when it fails.
    pub(crate) async fn defragment(&self) -> Result<(), Refusal> {
        let (done, answer) = oneshot::channel();
        let job = Job::Defragment(done, Defragmenting::begin(&self.defragmenting));
        self.jobs.try_send(job).map_err(|_| Refusal::TooManyRequests)?;
        answer.await.map_err(|_| Refusal::Stopped)?
    }

    /// Whether a defragmentation waits or is under way.
    pub(crate) fn is_defragmenting(&self) -> bool {
        self.defragmenting.load(Ordering::Relaxed) > 0
    }

    /// The revision up to which compactions have been carried out on disk.
    pub(crate) fn compacted_to(&self) -> Revision {
        Revision(*self.compacted.borrow())
    }

    /// Resolves once the compaction to this revision, or a later one, is carried out on disk.
    pub(crate) async fn compaction_done(&self, revision: Revision) -> Result<(), Refusal> {
        let mut compacted = self.compacted.clone();
        match compacted.wait_for(|done| *done >= revision.0).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::Stopped),
        }
    }
}
