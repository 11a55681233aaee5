//! The host's end of an interpreter's socket.
//!
//! Nobody is woken by it in vain: to wake a processor that rests takes as long as a short cell. A Unix socket says that
//! there is room whenever something was read from it, so that is listened for only where there was none.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::net::unix::pipe::{Receiver, Sender};

use ringfence_guest::KernelBuffer;

const READ_AT_ONCE: usize = 64 << 10;

/// Where it cannot be told when there is room.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// It is no pipe, but waited for like the end of one from which is read: for nothing but words and its end.
pub struct KernelSocket(Receiver);

impl KernelSocket {
    /// Our end, and the interpreter's.
    pub fn new() -> Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::resume(ours.into())?, theirs.into()))
    }

    /// One that another server held before.
    pub fn resume(socket: OwnedFd) -> Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Receiver::from_owned_fd_unchecked(socket.into()).map(Self)
    }

    /// Sends what there is room for now. A line that is broken has none; whoever waits for an answer learns of it.
    pub fn send_at_once(&self, bytes: &[u8]) -> usize {
        self.send(bytes).unwrap_or_default()
    }

    /// Sends some of it, once there is room. Cancel-safe.
    pub async fn send_some(&self, bytes: &[u8]) -> Result<usize> {
        loop {
            match self.send(bytes) {
                Err(Errno::AGAIN) => match self.room() {
                    Ok(room) => room.writable().await?,
                    // Out of descriptors, say: the line itself is whole.
                    Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
                },
                sent => return Ok(sent?),
            }
        }
    }

    /// Tells when there is some.
    fn room(&self) -> Result<Sender> {
        Sender::from_owned_fd_unchecked(self.as_fd().try_clone_to_owned()?)
    }

    fn send(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    /// Whether something has come, or it is broken.
    pub fn has_word(&self) -> bool {
        recv(&self.0, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) != Err(Errno::AGAIN)
    }

    /// Appends what has come, once something has; an error if the interpreter has hung up. Cancel-safe.
    pub async fn receive(&self, inbox: &mut KernelBuffer) -> Result<()> {
        let received = inbox.reserve(READ_AT_ONCE);
        let mut length = rustix::io::read(&self.0, spare_capacity(received)).map_err(Error::from);
        loop {
            match length {
                Ok(0) => return Err(Error::new(ErrorKind::UnexpectedEof, "the interpreter has hung up")),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.0.readable().await?,
                length => return length.map(drop),
            }
            length = self.0.try_read_buf(received);
        }
    }
}

impl AsFd for KernelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// Looked at once.
    async fn is_done(work: impl Future) -> bool {
        tokio::time::timeout(Duration::ZERO, work).await.is_ok()
    }

    #[tokio::test]
    async fn what_comes_is_heard_whether_it_is_waited_for_or_not() {
        let (line, theirs) = KernelSocket::new().unwrap();
        let mut theirs = UnixStream::from(theirs);
        let mut received = KernelBuffer::default();
        assert!(!line.has_word() && !is_done(line.receive(&mut received)).await);
        theirs.write_all(b"one ").unwrap();
        assert!(line.has_word());
        assert!(is_done(line.receive(&mut received)).await);
        for word in ["two ", "three"] {
            let waiting = tokio::time::timeout(LONG, line.receive(&mut received));
            let (heard, ()) = tokio::join!(waiting, async { theirs.write_all(word.as_bytes()).unwrap() });
            heard.unwrap().unwrap();
        }
        assert_eq!(received.unread(), b"one two three");
        drop(theirs);
        assert!(line.has_word());
        let hung_up = tokio::time::timeout(LONG, line.receive(&mut received)).await.unwrap();
        assert_eq!(hung_up.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_has_no_room_waits_for_it() {
        let (line, theirs) = KernelSocket::new().unwrap();
        let mut theirs = UnixStream::from(theirs);
        let whole = vec![b'x'; 4 << 20];
        let mut sent = line.send_at_once(&whole);
        assert!(sent < whole.len() && !is_done(line.send_some(&whole[sent..])).await);
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).map(|_| read)
        });
        while sent < whole.len() {
            sent += tokio::time::timeout(LONG, line.send_some(&whole[sent..])).await.unwrap().unwrap();
        }
        drop(line);
        assert_eq!(reader.join().unwrap().unwrap(), whole);
    }

    #[tokio::test]
    async fn room_is_not_listened_for() {
        const EPOLLIN: u32 = 1;
        const EPOLLOUT: u32 = 4;
        let (line, _theirs) = KernelSocket::new().unwrap();
        let number = line.as_fd().as_raw_fd().to_string();
        let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
        let infos: String = infos.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok()).collect();
        let listened_for = infos.lines().find_map(|info| {
            let mut words = info.strip_prefix("tfd:")?.split_whitespace();
            let (descriptor, _, events) = (words.next()?, words.next()?, words.next()?);
            (descriptor == number).then(|| u32::from_str_radix(events, 16).unwrap())
        });
        assert_eq!(listened_for.unwrap() & (EPOLLIN | EPOLLOUT), EPOLLIN);
    }
}
