//! Connections between members.
//!
//! Every member keeps one connection to every other for each [`Stream`], and writes to those only; what comes to it comes
//! over the connections that the others keep. Both kinds go to the peer URL, beside the pages for members, and begin with
//! [`MAGIC`] and a greeting that says who calls whom. Nothing is known here of what the frames mean: they go to an
//! [`Inlet`].
//!
//! - [`frame`]: frames on a connection
//! - [`hello`]: greetings, and the reasons to refuse them
//! - [`link`]: the way out to one member, [`inbound`]: the ways in

pub(crate) mod frame;
pub(crate) mod hello;
mod inbound;
mod link;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use crate::cluster::{Identity, Member, MemberId, Members};
pub(crate) use frame::Kind;
use hello::{Hello, Reason};
pub(crate) use hello::{MAGIC, Stream};
use inbound::Inbound;
use link::Link;

/// A connection on which nothing came, or nothing could be written, for so long is given up.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// Where frames from other members go, and news of the connections.
pub(crate) trait Inlet: Send + Sync {
    /// Takes in a frame. May wait while too much of this member's has not been looked at yet.
    ///
    /// # Errors
    /// What is wrong with the frame; the connection is then closed.
    fn frame(&self, from: MemberId, kind: Kind, payload: &[u8]) -> Result<(), String>;

    /// A frame for this member was never written to a connection.
    fn unsent(&self, to: MemberId, kind: Kind, payload: &[u8]);

    /// There is no connection to this member, and what was sent last may be lost.
    fn lost(&self, member: MemberId);

    /// This member refuses to talk to us.
    fn refused(&self, by: MemberId, reason: Reason, sentence: &str);
}

/// The connections of this member. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peers(Arc<Inner>);

struct Inner {
    identity: Identity,
    data_dir: u64,
    inlet: Arc<dyn Inlet>,
    inbound: Arc<Inbound>,
    // A lock: the raft thread sends while a change of the members adds and removes links. Write-locked for those alone.
    links: RwLock<BTreeMap<MemberId, [Link; 2]>>,
}

impl Peers {
    /// No connections yet; see [`Peers::set_members`]. `data_dir` is the number of this member's data directory, 0 when it
    /// has none.
    pub(crate) fn new(identity: Identity, data_dir: u64, members: Members, inlet: Arc<dyn Inlet>) -> Peers {
        let check = Box::new(move |hello: &Hello| check(identity, &members, hello));
        let inbound = Arc::new(Inbound::new(check, Arc::clone(&inlet)));
        Peers(Arc::new(Inner { identity, data_dir, inlet, inbound, links: RwLock::default() }))
    }

    /// Keeps connections to these members and no others.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn set_members(&self, members: &[Member]) -> std::io::Result<()> {
        let me = self.0.identity.member_id;
        let others: BTreeMap<MemberId, &Member> =
            members.iter().filter(|member| member.id != me).map(|member| (member.id, member)).collect();
        let mut links = self.0.links.write();
        let gone: Vec<MemberId> = links.keys().filter(|id| !others.contains_key(id)).copied().collect();
        for id in gone {
            for link in links.remove(&id).into_iter().flatten() {
                drop(link.stop());
            }
            self.0.inbound.end(Some(id));
        }
        for (id, member) in others {
            if let Some(known) = links.get(&id) {
                for link in known {
                    link.set_urls(member.peer_urls.clone());
                }
                continue;
            }
            let start = |stream| {
                let Identity { cluster_id, member_id } = self.0.identity;
                let hello = Hello { stream, cluster: cluster_id, from: member_id, to: id, data_dir: self.0.data_dir };
                Link::start(hello, member.peer_urls.clone(), Arc::clone(&self.0.inlet))
            };
            links.insert(id, [start(Stream::Messages)?, start(Stream::Requests)?]);
        }
        Ok(())
    }

    /// Sends a frame. Returns false when it is lost already: the member is unknown, or does not keep up.
    pub(crate) fn send(
        &self,
        to: MemberId,
        stream: Stream,
        urgent: bool,
        kind: Kind,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let links = self.0.links.read();
        links.get(&to).is_some_and(|links| links[stream as usize].send(urgent, kind, write))
    }

    /// Takes over a connection to the peer URL that begins with [`MAGIC`], which is still to be read. `guest` is dropped
    /// when it ends.
    pub(crate) fn accept(&self, connection: TcpStream, guest: impl Send + 'static) {
        self.0.inbound.accept(connection, guest);
    }

    /// Ends every connection.
    pub(crate) fn stop(&self) {
        self.0.inbound.end(None);
        let links = std::mem::take(&mut *self.0.links.write());
        for link in links.into_values().flatten() {
            // Not waited for: a thread that still dials would keep the stop for seconds, and holds nothing.
            drop(link.stop());
        }
    }
}

/// Whether a caller is who may call.
fn check(identity: Identity, members: &Members, hello: &Hello) -> Result<(), (Reason, String)> {
    let Identity { cluster_id, member_id } = identity;
    let from = hello.from;
    if hello.cluster != cluster_id {
        return Err((
            Reason::Stranger,
            format!(
                "cluster ID mismatch: member {from} belongs to cluster {}, member {member_id} to cluster {cluster_id}; give \
                 all members the same --initial-cluster and --initial-cluster-token, or another peer URL",
                hello.cluster
            ),
        ));
    }
    if hello.to != member_id {
        return Err((
            Reason::Stranger,
            format!("member {from} asks for member {}, but here is member {member_id}; correct its peer URL", hello.to),
        ));
    }
    let Some(known) = members.get(from) else {
        return Err((
            Reason::Stranger,
            format!("member {from} is not known to member {member_id} of cluster {cluster_id}"),
        ));
    };
    if known.data_dir != 0 && hello.data_dir != 0 && known.data_dir != hello.data_dir {
        return Err((
            Reason::Wiped,
            format!(
                "member {from} has another data directory than the one it joined with, so what it acknowledged is gone: \
                 remove the member from the cluster and add it anew (member remove {from}, member add)"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
