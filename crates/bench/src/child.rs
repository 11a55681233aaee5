//! Child processes of the benchmark. None of them outlives it.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write as _;
use std::num::NonZero;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::programs::own_path;

/// First argument of this program in the role of a child that executes a server and must not outlive the benchmark.
pub(crate) const ROLE: &str = "run-child";

/// A process that is killed and reaped when this handle is dropped.
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a command that executes the program in a child process. The child receives SIGTERM when the benchmark dies.
///
/// The child is this program in [`ROLE`]: it sets its parent-death signal, which is preserved by execve(2), and waits
/// for [`release`] before it executes the program. The start of this role is therefore not part of measured times.
pub(crate) fn bound_command(program: &Path) -> Result<Command> {
    let mut command = Command::new(own_path()?);
    command.arg(ROLE).arg(std::process::id().to_string()).arg(program).stdin(Stdio::piped());
    Ok(command)
}

/// Lets a child of [`bound_command`] execute its program.
pub(crate) fn release(stdin: &mut ChildStdin) -> Result<()> {
    stdin.write_all(b"\n").context("the child process has ended")
}

/// The role [`ROLE`]: waits for [`release`], then executes the command.
pub(crate) fn run_role(mut command: impl Iterator<Item = OsString>) -> Result<Infallible> {
    let parent = command.next().and_then(|pid| pid.to_str()?.parse().ok()).context("no parent was given")?;
    let program = command.next().context("no program was given")?;
    set_parent_process_death_signal(Some(Signal::TERM)).context("cannot set the parent-death signal")?;
    // Read without a buffer, so that the program gets all bytes after the first.
    let is_released = rustix::io::read(rustix::stdio::stdin(), &mut [0; 1])? > 0;
    // A parent that died before the signal was set sends none, but may have released the child.
    if !is_released || getppid().map(Pid::as_raw_nonzero) != NonZero::new(parent) {
        bail!("the benchmark has ended");
    }
    let error = Command::new(&program).args(command).exec();
    Err(error).with_context(|| format!("cannot execute {}", program.display()))
}
