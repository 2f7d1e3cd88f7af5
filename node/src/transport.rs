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
//! - [`conversation`]: a connection for one transfer, on which both sides speak

mod conversation;
pub(crate) mod frame;
pub(crate) mod hello;
mod inbound;
mod link;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;

use crate::cluster::{Identity, MemberId, Members};
pub(crate) use conversation::Conversation;
pub(crate) use frame::Kind;
use hello::{Hello, Reason};
pub(crate) use hello::{MAGIC, Stream};
use inbound::Inbound;
use link::Link;

/// A connection on which nothing came, or nothing could be written, for so long is given up.
const DEAD_AFTER: Duration = Duration::from_secs(5);
/// How long a member that is one no more is still heard: if it led, it has leadership to hand over.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Callers that this member's log does not know, and that it answers all the same.
const GUESTS_MAX: usize = 16;

/// Where frames from other members go, and news of the connections.
pub(crate) trait Inlet: Send + Sync {
    /// Takes in a frame. May wait while too much of this member's has not been looked at yet.
    ///
    /// # Errors
    /// What is wrong with the frame; the connection is then closed.
    fn frame(&self, from: MemberId, kind: Kind, payload: &[u8]) -> Result<(), String>;

    /// A frame for this member was never written to a connection.
    fn unsent(&self, to: MemberId, kind: Kind, payload: &[u8]);

    /// A member has something large to send, on a connection of its own. Runs on the connection's thread.
    fn converse(&self, from: MemberId, connection: Conversation);

    /// There is no connection to this member, and what was sent last may be lost.
    fn lost(&self, member: MemberId);

    /// A connection from this member for requests has ended, and answers on it may be lost.
    fn unheard(&self, member: MemberId);

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
    members: Members,
    /// What this member says in its greetings.
    own_urls: Vec<String>,
    // A lock: the raft thread sends while a change of the members adds and removes links. Write-locked for those alone.
    links: RwLock<BTreeMap<MemberId, Links>>,
}

/// The ways out to one member.
struct Links {
    streams: [Link; 2],
    /// It has called, and this member's log does not say yet that it is one.
    is_guest: bool,
}

impl Peers {
    /// No connections yet; see [`Peers::follow_members`]. `data_dir` is the number of this member's data directory, 0 when
    /// it has none.
    pub(crate) fn new(
        identity: Identity,
        data_dir: u64,
        own_urls: Vec<String>,
        members: Members,
        inlet: Arc<dyn Inlet>,
    ) -> Peers {
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| {
            let peers = Weak::clone(weak);
            let known = members.clone();
            let check = Box::new(move |hello: &Hello| {
                check(identity, &known, hello)?;
                if let Some(inner) = peers.upgrade() {
                    Peers(inner).meet(hello);
                }
                Ok(())
            });
            let inbound = Arc::new(Inbound::new(check, Arc::clone(&inlet)));
            Inner { identity, data_dir, inlet, inbound, members, own_urls, links: RwLock::default() }
        });
        Peers(inner)
    }

    /// Keeps connections to the members as they are now and to no others, but for those who have called and are not known
    /// to have been removed.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn follow_members(&self) -> std::io::Result<()> {
        let me = self.0.identity.member_id;
        let mut others = self.0.members.list();
        others.retain(|member| member.id != me);
        let mut links = self.0.links.write();
        let is_gone = |id: &MemberId, link: &Links| {
            !others.iter().any(|member| member.id == *id) && (!link.is_guest || self.0.members.was_removed(*id))
        };
        let gone: Vec<MemberId> = links.iter().filter(|(id, link)| is_gone(id, link)).map(|(id, _)| *id).collect();
        for id in gone {
            for link in links.remove(&id).into_iter().flat_map(|links| links.streams) {
                drop(link.stop());
            }
            let inbound = Arc::clone(&self.0.inbound);
            std::thread::Builder::new().name("peer-gone".into()).spawn(move || {
                std::thread::sleep(LAST_WORDS);
                inbound.end(Some(id));
            })?;
        }
        for member in others {
            match links.get_mut(&member.id) {
                Some(known) => {
                    known.is_guest = false;
                    for link in &known.streams {
                        link.set_urls(member.peer_urls.clone());
                    }
                }
                None => {
                    let streams = self.links_to(member.id, &member.peer_urls)?;
                    links.insert(member.id, Links { streams, is_guest: false });
                }
            }
        }
        Ok(())
    }

    fn links_to(&self, id: MemberId, urls: &[String]) -> std::io::Result<[Link; 2]> {
        let start = |stream| Link::start(self.hello(stream, id), urls.to_vec(), Arc::clone(&self.0.inlet));
        Ok([start(Stream::Messages)?, start(Stream::Requests)?])
    }

    /// A member calls that this one does not know: one that was added while this one was away, or all of them when this one
    /// has just joined. It can be answered where it says that it is.
    fn meet(&self, hello: &Hello) {
        let mut links = self.0.links.write();
        let guests = links.values().filter(|links| links.is_guest).count();
        if links.contains_key(&hello.from) || hello.peer_urls.is_empty() || guests >= GUESTS_MAX {
            return;
        }
        match self.links_to(hello.from, &hello.peer_urls) {
            Ok(streams) => drop(links.insert(hello.from, Links { streams, is_guest: true })),
            Err(error) => crate::warn!("a peer's connection gets no thread", error = error.to_string()),
        }
    }

    /// Opens a connection to a member for a transfer.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn converse(&self, to: MemberId) -> std::io::Result<Conversation> {
        let urls = {
            let links = self.0.links.read();
            let links = links.get(&to).ok_or_else(|| std::io::Error::other(format!("member {to} is not known")))?;
            links.streams[Stream::Messages as usize].urls()
        };
        let hello = self.hello(Stream::Snapshot, to);
        let mut failure = std::io::Error::other(format!("member {to} has no peer URL"));
        for url in urls {
            match link::dial(&hello, &url) {
                Ok(connection) => return Ok(Conversation::new(connection)),
                Err(link::Failure::Io(error)) | Err(link::Failure::Refused(_, error)) => {
                    failure = std::io::Error::other(error);
                }
            }
        }
        Err(failure)
    }

    fn hello(&self, stream: Stream, to: MemberId) -> Hello {
        let Identity { cluster_id: cluster, member_id: from } = self.0.identity;
        let peer_urls = self.0.members.get(from).map_or_else(|| self.0.own_urls.clone(), |own| own.peer_urls);
        Hello { stream, cluster, from, to, data_dir: self.0.data_dir, peer_urls }
    }

    /// For how long there has been a connection to this member; `None` when there is none.
    pub(crate) fn connected_for(&self, member: MemberId) -> Option<Duration> {
        let links = self.0.links.read();
        links.get(&member).and_then(|links| links.streams[Stream::Messages as usize].connected_for())
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
        links.get(&to).is_some_and(|links| links.streams[stream as usize].send(urgent, kind, write))
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
        for link in links.into_values().flat_map(|links| links.streams) {
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
    if members.was_removed(from) {
        return Err((
            Reason::Removed,
            format!(
                "member {from} has been permanently removed from cluster {cluster_id}: its data directory is of no more use; \
                 to run it again, add it anew (member add) and start it with an empty one"
            ),
        ));
    }
    // Unknown: this member may not have heard of it yet.
    let Some(known) = members.get(from) else { return Ok(()) };
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
