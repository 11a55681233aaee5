//! The worker's end: connections that its supervisor has accepted.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::channel::{self, Channel};
use super::wills::Wills;

/// What a worker is told first: where its connections come in, and where its wills are kept.
#[derive(Debug)]
pub struct Hello {
    socket: OwnedFd,
    wills: Wills,
    address: SocketAddr,
}

impl Hello {
    /// Says it, before there is anybody to hear it.
    pub(crate) fn say(socket: &OwnedFd, wills: &Wills, address: SocketAddr) -> Result<()> {
        channel::send(socket, address.to_string().as_bytes(), Some(wills.as_fd()))
    }

    /// Hears it. It was said before this process was started.
    pub fn hear(socket: OwnedFd) -> Result<Self> {
        let nonsense = || Error::new(ErrorKind::InvalidData, "the supervisor does not say where it listens");
        let (message, wills) = channel::receive(&socket)?.ok_or_else(nonsense)?;
        let address = std::str::from_utf8(&message).ok().and_then(|text| text.parse().ok());
        let (Some(address), Some(wills)) = (address, wills) else { return Err(nonsense()) };
        Ok(Self { socket, wills: wills.into(), address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Connections as they come.
pub struct Handed {
    channel: Channel,
    wills: Arc<Wills>,
    address: SocketAddr,
    /// No longer than there are connections.
    closed: mpsc::UnboundedReceiver<u32>,
    closing: mpsc::UnboundedSender<u32>,
}

impl Handed {
    /// Within a runtime.
    pub fn new(hello: Hello) -> Result<Self> {
        let (closing, closed) = mpsc::unbounded_channel();
        let channel = Channel::new(hello.socket)?;
        Ok(Self { channel, wills: Arc::new(hello.wills), address: hello.address, closed, closing })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next, and tells the supervisor meanwhile of those that were closed. Cancelled, it has lost none.
    pub async fn next(&mut self) -> Result<(TcpStream, Place)> {
        loop {
            let (number, stream) = tokio::select! {
                biased;
                Some(number) = self.closed.recv() => {
                    let closed = Closed { number: Some(number), closing: &self.closing };
                    self.channel.send(number, None).await?;
                    closed.is_told();
                    continue;
                }
                received = self.channel.receive() => match received? {
                    Some((number, Some(stream))) => (number, stream),
                    Some((_, None)) => continue,
                    None => return Err(ErrorKind::BrokenPipe.into()),
                },
            };
            let place = Place { number, wills: Arc::clone(&self.wills), closing: self.closing.clone() };
            let stream = std::net::TcpStream::from(stream);
            stream.set_nonblocking(true)?;
            return Ok((TcpStream::from_std(stream)?, place));
        }
    }
}

/// A number that is told again later, if telling it was cancelled.
struct Closed<'a> {
    number: Option<u32>,
    closing: &'a mpsc::UnboundedSender<u32>,
}

impl Closed<'_> {
    fn is_told(mut self) {
        self.number = None;
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let _ = self.closing.send(number);
        }
    }
}

/// That of one connection among the wills. Dropped, after the connection was closed, it is free for another.
#[derive(Debug)]
pub struct Place {
    number: u32,
    wills: Arc<Wills>,
    closing: mpsc::UnboundedSender<u32>,
}

impl Place {
    /// If this process dies, the next may have the connection.
    pub fn goes_on(&self) {
        // Memory of our own: without it, the connection would be cut, as it would without a supervisor.
        let _ = self.wills.goes_on(self.number);
    }

    /// If this process dies, these are the last words on the connection.
    pub fn ends_with(&self, words: &[u8]) {
        let _ = self.wills.ends_with(self.number, words);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.closing.send(self.number);
    }
}
