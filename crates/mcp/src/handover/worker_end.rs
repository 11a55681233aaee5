//! The worker's end: receives the connections that its supervisor has accepted.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use ringfence_sandbox::{TcpProgress, tcp_progress};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::channel::{self, Channel, Report};
use super::crash_replies::{CrashReplies, CrashReply};

/// The first message to a worker: the channel of its connections, and the memory for its crash replies.
#[derive(Debug)]
pub struct WorkerSetup {
    socket: OwnedFd,
    replies: CrashReplies,
    address: SocketAddr,
}

impl WorkerSetup {
    /// Sends the message before the worker is started.
    pub fn send(socket: &OwnedFd, replies: &CrashReplies, address: SocketAddr) -> Result<()> {
        channel::send(socket, address.to_string().as_bytes(), Some(replies.as_fd()))
    }

    /// Receives the message, which was sent before this process was started.
    pub fn receive(socket: OwnedFd) -> Result<Self> {
        let invalid = || Error::new(ErrorKind::InvalidData, "the supervisor did not send its address");
        let (message, replies) = channel::receive(&socket)?.ok_or_else(invalid)?;
        let address = std::str::from_utf8(&message).ok().and_then(|text| text.parse().ok());
        let (Some(address), Some(replies)) = (address, replies) else { return Err(invalid()) };
        Ok(Self { socket, replies: replies.into(), address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The connections that a supervisor passes to this worker.
pub struct HandedConnections {
    channel: Channel,
    replies: Arc<CrashReplies>,
    address: SocketAddr,
    /// At most one report per connection.
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    /// The report that is being sent.
    sending: Option<Report>,
}

impl HandedConnections {
    /// Must be called within a runtime.
    pub fn new(setup: WorkerSetup) -> Result<Self> {
        let (reporter, reports) = mpsc::unbounded_channel();
        let channel = Channel::new(setup.socket)?;
        let (replies, address) = (Arc::new(setup.replies), setup.address);
        Ok(Self { channel, replies, address, reports, reporter, sending: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection, and reports those that were closed meanwhile. Cancel-safe.
    pub async fn next(&mut self) -> Result<(TcpStream, CrashReplySlot)> {
        loop {
            let sending = self.sending;
            let sent = async {
                match sending {
                    Some(report) => self.channel.send_report(report).await,
                    None => std::future::pending().await,
                }
            };
            // Both at once: the supervisor may be blocked on its own send until it is read from.
            let (number, connection) = tokio::select! {
                biased;
                sent = sent => {
                    sent?;
                    self.sending = None;
                    continue;
                }
                Some(report) = self.reports.recv(), if sending.is_none() => {
                    self.sending = Some(report);
                    continue;
                }
                received = self.channel.recv_connection() => received?.ok_or(ErrorKind::BrokenPipe)?,
            };
            let Some(connection) = connection else {
                // The supervisor sends it again; the caller waits before it calls this again.
                let _ = self.reporter.send(Report::NotReceived(number));
                return Err(rustix::io::Errno::MFILE.into());
            };
            let connection = std::net::TcpStream::from(connection);
            let progress = tcp_progress(&connection).ok();
            // From here on, dropping the slot reports the connection as closed.
            let replies = Arc::clone(&self.replies);
            let slot = CrashReplySlot { number, progress, replies, reporter: self.reporter.clone() };
            connection.set_nonblocking(true)?;
            return Ok((TcpStream::from_std(connection)?, slot));
        }
    }
}

/// The record of one connection among the crash replies. Drop it after the connection is closed.
#[derive(Debug)]
pub struct CrashReplySlot {
    number: u32,
    progress: Option<TcpProgress>,
    replies: Arc<CrashReplies>,
    reporter: mpsc::UnboundedSender<Report>,
}

impl CrashReplySlot {
    /// The counters of the connection when it was received; None if the kernel does not provide them.
    pub fn progress(&self) -> Option<TcpProgress> {
        self.progress
    }

    /// Sets what happens to the connection if this process dies from now on.
    pub fn set(&self, record: CrashReply<'_>) {
        // If the memory cannot be written, the connection is cut as it would be without a supervisor.
        let _ = self.replies.write(self.number, record);
    }
}

impl Drop for CrashReplySlot {
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
    async fn lost_connections_are_sent_again_and_closed_ones_are_reported() {
        let (ours, theirs) = pair().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        WorkerSetup::send(&ours, &CrashReplies::new().unwrap(), address).unwrap();
        let supervisor = Channel::new(ours).unwrap();
        let mut worker = HandedConnections::new(WorkerSetup::receive(theirs).unwrap()).unwrap();
        assert_eq!(worker.address(), address);
        // A message without a descriptor, as if this process had no free ones.
        supervisor.send_report(Report::Closed(3)).await.unwrap();
        assert!(worker.next().await.is_err());
        let _client = std::net::TcpStream::connect(address).unwrap();
        let (connection, _) = listener.accept().unwrap();
        supervisor.send_connection(3, connection.as_fd()).await.unwrap();
        let (stream, slot) = worker.next().await.unwrap();
        assert_eq!(supervisor.recv_report().await.unwrap(), Some(Report::NotReceived(3)));
        drop((stream, slot));
        let idle = tokio::time::timeout(std::time::Duration::from_millis(50), worker.next());
        assert!(idle.await.is_err());
        assert_eq!(supervisor.try_recv_report(), Some(Report::Closed(3)));
    }
}
