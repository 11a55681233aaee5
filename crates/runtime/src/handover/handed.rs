//! The worker's end: connections that its supervisor has accepted.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ringfence_sandbox::{TcpProgress, tcp_progress};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::channel::{self, Channel};
use super::wills::{Will, Wills};

/// What a worker is told first: where its connections come in, and where its wills are kept.
#[derive(Debug)]
pub struct Hello {
    socket: OwnedFd,
    wills: Wills,
    address: SocketAddr,
}

impl Hello {
    /// Says it, before there is anybody to hear it.
    pub fn say(socket: &OwnedFd, wills: &Wills, address: SocketAddr) -> Result<()> {
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
    /// One that the supervisor is being told of.
    telling: Option<u32>,
}

impl Handed {
    /// Within a runtime.
    pub fn new(hello: Hello) -> Result<Self> {
        let (closing, closed) = mpsc::unbounded_channel();
        let channel = Channel::new(hello.socket)?;
        Ok(Self { channel, wills: Arc::new(hello.wills), address: hello.address, closed, closing, telling: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next, and tells the supervisor meanwhile of those that were closed. Cancelled, it has lost none.
    pub async fn next(&mut self) -> Result<(TcpStream, Place)> {
        loop {
            // Neither waits for the other: the supervisor may be waiting to be heard before it hears.
            let (number, stream) = tokio::select! {
                biased;
                told = self.channel.send(self.telling.unwrap_or_default(), None), if self.telling.is_some() => {
                    told?;
                    self.telling = None;
                    continue;
                }
                Some(number) = self.closed.recv(), if self.telling.is_none() => {
                    self.telling = Some(number);
                    continue;
                }
                received = self.channel.receive() => match received? {
                    Some((number, Some(stream))) => (number, stream),
                    Some((_, None)) => continue,
                    None => return Err(ErrorKind::BrokenPipe.into()),
                },
            };
            let (wills, closing) = (Arc::clone(&self.wills), self.closing.clone());
            let stream = std::net::TcpStream::from(stream);
            stream.set_nonblocking(true)?;
            let place = Place { number, progress: tcp_progress(&stream).ok(), wills, closing };
            return Ok((TcpStream::from_std(stream)?, place));
        }
    }
}

/// That of one connection among the wills. Dropped, after the connection was closed, it is free for another.
#[derive(Debug)]
pub struct Place {
    number: u32,
    progress: Option<TcpProgress>,
    wills: Arc<Wills>,
    closing: mpsc::UnboundedSender<u32>,
}

impl Place {
    /// How far the connection had come when it was handed over, if the kernel tells.
    pub fn progress(&self) -> Option<TcpProgress> {
        self.progress
    }

    /// What is to become of the connection from here on, if this process dies.
    pub fn leave(&self, will: Will<'_>) {
        // Memory of our own. Without it the connection would be cut, as it would be without a supervisor.
        let _ = self.wills.write(self.number, will);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.closing.send(self.number);
    }
}
