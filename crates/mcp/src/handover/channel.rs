//! The socket between a supervisor and its worker: connections in one direction, reports about them in the second.

use std::io::{IoSlice, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Maximum size of a message: the number of a connection, or the address in the first message.
const MAX_MESSAGE_BYTES: usize = 128;

/// Creates a socket pair with message boundaries, on which the end of the peer is visible.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Sends a message with at most one descriptor, or fails at once.
pub(super) fn send(socket: impl AsFd, message: &[u8], passed: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = passed.as_slice();
    if !passed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(passed));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(message)], &mut control, flags)?;
    Ok(())
}

/// Receives a message, or fails at once. Returns None if the peer is gone.
pub(super) fn receive(socket: impl AsFd) -> Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut message = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut message)], &mut control, flags)?;
    let mut passed = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            passed = descriptors.next();
        }
    }
    let text = message.get(..received.bytes).unwrap_or_default();
    Ok((!text.is_empty()).then(|| (text.to_vec(), passed)))
}

/// Flag in the number of a connection that the worker did not receive.
const NOT_RECEIVED: u32 = 1 << 31;

/// A worker's report about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The connection was closed.
    Closed(u32),
    /// The descriptor did not arrive, because the worker has no free ones: send it again.
    NotReceived(u32),
}

impl Report {
    fn number(self) -> u32 {
        match self {
            Self::Closed(number) => number,
            Self::NotReceived(number) => number | NOT_RECEIVED,
        }
    }

    fn from_number(number: u32) -> Self {
        if number & NOT_RECEIVED == 0 { Self::Closed(number) } else { Self::NotReceived(number & !NOT_RECEIVED) }
    }
}

/// One end of the socket. `UnixStream` only provides readiness; `sendmsg` and `recvmsg` transfer the descriptors.
pub struct Channel(UnixStream);

impl Channel {
    /// Must be called within a runtime.
    pub fn new(socket: OwnedFd) -> Result<Self> {
        UnixStream::from_std(socket.into()).map(Self)
    }

    /// Sends a connection. Cancel-safe.
    pub async fn send_connection(&self, number: u32, connection: BorrowedFd<'_>) -> Result<()> {
        self.send(number, Some(connection)).await
    }

    /// Waits for the next connection; None if the peer is gone. The descriptor is missing if this process has no free
    /// ones. Cancel-safe.
    pub async fn recv_connection(&self) -> Result<Option<(u32, Option<OwnedFd>)>> {
        self.0.async_io(Interest::READABLE, || receive(&self.0).and_then(parse)).await
    }

    /// Sends a report. Cancel-safe.
    pub async fn send_report(&self, report: Report) -> Result<()> {
        self.send(report.number(), None).await
    }

    /// Waits for the next report; None if the peer is gone. Cancel-safe.
    pub async fn recv_report(&self) -> Result<Option<Report>> {
        Ok(self.recv_connection().await?.map(|(number, _)| Report::from_number(number)))
    }

    /// Returns the next report if it has arrived already.
    pub fn try_recv_report(&self) -> Option<Report> {
        receive(&self.0).and_then(parse).ok().flatten().map(|(number, _)| Report::from_number(number))
    }

    async fn send(&self, number: u32, passed: Option<BorrowedFd<'_>>) -> Result<()> {
        self.0.async_io(Interest::WRITABLE, || send(&self.0, &number.to_le_bytes(), passed)).await
    }
}

fn parse(received: Option<(Vec<u8>, Option<OwnedFd>)>) -> Result<Option<(u32, Option<OwnedFd>)>> {
    let Some((message, passed)) = received else { return Ok(None) };
    let number = message.try_into().map_err(|_| Errno::BADMSG)?;
    Ok(Some((u32::from_le_bytes(number), passed)))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[tokio::test]
    async fn descriptor_arrives_with_its_number_and_the_end_is_visible() {
        let (first, second) = pair().unwrap();
        let (first, second) = (Channel::new(first).unwrap(), Channel::new(second).unwrap());
        let (mut reader, writer) = std::io::pipe().unwrap();
        first.send_connection(7, writer.as_fd()).await.unwrap();
        drop(writer);
        let (number, passed) = second.recv_connection().await.unwrap().unwrap();
        assert_eq!(number, 7);
        std::fs::File::from(passed.unwrap()).write_all(b"x").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
        assert_eq!(first.try_recv_report(), None);
        for report in [Report::Closed(7), Report::NotReceived(7)] {
            second.send_report(report).await.unwrap();
            assert_eq!(first.recv_report().await.unwrap(), Some(report));
        }
        drop(first);
        assert!(second.recv_connection().await.unwrap().is_none());
    }
}
