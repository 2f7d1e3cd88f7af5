//! Several members of one cluster on loopback.

use std::time::Duration;

use kuorum_proto::etcdserverpb as pb;

use crate::client::Client;
use crate::clock::Deadline;
use crate::member::Member;
use crate::network::Network;
use crate::subject::Subject;

/// A cluster that has no leader by then hangs: an election takes a second or two.
const LEADER_WITHIN: Duration = Duration::from_secs(60);
/// A member that has not applied what the others have by then hangs.
const ALIGNED_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

pub struct Cluster {
    pub members: Vec<Member>,
}

impl Cluster {
    /// Members that know of each other and are not started yet.
    pub fn new(subject: &Subject, count: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster { members: (0..count).map(|_| Member::new(subject, flags)).collect() };
        cluster.introduce();
        cluster
    }

    /// Members as those of [`Cluster::new`] that reach each other over a network which the test rules.
    pub fn in_network(subject: &Subject, count: usize, flags: &[&str]) -> (Cluster, Network) {
        let mut cluster = Cluster { members: (0..count).map(|_| Member::new(subject, flags)).collect() };
        let network = Network::between(&mut cluster.members);
        cluster.introduce();
        (cluster, network)
    }

    /// Tells each member of all.
    fn introduce(&mut self) {
        for (number, member) in self.members.iter_mut().enumerate() {
            member.name = format!("n{}", number + 1);
        }
        let address = |member: &Member| format!("{}={}", member.name, member.advertised_peer_url());
        let description: Vec<String> = self.members.iter().map(address).collect();
        for member in &mut self.members {
            member.flags.push(format!("--initial-cluster={}", description.join(",")));
        }
    }

    /// Starts fresh members and waits until each answers and knows the leader.
    pub async fn started(subject: &Subject, count: usize, flags: &[&str]) -> Cluster {
        let mut cluster = Cluster::new(subject, count, flags);
        cluster.start().await;
        cluster
    }

    /// Starts every member and waits until each answers and knows the leader.
    pub async fn start(&mut self) {
        for member in &mut self.members {
            member.start();
        }
        for member in &mut self.members {
            member.ready().await;
        }
    }

    /// The members' ids, by number. All run.
    pub async fn ids(&self) -> Vec<u64> {
        let mut ids = Vec::new();
        for number in 0..self.members.len() {
            let status = self.client(number).maintenance.status(pb::StatusRequest {}).await;
            let header = status.expect("a running member has a status").into_inner().header;
            ids.push(header.map_or(0, |header| header.member_id));
        }
        ids
    }

    /// A member that is to join, not yet added nor started, with the `--initial-cluster` that the others would tell it.
    pub fn joining(&mut self, subject: &Subject, flags: &[&str]) -> usize {
        let mut member = Member::new(subject, flags);
        member.name = format!("n{}", self.members.len() + 1);
        let all = self.members.iter().chain([&member]);
        let description: Vec<String> = all.map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        member.flags.push(format!("--initial-cluster={}", description.join(",")));
        member.flags.push("--initial-cluster-state=existing".to_owned());
        self.members.push(member);
        self.members.len() - 1
    }

    pub fn client(&self, number: usize) -> Client {
        Client::new(&self.members[number].endpoint())
    }

    /// The number of the member that leads, as it says itself.
    pub async fn leader(&mut self) -> usize {
        let deadline = Deadline::after(LEADER_WITHIN);
        loop {
            for number in 0..self.members.len() {
                if self.members[number].is_running() && self.leads(number).await {
                    return number;
                }
            }
            assert!(!deadline.has_passed(), "no leader within {} s", LEADER_WITHIN.as_secs());
            tokio::time::sleep(POLL).await;
        }
    }

    async fn leads(&self, number: usize) -> bool {
        let status = async { self.client(number).maintenance.status(pb::StatusRequest {}).await };
        match tokio::time::timeout(Duration::from_secs(2), status).await {
            Ok(Ok(status)) => {
                let status = status.into_inner();
                status.header.is_some_and(|header| header.member_id == status.leader)
            }
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Any member that runs and does not lead.
    pub async fn follower(&mut self) -> usize {
        let leader = self.leader().await;
        let running = (0..self.members.len()).filter(|number| *number != leader);
        let running: Vec<usize> = running.filter(|number| self.members[*number].is_running()).collect();
        *running.first().expect("one more member runs")
    }

    /// As [`Cluster::aligned`], for a cluster with learners, which tell no hash: waits until all are at one revision.
    pub async fn aligned_by_status(&mut self) {
        let deadline = Deadline::after(ALIGNED_WITHIN);
        loop {
            let mut revisions = Vec::new();
            for number in 0..self.members.len() {
                if self.members[number].is_running() {
                    let status = self.client(number).maintenance.status(pb::StatusRequest {}).await;
                    let status = status.expect("a running member has a status").into_inner();
                    revisions.push(status.header.map_or(0, |header| header.revision));
                }
            }
            if revisions.iter().all(|revision| *revision == revisions[0]) {
                return;
            }
            assert!(!deadline.has_passed(), "members stay apart: {revisions:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until every running member has applied the same, and returns revision and hash.
    ///
    /// # Panics
    /// When members at the same revision have different hashes, or never come to the same revision.
    pub async fn aligned(&mut self) -> (i64, u32) {
        let deadline = Deadline::after(ALIGNED_WITHIN);
        loop {
            let mut hashes = Vec::new();
            for number in 0..self.members.len() {
                if !self.members[number].is_running() {
                    continue;
                }
                let hash = self.client(number).maintenance.hash_kv(pb::HashKvRequest { revision: 0 }).await;
                let hash = hash.expect("a running member has a hash").into_inner();
                hashes.push((hash.header.map_or(0, |header| header.revision), hash.hash));
            }
            if hashes.iter().all(|(revision, _)| *revision == hashes[0].0) {
                assert!(hashes.iter().all(|hash| *hash == hashes[0]), "members diverged: {hashes:?}");
                return hashes[0];
            }
            assert!(!deadline.has_passed(), "members stay apart: {hashes:?}");
            tokio::time::sleep(POLL).await;
        }
    }
}
