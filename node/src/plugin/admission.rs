//! Asking a plugin about a request that writes.
//!
//! Instances are kept warm: one that has answered goes back to the pool of its plugin and answers the next request, which
//! takes a microsecond where a new instance takes ten to fifty. The pool is a row of places, each with a lock of its own
//! that nobody waits for; a thread begins at its own place, so shards do not meet.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use wasmtime::Store;

use super::bindings::exports::kuorum::policy::admission::{self as wit, Guest};
use super::compile::one_line;
use super::engine;
use super::instance::{self, CallKind, Failure, Spent, Started, State, Template};
use super::manifest::{VALUE_INLINE_BYTES_MAX, ValueShown};
use super::{Inner, Prepared};

pub(crate) use super::bindings::exports::kuorum::policy::admission::{Code, Space};
pub(crate) use super::bindings::kuorum::policy::types::Ctx;

/// Instances of one plugin that are kept warm. A node has as many shards as cores, and each asks one at a time.
const WARM_MAX: usize = 16;
/// Bytes that the warm instances of one plugin may take if each takes all that it may.
const WARM_BYTES_MAX: u64 = 1 << 30;
/// What a client sees of a denial or a warning.
const MESSAGE_BYTES_MAX: usize = 1024;

/// A request that a plugin may be asked about.
pub(crate) struct Question<'a> {
    /// Its deadline is set by the host.
    pub(crate) ctx: Ctx,
    pub(crate) user: Option<&'a str>,
    pub(crate) roles: &'a [&'a str],
    pub(crate) cert_cn: Option<&'a str>,
    /// Address and port of the client.
    pub(crate) peer: &'a str,
    /// Whether the operations come from a transaction with compares.
    pub(crate) conditional: bool,
    pub(crate) space: Space,
    /// All of the request, in order; the plugin is shown those that its rules match.
    pub(crate) ops: &'a [Op<'a>],
}

/// An operation of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op<'a> {
    Put {
        key: &'a [u8],
        value: &'a Bytes,
        lease: i64,
        prev_kv: bool,
    },
    /// Of a transaction.
    Delete {
        key: &'a [u8],
        range_end: Option<&'a [u8]>,
    },
    /// Id 0: the server chooses.
    LeaseGrant {
        id: i64,
        ttl_s: i64,
    },
}

/// A key that a verdict rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadKey {
    pub(crate) key: Vec<u8>,
    /// 0 if there was none.
    pub(crate) mod_revision: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    Warn(String),
    Deny { code: Code, message: String },
}

impl Code {
    /// As in the interface.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Code::PermissionDenied => "permission-denied",
            Code::InvalidArgument => "invalid-argument",
            Code::FailedPrecondition => "failed-precondition",
            Code::ResourceExhausted => "resource-exhausted",
        }
    }
}

/// What a plugin said of a request, and what that rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    pub(crate) read_set: Vec<ReadKey>,
    pub(crate) spent: Spent,
}

/// An instance that has been asked before.
pub(super) struct Warm {
    store: Store<State>,
    guest: Guest,
}

/// The warm instances of one plugin.
pub(super) struct Pool(Box<[Mutex<Option<Warm>>]>);

impl Pool {
    /// For instances that may take so many bytes each.
    pub(super) fn new(memory_bytes: u64) -> Pool {
        let places = usize::try_from(WARM_BYTES_MAX / memory_bytes.max(1)).unwrap_or(WARM_MAX).clamp(1, WARM_MAX);
        Pool((0..places).map(|_| Mutex::default()).collect())
    }

    /// Drops all instances but one.
    fn rest(&self) {
        let mut kept = false;
        for place in &self.0 {
            let mut place = place.lock();
            let resting = if kept { place.take() } else { None };
            kept |= place.is_some();
            drop(place);
            drop(resting);
        }
    }

    pub(super) fn take(&self) -> Option<Warm> {
        self.places().find_map(|place| place.try_lock().and_then(|mut place| place.take()))
    }

    /// Where every place is taken, the instance is dropped.
    fn give_back(&self, warm: Warm) {
        for place in self.places() {
            if let Some(mut place) = place.try_lock()
                && place.is_none()
            {
                *place = Some(warm);
                return;
            }
        }
    }

    /// All of them, from the calling thread's own one on.
    fn places(&self) -> impl Iterator<Item = &Mutex<Option<Warm>>> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static OWN_PLACE: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        let (before, from) = self.0.split_at(OWN_PLACE.with(|place| *place) % self.0.len());
        from.iter().chain(before)
    }

    /// Keeps an instance that is configured already.
    pub(super) fn add(&self, template: &Template, started: Started) -> Result<(), Failure> {
        self.give_back(warm(template, started)?);
        Ok(())
    }
}

/// The calls of an instance.
pub(super) fn guest_of(template: &Template, Started { store, instance, .. }: &mut Started) -> Result<Guest, Failure> {
    let indices = template.admission.as_ref().ok_or(Failure::NotAsked)?;
    indices
        .load(store, instance)
        .map_err(|error| Failure::Trapped { cause: one_line(&format!("{error:#}")), place: String::new() })
}

