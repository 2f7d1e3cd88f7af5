//! What clients are told: the gRPC code and text of every refusal. The only place that knows either.
//!
//! Clients match on the texts, so they are etcd's to the letter (`rpctypes`, and grpc-go's for what goes wrong before a
//! handler is reached; seen on etcd 3.7.3). Kuorum's own refusals say which value is wrong and what is allowed.

use std::borrow::Cow;
use std::fmt;
use std::io;

use tonic::{Code, Status};

use super::method::NoMethod;
use crate::admission::shape::KEY_BYTES_MAX;
use crate::plugin::Code as DenialCode;
use crate::policy::plugins::Refused;
use crate::refusal::{Refusal, Unjudged};

/// What goes wrong between the client and a handler.
#[derive(Debug)]
pub(crate) enum Fault {
    NoMethod(NoMethod),
    NotGrpc {
        content_type: String,
    },
    NotPost {
        method: String,
    },
    MalformedTimeout(String),
    UnknownEncoding(String),
    CompressedWithoutEncoding,
    UnknownFlag(u8),
    Inflate(io::Error),
    InflatedTooLarge {
        bytes_max: usize,
    },
    MessageTooLarge {
        bytes: usize,
        bytes_max: usize,
    },
    /// The stream ended inside a message.
    Truncated,
    /// A unary call without its message.
    NoMessage,
    /// The one message of a call is not what the method takes.
    UndecodableRequest,
    /// A message of a stream is not what the method takes.
    UndecodableMessage,
    InvalidClientVersion,
    /// grpc.health.v1 was asked for a service whose health nobody keeps.
    UnknownHealthService,
    DeadlineExceeded,
    Canceled,
    Refused(Refusal),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        Fault::Refused(refusal)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe().1)
    }
}

impl Fault {
    pub(crate) fn status(&self) -> Status {
        let (code, text) = self.describe();
        Status::new(code, text)
    }

    fn describe(&self) -> (Code, Cow<'static, str>) {
        match self {
            Fault::NoMethod(no_method) => (Code::Unimplemented, no_method.to_string().into()),
            Fault::NotGrpc { content_type } => {
                (Code::Internal, format!("invalid gRPC request content-type {content_type:?}").into())
            }
            Fault::NotPost { method } => (
                Code::Internal,
                format!("received a HEADERS frame with :method {method:?} which should be POST").into(),
            ),
            Fault::MalformedTimeout(text) => (Code::Internal, format!("malformed grpc-timeout: {text:?}").into()),
            Fault::UnknownEncoding(encoding) => (
                Code::Unimplemented,
                format!("grpc: Decompressor is not installed for grpc-encoding {encoding:?}").into(),
            ),
            Fault::CompressedWithoutEncoding => {
                (Code::Internal, "grpc: compressed flag set with identity or empty encoding".into())
            }
            Fault::UnknownFlag(flag) => {
                (Code::Internal, format!("grpc: received unexpected payload format {flag}").into())
            }
            Fault::Inflate(error) => {
                (Code::Internal, format!("grpc: failed to decompress the received message: {error}").into())
            }
            Fault::InflatedTooLarge { bytes_max } => (
                Code::ResourceExhausted,
                format!("grpc: received message after decompression larger than max {bytes_max}").into(),
            ),
            Fault::MessageTooLarge { bytes, bytes_max } => (
                Code::ResourceExhausted,
                format!("grpc: received message larger than max ({bytes} vs. {bytes_max})").into(),
            ),
            Fault::Truncated => (Code::Internal, "unexpected EOF".into()),
            Fault::NoMessage => (Code::Unknown, "EOF".into()),
            Fault::UndecodableRequest => (
                Code::Internal,
                "grpc: error unmarshalling request: proto: cannot parse invalid wire-format data".into(),
            ),
            Fault::UndecodableMessage => (
                Code::Internal,
                "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data".into(),
            ),
            Fault::InvalidClientVersion => (Code::InvalidArgument, "etcdserver: invalid client api version".into()),
            Fault::UnknownHealthService => (Code::NotFound, "unknown service".into()),
            Fault::DeadlineExceeded => (Code::DeadlineExceeded, "context deadline exceeded".into()),
            Fault::Canceled => (Code::Cancelled, "context canceled".into()),
            Fault::Refused(refusal) => describe(refusal),
        }
    }
}

/// The text alone, for pages that show it.
pub(crate) fn text(refusal: &Refusal) -> Cow<'static, str> {
    describe(refusal).1
}

