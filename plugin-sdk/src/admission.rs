//! Admission: may this write be proposed?
//!
//! Asked before a put, a transaction or a lease grant that the manifest matches; never about a delete on its own, so that
//! no plugin can lock an operator out. A check is on the path of the write: it has milliseconds, and most take less than
//! one thousandth of that.
//!
//! ```
#![doc = include_str!("../examples/tiny_admission.rs")]
//! ```

pub use crate::bindings::admission::exports::kuorum::policy::admission::{
    Code, DeleteOp, Denial, LeaseGrantOp, Op, PutOp, Request, Space, Verdict,
};
use crate::{
    Ctx, Failure, Plugin,
    bindings::admission::exports::kuorum::policy::admission::Guest,
    export::{Adapter, Exported},
};

/// A plugin that is asked before a write.
pub trait Admission: Plugin {
    /// Whether the write may be proposed. The request has the operations that the manifest matches and no others.
    fn check(&mut self, request: &Request) -> Result<Verdict, Failure>;
}

impl<T: Exported + Admission> Guest for Adapter<T> {
    fn check(request: Request) -> Result<Verdict, Failure> {
        Self::ask(|plugin| plugin.check(&request))
    }
}

impl Verdict {
    /// Refuses the write; the client sees the code and the message.
    pub fn deny(code: Code, message: impl Into<String>) -> Self {
        Self::Deny(Denial { code, message: message.into() })
    }
}

impl PutOp {
    /// A put for tests, whose value is handed over whole.
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        let value = value.into();
        let value_bytes = u32::try_from(value.len()).unwrap_or(u32::MAX);
        Self { key: key.into(), value_bytes, value: Some(value), lease: 0, prev_kv: false }
    }
}

impl From<PutOp> for Op {
    fn from(put: PutOp) -> Self {
        Self::Put(put)
    }
}

impl Default for Request {
    /// An empty request for tests, of a member with one byte of two gigabytes used.
    fn default() -> Self {
        Self {
            ctx: Ctx::default(),
            user: None,
            roles: Vec::new(),
            cert_cn: None,
            peer: "127.0.0.1:2379".into(),
            conditional: false,
            space: Space { db_bytes: 1, in_use_bytes: 1, quota_bytes: 2 << 30 },
            ops: Vec::new(),
        }
    }
}
