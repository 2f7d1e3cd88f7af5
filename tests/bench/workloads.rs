//! What clients of each row ask for, and the keys and values they use.

use bytes::Bytes;
use kuorum_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use kuorum_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse, request_op::Request,
};
use kuorum_tests::random::Random;
use prost::Message;

use super::load::Workload;

pub(crate) const PUT: &str = "/etcdserverpb.KV/Put";
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";

/// Bytes of every value.
const VALUE_BYTES: usize = 256;
/// Objects of a page when a Kubernetes API server lists.
const PAGE_KEYS: i64 = 500;

/// A prefix of numbered keys, 32 bytes each with the prefixes used here.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) prefix: &'static str,
    pub(crate) count: u64,
}

impl Keys {
    pub(crate) fn key(self, number: u64) -> Bytes {
        let digits = 32 - self.prefix.len();
        format!("{}{number:0digits$}", self.prefix).into()
    }

    /// One past every key of the prefix.
    pub(crate) fn end(self) -> Bytes {
        let mut end = self.prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix has bytes") += 1;
        end.into()
    }
}

/// Values that no engine can compress: slices of one random buffer.
pub(crate) struct Values(Bytes);

impl Values {
    pub(crate) fn new(random: &mut Random) -> Values {
        Values((0..1 << 16).map(|_| u8::try_from(random.below(256)).expect("below 256")).collect())
    }

    pub(crate) fn draw(&self, random: &mut Random) -> Bytes {
        let last = u64::try_from(self.0.len() - VALUE_BYTES).expect("a length fits");
        let start = usize::try_from(random.below(last)).expect("below a length");
        self.0.slice(start..start + VALUE_BYTES)
    }
}

/// What every workload draws from.
pub(crate) struct Source {
    pub(crate) keys: Keys,
    pub(crate) random: Random,
    pub(crate) values: Values,
}

impl Source {
    pub(crate) fn new(keys: Keys, seed: u64) -> Source {
        let mut random = Random::new(seed);
        let values = Values::new(&mut random);
        Source { keys, random, values }
    }

    fn any_key(&mut self) -> Bytes {
        self.keys.key(self.random.below(self.keys.count))
    }

    fn put(&mut self, key: Bytes) -> PutRequest {
        PutRequest { key, value: self.values.draw(&mut self.random), ..PutRequest::default() }
    }
}

fn encode(request: &impl Message, message: &mut Vec<u8>) {
    request.encode(message).expect("a vector grows");
}

/// Puts every key once, in order.
pub(crate) struct Fill {
    pub(crate) source: Source,
    next: u64,
}

impl Fill {
    pub(crate) fn new(source: Source) -> Fill {
        Fill { source, next: 0 }
    }
}

impl Workload for Fill {
    fn next(&mut self, _client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        if self.next == self.source.keys.count {
            return None;
        }
        let key = self.source.keys.key(self.next);
        self.next += 1;
        encode(&self.source.put(key), message);
        Some(PUT)
    }
}

/// Puts keys at random, for ever or so many times.
pub(crate) struct Puts {
    pub(crate) source: Source,
    pub(crate) left: u64,
}

impl Workload for Puts {
    fn next(&mut self, _client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        self.left = self.left.checked_sub(1)?;
        let key = self.source.any_key();
        encode(&self.source.put(key), message);
        Some(PUT)
    }
}

/// Each client updates a key of its own if it is as it left it, as an API server does.
pub(crate) struct Updates {
    pub(crate) source: Source,
    /// The revision of each client's key.
    pub(crate) revisions: Vec<i64>,
}

impl Updates {
    pub(crate) fn new(source: Source, clients: usize) -> Updates {
        Updates { source, revisions: vec![0; clients] }
    }

    fn update(&mut self, client: usize, message: &mut Vec<u8>) -> &'static str {
        let key = self.source.keys.key(u64::try_from(client).expect("a count fits"));
        let unchanged = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(self.revisions[client])),
            ..Compare::default()
        };
        let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let txn = TxnRequest {
            compare: vec![unchanged],
            success: vec![RequestOp { request: Some(Request::RequestPut(self.source.put(key))) }],
            failure: vec![RequestOp { request: Some(Request::RequestRange(get)) }],
        };
        encode(&txn, message);
        TXN
    }

    fn updated(&mut self, client: usize, message: &[u8]) -> Result<(), String> {
        let response = TxnResponse::decode(message).map_err(|error| error.to_string())?;
        let first = self.revisions[client] == 0;
        if !response.succeeded && !first {
            return Err(format!("the key of client {client} was changed by nobody, yet its update failed"));
        }
        self.revisions[client] = match response.succeeded {
            true => response.header.map_or(0, |header| header.revision),
            false => found_revision(response),
        };
        Ok(())
    }
}

fn found_revision(response: TxnResponse) -> i64 {
    use kuorum_proto::etcdserverpb::response_op::Response;
    let found = response.responses.into_iter().find_map(|op| match op.response {
        Some(Response::ResponseRange(range)) => range.kvs.first().map(|kv| kv.mod_revision),
        _ => None,
    });
    found.unwrap_or(0)
}

