//! The gRPC methods: their paths, and how many messages go each way. One table, in the order of etcd's services, then Kuorum's own.

use std::fmt;

/// How many messages a method takes and gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Unary,
    /// Many requests, one answer.
    ClientStream,
    /// One request, many answers.
    ServerStream,
    /// Many of both.
    BothStream,
}

/// A method that is served, if only to say that it is not in this release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Method {
    Range,
    Put,
    Txn,
    DeleteRange,
    Compact,
    RangeStream,
    Watch,
    LeaseGrant,
    LeaseRevoke,
    LeaseKeepAlive,
    LeaseTimeToLive,
    LeaseLeases,
    MemberAdd,
    MemberRemove,
    MemberUpdate,
    MemberList,
    MemberPromote,
    Alarm,
    Status,
    Defragment,
    Hash,
    HashKv,
    Snapshot,
    MoveLeader,
    Downgrade,
    AuthEnable,
    AuthDisable,
    AuthStatus,
    Authenticate,
    UserAdd,
    UserGet,
    UserList,
    UserDelete,
    UserChangePassword,
    UserGrantRole,
    UserRevokeRole,
    RoleAdd,
    RoleGet,
    RoleList,
    RoleDelete,
    RoleGrantPermission,
    RoleRevokePermission,
    Campaign,
    Proclaim,
    Leader,
    Observe,
    Resign,
    Lock,
    Unlock,
    HealthCheck,
    HealthList,
    HealthWatch,
    PluginUpload,
    PluginLoad,
    PluginList,
    PluginInspect,
    PluginSetMode,
    PluginRollback,
    PluginRemove,
    PluginTail,
}

/// What the table says of each method.
const TABLE: [(Method, &str, Kind); 60] = {
    use Kind::{BothStream, ClientStream, ServerStream, Unary};
    use Method::*;
    [
        (Range, "/etcdserverpb.KV/Range", Unary),
        (Put, "/etcdserverpb.KV/Put", Unary),
        (Txn, "/etcdserverpb.KV/Txn", Unary),
        (DeleteRange, "/etcdserverpb.KV/DeleteRange", Unary),
        (Compact, "/etcdserverpb.KV/Compact", Unary),
        (RangeStream, "/etcdserverpb.KV/RangeStream", ServerStream),
        (Watch, "/etcdserverpb.Watch/Watch", BothStream),
        (LeaseGrant, "/etcdserverpb.Lease/LeaseGrant", Unary),
        (LeaseRevoke, "/etcdserverpb.Lease/LeaseRevoke", Unary),
        (LeaseKeepAlive, "/etcdserverpb.Lease/LeaseKeepAlive", BothStream),
        (LeaseTimeToLive, "/etcdserverpb.Lease/LeaseTimeToLive", Unary),
        (LeaseLeases, "/etcdserverpb.Lease/LeaseLeases", Unary),
        (MemberAdd, "/etcdserverpb.Cluster/MemberAdd", Unary),
        (MemberRemove, "/etcdserverpb.Cluster/MemberRemove", Unary),
        (MemberUpdate, "/etcdserverpb.Cluster/MemberUpdate", Unary),
        (MemberList, "/etcdserverpb.Cluster/MemberList", Unary),
        (MemberPromote, "/etcdserverpb.Cluster/MemberPromote", Unary),
        (Alarm, "/etcdserverpb.Maintenance/Alarm", Unary),
        (Status, "/etcdserverpb.Maintenance/Status", Unary),
        (Defragment, "/etcdserverpb.Maintenance/Defragment", Unary),
        (Hash, "/etcdserverpb.Maintenance/Hash", Unary),
        (HashKv, "/etcdserverpb.Maintenance/HashKV", Unary),
        (Snapshot, "/etcdserverpb.Maintenance/Snapshot", ServerStream),
        (MoveLeader, "/etcdserverpb.Maintenance/MoveLeader", Unary),
        (Downgrade, "/etcdserverpb.Maintenance/Downgrade", Unary),
        (AuthEnable, "/etcdserverpb.Auth/AuthEnable", Unary),
        (AuthDisable, "/etcdserverpb.Auth/AuthDisable", Unary),
        (AuthStatus, "/etcdserverpb.Auth/AuthStatus", Unary),
        (Authenticate, "/etcdserverpb.Auth/Authenticate", Unary),
        (UserAdd, "/etcdserverpb.Auth/UserAdd", Unary),
        (UserGet, "/etcdserverpb.Auth/UserGet", Unary),
        (UserList, "/etcdserverpb.Auth/UserList", Unary),
        (UserDelete, "/etcdserverpb.Auth/UserDelete", Unary),
        (UserChangePassword, "/etcdserverpb.Auth/UserChangePassword", Unary),
        (UserGrantRole, "/etcdserverpb.Auth/UserGrantRole", Unary),
        (UserRevokeRole, "/etcdserverpb.Auth/UserRevokeRole", Unary),
        (RoleAdd, "/etcdserverpb.Auth/RoleAdd", Unary),
        (RoleGet, "/etcdserverpb.Auth/RoleGet", Unary),
        (RoleList, "/etcdserverpb.Auth/RoleList", Unary),
        (RoleDelete, "/etcdserverpb.Auth/RoleDelete", Unary),
        (RoleGrantPermission, "/etcdserverpb.Auth/RoleGrantPermission", Unary),
        (RoleRevokePermission, "/etcdserverpb.Auth/RoleRevokePermission", Unary),
        (Campaign, "/v3electionpb.Election/Campaign", Unary),
        (Proclaim, "/v3electionpb.Election/Proclaim", Unary),
        (Leader, "/v3electionpb.Election/Leader", Unary),
        (Observe, "/v3electionpb.Election/Observe", ServerStream),
        (Resign, "/v3electionpb.Election/Resign", Unary),
        (Lock, "/v3lockpb.Lock/Lock", Unary),
        (Unlock, "/v3lockpb.Lock/Unlock", Unary),
        (HealthCheck, "/grpc.health.v1.Health/Check", Unary),
        (HealthList, "/grpc.health.v1.Health/List", Unary),
        (HealthWatch, "/grpc.health.v1.Health/Watch", ServerStream),
        (PluginUpload, "/kuorum.v1.Plugins/Upload", ClientStream),
        (PluginLoad, "/kuorum.v1.Plugins/Load", ServerStream),
        (PluginList, "/kuorum.v1.Plugins/List", Unary),
        (PluginInspect, "/kuorum.v1.Plugins/Inspect", Unary),
        (PluginSetMode, "/kuorum.v1.Plugins/SetMode", Unary),
        (PluginRollback, "/kuorum.v1.Plugins/Rollback", Unary),
        (PluginRemove, "/kuorum.v1.Plugins/Remove", Unary),
        (PluginTail, "/kuorum.v1.Plugins/Tail", ServerStream),
    ]
};

