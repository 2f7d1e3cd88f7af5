//! HTTP to the places that the operator grants by name; for backup targets.
//!
//! A grant fixes scheme, host, port, method and the beginning of the path. Credentials are the host's: it adds them, and
//! the plugin never sees them.

use crate::Failure;
#[cfg(target_arch = "wasm32")]
use crate::bindings::host::kuorum::policy::outbound_http as raw;
pub use crate::bindings::host::kuorum::policy::outbound_http::{HttpError, Request, Response};
#[cfg(not(target_arch = "wasm32"))]
use crate::testing::outbound_http as raw;

/// How long a failure of the network asks to wait before another try.
const RETRY_MS: u32 = 5_000;

/// Sends a request and waits for its answer, whatever its status.
pub fn send(request: Request) -> Result<Response, HttpError> {
    raw::send(request)
}

impl From<HttpError> for Failure {
    /// What the network or the other side does is worth another try.
    fn from(error: HttpError) -> Self {
        let transient = |text: &str| Self::Transient((text.into(), RETRY_MS));
        match error {
            HttpError::Denied => Self::Permanent("a request that no grant covers".into()),
            HttpError::TooLarge => Self::Permanent("a request or an answer is larger than the host hands over".into()),
            HttpError::Dns => transient("the name of the server can't be resolved"),
            HttpError::Connect => transient("no connection to the server"),
            HttpError::Tls => transient("TLS with the server fails"),
            HttpError::Timeout => transient("the server does not answer in time"),
            HttpError::Protocol => transient("the server does not speak HTTP"),
        }
    }
}