impl Workload for Updates {
    fn next(&mut self, client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        Some(self.update(client, message))
    }

    fn answered(&mut self, client: usize, message: &[u8]) -> Result<(), String> {
        self.updated(client, message)
    }
}

/// Reads `span` neighbouring keys at random places; a span of 1 is a get.
pub(crate) struct Reads {
    pub(crate) source: Source,
    pub(crate) span: u64,
    pub(crate) serializable: bool,
}

impl Reads {
    fn request(&mut self) -> RangeRequest {
        let first = self.source.random.below(self.source.keys.count - self.span + 1);
        let range_end = if self.span == 1 { Bytes::new() } else { self.source.keys.key(first + self.span) };
        let key = self.source.keys.key(first);
        RangeRequest { key, range_end, serializable: self.serializable, ..RangeRequest::default() }
    }
}

impl Workload for Reads {
    fn next(&mut self, _client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        encode(&self.request(), message);
        Some(RANGE)
    }

    fn answered(&mut self, _client: usize, message: &[u8]) -> Result<(), String> {
        // An answer without its keys would be fast; a look at its size is enough.
        let bytes = usize::try_from(self.span).expect("a span fits") * (VALUE_BYTES + 32);
        match message.len() >= bytes {
            true => Ok(()),
            false => Err(format!("{} bytes in answer to a read of {} keys", message.len(), self.span)),
        }
    }
}

/// Counts all keys of the prefix.
pub(crate) struct Count(pub(crate) Keys);

impl Workload for Count {
    fn next(&mut self, _client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        let (key, range_end) = (Bytes::from(self.0.prefix), self.0.end());
        encode(&RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() }, message);
        Some(RANGE)
    }

    fn answered(&mut self, _client: usize, message: &[u8]) -> Result<(), String> {
        let counted = RangeResponse::decode(message).map_err(|error| error.to_string())?.count;
        match u64::try_from(counted) == Ok(self.0.count) {
            true => Ok(()),
            false => Err(format!("counted {counted} of {} keys", self.0.count)),
        }
    }
}

/// Four reads to one put, all at random keys.
pub(crate) struct Mixed(pub(crate) Reads);

impl Workload for Mixed {
    fn next(&mut self, _client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        if !self.0.source.random.one_in(5) {
            encode(&self.0.request(), message);
            return Some(RANGE);
        }
        let key = self.0.source.any_key();
        encode(&self.0.source.put(key), message);
        Some(PUT)
    }
}

/// A Kubernetes-like mix: half updates on the mod revision, three in ten gets, two in ten lists by pages.
pub(crate) struct Kubernetes {
    updates: Updates,
    /// What each client does now.
    doing: Vec<Doing>,
}

#[derive(Clone)]
enum Doing {
    Update,
    Get,
    /// A list that goes on at `from`, at a revision once the first page named it.
    List {
        from: Bytes,
        revision: i64,
    },
}

impl Kubernetes {
    pub(crate) fn new(source: Source, clients: usize) -> Kubernetes {
        Kubernetes { updates: Updates::new(source, clients), doing: vec![Doing::Get; clients] }
    }

    fn choose(&mut self) -> Doing {
        match self.updates.source.random.below(10) {
            0..5 => Doing::Update,
            5..8 => Doing::Get,
            _ => Doing::List { from: self.updates.source.any_key(), revision: 0 },
        }
    }
}

impl Workload for Kubernetes {
    fn next(&mut self, client: usize, message: &mut Vec<u8>) -> Option<&'static str> {
        let goes_on = matches!(self.doing[client], Doing::List { revision: 1.., .. });
        if !goes_on {
            self.doing[client] = self.choose();
        }
        let request = match &self.doing[client] {
            Doing::Update => return Some(self.updates.update(client, message)),
            Doing::Get => RangeRequest { key: self.updates.source.any_key(), ..RangeRequest::default() },
            Doing::List { from, revision } => RangeRequest {
                key: from.clone(),
                range_end: self.updates.source.keys.end(),
                limit: PAGE_KEYS,
                revision: *revision,
                ..RangeRequest::default()
            },
        };
        encode(&request, message);
        Some(RANGE)
    }

    fn answered(&mut self, client: usize, message: &[u8]) -> Result<(), String> {
        match &mut self.doing[client] {
            Doing::Update => self.updates.updated(client, message),
            Doing::Get => Ok(()),
            Doing::List { from, revision } => {
                let page = RangeResponse::decode(message).map_err(|error| error.to_string())?;
                let last = page.kvs.last().ok_or("a page without keys")?;
                // Two pages a list: the first at the present, the second at the first's revision.
                match page.more && *revision == 0 {
                    true => {
                        *from = [&last.key[..], &[0]].concat().into();
                        *revision = page.header.map_or(0, |header| header.revision);
                    }
                    false => *revision = 0,
                }
                Ok(())
            }
        }
    }
}