impl Method {
    pub(crate) const ALL: [Method; TABLE.len()] = {
        let mut all = [Method::Range; TABLE.len()];
        let mut number = 0;
        while number < TABLE.len() {
            all[number] = TABLE[number].0;
            number += 1;
        }
        all
    };

    /// The method with this path.
    // A scan of the table: a comparison of lengths settles most rows, and the methods called most stand first.
    pub(crate) fn at(path: &str) -> Result<Method, NoMethod> {
        TABLE.iter().find(|row| row.1 == path).map(|row| row.0).ok_or_else(|| NoMethod::at(path))
    }

    /// Its place in [`Method::ALL`].
    pub(crate) fn number(self) -> usize {
        self as usize
    }

    pub(crate) fn kind(self) -> Kind {
        TABLE[self.number()].2
    }

    /// Whether a learner serves it (etcd: isRPCSupportedForLearner): what a member says of itself, and reads that need no
    /// leader, which the handler tells from others.
    pub(crate) fn is_for_learners(self) -> bool {
        matches!(self, Method::Range | Method::Status | Method::Snapshot)
    }

    /// The service's full name.
    pub(crate) fn service(self) -> &'static str {
        self.parts().0
    }

    /// The name within the service.
    pub(crate) fn name(self) -> &'static str {
        self.parts().1
    }

    fn parts(self) -> (&'static str, &'static str) {
        split(TABLE[self.number()].1).expect("every path of the table has two parts")
    }
}

fn split(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/').unwrap_or(path).rsplit_once('/')
}

/// Why a path leads nowhere, in the words of grpc-go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoMethod {
    Malformed(String),
    Service(String),
    Method { service: String, method: String },
}

impl NoMethod {
    fn at(path: &str) -> NoMethod {
        match split(path) {
            None => NoMethod::Malformed(path.to_owned()),
            Some((service, method)) if Method::ALL.iter().any(|known| known.service() == service) => {
                NoMethod::Method { service: service.to_owned(), method: method.to_owned() }
            }
            Some((service, _)) => NoMethod::Service(service.to_owned()),
        }
    }
}

impl fmt::Display for NoMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMethod::Malformed(path) => write!(f, "malformed method name: {path:?}"),
            NoMethod::Service(service) => write!(f, "unknown service {service}"),
            NoMethod::Method { service, method } => write!(f, "unknown method {method} for service {service}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_the_enum() {
        for (number, (method, path, kind)) in TABLE.into_iter().enumerate() {
            assert_eq!(method.number(), number, "{path}");
            assert_eq!(method.kind(), kind);
            assert_eq!(Method::at(path), Ok(method));
            assert_eq!(format!("/{}/{}", method.service(), method.name()), path);
        }
    }

    #[test]
    fn a_path_that_leads_nowhere_is_refused_in_the_words_of_etcd() {
        let refusal = |path: &str| Method::at(path).unwrap_err().to_string();
        // Seen on etcd 3.7.3.
        assert_eq!(refusal("/etcdserverpb.KV/Nope"), "unknown method Nope for service etcdserverpb.KV");
        assert_eq!(refusal("/foo.Bar/Nope"), "unknown service foo.Bar");
        assert_eq!(refusal("/foo"), "malformed method name: \"/foo\"");
    }
}
