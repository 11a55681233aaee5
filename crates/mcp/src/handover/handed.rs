//! The worker's end: connections that its supervisor has accepted.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ringfence_sandbox::{TcpProgress, tcp_progress};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::channel::{self, Channel, Report};
use crate::handover::crash_replies::{Will, Wills};

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
    /// No more than there are connections.
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    /// One that the supervisor is being told.
    telling: Option<Report>,
}

impl Handed {
    /// Within a runtime.
    pub fn new(hello: Hello) -> Result<Self> {
        let (reporter, reports) = mpsc::unbounded_channel();
        let channel = Channel::new(hello.socket)?;
        Ok(Self { channel, wills: Arc::new(hello.wills), address: hello.address, reports, reporter, telling: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next, and tells the supervisor meanwhile of those that were closed. Cancelled, it has lost none.
    pub async fn next(&mut self) -> Result<(TcpStream, Place)> {
        loop {
            let telling = self.telling;
            let told = async {
                match telling {
                    Some(report) => self.channel.report(report).await,
                    None => std::future::pending().await,
                }
            };
            // Neither waits for the other: the supervisor may be waiting to be heard before it hears.
            let (number, connection) = tokio::select! {
                biased;
                told = told => {
                    told?;
                    self.telling = None;
                    continue;
                }
                Some(report) = self.reports.recv(), if telling.is_none() => {
                    self.telling = Some(report);
                    continue;
                }
                taken = self.channel.take() => taken?.ok_or(ErrorKind::BrokenPipe)?,
            };
            let Some(connection) = connection else {
                // Given again after whoever waits here has rested.
                let _ = self.reporter.send(Report::NotTaken(number));
                return Err(rustix::io::Errno::MFILE.into());
            };
            let connection = std::net::TcpStream::from(connection);
            let progress = tcp_progress(&connection).ok();
            // From here on it is reported, whatever fails.
            let place = Place { number, progress, wills: Arc::clone(&self.wills), reporter: self.reporter.clone() };
            connection.set_nonblocking(true)?;
            return Ok((TcpStream::from_std(connection)?, place));
        }
    }
}

/// That of one connection among the wills. Dropped, after the connection was closed, it is free for another.
#[derive(Debug)]
pub struct Place {
    number: u32,
    progress: Option<TcpProgress>,
    wills: Arc<Wills>,
    reporter: mpsc::UnboundedSender<Report>,
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
        let _ = self.reporter.send(Report::Closed(self.number));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::super::channel::pair;
    use super::*;

    #[tokio::test]
    async fn what_does_not_arrive_is_given_again_and_what_is_closed_is_told() {
        let (ours, theirs) = pair().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        Hello::say(&ours, &Wills::new().unwrap(), address).unwrap();
        let (supervisor, mut handed) =
            (Channel::new(ours).unwrap(), Handed::new(Hello::hear(theirs).unwrap()).unwrap());
        assert_eq!(handed.address(), address);
        // As where this process may have no more descriptors.
        supervisor.report(Report::Closed(3)).await.unwrap();
        assert!(handed.next().await.is_err());
        let _client = std::net::TcpStream::connect(address).unwrap();
        let (connection, _) = listener.accept().unwrap();
        supervisor.give(3, connection.as_fd()).await.unwrap();
        let (stream, place) = handed.next().await.unwrap();
        assert_eq!(supervisor.hear().await.unwrap(), Some(Report::NotTaken(3)));
        drop((stream, place));
        let idle = tokio::time::timeout(std::time::Duration::from_millis(50), handed.next());
        assert!(idle.await.is_err());
        assert_eq!(supervisor.try_hear(), Some(Report::Closed(3)));
    }
}