fn describe(refusal: &Refusal) -> (Code, Cow<'static, str>) {
    if let Some((code, text)) = fixed(refusal) {
        return (code, Cow::Borrowed(text));
    }
    match refusal {
        Refusal::KeyTooLarge => {
            (Code::InvalidArgument, format!("etcdserver: key is longer than {KEY_BYTES_MAX} bytes").into())
        }
        Refusal::UnfitPlugin(sentence) => (Code::InvalidArgument, format!("kuorum: {sentence}").into()),
        Refusal::NotTrusted(sentence) => (Code::PermissionDenied, format!("kuorum: {sentence}").into()),
        Refusal::Invalid(sentence) => (Code::InvalidArgument, format!("etcdserver: {sentence}").into()),
        Refusal::Plugin(refused) => (plugin_code(refused), format!("kuorum: {refused}").into()),
        Refusal::Denied(denial) => (denial_code(denial.code), denial.message.clone().into()),
        Refusal::Unjudged(unjudged) => (Code::Unavailable, unjudged_text(unjudged).into()),
        Refusal::Unimplemented(sentence) => (Code::Unimplemented, Cow::Borrowed(sentence)),
        Refusal::Internal(sentence) => (Code::Internal, format!("etcdserver: {sentence}").into()),
        other => unreachable!("{other:?} has a fixed text"),
    }
}

