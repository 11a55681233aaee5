//! The connections of an endpoint: accepted here, passed to the worker, and kept open when it dies.
//!
//! Nothing is read from clients. A worker that dies has left a record for each connection (`handover::CrashReply`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{ErrorKind, Result};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use ringfence_sandbox::{TcpProgress, tcp_progress};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use ringfence_mcp::handover::{Channel, CrashAction, CrashReplies, CrashReply, Report, WorkerSetup, pair};

/// Pause after an error, for example if no descriptors are free.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of bytes that are read from a connection before it is closed. A socket that is closed with unread data
/// resets the connection, and the client may lose the reply.
const MAX_DRAINED_BYTES: usize = 1 << 20;

/// The record of a connection that no worker has received yet.
const NEW_CONNECTION: CrashReply<'static> =
    CrashReply { resume_at: Some(TcpProgress { read: 0, written: 0 }), reply: &[], reply_at: [0, 0] };

pub(crate) struct ConnectionTable {
    /// None once no further connections are accepted.
    listener: Option<tokio::net::TcpListener>,
    address: SocketAddr,
    replies: CrashReplies,
    /// By their numbers.
    connections: Vec<Option<TcpStream>>,
    /// Numbers of the connections that no worker has received.
    waiting: VecDeque<u32>,
}

impl ConnectionTable {
    /// Must be called within a runtime.
    pub(crate) fn new(listener: TcpListener) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (address, replies) = (listener.local_addr()?, CrashReplies::new()?);
        Ok(Self { listener: Some(listener), address, replies, connections: Vec::new(), waiting: VecDeque::new() })
    }

    /// Creates the channel to a worker that is about to be started. The second end is the worker's.
    pub(crate) fn open_channel(&self) -> Result<(Channel, OwnedFd)> {
        let (ours, theirs) = pair()?;
        WorkerSetup::send(&ours, &self.replies, self.address)?;
        Ok((Channel::new(ours)?, theirs))
    }

    /// Stops accepting connections.
    pub(crate) fn close(&mut self) {
        self.listener = None;
    }

    /// Passes waiting and new connections to a worker. Cancel-safe.
    pub(crate) async fn serve(&mut self, channel: &Channel) -> Infallible {
        loop {
            if let Err(error) = self.serve_next(channel).await {
                tracing::debug!("cannot accept or pass on a connection: {error}");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    async fn serve_next(&mut self, channel: &Channel) -> Result<()> {
        let next = self.waiting.front().copied();
        let sent = async {
            let number = next.unwrap_or_default();
            match self.connections.get(number as usize) {
                Some(Some(stream)) => channel.send_connection(number, stream.as_fd()).await,
                _ => Ok(()),
            }
        };
        let accepted = async {
            match &self.listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        // Reports are always read: the worker may be blocked on sending one before it receives more.
        tokio::select! {
            report = channel.recv_report() => match report?.ok_or(ErrorKind::BrokenPipe)? {
                Report::Closed(number) => self.remove(number),
                Report::NotReceived(number) => self.waiting.push_back(number),
            },
            sent = sent, if next.is_some() => {
                sent?;
                self.waiting.pop_front();
            }
            accepted = accepted, if next.is_none() => self.add(accepted?.0.into_std()?)?,
        }
        Ok(())
    }

    fn add(&mut self, stream: TcpStream) -> Result<()> {
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or(self.connections.len());
        let number = u32::try_from(index).map_err(|_| ErrorKind::OutOfMemory)?;
        self.replies.write(number, NEW_CONNECTION)?;
        match self.connections.get_mut(index) {
            Some(free) => *free = Some(stream),
            None => self.connections.push(Some(stream)),
        }
        self.waiting.push_back(number);
        Ok(())
    }

    fn remove(&mut self, number: u32) {
        if let Some(connection) = self.connections.get_mut(number as usize) {
            *connection = None;
        }
    }

    /// Handles the connections of a worker that has died, as its records say. Those that can be resumed wait for the next.
    pub(crate) fn on_worker_death(&mut self, channel: &Channel) {
        while let Some(report) = channel.try_recv_report() {
            if let Report::Closed(number) = report {
                self.remove(number);
            }
        }
        self.waiting.clear();
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let Ok(number) = u32::try_from(index) else { continue };
            let Some(stream) = connection else { continue };
            match tcp_progress(&*stream).map(|progress| self.replies.read(number, progress)) {
                Ok(CrashAction::Resume) => self.waiting.push_back(number),
                Ok(CrashAction::Close { reply }) => {
                    close_with_reply(stream, &reply);
                    *connection = None;
                }
                Err(_) => *connection = None,
            }
        }
    }
}

/// Sends a reply without blocking, as far as it fits the send buffer, and closes the connection.
fn close_with_reply(stream: &TcpStream, reply: &[u8]) {
    let _ = send(stream, reply, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = stream.shutdown(Shutdown::Write);
    let (mut budget, mut buffer) = (MAX_DRAINED_BYTES, [0; 16 << 10]);
    while let Ok((read @ 1.., _)) = recv(stream, &mut buffer[..], RecvFlags::DONTWAIT) {
        budget = budget.saturating_sub(read);
        if budget == 0 {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustix::net::sockopt::set_socket_send_buffer_size;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn table() -> ConnectionTable {
        ConnectionTable::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn reports_are_read_while_the_worker_receives_nothing() {
        let mut table = table();
        let (ours, theirs) = pair().unwrap();
        // Enough for a few messages.
        set_socket_send_buffer_size(&ours, 1).unwrap();
        set_socket_send_buffer_size(&theirs, 1).unwrap();
        let (ours, theirs) = (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap());
        let clients: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(table.address).unwrap()).collect();
        let worker = async {
            for _ in 0..1000 {
                theirs.send_report(Report::Closed(9999)).await.unwrap();
            }
            let mut received = Vec::new();
            while received.len() < clients.len() {
                received.push(theirs.recv_connection().await.unwrap().unwrap().0);
            }
            received
        };
        let received = tokio::select! {
            received = tokio::time::timeout(TIMEOUT, worker) => received.expect("both ends are blocked"),
            never = table.serve(&ours) => match never {},
        };
        assert_eq!(received, (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn connection_is_sent_until_received_and_its_number_is_reused_after_it_is_closed() {
        let mut table = table();
        let (ours, theirs) = pair().unwrap();
        let (ours, theirs) = (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap());
        let address = table.address;
        let worker = async {
            for _ in 0..3 {
                let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
                for report in [Report::NotReceived(0), Report::Closed(0)] {
                    let (number, stream) = theirs.recv_connection().await.unwrap().unwrap();
                    assert_eq!((number, stream.is_some()), (0, true));
                    drop(stream);
                    theirs.send_report(report).await.unwrap();
                }
                // The connection is closed for the client too.
                let mut nothing = [0];
                let end = tokio::io::AsyncReadExt::read(&mut client, &mut nothing);
                assert_eq!(tokio::time::timeout(TIMEOUT, end).await.unwrap().unwrap(), 0);
            }
        };
        tokio::select! {
            () = worker => {}
            never = table.serve(&ours) => match never {},
        }
        assert_eq!(table.connections.iter().flatten().count(), 0);
    }
}
