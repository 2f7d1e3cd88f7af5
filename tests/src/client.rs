//! The gRPC clients of one member, over one connection.

use std::time::Duration;

use kuorum_proto::etcdserverpb::{
    StatusRequest, cluster_client::ClusterClient, kv_client::KvClient, lease_client::LeaseClient,
    maintenance_client::MaintenanceClient, watch_client::WatchClient,
};
use tonic::transport::{Channel, Endpoint};

/// No unary call of a healthy member takes this long; one that does hangs.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone)]
pub struct Client {
    pub channel: Channel,
    pub kv: KvClient<Channel>,
    pub lease: LeaseClient<Channel>,
    pub watch: WatchClient<Channel>,
    pub cluster: ClusterClient<Channel>,
    pub maintenance: MaintenanceClient<Channel>,
}

impl Client {
    /// Connects at the first call.
    pub fn new(endpoint: &str) -> Client {
        let channel = Endpoint::from_shared(format!("http://{endpoint}"))
            .expect("host:port makes a URI")
            .connect_timeout(CALL_TIMEOUT)
            .connect_lazy();
        Client::over(channel)
    }

    pub fn over(channel: Channel) -> Client {
        Client {
            kv: KvClient::new(channel.clone())
                .max_decoding_message_size(usize::MAX)
                .max_encoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            channel,
        }
    }

    pub async fn has_leader(&self) -> bool {
        let mut maintenance = self.maintenance.clone();
        let call = maintenance.status(StatusRequest {});
        match tokio::time::timeout(Duration::from_secs(2), call).await {
            Ok(Ok(answer)) => answer.into_inner().leader != 0,
            Ok(Err(_)) | Err(_) => false,
        }
    }
}
