//! Length-prefixed JSON frames over a Unix socket, with descriptors.
//!
//! The peer is untrusted: frames have a maximum length, and frames that do not parse are errors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a frame: a command line may have 128 KiB.
const MAX_FRAME_BYTES: usize = 512 << 10;

/// Maximum number of descriptors in a frame. The request to fork an init has most: its two channels, a cgroup and its
/// volumes.
pub(crate) const MAX_DESCRIPTORS: usize = 64;

/// One end of a stream socket that carries frames.
pub(crate) struct Channel(OwnedFd);

impl Channel {
    pub(crate) fn pair() -> Result<(Self, Self)> {
        let (left, right) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Self(left), Self(right)))
    }

    /// Sends a frame with descriptors. Blocks while the socket is full.
    pub(crate) fn send(&self, frame: &impl Serialize, passed: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_with_deadline(frame, passed, None)
    }

    /// Sends a frame with descriptors. With a deadline:
    ///
    /// - If the socket is full, fails immediately with `EAGAIN`, and nothing was sent.
    /// - If the deadline passes during a send, fails with `ETIMEDOUT`. A part was sent, so the channel is unusable.
    pub(crate) fn send_with_deadline(
        &self,
        frame: &impl Serialize,
        passed: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<()> {
        let body = serde_json::to_vec(frame).map_err(|_| Errno::INVAL)?;
        if body.len() > MAX_FRAME_BYTES || passed.len() > MAX_DESCRIPTORS {
            return Err(Errno::MSGSIZE);
        }
        #[allow(clippy::cast_possible_truncation)]
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !passed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(passed));
        }
        let blocking = if deadline.is_some() { SendFlags::DONTWAIT } else { SendFlags::empty() };
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match sendmsg(&self.0, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL | blocking) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    match deadline {
                        Some(_) if rest.len() == bytes.len() => return Err(Errno::AGAIN),
                        Some(deadline) => self.wait_with_deadline(PollFlags::OUT, deadline)?,
                        None => self.wait(PollFlags::OUT)?,
                    }
                    continue;
                }
                sent => rest = &rest[sent?..],
            }
            control.clear();
        }
        Ok(())
    }

    /// Receives a frame with its descriptors. Blocks. `None` at the end of the stream.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_with_deadline(None)
    }

    /// Receives a frame with its descriptors. Fails with `ETIMEDOUT` at the deadline.
    pub(crate) fn receive_with_deadline<T: DeserializeOwned>(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let mut length = [0; 4];
        let Filled::Complete(passed) = self.fill(&mut length, deadline)? else { return Ok(None) };
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(Errno::MSGSIZE);
        }
        let mut body = vec![0; length];
        if let Filled::EndOfStream = self.fill(&mut body, deadline)? {
            return Err(Errno::PIPE);
        }
        let frame = serde_json::from_slice(&body).map_err(|_| Errno::BADMSG)?;
        Ok(Some((frame, passed)))
    }

    /// Waits until a receive would not block: data has arrived, or the stream has ended.
    pub(crate) fn wait_readable(&self) -> Result<()> {
        self.wait(PollFlags::IN)
    }

    /// Shuts down both directions, so that both ends see the end of the stream.
    pub(crate) fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Waits without a deadline. Needed because an owner may have made the socket non-blocking for its event loop.
    fn wait(&self, ready: PollFlags) -> Result<()> {
        match poll(&mut [PollFd::new(&self.0, ready)], None) {
            Err(Errno::INTR) => Ok(()),
            result => result.map(drop),
        }
    }

    fn wait_with_deadline(&self, ready: PollFlags, deadline: Instant) -> Result<()> {
        loop {
            let remaining = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
            match poll(&mut [PollFd::new(&self.0, ready)], Some(&remaining.map_err(|_| Errno::INVAL)?)) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(Errno::TIMEDOUT),
                result => return result.map(drop),
            }
        }
    }

    /// Fills the buffer, and collects the descriptors that arrive with it.
    fn fill(&self, mut buffer: &mut [u8], deadline: Option<Instant>) -> Result<Filled> {
        let mut passed = Vec::new();
        let mut is_empty = true;
        while !buffer.is_empty() {
            deadline.map_or(Ok(()), |deadline| self.wait_with_deadline(PollFlags::IN, deadline))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = loop {
                match recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                    result => break result?.bytes,
                }
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    passed.extend(descriptors);
                }
            }
            if received == 0 {
                return if is_empty { Ok(Filled::EndOfStream) } else { Err(Errno::PIPE) };
            }
            is_empty = false;
            buffer = &mut buffer[received..];
        }
        Ok(Filled::Complete(passed))
    }
}

/// The result of filling a buffer.
enum Filled {
    /// The buffer is full. The descriptors arrived with it.
    Complete(Vec<OwnedFd>),
    /// The stream ended before the first byte.
    EndOfStream,
}

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::InitReport;

    #[test]
    fn frames_arrive_with_their_descriptors() {
        let (host, init) = Channel::pair().unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        init.send(&InitReport::Ready, &[read.as_fd(), read.as_fd()]).unwrap();
        init.send(&InitReport::Exited { process: 0, code: 3 }, &[]).unwrap();
        let (frame, passed) = host.receive::<InitReport>().unwrap().unwrap();
        assert_eq!((frame, passed.len()), (InitReport::Ready, 2));
        let (frame, passed) = host.receive::<InitReport>().unwrap().unwrap();
        assert_eq!((frame, passed.len()), (InitReport::Exited { process: 0, code: 3 }, 0));
        drop(init);
        assert!(host.receive::<InitReport>().unwrap().is_none());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_parse_only_as_valid_frames(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let (host, init) = Channel::pair().unwrap();
            rustix::io::write(&init.0, &bytes).unwrap();
            drop(init);
            while let Ok(Some((report, passed))) = host.receive::<InitReport>() {
                // A frame that was accepted has the same meaning when it is encoded again.
                let encoded = serde_json::to_vec(&report).unwrap();
                proptest::prop_assert_eq!(serde_json::from_slice::<InitReport>(&encoded).unwrap(), report);
                proptest::prop_assert!(passed.is_empty());
            }
        }
    }

    #[test]
    fn invalid_frames_are_refused() {
        for bytes in [
            b"\xff\xff\xff\xff{}".as_slice(),
            b"\0\0\0\x02{}",
            b"\0\0\0\x03abc",
            b"\0\0\0\x2b{\"exited\":{\"process\":0,\"code\":0,\"more\":1}}",
            b"\0\0\0\x09\"ready",
        ] {
            let (host, init) = Channel::pair().unwrap();
            rustix::io::write(&init.0, bytes).unwrap();
            drop(init);
            assert!(host.receive::<InitReport>().is_err(), "{bytes:?}");
        }
    }
}
