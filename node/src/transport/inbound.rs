//! Connections that other members have opened to this one: greeted, checked, and read until they end.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::conversation::Conversation;
use super::frame::{self, Kind, Reader};
use super::hello::{self, Hello, MAGIC, Reason, Stream};
use super::{DEAD_AFTER, Inlet};
use crate::cluster::MemberId;
use crate::metrics;

/// Connections that may be waiting for their greeting. Whoever opens one and stays silent has it for
/// [`GREETING_TIMEOUT`].
const GREETINGS_MAX: usize = 64;
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// What this member says to a greeting: nothing, or why it refuses.
pub(super) type Check = dyn Fn(&Hello) -> Result<(), (Reason, String)> + Send + Sync;

/// The connections that other members have opened. Each member has one of each stream: a newer one ends the older.
pub(super) struct Inbound {
    // A lock: connections come and go on their own threads. Held for map operations only.
    open: Mutex<Open>,
    check: Box<Check>,
    inlet: Arc<dyn Inlet>,
}

#[derive(Default)]
struct Open {
    greeting: usize,
    serial: u64,
    streams: HashMap<(MemberId, Stream), (u64, TcpStream)>,
    stopping: bool,
}

impl Inbound {
    pub(super) fn new(check: Box<Check>, inlet: Arc<dyn Inlet>) -> Inbound {
        Inbound { open: Mutex::default(), check, inlet }
    }

    /// Serves a connection that begins with [`MAGIC`], on a thread of its own. `guest` is dropped when it ends.
    pub(super) fn accept(self: &Arc<Inbound>, connection: TcpStream, guest: impl Send + 'static) {
        {
            let mut open = self.open.lock();
            if open.stopping || open.greeting >= GREETINGS_MAX {
                return;
            }
            open.greeting += 1;
        }
        let inbound = Arc::clone(self);
        let thread = std::thread::Builder::new().name("peer-in".into()).spawn(move || {
            let greeted = inbound.greet(&connection);
            inbound.open.lock().greeting -= 1;
            match greeted {
                Ok(Some(hello)) => inbound.serve(connection, &hello),
                Ok(None) => {}
                Err(error) => crate::warn!("a connection to the peer URL is no member's", error = error.to_string()),
            }
            drop(guest);
        });
        if let Err(error) = thread {
            self.open.lock().greeting -= 1;
            crate::warn!("a peer's connection gets no thread", error = error.to_string());
        }
    }

    /// Ends every connection of a member, or of all.
    pub(super) fn end(&self, member: Option<MemberId>) {
        let mut open = self.open.lock();
        open.stopping |= member.is_none();
        for ((from, _), (_, connection)) in &open.streams {
            if member.is_none_or(|member| member == *from) {
                // Ended already: that is what was wanted.
                connection.shutdown(Shutdown::Both).ok();
            }
        }
    }

    /// Reads and answers the greeting. `None` when it was refused.
    fn greet(&self, mut connection: &TcpStream) -> io::Result<Option<Hello>> {
        connection.set_read_timeout(Some(GREETING_TIMEOUT))?;
        connection.set_write_timeout(Some(GREETING_TIMEOUT))?;
        let mut magic = [0; MAGIC.len()];
        connection.read_exact(&mut magic)?;
        // Byte by byte, so that nothing behind the greeting is taken from the reader that follows.
        let mut reader = Reader::new(OneByOne(connection));
        let (kind, payload) = reader.next()?;
        let checked = match kind {
            Kind::Hello => Hello::decode(payload).and_then(|hello| (self.check)(&hello).map(|()| hello)),
            _ => Err((Reason::Protocol, "the first frame is no greeting".to_owned())),
        };
        let mut answer = Vec::new();
        match &checked {
            Ok(_) => frame::write(&mut answer, Kind::Welcome, |_| ()),
            Err((reason, sentence)) => {
                frame::write(&mut answer, Kind::Refused, |out| hello::encode_refusal(*reason, sentence, out));
            }
        }
        connection.write_all(&answer)?;
        match checked {
            Ok(hello) => Ok(Some(hello)),
            Err((_, sentence)) => {
                crate::warn!("refused a connection on the peer URL", reason = sentence);
                Ok(None)
            }
        }
    }

    fn serve(&self, connection: TcpStream, hello: &Hello) {
        let name = (hello.from, hello.stream);
        let Ok(to_shut) = connection.try_clone() else { return };
        let serial = {
            let mut open = self.open.lock();
            if open.stopping {
                return;
            }
            open.serial += 1;
            let serial = open.serial;
            if let Some((_, older)) = open.streams.insert(name, (serial, to_shut)) {
                older.shutdown(Shutdown::Both).ok();
            }
            serial
        };
        let ended = match hello.stream {
            Stream::Snapshot => {
                self.inlet.converse(hello.from, Conversation::new(connection));
                "the transfer is over".to_owned()
            }
            Stream::Messages => self.read_all(connection, hello),
            Stream::Requests => {
                let ended = self.read_all(connection, hello);
                self.inlet.unheard(hello.from);
                ended
            }
        };
        let mut open = self.open.lock();
        if open.streams.get(&name).is_some_and(|(current, _)| *current == serial) {
            open.streams.remove(&name);
        }
        let stopping = open.stopping;
        drop(open);
        if !stopping && hello.stream != Stream::Snapshot {
            crate::warn!(
                "lost TCP streaming connection with remote peer",
                "remote-peer-id" = hello.from.to_string(),
                stream = format!("{:?}", hello.stream),
                error = ended
            );
        }
    }

    fn read_all(&self, connection: TcpStream, hello: &Hello) -> String {
        if let Err(error) = connection.set_read_timeout(Some(DEAD_AFTER)) {
            return error.to_string();
        }
        let mut reader = Reader::new(connection);
        let received = metrics::get().peer(&hello.to.to_string(), &hello.from.to_string()).received_bytes;
        loop {
            let next = reader.next();
            if let Ok((_, payload)) = &next {
                received.increment(payload.len() as u64);
            }
            let taken = match next {
                Ok((Kind::Ping, _)) => Ok(()),
                Ok((kind, payload)) => self.inlet.frame(hello.from, kind, payload),
                Err(error) => return error.to_string(),
            };
            if let Err(words) = taken {
                return words;
            }
        }
    }
}

struct OneByOne<'a>(&'a TcpStream);

impl io::Read for OneByOne<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(1);
        self.0.read(&mut into[..count])
    }
}
