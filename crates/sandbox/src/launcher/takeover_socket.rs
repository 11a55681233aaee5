//! The Unix socket through which another client adopts a launcher whose client has ended.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::short_path;
use crate::error::{Error, errno_of};

/// A listening socket. Dropping it removes its path.
pub(super) struct TakeoverSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl TakeoverSocket {
    pub(super) fn bind(path: PathBuf) -> Result<Self, Error> {
        let step = || format!("listen on {}", path.display());
        // The socket is renamed to its final path after it listens: clients remove a socket that refuses connections.
        let bound = short_path(&path).and_then(|(_directory, short)| {
            let temporary = short.with_extension("new");
            let listener = UnixListener::bind(&temporary)?;
            std::fs::rename(temporary, short).map(|()| listener)
        });
        let listener = bound.map_err(|error| errno_of(&error)).map_err(Error::setup(step()))?;
        listener.set_nonblocking(true).map_err(|error| errno_of(&error)).map_err(Error::setup(step()))?;
        Ok(Self { listener, path })
    }

    /// Accepts a connection of the same user or root. Ignores a client that has already disconnected: it would only
    /// extend the lease.
    pub(super) fn accept(&self) -> Option<OwnedFd> {
        let (stream, _) = self.listener.accept().ok()?;
        let mut watched = [PollFd::new(&stream, PollFlags::empty())];
        if poll(&mut watched, Some(&Timespec::default())) != Ok(0) {
            return None;
        }
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        let is_allowed = peer.uid == rustix::process::geteuid() || peer.uid.is_root();
        (is_allowed && stream.set_nonblocking(false).is_ok()).then(|| stream.into())
    }
}

impl AsFd for TakeoverSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for TakeoverSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
