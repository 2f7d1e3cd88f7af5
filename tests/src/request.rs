//! The request language: one line, one request.
//!
//! ```text
//! put a 1 lease=L1 prev                 range a..b limit=2 rev=h-1 sort=mod/descend
//! delete a.. prev                       txn if [mod a = r1; value a..c != x] then [put a 2] else [range a]
//! watch S1 a..b rev=r2 prev noput       compact h-3 physical
//! ```
//! Keys: `a` one key, `a..b` a range, `a..` everything from a; `""` is the empty string, `\x00` a byte, `z*400` a
//! repetition.

use bytes::Bytes;
use kuorum_proto::etcdserverpb as pb;

use crate::names::{Names, number};

mod txn;
mod words;

pub use words::{bytes_of, words};

/// A parsed line. The names in it are those of one server.
#[derive(Clone, Debug)]
pub enum Request {
    Put(pb::PutRequest),
    Range(pb::RangeRequest),
    RangeStream(pb::RangeRequest),
    DeleteRange(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    LeaseGrant {
        name: String,
        request: pb::LeaseGrantRequest,
    },
    LeaseRevoke(pb::LeaseRevokeRequest),
    LeaseKeepAlive(pb::LeaseKeepAliveRequest),
    LeaseTimeToLive(pb::LeaseTimeToLiveRequest),
    LeaseLeases,
    HashKv(pb::HashKvRequest),
    Status,
    Alarm(pb::AlarmRequest),
    Defragment,
    MoveLeader(pb::MoveLeaderRequest),
    Downgrade(pb::DowngradeRequest),
    MemberList(pb::MemberListRequest),
    MemberAdd {
        name: String,
        request: pb::MemberAddRequest,
    },
    MemberRemove(pb::MemberRemoveRequest),
    MemberUpdate(pb::MemberUpdateRequest),
    MemberPromote(pb::MemberPromoteRequest),
    Watch {
        stream: String,
        request: pb::WatchCreateRequest,
    },
    WatchCancel {
        stream: String,
        id: i64,
    },
    /// Asks for progress until it is answered; `once` asks a single time and says what came.
    WatchProgress {
        stream: String,
        once: bool,
    },
    /// Waits for a progress notification of one watcher.
    WatchNotified {
        stream: String,
        id: i64,
    },
    /// What the watchers of a stream, or of every stream (`*`), received since this was last asked.
    WatchEvents {
        stream: String,
    },
    /// The client ends its half of the stream.
    WatchHalfClose {
        stream: String,
    },
    /// Lets time pass: for leases that must expire.
    Wait {
        milliseconds: u64,
    },
}

/// Reads one line in the names of one server.
pub fn parse(line: &str, names: &Names) -> Result<Request, String> {
    let words = words(line)?;
    let (verb, rest) = words.split_first().ok_or("an empty line is no request")?;
    let mut arguments = Arguments { words: rest, names };
    let request = request_of(verb, &mut arguments).map_err(|problem| format!("{line}: {problem}"))?;
    match arguments.words {
        [] => Ok(request),
        rest => Err(format!("{line}: nobody reads {rest:?}")),
    }
}

/// The words of a request not read yet.
struct Arguments<'a> {
    words: &'a [String],
    names: &'a Names,
}

impl<'a> Arguments<'a> {
    fn take(&mut self, what: &str) -> Result<&'a str, String> {
        let (first, rest) = self.words.split_first().ok_or(format!("{what} is missing"))?;
        self.words = rest;
        Ok(first)
    }

    /// The value of `name=value`, wherever it stands among the leading options.
    fn option(&mut self) -> Option<(&'a str, &'a str)> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first.split_once('=').unwrap_or((first, "")))
    }

    fn flag(&mut self, name: &str) -> bool {
        match self.words.split_first() {
            Some((first, rest)) if first == name => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }

    fn keys(&mut self) -> Result<(Bytes, Bytes), String> {
        words::keys_of(self.take("a key")?)
    }

    fn bytes(&mut self, what: &str) -> Result<Bytes, String> {
        bytes_of(self.take(what)?)
    }

    fn revision_or_zero(&mut self) -> Result<i64, String> {
        match self.words.is_empty() {
            true => Ok(0),
            false => self.names.revision(self.take("a revision")?),
        }
    }

    fn lease(&mut self) -> Result<i64, String> {
        self.names.lease(self.take("a lease")?)
    }

    fn member(&mut self) -> Result<u64, String> {
        self.names.member(self.take("a member")?)
    }

    fn urls(&mut self) -> Result<Vec<String>, String> {
        let text = self.take("peer URLs")?;
        Ok(match text {
            "none" => Vec::new(),
            "own-peer-url" => vec![self.names.own.peer_url.clone()],
            _ => text.split(',').map(str::to_owned).collect(),
        })
    }
}

