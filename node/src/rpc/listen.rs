//! Binding the listeners, before anything is written to disk.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};

use crate::config::{ListenConfig, Url};

/// Connections that may wait to be accepted: a thousand clients that start at once are not turned away.
const BACKLOG: u32 = 1024;

/// What a listener serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// gRPC and pages on one port, told apart by the protocol.
    Client,
    /// gRPC alone, when pages have their own port.
    Grpc,
    /// Pages for clients alone.
    ClientPages,
    /// Metrics and health, alone.
    Metrics,
    /// Pages for other members.
    Peer,
}

/// Listeners that hold their ports and accept nobody yet.
pub(crate) struct Bound {
    /// The runtime that the listeners are registered with; it accepts for all of them.
    pub(super) runtime: Runtime,
    pub(super) listeners: Vec<(TcpListener, Role)>,
}

/// Why a listener can't be had; in the words that Go uses, which operators search for.
#[derive(Debug)]
pub(crate) struct BindError {
    url: String,
    address: Option<SocketAddr>,
    source: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindError { url, address, source } = self;
        let Some(address) = address else {
            return write!(f, "listen {url}: {source}");
        };
        let reason = match source.kind() {
            ErrorKind::AddrInUse => "address already in use".to_owned(),
            ErrorKind::AddrNotAvailable => "cannot assign requested address".to_owned(),
            ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => source.to_string(),
        };
        write!(f, "listen tcp {address}: bind: {reason}")
    }
}

// The reason is a part of the sentence, so it is no source to be told again.
impl std::error::Error for BindError {}

/// Binds every listener.
///
/// # Errors
/// The first that can't be bound; those bound before are let go.
pub(crate) fn bind(listen: &ListenConfig) -> Result<Bound, BindError> {
    let no_runtime = |source| BindError { url: "anywhere".into(), address: None, source };
    let runtime = Builder::new_current_thread().enable_all().thread_name("accept").build().map_err(no_runtime)?;
    let client = if listen.client_http.is_empty() { Role::Client } else { Role::Grpc };
    let of = |urls: &[Url], role: Role| urls.iter().cloned().map(|url| (url, role)).collect::<Vec<_>>();
    let wanted = [
        of(&listen.peer, Role::Peer),
        of(&listen.client, client),
        of(&listen.client_http, Role::ClientPages),
        of(&listen.metrics, Role::Metrics),
    ];
    let entered = runtime.enter();
    let bound = wanted.into_iter().flatten().map(|(url, role)| Ok((bind_one(&url)?, role)));
    let bound: Result<Vec<_>, BindError> = bound.collect();
    drop(entered);
    Ok(Bound { runtime, listeners: bound? })
}

fn bind_one(url: &Url) -> Result<TcpListener, BindError> {
    let Some(address) = url.socket_address() else {
        let source =
            io::Error::new(ErrorKind::Unsupported, "only http URLs with an IP address or localhost are served");
        return Err(BindError { url: url.text().to_owned(), address: None, source });
    };
    let error = |source| BindError { url: url.text().to_owned(), address: Some(address), source };
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
    .map_err(error)?;
    // A port whose last owner has just died is not in use.
    socket.set_reuseaddr(true).map_err(error)?;
    socket.bind(address).map_err(error)?;
    socket.listen(BACKLOG).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_reported_in_one_line() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let source = io::Error::from(ErrorKind::AddrInUse);
        let error = BindError { url: String::new(), address: Some(address), source };
        assert_eq!(error.to_string(), format!("listen tcp {address}: bind: address already in use"));
    }
}
