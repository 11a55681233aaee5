//! Moves bytes from one descriptor to another, unchanged and without limit, in a thread of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use crate::failure::Failure;

/// As much as one system call may move.
const CHUNK: usize = 256 << 10;

/// Starts a thread that pumps until the source ends or the sink is closed; then both are closed.
///
/// `busy` is held for as long as it runs. The thread is never joined: the process may end while it
/// waits for input.
pub(super) fn start(source: OwnedFd, sink: OwnedFd, busy: Option<OwnedFd>) -> Result<(), Failure> {
    let pump = move || {
        pump(&source, &sink);
        drop((source, sink, busy));
    };
    let thread = thread::Builder::new().name("pump".into()).stack_size(64 << 10).spawn(pump);
    thread.map(drop).map_err(|error| Failure::new("cannot start a thread").because(&error))
}

pub(super) fn stdin() -> Result<OwnedFd, Failure> {
    duplicate(rustix::stdio::stdin())
}

pub(super) fn stdout() -> Result<OwnedFd, Failure> {
    duplicate(rustix::stdio::stdout())
}

pub(super) fn stderr() -> Result<OwnedFd, Failure> {
    duplicate(rustix::stdio::stderr())
}

fn duplicate(fd: impl AsFd) -> Result<OwnedFd, Failure> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|errno| Failure::new("a standard stream is closed").because(&errno))
}

fn pump(source: &OwnedFd, sink: &OwnedFd) {
    loop {
        match splice(source, None, sink, None, CHUNK, SpliceFlags::MOVE) {
            Ok(0) => return,
            Ok(_) | Err(Errno::INTR) => {}
            // Neither end is a pipe, or the sink appends, or is a terminal.
            Err(Errno::INVAL | Errno::NOSYS) => return copy(source, sink),
            Err(Errno::AGAIN) => wait_for(source, sink),
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
                wait_for(source, sink);
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
                Err(Errno::AGAIN) => wait_for(source, sink),
                Err(_) => return,
            }
        }
    }
}

/// A descriptor that we were given may be non-blocking; another process may depend on that, so it stays.
fn wait_for(source: &OwnedFd, sink: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags, poll};
    let _ = poll(&mut [PollFd::new(source, PollFlags::IN)], None);
    let _ = poll(&mut [PollFd::new(sink, PollFlags::OUT)], None);
}