fn request_of(verb: &str, arguments: &mut Arguments<'_>) -> Result<Request, String> {
    Ok(match verb {
        "put" => Request::Put(put_of(arguments)?),
        "range" => Request::Range(range_of(arguments)?),
        "stream" => Request::RangeStream(range_of(arguments)?),
        "delete" => Request::DeleteRange(delete_of(arguments)?),
        "txn" => Request::Txn(txn::txn_of(arguments)?),
        "compact" => Request::Compact(pb::CompactionRequest {
            revision: {
                let revision = arguments.names.revision(arguments.take("a revision")?)?;
                // A script of its own compacts at 0, after which etcd answers a stale hash for the current revision.
                if arguments.flag("not-zero") && revision == 0 { 1 } else { revision }
            },
            physical: arguments.flag("physical"),
        }),
        "grant" | "revoke" | "keepalive" | "ttl" | "leases" => lease_request(verb, arguments)?,
        "watch" | "cancel" | "progress" | "notified" | "events" | "half-close" => watch_request(verb, arguments)?,
        "members" | "member-add" | "member-remove" | "member-update" | "member-promote" => {
            member_request(verb, arguments)?
        }
        "wait" => Request::Wait { milliseconds: number_of(arguments.take("milliseconds")?)? },
        _ => maintenance_request(verb, arguments)?,
    })
}

fn put_of(arguments: &mut Arguments<'_>) -> Result<pb::PutRequest, String> {
    let mut put = pb::PutRequest {
        key: arguments.bytes("a key")?,
        value: arguments.bytes("a value")?,
        ..pb::PutRequest::default()
    };
    while let Some((name, value)) = arguments.option() {
        match name {
            "lease" => put.lease = arguments.names.lease(value)?,
            "prev" => put.prev_kv = true,
            "ignore_value" => put.ignore_value = true,
            "ignore_lease" => put.ignore_lease = true,
            _ => return Err(format!("a put has no {name}")),
        }
    }
    Ok(put)
}

fn range_of(arguments: &mut Arguments<'_>) -> Result<pb::RangeRequest, String> {
    let (key, range_end) = arguments.keys()?;
    let mut range = pb::RangeRequest { key, range_end, ..pb::RangeRequest::default() };
    while let Some((name, value)) = arguments.option() {
        let names = arguments.names;
        match name {
            "limit" => range.limit = number(value)?,
            "rev" => range.revision = names.revision(value)?,
            "sort" => (range.sort_target, range.sort_order) = sort_of(value)?,
            "serializable" => range.serializable = true,
            "keys_only" => range.keys_only = true,
            "count_only" => range.count_only = true,
            "min_mod" => range.min_mod_revision = names.revision(value)?,
            "max_mod" => range.max_mod_revision = names.revision(value)?,
            "min_create" => range.min_create_revision = names.revision(value)?,
            "max_create" => range.max_create_revision = names.revision(value)?,
            _ => return Err(format!("a range has no {name}")),
        }
    }
    Ok(range)
}

/// `target/order`, each by name or, for values outside the enum, by number.
fn sort_of(text: &str) -> Result<(i32, i32), String> {
    let (target, order) = text.split_once('/').ok_or("sort is written target/order")?;
    let target = enum_of(target, &["key", "version", "create", "mod", "value"])?;
    let order = enum_of(order, &["none", "ascend", "descend"])?;
    Ok((target, order))
}

fn enum_of(text: &str, names: &[&str]) -> Result<i32, String> {
    match names.iter().position(|name| *name == text) {
        Some(position) => i32::try_from(position).map_err(|error| error.to_string()),
        None => text.parse().map_err(|_| format!("{text} is none of {names:?}")),
    }
}

fn number_of(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}

fn delete_of(arguments: &mut Arguments<'_>) -> Result<pb::DeleteRangeRequest, String> {
    let (key, range_end) = arguments.keys()?;
    Ok(pb::DeleteRangeRequest { key, range_end, prev_kv: arguments.flag("prev") })
}