/// Code and text of the refusals that carry no values. `None` for those that do.
fn fixed(refusal: &Refusal) -> Option<(Code, &'static str)> {
    Some(match refusal {
        Refusal::EmptyKey => (Code::InvalidArgument, "etcdserver: key is not provided"),
        Refusal::ValueProvided => (Code::InvalidArgument, "etcdserver: value is provided"),
        Refusal::LeaseProvided => (Code::InvalidArgument, "etcdserver: lease is provided"),
        Refusal::KeyNotFound => (Code::InvalidArgument, "etcdserver: key not found"),
        Refusal::TooManyOperations => (Code::InvalidArgument, "etcdserver: too many operations in txn request"),
        Refusal::DuplicateKey => (Code::InvalidArgument, "etcdserver: duplicate key given in txn request"),
        Refusal::InvalidSortOption => (Code::InvalidArgument, "etcdserver: invalid sort option"),
        Refusal::RequestTooLarge => (Code::InvalidArgument, "etcdserver: request is too large"),
        Refusal::Compacted => (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
        Refusal::FutureRevision => (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
        Refusal::NoSpace => (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        Refusal::Corrupt => (Code::DataLoss, "etcdserver: corrupt cluster"),
        Refusal::LeaseNotFound => (Code::NotFound, "etcdserver: requested lease not found"),
        Refusal::LeaseExists => (Code::FailedPrecondition, "etcdserver: lease already exists"),
        Refusal::LeaseTtlTooLarge => (Code::OutOfRange, "etcdserver: too large lease TTL"),
        Refusal::MemberNotFound => (Code::NotFound, "etcdserver: member not found"),
        Refusal::MemberExists => (Code::FailedPrecondition, "etcdserver: member ID already exist"),
        Refusal::MemberNotLearner => (Code::FailedPrecondition, "etcdserver: can only promote a learner member"),
        Refusal::PeerUrlExists => (Code::FailedPrecondition, "etcdserver: Peer URLs already exists"),
        Refusal::TooManyLearners => (Code::FailedPrecondition, "etcdserver: too many learner members in cluster"),
        Refusal::LearnerNotReady => {
            (Code::FailedPrecondition, "etcdserver: can only promote a learner member which is in sync with leader")
        }
        Refusal::LearnerNotPrepared => (
            Code::FailedPrecondition,
            "kuorum: the learner has not prepared every plugin that is in force; `kuorum plugin inspect` tells why",
        ),
        Refusal::NotEnoughStarted => {
            // As with too many requests, etcd's table says FailedPrecondition and its wire Unknown.
            (Code::Unknown, "etcdserver: re-configuration failed due to not enough started members")
        }
        Refusal::BadMemberUrls => (Code::InvalidArgument, "etcdserver: given member URLs are invalid"),
        Refusal::NotForLearner => (Code::FailedPrecondition, "etcdserver: rpc not supported for learner"),
        Refusal::Unhealthy => (Code::Unavailable, "etcdserver: unhealthy cluster"),
        // etcd has no words for it: its client waits until the request times out.
        Refusal::ReconfigurationPending => {
            (Code::Unavailable, "etcdserver: another change of the members is under way; try again when it is done")
        }
        // etcd's table says ResourceExhausted, but what goes over its wire is Unknown, and clients know it by its text.
        Refusal::TooManyRequests => (Code::Unknown, "etcdserver: too many requests"),
        Refusal::StalePolicy => {
            (Code::Unavailable, "kuorum: the policies changed while the request was judged; send it again")
        }
        Refusal::SlowPolicy => (Code::Unavailable, "kuorum: policies that take long were not asked; send it again"),
        Refusal::StaleReads => {
            (Code::Unavailable, "kuorum: keys that policies read changed while the request was judged; send it again")
        }
        Refusal::NoLeader => (Code::Unavailable, "etcdserver: no leader"),
        Refusal::LeaderChanged => (Code::Unavailable, "etcdserver: leader changed"),
        Refusal::NotLeader => (Code::FailedPrecondition, "etcdserver: not leader"),
        Refusal::BadLeaderTransferee => (Code::FailedPrecondition, "etcdserver: bad leader transferee"),
        Refusal::Timeout => (Code::Unavailable, "etcdserver: request timed out"),
        Refusal::TransferTimeout => (Code::Unavailable, "etcdserver: request timed out, leader transfer took too long"),
        Refusal::Stopped => (Code::Unavailable, "etcdserver: server stopped"),
        Refusal::KeyTooLarge
        | Refusal::Invalid(_)
        | Refusal::UnfitPlugin(_)
        | Refusal::NotTrusted(_)
        | Refusal::Plugin(_)
        | Refusal::Denied(_)
        | Refusal::Unjudged(_)
        | Refusal::Unimplemented(_)
        | Refusal::Internal(_) => return None,
    })
}

fn denial_code(code: DenialCode) -> Code {
    match code {
        DenialCode::PermissionDenied => Code::PermissionDenied,
        DenialCode::InvalidArgument => Code::InvalidArgument,
        DenialCode::FailedPrecondition => Code::FailedPrecondition,
        DenialCode::ResourceExhausted => Code::ResourceExhausted,
    }
}

fn unjudged_text(Unjudged { plugin, failure }: &Unjudged) -> String {
    match failure {
        Some(failure) => format!("kuorum: plugin {plugin}, which has to be asked, did not answer: {failure}"),
        None => format!("kuorum: plugin {plugin}, which has to be asked, is not ready on this member yet"),
    }
}

fn plugin_code(refused: &Refused) -> Code {
    match refused {
        Refused::BadName(_)
        | Refused::BadHash
        | Refused::BadSignature(_)
        | Refused::ConfigTooLarge
        | Refused::TooManyGrants
        | Refused::GrantTooLarge
        | Refused::BadComponentSize(_)
        | Refused::BadChunk(_)
        | Refused::FailureTooLarge
        | Refused::UnknownMode(_)
        | Refused::Empty => Code::InvalidArgument,
        Refused::NoPlugin(_) | Refused::NoRevision { .. } | Refused::NoMember => Code::NotFound,
        Refused::TooManyPlugins | Refused::NoRoom => Code::ResourceExhausted,
        Refused::UploadReplaced | Refused::EpochMoved { .. } => Code::Aborted,
        Refused::IsPrevious { .. }
        | Refused::NoPrevious(_)
        | Refused::NoComponent
        | Refused::NotReady { .. }
        | Refused::Unusable(_)
        | Refused::InUse(_) => Code::FailedPrecondition,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_code_and_a_text() {
        use Refusal::*;
        // Beside `fixed`, which the compiler keeps complete: those that it leaves out must be answered all the same.
        let plugin = Plugin(Box::new(Refused::NoComponent));
        for refusal in [KeyTooLarge, Invalid("x".into()), plugin, Unimplemented("x"), Internal("x".into())] {
            assert!(fixed(&refusal).is_none());
            assert!(!Fault::from(refusal).status().message().is_empty());
        }
    }

    #[test]
    fn what_clients_match_on_is_etcds() {
        let told = |refusal: Refusal| {
            let status = Fault::from(refusal).status();
            (status.code(), status.message().to_owned())
        };
        // Seen on etcd 3.7.3.
        assert_eq!(told(Refusal::EmptyKey), (Code::InvalidArgument, "etcdserver: key is not provided".into()));
        assert_eq!(
            told(Refusal::BadLeaderTransferee),
            (Code::FailedPrecondition, "etcdserver: bad leader transferee".into())
        );
        assert_eq!(told(Refusal::TooManyRequests), (Code::Unknown, "etcdserver: too many requests".into()));
        let large = Fault::MessageTooLarge { bytes: 3_000_008, bytes_max: 2_097_152 }.status();
        assert_eq!(large.code(), Code::ResourceExhausted);
        assert_eq!(large.message(), "grpc: received message larger than max (3000008 vs. 2097152)");
        let deflate = Fault::UnknownEncoding("deflate".into()).status();
        assert_eq!(deflate.message(), "grpc: Decompressor is not installed for grpc-encoding \"deflate\"");
    }
}
