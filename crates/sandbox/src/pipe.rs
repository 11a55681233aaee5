//! The pipes that are a guest's standard streams.
//!
//! A pipe belongs to whoever made it, and a guest has another id. It has its end already; but `/dev/stdout` and its like
//! open a stream once more, by its name in /proc, and for that the mode counts. Nobody else finds the pipe there.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Result;
use rustix::pipe::{PipeFlags, pipe_with};

/// The ends of standard input, output and error that one side has, in this order.
pub type Ends = [OwnedFd; 3];

/// The guest's ends, and the host's.
pub fn standard_streams() -> Result<(Ends, Ends)> {
    let (stdin, input) = pipe_with(PipeFlags::CLOEXEC)?;
    let (output, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (errors, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let own = Mode::RUSR | Mode::WUSR;
    fchmod(&stdin, own | Mode::RGRP | Mode::ROTH)?;
    for written in [&stdout, &stderr] {
        fchmod(written, own | Mode::WGRP | Mode::WOTH)?;
    }
    Ok(([stdin, stdout, stderr], [input, output, errors]))
}

/// Whether nothing is to be read from it, nor ever will be.
pub fn is_at_eof(stream: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && !watched[0].revents().contains(PollFlags::IN)
}
