//! Copies bytes from one descriptor to another, unchanged and without limit.
//!
//! A pump starts its thread only when there are bytes to copy. Each has its own thread, so that a slow reader does not
//! block the others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use crate::failure::Failure;

/// Maximum number of bytes that one system call copies.
const CHUNK_BYTES: usize = 256 << 10;

/// A pair of descriptors between which bytes are copied once there are any.
pub(super) struct Pump {
    /// `None` once the pump has started.
    idle: Option<Ends>,
}

struct Ends {
    source: OwnedFd,
    sink: OwnedFd,
    /// Open for as long as bytes may still be copied. `None` if the exit of the program need not wait for this pump.
    _busy: Option<OwnedFd>,
}

impl Ends {
    /// Consumes `self`, so that all descriptors stay open until the last byte is copied.
    fn copy(self) {
        copy_by_splice(&self.source, &self.sink);
    }
}

impl Pump {
    pub(super) fn new(source: OwnedFd, sink: OwnedFd, busy: Option<OwnedFd>) -> Self {
        Self { idle: Some(Ends { source, sink, _busy: busy }) }
    }

    /// Returns the source while the pump has not started, to wait for its first bytes.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.idle.as_ref().map(|ends| ends.source.as_fd())
    }

    /// Copies in a thread until the source ends or the sink is closed, then closes both.
    ///
    /// The thread is never joined: the process may exit while the thread waits for input.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        let Some(ends) = self.idle.take() else { return Ok(()) };
        let thread = thread::Builder::new().name("pump".into()).stack_size(64 << 10);
        thread
            .spawn(move || ends.copy())
            .map(drop)
            .map_err(|error| Failure::new("cannot start a thread").caused_by(&error))
    }

    /// Starts the pump if its source has bytes, otherwise closes both ends.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let has_bytes = self.source().is_some_and(|source| {
            let mut watched = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
            poll(&mut watched, Some(&rustix::event::Timespec::default())).is_ok()
                && watched[0].revents().contains(PollFlags::IN)
        });
        if has_bytes {
            return self.start();
        }
        self.idle = None;
        Ok(())
    }
}

pub(super) fn stdin() -> Result<OwnedFd, Failure> {
    duplicate(rustix::stdio::stdin())
}

/// Returns true if standard input is `/dev/null`, as in services and under many MCP clients.
pub(super) fn stdin_is_null() -> bool {
    rustix::fs::fstat(rustix::stdio::stdin()).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == rustix::fs::makedev(1, 3)
    })
}

pub(super) fn stdout() -> Result<OwnedFd, Failure> {
    duplicate(rustix::stdio::stdout())
}

pub(super) fn stderr() -> Result<OwnedFd, Failure> {
    duplicate(rustix::stdio::stderr())
}

pub(super) fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Failure> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|errno| Failure::new("cannot duplicate a stream").caused_by(&errno))
}

fn copy_by_splice(source: &OwnedFd, sink: &OwnedFd) {
    loop {
        match splice(source, None, sink, None, CHUNK_BYTES, SpliceFlags::MOVE) {
            Ok(0) => return,
            Ok(_) | Err(Errno::INTR) => {}
            // Neither end is a pipe, or the sink is a terminal or a file in append mode.
            Err(Errno::INVAL | Errno::NOSYS) => return copy_by_read_write(source, sink),
            // The error does not say which of the two is not ready.
            Err(Errno::AGAIN) => {
                wait_for(source, PollFlags::IN);
                wait_for(sink, PollFlags::OUT);
            }
            Err(_) => return,
        }
    }
}

fn copy_by_read_write(source: &OwnedFd, sink: &OwnedFd) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let length = match rustix::io::read(source, &mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait_for(source, PollFlags::IN);
                continue;
            }
            // EIO is the end of a terminal that no process has open any more.
            Err(_) => return,
        };
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            match rustix::io::write(sink, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(sink, PollFlags::OUT),
                Err(_) => return,
            }
        }
    }
}

/// Waits until the descriptor is ready. Inherited descriptors may be non-blocking, and are left so, since another process
/// may depend on it.
fn wait_for(fd: &OwnedFd, ready: PollFlags) {
    let _ = poll(&mut [PollFd::new(fd, ready)], None);
}
