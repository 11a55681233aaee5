//! What the host and the init say to each other: length-prefixed JSON frames over a socket of their
//! own, which no other process of the sandbox holds.
//!
//! The host believes nothing: a frame has a bound, unknown fields are refused, and only the
//! descriptors that a frame should carry are taken from it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// No frame has reason to be longer; a longer one is an attack or a defect.
const MOST_BYTES: usize = 16 << 10;

/// From the host to the init.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Order {
    /// A file of a v1 cgroup that admits whoever writes `0` to it. Carries it.
    Entrance,
    /// The next volume of the plan, opened by the host. Carries its mount.
    Volume,
    /// The ids are mapped, and nothing more will be sent: build the walls.
    Go { may_drop_groups: bool },
    /// Pass a signal on to the command, or to its whole process group.
    Signal { number: i32, group: bool },
}

/// From the init to the host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Report {
    /// The walls stand. Carries the proxy's listener, where the spec asks for one.
    Ready,
    /// The command runs. Carries the terminal's controlling side, where one was asked for.
    Started,
    Failed {
        step: String,
        errno: i32,
    },
    CommandFailed {
        errno: i32,
    },
    Exited {
        code: i32,
    },
    Killed {
        signal: i32,
    },
}

/// One end of the socket.
pub(crate) struct Channel(OwnedFd);

impl Channel {
    pub(crate) fn pair() -> Result<(Self, Self)> {
        let (host, init) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Self(host), Self(init)))
    }

    pub(crate) fn send(&self, frame: &impl Serialize, passed: Option<BorrowedFd<'_>>) -> Result<()> {
        let body = serde_json::to_vec(frame).map_err(|_| Errno::INVAL)?;
        if body.len() > MOST_BYTES {
            return Err(Errno::MSGSIZE);
        }
        #[allow(clippy::cast_possible_truncation)]
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let passed: Vec<_> = passed.into_iter().collect();
        if !passed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&passed));
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let sent = sendmsg(&self.0, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL)?;
            rest = &rest[sent..];
            control.clear();
        }
        Ok(())
    }

    /// Waits for one frame; `Ok(None)` is the end of the stream.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Option<OwnedFd>)>> {
        let mut length = [0; 4];
        let Filled::Whole(passed) = self.fill(&mut length)? else { return Ok(None) };
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(Errno::MSGSIZE);
        }
        let mut body = vec![0; length];
        if let Filled::End = self.fill(&mut body)? {
            return Err(Errno::PIPE);
        }
        let frame = serde_json::from_slice(&body).map_err(|_| Errno::BADMSG)?;
        Ok(Some((frame, passed)))
    }

    fn fill(&self, mut buffer: &mut [u8]) -> Result<Filled> {
        let mut descriptor = None;
        let mut first = true;
        while !buffer.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = loop {
                match recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                    Err(Errno::INTR) => {}
                    other => break other?.bytes,
                }
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    descriptor = descriptors.into_iter().last();
                }
            }
            if received == 0 {
                return if first { Ok(Filled::End) } else { Err(Errno::PIPE) };
            }
            first = false;
            buffer = &mut buffer[received..];
        }
        Ok(Filled::Whole(descriptor))
    }
}

/// What came of filling a buffer.
enum Filled {
    /// All of it, and the descriptor that came with it.
    Whole(Option<OwnedFd>),
    /// The stream had ended before.
    End,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_arrives_with_its_descriptor() {
        let (host, init) = Channel::pair().unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        init.send(&Report::Ready, Some(read.as_fd())).unwrap();
        init.send(&Report::Exited { code: 3 }, None).unwrap();
        let (frame, passed) = host.receive::<Report>().unwrap().unwrap();
        assert_eq!((frame, passed.is_some()), (Report::Ready, true));
        let (frame, passed) = host.receive::<Report>().unwrap().unwrap();
        assert_eq!((frame, passed.is_some()), (Report::Exited { code: 3 }, false));
        drop(init);
        assert!(host.receive::<Report>().unwrap().is_none());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_a_frame_that_was_not_sent(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let (host, init) = Channel::pair().unwrap();
            rustix::io::write(&init.0, &bytes).unwrap();
            drop(init);
            while let Ok(Some((report, passed))) = host.receive::<Report>() {
                // Whatever is taken for a frame is one, to the letter of its meaning.
                let again = serde_json::to_vec(&report).unwrap();
                proptest::prop_assert_eq!(serde_json::from_slice::<Report>(&again).unwrap(), report);
                proptest::prop_assert!(passed.is_none());
            }
        }
    }

    #[test]
    fn hostile_frames_are_refused() {
        for bytes in [
            b"\xff\xff\xff\xff{}".as_slice(),
            b"\0\0\0\x02{}",
            b"\0\0\0\x03abc",
            b"\0\0\0\x1d{\"exited\":{\"code\":0,\"more\":1}}",
            b"\0\0\0\x09\"ready",
        ] {
            let (host, init) = Channel::pair().unwrap();
            rustix::io::write(&init.0, bytes).unwrap();
            drop(init);
            assert!(host.receive::<Report>().is_err(), "{bytes:?}");
        }
    }
}