fn warm(template: &Template, mut started: Started) -> Result<Warm, Failure> {
    let guest = guest_of(template, &mut started)?;
    Ok(Warm { store: started.store, guest })
}

impl Prepared {
    /// Whether the plugin is to be asked about a request with this operation. Costs two comparisons.
    #[inline]
    pub(crate) fn matches(&self, op: &Op<'_>) -> bool {
        self.0.rules.match_op(op)
    }

    /// Whether a question may take so long that whoever else is served by the asking thread should not wait for it: more
    /// than some ten milliseconds, for the answer or for a new instance should the one before have broken.
    pub(crate) fn may_take_long(&self) -> bool {
        self.0.may_take_long
    }

    /// It is not asked for now: gives back what it needs only to be asked often.
    pub(crate) fn rest(&self) {
        self.0.pool.rest();
    }

    /// Asks the plugin. At least one operation should match.
    pub(crate) fn admission(&self, question: &Question<'_>) -> Result<Judged, Failure> {
        let inner = &*self.0;
        if inner.template.admission.is_none() {
            return Err(Failure::NotAsked);
        }
        if !inner.breaker.permits(engine::now) {
            return Err(Failure::Quarantined);
        }
        let outcome = self.judge(question);
        self.settle(outcome.as_ref().err());
        inner.template.plugin.counts.admissions.increment(1);
        outcome
    }

    fn judge(&self, question: &Question<'_>) -> Result<Judged, Failure> {
        let Inner { pool, template, .. } = &*self.0;
        let mut warm = match pool.take() {
            Some(warm) => warm,
            None => warm(template, template.start()?)?,
        };
        let judged = self.judge_in(&mut warm.store, &warm.guest, question);
        if judged.as_ref().err().is_none_or(|failure| !failure.is_breakage()) {
            warm.store.data_mut().call.values.clear();
            pool.give_back(warm);
        }
        judged
    }

    /// Asks this instance.
    pub(super) fn judge_in(
        &self,
        store: &mut Store<State>,
        guest: &Guest,
        question: &Question<'_>,
    ) -> Result<Judged, Failure> {
        let inner = &*self.0;
        let template = &inner.template;
        let call = instance::begin(store, CallKind::Admission, question.ctx.revision);
        let mut ops = Vec::with_capacity(question.ops.len());
        for op in question.ops.iter().filter(|op| inner.rules.match_op(op)) {
            call.values.push(match op {
                Op::Put { value, .. } if inner.reads_values => Bytes::clone(value),
                _ => Bytes::new(),
            });
            ops.push(shown(op, inner.value_shown));
        }
        let mut ctx = question.ctx;
        ctx.deadline_ms = template.plugin.limits.deadline_ms;
        let request = wit::Request {
            ctx,
            user: question.user,
            roles: question.roles,
            cert_cn: question.cert_cn,
            peer: question.peer,
            conditional: question.conditional,
            space: question.space,
            ops: &ops,
        };
        let seconds = &template.plugin.counts.admission_seconds;
        let outcome = template.ask(store, seconds, |store| guest.call_check(store, request));
        outcome.map(|(verdict, spent)| {
            let read_set = std::mem::take(&mut store.data_mut().call.reads);
            Judged { verdict: Verdict::of_plugin(verdict), read_set, spent }
        })
    }
}

impl Verdict {
    fn of_plugin(verdict: wit::Verdict) -> Verdict {
        let cut = |mut text: String| {
            text.truncate(text.floor_char_boundary(text.len().min(MESSAGE_BYTES_MAX)));
            text
        };
        match verdict {
            wit::Verdict::Allow => Verdict::Allow,
            wit::Verdict::Warn(text) => Verdict::Warn(cut(text)),
            wit::Verdict::Deny(denial) => Verdict::Deny { code: denial.code, message: cut(denial.message) },
        }
    }
}

/// The operation as the plugin sees it.
fn shown<'a>(op: &Op<'a>, value_shown: ValueShown) -> wit::Op<'a> {
    match *op {
        Op::Put { key, value, lease, prev_kv } => {
            let inline_max = match value_shown {
                ValueShown::None => None,
                ValueShown::First(bytes) => Some(bytes),
                ValueShown::All => Some(VALUE_INLINE_BYTES_MAX),
            };
            wit::Op::Put(wit::PutOp {
                key,
                // A request is far smaller than 4 GiB.
                value_bytes: u32::try_from(value.len()).unwrap_or(u32::MAX),
                value: inline_max.map(|bytes| &value[..value.len().min(bytes as usize)]),
                lease,
                prev_kv,
            })
        }
        Op::Delete { key, range_end } => wit::Op::Delete(wit::DeleteOp { key, range_end }),
        Op::LeaseGrant { id, ttl_s } => wit::Op::LeaseGrant(wit::LeaseGrantOp { id, ttl_s }),
    }
}
