//! Asks the plugins of admission that are in force about one request.
//!
//! Enforced plugins are asked first, by name, until one says no; what they read goes with the request. Then those in shadow
//! are asked: their verdicts are counted, compared and logged, and change nothing. A request that no plugin's rules match
//! costs two comparisons for each plugin.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kuorum_proto::etcdserverpb::{LeaseGrantRequest, PutRequest, ReadSetEntry, TxnRequest, request_op};
use kuorum_proto::mvccpb::KeyValue;

use super::tail::Tail;
use super::{Asked, Standing, Table, Weight};
use crate::admission::ReadSet;
use crate::plugin::{Ctx, Failure, Judged, Op, Prepared, Question, Space, Verdict};
use crate::refusal::{Denial, Refusal, Unjudged};

/// Letters of a plugin's failure that a client is shown.
const FAILURE_SHOWN_CHARS_MAX: usize = 256;
/// Why a plugin in shadow was not asked.
const SPARED: &str = "it may take long, and the member is busy asking it about others";

/// Who asks, and what the member knew then.
pub(crate) struct Asker<'a> {
    pub(crate) ctx: Ctx,
    pub(crate) peer: &'a str,
    pub(crate) space: Space,
    /// Where to tell what they say.
    pub(crate) tail: &'a Tail,
    /// Whether the request has waited for plugins that are being prepared, and does so no longer.
    pub(crate) has_waited: bool,
    /// Whether to leave out those in shadow that may take long.
    pub(crate) spares_shadow: bool,
}

/// What the puts of a request leave as it is: values and leases of keys that plugins are shown as if they were written
/// anew. Mostly empty.
#[derive(Default)]
pub(crate) struct Kept(HashMap<Bytes, KeyValue>);

impl Kept {
    /// Looks the keys of these puts up.
    ///
    /// # Errors
    /// Those of `newest`, which finds a key as it is now.
    pub(crate) fn of_puts<'a, E>(
        puts: impl IntoIterator<Item = &'a PutRequest>,
        newest: impl Fn(&Bytes) -> Result<Option<KeyValue>, E>,
    ) -> Result<Kept, E> {
        let mut kept = HashMap::new();
        for put in puts {
            // Such a put needs a key that is there. Where there is none, it fails unless one comes meanwhile.
            kept.insert(put.key.clone(), newest(&put.key)?.unwrap_or_default());
        }
        Ok(Kept(kept))
    }

    /// What was looked up; verdicts rest on it.
    fn read_set(&self) -> ReadSet {
        let entry = |(key, kv): (&Bytes, &KeyValue)| ReadSetEntry { key: key.clone(), mod_revision: kv.mod_revision };
        self.0.iter().map(entry).collect()
    }
}

/// The operation of a put.
pub(crate) fn op_of_put<'a>(request: &'a PutRequest, kept: &'a Kept) -> Op<'a> {
    let (mut value, mut lease) = (&request.value, request.lease);
    if let Some(known) = kept.0.get(&request.key) {
        value = if request.ignore_value { &known.value } else { value };
        lease = if request.ignore_lease { known.lease } else { lease };
    }
    Op::Put { key: &request.key, value, lease, prev_kv: request.prev_kv }
}

/// Whether a put leaves the value or the lease of its key as it is.
pub(crate) fn keeps(put: &PutRequest) -> bool {
    put.ignore_value || put.ignore_lease
}

/// The puts of a transaction that keep something.
pub(crate) fn keeping_puts_of_txn(request: &TxnRequest) -> Vec<&PutRequest> {
    let mut puts = Vec::new();
    visit(request, &mut false, &mut |operation| match operation {
        request_op::Request::RequestPut(put) if keeps(put) => puts.push(put),
        _ => {}
    });
    puts
}

/// The operation of a grant.
pub(crate) fn op_of_grant(request: &LeaseGrantRequest) -> Op<'_> {
    Op::LeaseGrant { id: request.id, ttl_s: request.ttl }
}

