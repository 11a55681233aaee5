//! The socket between a supervisor and its worker: connections one way, what has become of them the other.

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

/// A number, and what the first message says.
const LONGEST: usize = 128;

/// Both ends of a socket that keeps messages apart and is told when the other end is gone.
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

/// Takes a message, or fails at once; none once the other end is gone.
pub(super) fn receive(socket: impl AsFd) -> Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut message = [0; LONGEST];
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

/// In the number of a connection that the worker could not take.
const NOT_TAKEN: u32 = 1 << 31;

/// What a worker says of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// It is over.
    Closed(u32),
    /// It did not arrive, for want of descriptors: it is to be given once more.
    NotTaken(u32),
}

impl Report {
    fn number(self) -> u32 {
        match self {
            Self::Closed(number) => number,
            Self::NotTaken(number) => number | NOT_TAKEN,
        }
    }

    fn of(number: u32) -> Self {
        if number & NOT_TAKEN == 0 { Self::Closed(number) } else { Self::NotTaken(number & !NOT_TAKEN) }
    }
}

/// One end, for whoever waits for it. The type stands for any socket of the family: what is read and written is ours.
pub struct Channel(UnixStream);

impl Channel {
    /// Within a runtime.
    pub fn new(socket: OwnedFd) -> Result<Self> {
        UnixStream::from_std(socket.into()).map(Self)
    }

    /// Gives a connection, once there is room. Cancelled, it has given nothing.
    pub async fn give(&self, number: u32, connection: BorrowedFd<'_>) -> Result<()> {
        self.send(number, Some(connection)).await
    }

    /// Waits for the next connection; none once the other end is gone. Its descriptor is missing where this process
    /// may have no more. Cancelled, it has taken nothing.
    pub async fn take(&self) -> Result<Option<(u32, Option<OwnedFd>)>> {
        self.0.async_io(Interest::READABLE, || receive(&self.0).and_then(parse)).await
    }

    /// Reports, once there is room. Cancelled, it has said nothing.
    pub async fn report(&self, report: Report) -> Result<()> {
        self.send(report.number(), None).await
    }

    /// Waits for the next report; none once the other end is gone. Cancelled, it has heard nothing.
    pub async fn hear(&self) -> Result<Option<Report>> {
        Ok(self.take().await?.map(|(number, _)| Report::of(number)))
    }

    /// The next that has come already.
    pub fn try_hear(&self) -> Option<Report> {
        receive(&self.0).and_then(parse).ok().flatten().map(|(number, _)| Report::of(number))
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
    async fn a_descriptor_arrives_with_its_number_and_the_end_is_told() {
        let (one, other) = pair().unwrap();
        let (one, other) = (Channel::new(one).unwrap(), Channel::new(other).unwrap());
        let (mut reader, writer) = std::io::pipe().unwrap();
        one.give(7, writer.as_fd()).await.unwrap();
        drop(writer);
        let (number, passed) = other.take().await.unwrap().unwrap();
        assert_eq!(number, 7);
        std::fs::File::from(passed.unwrap()).write_all(b"x").unwrap();
        let mut said = String::new();
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "x");
        assert_eq!(one.try_hear(), None);
        for report in [Report::Closed(7), Report::NotTaken(7)] {
            other.report(report).await.unwrap();
            assert_eq!(one.hear().await.unwrap(), Some(report));
        }
        drop(one);
        assert!(other.take().await.unwrap().is_none());
    }
}
