//! Moves bytes from one descriptor to another, unchanged and without limit.
//!
//! A direction costs nothing until there is something to move; then it gets a thread of its own, so that
//! a reader that is slow holds up nothing else.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use crate::failure::Failure;

/// As much as one system call may move.
const CHUNK: usize = 256 << 10;

/// A direction in which bytes may move.
pub(super) struct Pump {
    waiting: Option<Ends>,
}

struct Ends {
    source: OwnedFd,
    sink: OwnedFd,
    /// Held for as long as bytes may still move; nobody waits for a direction that has none.
    _busy: Option<OwnedFd>,
}

impl Ends {
    /// Takes itself whole, so that nothing of it is let go before the last byte has moved.
    fn pump(self) {
        pump(&self.source, &self.sink);
    }
}

impl Pump {
    pub(super) fn new(source: OwnedFd, sink: OwnedFd, busy: Option<OwnedFd>) -> Self {
        Self { waiting: Some(Ends { source, sink, _busy: busy }) }
    }

    /// What to watch until the first bytes come.
    pub(super) fn source(&self) -> Option<BorrowedFd<'_>> {
        self.waiting.as_ref().map(|ends| ends.source.as_fd())
    }

    /// Moves until the source ends or the sink is closed; then both are closed.
    ///
    /// The thread is never joined: the process may end while it waits for input.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        let Some(ends) = self.waiting.take() else { return Ok(()) };
        let thread = thread::Builder::new().name("pump".into()).stack_size(64 << 10);
        thread
            .spawn(move || ends.pump())
            .map(drop)
            .map_err(|error| Failure::new("cannot start a thread").because(&error))
    }

    /// Starts if something is left to move, else closes both ends.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let left = self.source().is_some_and(|source| {
            let mut watched = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
            poll(&mut watched, Some(&rustix::event::Timespec::default())).is_ok()
                && watched[0].revents().contains(PollFlags::IN)
        });
        if left {
            return self.start();
        }
        self.waiting = None;
        Ok(())
    }
}

pub(super) fn stdin() -> Result<OwnedFd, Failure> {
    duplicate(rustix::stdio::stdin())
}

/// Whether standard input is `/dev/null`, as services and many clients have it.
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
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|errno| Failure::new("cannot duplicate a stream").because(&errno))
}

fn pump(source: &OwnedFd, sink: &OwnedFd) {
    loop {
        match splice(source, None, sink, None, CHUNK, SpliceFlags::MOVE) {
            Ok(0) => return,
            Ok(_) | Err(Errno::INTR) => {}
            // Neither end is a pipe, or the sink appends, or is a terminal.
            Err(Errno::INVAL | Errno::NOSYS) => return copy(source, sink),
            // Which of the two it was is not said.
            Err(Errno::AGAIN) => {
                wait_for(source, PollFlags::IN);
                wait_for(sink, PollFlags::OUT);
            }
            Err(_) => return,
        }
    }
}

fn copy(source: &OwnedFd, sink: &OwnedFd) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = match rustix::io::read(source, &mut buffer) {
            Ok(0) => return,
            Ok(length) => length,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                wait_for(source, PollFlags::IN);
                continue;
            }
            // A terminal without a process behind it answers EIO: its end.
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

/// A descriptor that we were given may be non-blocking; another process may depend on that, so it stays.
fn wait_for(fd: &OwnedFd, ready: PollFlags) {
    let _ = poll(&mut [PollFd::new(fd, ready)], None);
}