/// What of a transaction plugins are asked about: puts and deletes of both branches at any depth, in order, and whether
/// compares decide between branches. Empty if it deletes single keys at most: nobody can be kept from that.
pub(crate) fn ops_of_txn<'a>(request: &'a TxnRequest, kept: &'a Kept) -> (Vec<Op<'a>>, bool) {
    let (mut ops, mut conditional) = (Vec::new(), false);
    visit(request, &mut conditional, &mut |operation| match operation {
        request_op::Request::RequestPut(put) => ops.push(op_of_put(put, kept)),
        request_op::Request::RequestDeleteRange(delete) => {
            let range_end = (!delete.range_end.is_empty()).then_some(&delete.range_end[..]);
            ops.push(Op::Delete { key: &delete.key, range_end });
        }
        request_op::Request::RequestRange(_) | request_op::Request::RequestTxn(_) => {}
    });
    if ops.iter().all(|op| matches!(op, Op::Delete { range_end: None, .. })) {
        ops.clear();
    }
    (ops, conditional)
}

/// Shows the operations of both branches of a transaction, at any depth and in order, but not nested transactions
/// themselves, and notes whether compares decide between branches.
fn visit<'a>(request: &'a TxnRequest, conditional: &mut bool, show: &mut impl FnMut(&'a request_op::Request)) {
    *conditional |= !request.compare.is_empty();
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(request_op::Request::RequestTxn(txn)) => visit(txn, conditional, show),
            Some(other) => show(other),
            None => {}
        }
    }
}

