//! The host's end of an interpreter's socket.
//!
//! The wake-up of an idle CPU costs as much as a short cell, so this module avoids spurious wake-ups. A Unix socket
//! reports that it is writable after every read of the peer; [`KernelSocket`] therefore registers for writability only
//! while the socket is full.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::net::unix::pipe::{Receiver, Sender};

use ringfence_guest::KernelBuffer;

const READ_BYTES: usize = 64 << 10;

/// Pause before the next attempt to send if the socket cannot be registered for writability.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A connected Unix socket. It is registered with the tokio runtime as the reading end of a pipe, so its task is woken
/// only when there is input or the peer has closed.
pub struct KernelSocket(Receiver);

impl KernelSocket {
    /// Creates a socket pair. Returns the host's end and the interpreter's end.
    pub fn new() -> Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::from_socket(ours.into())?, theirs.into()))
    }

    /// Uses a socket that was connected earlier.
    pub fn from_socket(socket: OwnedFd) -> Result<Self> {
        let socket = UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Receiver::from_owned_fd_unchecked(socket.into()).map(Self)
    }

    /// Sends as much as fits into the socket buffer, without waiting. Returns the number of bytes sent. On an error
    /// that is 0; [`Self::send_some`] and [`Self::receive`] return the error.
    pub fn try_send(&self, bytes: &[u8]) -> usize {
        self.send(bytes).unwrap_or_default()
    }

    /// Waits until a part of the bytes can be sent, and returns its length. Cancel-safe.
    pub async fn send_some(&self, bytes: &[u8]) -> Result<usize> {
        loop {
            match self.send(bytes) {
                Err(Errno::AGAIN) => match self.writability() {
                    Ok(writability) => writability.writable().await?,
                    // For example, this process has no free descriptors. The socket itself works.
                    Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
                },
                sent => return Ok(sent?),
            }
        }
    }

    /// Returns a duplicate of the descriptor that is registered for writability.
    fn writability(&self) -> Result<Sender> {
        Sender::from_owned_fd_unchecked(self.as_fd().try_clone_to_owned()?)
    }

    fn send(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    /// Whether [`Self::receive`] would return immediately.
    pub fn has_input(&self) -> bool {
        recv(&self.0, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) != Err(Errno::AGAIN)
    }

    /// Waits for input and appends it to the buffer. Fails if the interpreter has closed the socket. Cancel-safe.
    pub async fn receive(&self, buffer: &mut KernelBuffer) -> Result<()> {
        let received = buffer.reserve(READ_BYTES);
        let mut length = rustix::io::read(&self.0, spare_capacity(received)).map_err(Error::from);
        loop {
            match length {
                Ok(0) => return Err(Error::new(ErrorKind::UnexpectedEof, "the interpreter has closed its socket")),
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

    /// Whether the future is ready when it is polled for the first time.
    async fn is_ready(work: impl Future) -> bool {
        tokio::time::timeout(Duration::ZERO, work).await.is_ok()
    }

    #[tokio::test]
    async fn input_is_received_before_and_while_waiting() {
        let (socket, theirs) = KernelSocket::new().unwrap();
        let mut theirs = UnixStream::from(theirs);
        let mut received = KernelBuffer::default();
        assert!(!socket.has_input() && !is_ready(socket.receive(&mut received)).await);
        theirs.write_all(b"one ").unwrap();
        assert!(socket.has_input());
        assert!(is_ready(socket.receive(&mut received)).await);
        for word in ["two ", "three"] {
            let waiting = tokio::time::timeout(LONG, socket.receive(&mut received));
            let (received_all, ()) = tokio::join!(waiting, async { theirs.write_all(word.as_bytes()).unwrap() });
            received_all.unwrap().unwrap();
        }
        assert_eq!(received.unread(), b"one two three");
        drop(theirs);
        assert!(socket.has_input());
        let closed = tokio::time::timeout(LONG, socket.receive(&mut received)).await.unwrap();
        assert_eq!(closed.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn sending_waits_while_socket_is_full() {
        let (socket, theirs) = KernelSocket::new().unwrap();
        let mut theirs = UnixStream::from(theirs);
        let bytes = vec![b'x'; 4 << 20];
        let mut sent = socket.try_send(&bytes);
        assert!(sent < bytes.len() && !is_ready(socket.send_some(&bytes[sent..])).await);
        let reader = std::thread::spawn(move || {
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).map(|_| read)
        });
        while sent < bytes.len() {
            sent += tokio::time::timeout(LONG, socket.send_some(&bytes[sent..])).await.unwrap().unwrap();
        }
        drop(socket);
        assert_eq!(reader.join().unwrap().unwrap(), bytes);
    }

    #[tokio::test]
    async fn idle_socket_is_not_registered_for_writability() {
        const EPOLLIN: u32 = 1;
        const EPOLLOUT: u32 = 4;
        let (socket, _theirs) = KernelSocket::new().unwrap();
        let number = socket.as_fd().as_raw_fd().to_string();
        let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
        let infos: String = infos.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok()).collect();
        let registered = infos.lines().find_map(|info| {
            let mut words = info.strip_prefix("tfd:")?.split_whitespace();
            let (descriptor, _, events) = (words.next()?, words.next()?, words.next()?);
            (descriptor == number).then(|| u32::from_str_radix(events, 16).unwrap())
        });
        assert_eq!(registered.unwrap() & (EPOLLIN | EPOLLOUT), EPOLLIN);
    }
}