fn lease_request(verb: &str, arguments: &mut Arguments<'_>) -> Result<Request, String> {
    Ok(match verb {
        "grant" => {
            let name = arguments.take("a lease")?;
            let id = match name.starts_with("auto") {
                true => 0,
                false => arguments.names.lease(name)?,
            };
            let ttl = arguments.take("ttl=")?;
            let ttl = ttl.strip_prefix("ttl=").ok_or("ttl= is missing")?;
            Request::LeaseGrant { name: name.to_owned(), request: pb::LeaseGrantRequest { ttl: number(ttl)?, id } }
        }
        "revoke" => Request::LeaseRevoke(pb::LeaseRevokeRequest { id: arguments.lease()? }),
        "keepalive" => Request::LeaseKeepAlive(pb::LeaseKeepAliveRequest { id: arguments.lease()? }),
        "ttl" => Request::LeaseTimeToLive(pb::LeaseTimeToLiveRequest {
            id: arguments.lease()?,
            keys: arguments.flag("keys"),
        }),
        _ => Request::LeaseLeases,
    })
}

fn watch_request(verb: &str, arguments: &mut Arguments<'_>) -> Result<Request, String> {
    let stream = arguments.take("a stream")?.to_owned();
    Ok(match verb {
        "watch" => Request::Watch { stream, request: watch_of(arguments)? },
        "cancel" => Request::WatchCancel { stream, id: number(arguments.take("a watch id")?)? },
        "progress" => Request::WatchProgress { stream, once: arguments.flag("once") },
        "notified" => Request::WatchNotified { stream, id: number(arguments.take("a watch id")?)? },
        "events" => Request::WatchEvents { stream },
        _ => Request::WatchHalfClose { stream },
    })
}

fn watch_of(arguments: &mut Arguments<'_>) -> Result<pb::WatchCreateRequest, String> {
    let (key, range_end) = arguments.keys()?;
    let mut watch = pb::WatchCreateRequest { key, range_end, ..pb::WatchCreateRequest::default() };
    while let Some((name, value)) = arguments.option() {
        match name {
            "rev" => watch.start_revision = arguments.names.revision(value)?,
            "id" => watch.watch_id = number(value)?,
            "prev" => watch.prev_kv = true,
            "progress" => watch.progress_notify = true,
            "fragment" => watch.fragment = true,
            "noput" => watch.filters.push(0),
            "nodelete" => watch.filters.push(1),
            "filter" => watch.filters.push(enum_of(value, &[])?),
            _ => return Err(format!("a watch has no {name}")),
        }
    }
    Ok(watch)
}

fn member_request(verb: &str, arguments: &mut Arguments<'_>) -> Result<Request, String> {
    Ok(match verb {
        "members" => Request::MemberList(pb::MemberListRequest { linearizable: arguments.flag("linearizable") }),
        "member-add" => Request::MemberAdd {
            name: arguments.take("a name")?.to_owned(),
            request: pb::MemberAddRequest { peer_ur_ls: arguments.urls()?, is_learner: arguments.flag("learner") },
        },
        "member-remove" => Request::MemberRemove(pb::MemberRemoveRequest { id: arguments.member()? }),
        "member-update" => {
            Request::MemberUpdate(pb::MemberUpdateRequest { id: arguments.member()?, peer_ur_ls: arguments.urls()? })
        }
        _ => Request::MemberPromote(pb::MemberPromoteRequest { id: arguments.member()? }),
    })
}

fn maintenance_request(verb: &str, arguments: &mut Arguments<'_>) -> Result<Request, String> {
    Ok(match verb {
        "hashkv" => Request::HashKv(pb::HashKvRequest { revision: arguments.revision_or_zero()? }),
        "status" => Request::Status,
        "alarm" => Request::Alarm(pb::AlarmRequest {
            action: enum_of(arguments.take("an action")?, &["get", "activate", "deactivate"])?,
            alarm: enum_of(arguments.take("an alarm")?, &["none", "nospace", "corrupt"])?,
            member_id: arguments.member()?,
        }),
        "defragment" => Request::Defragment,
        "move-leader" => Request::MoveLeader(pb::MoveLeaderRequest { target_id: arguments.member()? }),
        "downgrade" => Request::Downgrade(pb::DowngradeRequest {
            action: enum_of(arguments.take("an action")?, &["validate", "enable", "cancel"])?,
            version: String::from_utf8_lossy(&arguments.bytes("a version")?).into_owned(),
        }),
        _ => return Err(format!("{verb} is no request")),
    })
}
