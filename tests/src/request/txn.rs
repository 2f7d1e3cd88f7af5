//! `txn if [COMPARE; ...] then [OP; ...] else [OP; ...]`, nested as deep as wanted.
//!
//! COMPARE is `target KEYS = value`, target one of version, create, mod, value, lease; `mod:version` compares the mod
//! revision with a number sent in the version field, a value `none` sends no number. OP is a put, range, delete, txn or
//! `nothing` (an op with no request in it).

use kuorum_proto::etcdserverpb as pb;
use pb::compare::TargetUnion;
use pb::request_op;

use super::{Arguments, bytes_of, delete_of, enum_of, put_of, range_of};
use crate::names::number;

const TARGETS: [&str; 5] = ["version", "create", "mod", "value", "lease"];

pub(super) fn txn_of(arguments: &mut Arguments<'_>) -> Result<pb::TxnRequest, String> {
    let mut txn = pb::TxnRequest::default();
    if arguments.flag("if") {
        txn.compare = list_of(arguments, compare_of)?;
    }
    if arguments.flag("then") {
        txn.success = list_of(arguments, op_of)?;
    }
    if arguments.flag("else") {
        txn.failure = list_of(arguments, op_of)?;
    }
    Ok(txn)
}

/// `[ item; item ]`. Each item sees only its own words.
fn list_of<T>(
    arguments: &mut Arguments<'_>,
    item_of: fn(&mut Arguments<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    if !arguments.flag("[") {
        return Err("a list starts with [".to_owned());
    }
    let mut items = Vec::new();
    if arguments.flag("]") {
        return Ok(items);
    }
    loop {
        let length = item_length(arguments.words)?;
        let (words, rest) = arguments.words.split_at(length);
        let mut item = Arguments { words, names: arguments.names };
        items.push(item_of(&mut item)?);
        if !item.words.is_empty() {
            return Err(format!("nobody reads {:?}", item.words));
        }
        arguments.words = &rest[1..];
        if rest[0] == "]" {
            return Ok(items);
        }
    }
}

/// Words until the `;` or `]` that ends this item.
fn item_length(words: &[String]) -> Result<usize, String> {
    let mut depth = 0_usize;
    for (position, word) in words.iter().enumerate() {
        match word.as_str() {
            "[" => depth += 1,
            ";" | "]" if depth == 0 => return Ok(position),
            "]" => depth -= 1,
            _ => {}
        }
    }
    Err("a list ends with ]".to_owned())
}

fn op_of(arguments: &mut Arguments<'_>) -> Result<pb::RequestOp, String> {
    let request = match arguments.take("an op")? {
        "put" => Some(request_op::Request::RequestPut(put_of(arguments)?)),
        "range" => Some(request_op::Request::RequestRange(range_of(arguments)?)),
        "delete" => Some(request_op::Request::RequestDeleteRange(delete_of(arguments)?)),
        "txn" => Some(request_op::Request::RequestTxn(txn_of(arguments)?)),
        "nothing" => None,
        other => return Err(format!("{other} is no op of a txn")),
    };
    Ok(pb::RequestOp { request })
}

fn compare_of(arguments: &mut Arguments<'_>) -> Result<pb::Compare, String> {
    let target = arguments.take("a target")?;
    let (target, field) = target.split_once(':').unwrap_or((target, target));
    let (key, range_end) = arguments.keys()?;
    let result = match arguments.take("a comparison")? {
        "=" => 0,
        ">" => 1,
        "<" => 2,
        "!=" => 3,
        other => enum_of(other, &[])?,
    };
    let value = arguments.take("a value")?;
    let names = arguments.names;
    let target_union = match (value, field) {
        ("none", _) => None,
        (_, "version") => Some(TargetUnion::Version(number(value)?)),
        (_, "create") => Some(TargetUnion::CreateRevision(names.revision(value)?)),
        (_, "mod") => Some(TargetUnion::ModRevision(names.revision(value)?)),
        (_, "value") => Some(TargetUnion::Value(bytes_of(value)?)),
        (_, "lease") => Some(TargetUnion::Lease(names.lease(value)?)),
        (_, other) => return Err(format!("{other} is none of {TARGETS:?}")),
    };
    Ok(pb::Compare { result, target: enum_of(target, &TARGETS)?, key, range_end, target_union })
}
