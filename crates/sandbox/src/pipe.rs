//! Pipes for the standard streams of a guest's process.
//!
//! A guest has another uid than the process that made its pipes. It inherits its ends, but programs open `/dev/stdout`
//! and the like again through /proc, and then the mode of the pipe decides. No other process can find the pipe there.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Result;
use rustix::pipe::{PipeFlags, pipe_with};

/// One side's ends of standard input, output and error, in this order.
pub type Ends = [OwnedFd; 3];

/// Creates the three pipes. Returns the guest's ends and the host's ends.
pub fn standard_streams() -> Result<(Ends, Ends)> {
    let (stdin, input) = pipe_with(PipeFlags::CLOEXEC)?;
    let (output, stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (errors, stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let owner = Mode::RUSR | Mode::WUSR;
    fchmod(&stdin, owner | Mode::RGRP | Mode::ROTH)?;
    for written in [&stdout, &stderr] {
        fchmod(written, owner | Mode::WGRP | Mode::WOTH)?;
    }
    Ok(([stdin, stdout, stderr], [input, output, errors]))
}

/// Whether all data was read and all writers have closed the pipe.
pub fn is_at_eof(stream: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
        && !watched[0].revents().contains(PollFlags::IN)
}
