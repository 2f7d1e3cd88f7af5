//! The way to a member.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kuorum_proto::kuorum::v1::PluginListRequest;
use kuorum_proto::kuorum::v1::plugins_client::PluginsClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::arguments::Members;

/// How long each endpoint may take to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a member that says nothing is asked whether it is still there. One that does not answer within the command's
/// timeout ends what goes on over the connection.
const PING_AFTER: Duration = Duration::from_secs(2);

/// The first endpoint that answered.
pub(super) struct Connection {
    pub(super) client: PluginsClient<Channel>,
    endpoint: String,
    timeout: Duration,
}

impl Connection {
    pub(super) async fn open(members: &Members) -> anyhow::Result<Connection> {
        let mut last = anyhow!("no endpoint is named");
        for endpoint in &members.endpoints {
            let named = Endpoint::from_shared(endpoint.clone()).with_context(|| format!("endpoint {endpoint}"))?;
            let named = named.connect_timeout(CONNECT_TIMEOUT);
            let named = named.http2_keep_alive_interval(PING_AFTER).keep_alive_timeout(members.timeout);
            match named.connect().await {
                Ok(channel) => {
                    let client = PluginsClient::new(channel).max_decoding_message_size(usize::MAX);
                    let mut connection = Connection { client, endpoint: endpoint.clone(), timeout: members.timeout };
                    // Where there is no other to ask, what is asked first will tell.
                    if members.endpoints.len() == 1 {
                        return Ok(connection);
                    }
                    match connection.answers().await {
                        Ok(()) => return Ok(connection),
                        Err(error) => last = error,
                    }
                }
                Err(error) => last = anyhow::Error::new(error).context(format!("{endpoint} takes no connection")),
            }
        }
        Err(last)
    }

    /// Asks the member anything: a process that stands still takes connections, and answers nothing. The error says so.
    async fn answers(&mut self) -> anyhow::Result<()> {
        let request = PluginListRequest { serializable: true };
        match tokio::time::timeout(self.timeout, self.client.list(request)).await {
            Ok(Err(status)) if is_of_transport(&status) => Err(self.told(&status)),
            // A refusal is an answer too.
            Ok(_) => Ok(()),
            Err(_) => Err(self.silence()),
        }
    }

    fn silence(&self) -> anyhow::Error {
        anyhow!("{} did not answer within {} s", self.endpoint, self.timeout.as_secs())
    }

    /// Waits for an answer, as long as the command may take.
    pub(super) async fn answer<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut PluginsClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> anyhow::Result<T> {
        match tokio::time::timeout(self.timeout, call(&mut self.client)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.told(&status)),
            Err(_) => Err(self.silence()),
        }
    }

    /// What a member says of a refusal, in its own words where it has some.
    pub(super) fn told(&self, status: &Status) -> anyhow::Error {
        if is_of_transport(status) {
            let endpoint = &self.endpoint;
            anyhow!(
                "the connection to {endpoint} broke before all of the answer came; what was asked may have been done"
            )
        } else {
            words_of(status)
        }
    }
}

/// Whether this is said of a connection rather than by a member, whose words have no source.
fn is_of_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn words_of(status: &Status) -> anyhow::Error {
    let words = status.message().strip_prefix("kuorum: ").unwrap_or(status.message());
    match status.code() {
        _ if !words.is_empty() => anyhow!("{words}"),
        Code::Unimplemented => anyhow!("the member knows nothing of plugins"),
        code => anyhow!("{code}"),
    }
}