impl Table {
    /// Whether any plugin is to be asked about one of these.
    #[inline]
    pub(crate) fn concern(&self, ops: &[Op<'_>]) -> bool {
        self.admission().iter().any(|asked| ops.iter().any(|op| asked.concerns(op)))
    }

    /// Whether a plugin that is to be asked about these may take long to answer; those in shadow may be spared that.
    #[inline]
    pub(crate) fn may_take_long(&self, ops: &[Op<'_>], spares_shadow: bool) -> bool {
        let is_slow = |asked: &Arc<Asked>| {
            let is_asked = !(spares_shadow && asked.weight == Weight::Shadow);
            is_asked && asked.may_take_long() && ops.iter().any(|op| asked.concerns(op))
        };
        self.has_slow_admission && self.admission().iter().any(is_slow)
    }

    /// Has a request judged. What is returned was read by those who let it pass, or is kept as it is.
    ///
    /// # Errors
    /// `Denied` when a plugin says no, `Unjudged` when one that has to be asked did not answer.
    pub(crate) fn judge(
        &self,
        asker: &Asker<'_>,
        ops: &[Op<'_>],
        kept: &Kept,
        conditional: bool,
    ) -> Result<ReadSet, Refusal> {
        let question = Question {
            ctx: asker.ctx,
            // Nobody has a name while there are no users.
            user: None,
            roles: &[],
            cert_cn: None,
            peer: asker.peer,
            conditional,
            space: asker.space,
            ops,
        };
        let concerned = |weight| {
            let of_weight = self.admission().iter().filter(move |asked| asked.weight == weight);
            of_weight.filter(|asked| ops.iter().any(|op| asked.concerns(op)))
        };
        let mut read_set = kept.read_set();
        let mut verdict = Ok(());
        for asked in concerned(Weight::Enforced) {
            verdict = enforce(asked, &question, asker, &mut read_set);
            if verdict.is_err() {
                break;
            }
        }
        for asked in concerned(Weight::Shadow) {
            shadow(asked, &question, asker, verdict.is_ok());
        }
        verdict.map(|()| read_set)
    }
}

fn enforce(asked: &Asked, question: &Question<'_>, asker: &Asker<'_>, read_set: &mut ReadSet) -> Result<(), Refusal> {
    let tail = asker.tail;
    let prepared = match asked.standing() {
        Standing::Ready(prepared) => prepared,
        Standing::Failed(failure) => {
            tail.unjudged(asked, question, asked.fails_open(), failure);
            return if asked.fails_open() { Ok(()) } else { Err(unjudged(asked, Some(failure.to_owned()))) };
        }
        Standing::Preparing | Standing::Hindered(_) if asker.has_waited && asked.fails_open() => {
            tail.unjudged(asked, question, true, "it is not ready on this member yet");
            return Ok(());
        }
        Standing::Preparing | Standing::Hindered(_) => return Err(unjudged(asked, None)),
    };
    let outcome = prepared.admission(question);
    match &outcome {
        Ok(judged) => tail.verdict(asked, question, judged),
        Err(failure) => tail.unjudged(asked, question, asked.fails_open(), &failure.to_string()),
    }
    match outcome {
        Ok(Judged { verdict, read_set: reads, .. }) => {
            prepared.counts().verdict(&verdict, false);
            for read in reads {
                if !read_set.iter().any(|known| known.key[..] == read.key[..]) {
                    read_set.push(ReadSetEntry { key: read.key.into(), mod_revision: read.mod_revision });
                }
            }
            match verdict {
                Verdict::Allow => Ok(()),
                Verdict::Warn(message) => {
                    say(prepared, asked, "a plugin warns of a request that it lets pass", &message);
                    Ok(())
                }
                Verdict::Deny { code, message } => {
                    let plugin = asked.name.clone();
                    let has_read = !read_set.is_empty();
                    Err(Refusal::Denied(Box::new(Denial { plugin, code, message, has_read })))
                }
            }
        }
        Err(failure) if asked.fails_open() => {
            prepared.counts().passed_unjudged.increment(1);
            say(prepared, asked, "a request passes that a plugin could not judge", &failure.to_string());
            Ok(())
        }
        Err(failure) => {
            prepared.counts().refused_unjudged.increment(1);
            Err(unjudged(asked, Some(shown(&failure))))
        }
    }
}

/// Asks a plugin that is not followed, and notes where following it would have made a difference.
fn shadow(asked: &Asked, question: &Question<'_>, asker: &Asker<'_>, passes: bool) {
    let tail = asker.tail;
    let Standing::Ready(prepared) = asked.standing() else { return };
    if asker.spares_shadow && prepared.may_take_long() {
        prepared.counts().shadow_spared.increment(1);
        return tail.unjudged(asked, question, true, SPARED);
    }
    match prepared.admission(question) {
        Ok(judged) => {
            tail.verdict(asked, question, &judged);
            let verdict = judged.verdict;
            prepared.counts().verdict(&verdict, true);
            let would_pass = !matches!(verdict, Verdict::Deny { .. });
            if would_pass != passes {
                prepared.counts().shadow_differs.increment(1);
                let text = match &verdict {
                    Verdict::Deny { message, .. } => message.as_str(),
                    Verdict::Allow | Verdict::Warn(_) => "it would let the request pass",
                };
                say(prepared, asked, "a plugin in shadow would have decided otherwise", text);
            }
        }
        Err(failure) => {
            let failure = failure.to_string();
            tail.unjudged(asked, question, true, &failure);
            say(prepared, asked, "a plugin in shadow did not answer", &failure);
        }
    }
}

/// A line in the log, out of the plugin's own budget of lines.
fn say(prepared: &Prepared, asked: &Asked, what: &str, text: &str) {
    if prepared.may_log() {
        crate::info!(what, plugin = asked.name.as_str(), revision = asked.revision, text = text);
    }
}

fn unjudged(asked: &Asked, failure: Option<String>) -> Refusal {
    Refusal::Unjudged(Box::new(Unjudged { plugin: asked.name.clone(), failure }))
}

fn shown(failure: &Failure) -> String {
    failure.brief().chars().take(FAILURE_SHOWN_CHARS_MAX).collect()
}
