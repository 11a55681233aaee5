//! What the host and the init say to each other: length-prefixed JSON frames over a socket of their
//! own, which no other process of the sandbox holds.
//!
//! The host believes nothing: a frame has a bound, unknown fields are refused, and only the
//! descriptors that a frame should carry are taken from it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::control::SignalTarget;
use crate::files::FileAction;
use ringfence_core::Command;

/// No frame has reason to be longer (a command line may have 128 KiB); a longer one is an attack or a defect.
const MOST_BYTES: usize = 512 << 10;

/// The two channels of an init, and its volumes; other frames carry fewer.
pub(crate) const MOST_DESCRIPTORS: usize = 32;

/// From the host to the init.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Order {
    /// The files of v1 cgroups that admit whoever writes `0` to them. Carries them.
    Entrances,
    /// The next volume of the plan, opened by the host. Carries its mount.
    Volume,
    /// The ids are mapped, and nothing more will be sent: build the walls.
    Go { may_drop_groups: bool },
    /// Start another process, under a number of the host's own choosing. Carries its descriptors from 0 on.
    Start { process: u32, command: Command, environment: BTreeMap<String, String> },
    /// Fork a process off the init of a sandbox that was born from a zygote, to go on as the zygote's interpreter.
    /// Carries its descriptors from 0 on; the last is its control channel.
    Fork { process: u32, workdir: PathBuf, environment: BTreeMap<String, String> },
    /// Pass a signal on to a process, and perhaps others.
    Signal { process: u32, number: i32, target: SignalTarget },
    /// Obey another host from now on. Carries the channel to it; what the last host had started is ended, but for
    /// what is kept.
    Renew { keep: Option<u32> },
    /// Open or list something beneath the workspace. Carries the socket on which to answer.
    File {
        #[serde(with = "ringfence_core::os_strings")]
        path: Vec<OsString>,
        action: FileAction,
    },
}

/// The number of the process that a sandbox is made for; with its end the sandbox ends.
pub(crate) const MAIN: u32 = 0;

/// From the init to the host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Report {
    /// The walls stand. Carries the proxy's listener, where the spec asks for one.
    Ready,
    /// A process runs. Carries the terminal's controlling side, where one was asked for.
    Started {
        process: u32,
    },
    Failed {
        step: String,
        errno: i32,
    },
    CommandFailed {
        process: u32,
        errno: i32,
    },
    Exited {
        process: u32,
        code: i32,
    },
    Killed {
        process: u32,
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

    pub(crate) fn send(&self, frame: &impl Serialize, passed: &[BorrowedFd<'_>]) -> Result<()> {
        self.send_by(frame, passed, None)
    }

    /// The same, but no longer than until then: whoever is not done by then has sent a part, and cannot go on. Where there
    /// is no room to begin with, it is not waited for, and nothing is sent (`EAGAIN`).
    pub(crate) fn send_by(
        &self,
        frame: &impl Serialize,
        passed: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<()> {
        let body = serde_json::to_vec(frame).map_err(|_| Errno::INVAL)?;
        if body.len() > MOST_BYTES || passed.len() > MOST_DESCRIPTORS {
            return Err(Errno::MSGSIZE);
        }
        #[allow(clippy::cast_possible_truncation)]
        let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
        bytes.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !passed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(passed));
        }
        let patience = if deadline.is_some() { SendFlags::DONTWAIT } else { SendFlags::empty() };
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match sendmsg(&self.0, &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL | patience) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    match deadline {
                        Some(_) if rest.len() == bytes.len() => return Err(Errno::AGAIN),
                        Some(deadline) => self.wait_by(PollFlags::OUT, deadline)?,
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

    /// Waits for one frame; `Ok(None)` is the end of the stream.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_by(None)
    }

    /// The same, but no longer than until then.
    pub(crate) fn receive_by<T: DeserializeOwned>(
        &self,
        deadline: Option<Instant>,
    ) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let mut length = [0; 4];
        let Filled::Whole(passed) = self.fill(&mut length, deadline)? else { return Ok(None) };
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(Errno::MSGSIZE);
        }
        let mut body = vec![0; length];
        if let Filled::End = self.fill(&mut body, deadline)? {
            return Err(Errno::PIPE);
        }
        let frame = serde_json::from_slice(&body).map_err(|_| Errno::BADMSG)?;
        Ok(Some((frame, passed)))
    }

    /// Waits until something is there, or never will be.
    pub(crate) fn wait_for_word(&self) -> Result<()> {
        self.wait(PollFlags::IN)
    }

    /// Ends both directions: whoever listens at either end hears that.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// An owner may have made it non-blocking, to be told when there is something.
    fn wait(&self, ready: PollFlags) -> Result<()> {
        match poll(&mut [PollFd::new(&self.0, ready)], None) {
            Err(Errno::INTR) => Ok(()),
            result => result.map(drop),
        }
    }

    fn wait_by(&self, ready: PollFlags, deadline: Instant) -> Result<()> {
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()));
            match poll(&mut [PollFd::new(&self.0, ready)], Some(&left.map_err(|_| Errno::INVAL)?)) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(Errno::TIMEDOUT),
                result => return result.map(drop),
            }
        }
    }

    fn fill(&self, mut buffer: &mut [u8], deadline: Option<Instant>) -> Result<Filled> {
        let mut passed = Vec::new();
        let mut first = true;
        while !buffer.is_empty() {
            deadline.map_or(Ok(()), |deadline| self.wait_by(PollFlags::IN, deadline))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = loop {
                match recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                    other => break other?.bytes,
                }
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    passed.extend(descriptors);
                }
            }
            if received == 0 {
                return if first { Ok(Filled::End) } else { Err(Errno::PIPE) };
            }
            first = false;
            buffer = &mut buffer[received..];
        }
        Ok(Filled::Whole(passed))
    }
}

/// What came of filling a buffer.
enum Filled {
    /// All of it, and the descriptors that came with it.
    Whole(Vec<OwnedFd>),
    /// The stream had ended before.
    End,
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

    #[test]
    fn a_frame_arrives_with_its_descriptor() {
        let (host, init) = Channel::pair().unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        init.send(&Report::Ready, &[read.as_fd(), read.as_fd()]).unwrap();
        init.send(&Report::Exited { process: 0, code: 3 }, &[]).unwrap();
        let (frame, passed) = host.receive::<Report>().unwrap().unwrap();
        assert_eq!((frame, passed.len()), (Report::Ready, 2));
        let (frame, passed) = host.receive::<Report>().unwrap().unwrap();
        assert_eq!((frame, passed.len()), (Report::Exited { process: 0, code: 3 }, 0));
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
                proptest::prop_assert!(passed.is_empty());
            }
        }
    }

    #[test]
    fn hostile_frames_are_refused() {
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
            assert!(host.receive::<Report>().is_err(), "{bytes:?}");
        }
    }
}
