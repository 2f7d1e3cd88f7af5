//! A connection on which both sides speak, for one transfer.

use std::io::{self, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use super::frame::{self, Kind, Reader};

/// How long the other side may take to read: it writes to its disk meanwhile.
const WRITE_PATIENCE: Duration = Duration::from_secs(60);

/// A connection that has been greeted.
pub(crate) struct Conversation {
    connection: TcpStream,
    reader: Option<Reader<TcpStream>>,
    buffer: Vec<u8>,
}

impl Conversation {
    pub(super) fn new(connection: TcpStream) -> Conversation {
        Conversation { connection, reader: None, buffer: Vec::new() }
    }

    /// # Errors
    /// What the connection reports; it is of no more use then.
    pub(crate) fn send(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        self.buffer.clear();
        frame::write(&mut self.buffer, kind, write);
        self.connection.set_write_timeout(Some(WRITE_PATIENCE))?;
        self.connection.write_all(&self.buffer)
    }

    /// The next frame, waiting for it.
    ///
    /// # Errors
    /// What the connection reports, or that nothing came in time; it is of no more use then.
    pub(crate) fn receive(&mut self, patience: Duration) -> io::Result<(Kind, &[u8])> {
        self.connection.set_read_timeout(Some(patience))?;
        if self.reader.is_none() {
            self.reader = Some(Reader::new(self.connection.try_clone()?));
        }
        self.reader.as_mut().expect("made above").next()
    }

    /// Ends the conversation with a sentence.
    pub(crate) fn refuse(mut self, sentence: &str) {
        // The other side may be gone; then nobody needs to know.
        self.send(Kind::Refused, |out| out.extend_from_slice(sentence.as_bytes())).ok();
        self.connection.shutdown(Shutdown::Write).ok();
    }
}
