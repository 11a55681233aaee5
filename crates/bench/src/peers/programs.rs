//! Programs that print something and exit: bare interpreters, and the same under bubblewrap.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::child::KillOnDrop;
use crate::sampling::Candidate;

/// Maximum run time of a program.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns a candidate that runs a program and measures the time to its first output.
pub(crate) fn program<'a>(name: impl Into<String>, command: Vec<OsString>) -> Candidate<'a> {
    Candidate::new(name, move || time_to_first_output(&command))
}

/// Returns the same candidate under bubblewrap.
pub(crate) fn bubblewrap<'a>(name: &str, command: &[OsString]) -> Candidate<'a> {
    let prefix = "bwrap --unshare-all --die-with-parent --ro-bind / / --proc /proc --dev /dev --";
    let whole = prefix.split(' ').map(OsString::from).chain(command.iter().cloned());
    program(format!("bwrap, {name}"), whole.collect())
}

pub(crate) fn command_line(program: &Path, arguments: &[&str]) -> Vec<OsString> {
    std::iter::once(program.into()).chain(arguments.iter().map(OsString::from)).collect()
}

/// Returns the time from the start of a program to its first output. Reads all output and waits for the exit.
pub(crate) fn time_to_first_output(command: &[OsString]) -> Result<Duration> {
    let start = Instant::now();
    let deadline = start + TIMEOUT;
    let mut process = KillOnDrop(spawn(command)?);
    let mut stdout = process.0.stdout.take().context("the program has no standard output")?;
    let mut time = None;
    while read(&mut stdout, deadline)? > 0 {
        time.get_or_insert_with(|| start.elapsed());
    }
    wait(&mut process.0, deadline)?;
    let Some(time) = time else {
        let mut error_output = String::new();
        let _ = process.0.stderr.take().map(|stderr| stderr.take(4096).read_to_string(&mut error_output));
        // In a traceback the last line names the error.
        bail!("no output: {}", error_output.trim().lines().last().unwrap_or_default());
    };
    Ok(time)
}

fn read(stdout: &mut ChildStdout, deadline: Instant) -> Result<usize> {
    let remaining = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap_or_default();
    if poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&remaining))? == 0 {
        bail!("timeout after {} s", TIMEOUT.as_secs());
    }
    Ok(stdout.read(&mut [0; 4096])?)
}

fn wait(process: &mut Child, deadline: Instant) -> Result<()> {
    while process.try_wait()?.is_none() {
        if Instant::now() > deadline {
            bail!("timeout after {} s", TIMEOUT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn spawn(command: &[OsString]) -> Result<Child> {
    let [program, arguments @ ..] = command else { bail!("the command is empty") };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!("{} is not installed", program.display()),
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> Result<Duration> {
        time_to_first_output(&command_line(Path::new("/bin/sh"), &["-c", script]))
    }

    #[test]
    fn time_ends_at_the_first_output() {
        assert!(run("echo 1; sleep 0.2").unwrap() < run("sleep 0.2; echo 1").unwrap());
    }

    #[test]
    fn errors_have_the_last_line_of_standard_error() {
        assert!(run("echo no such image >&2; exit 1").unwrap_err().to_string().contains("no such image"));
        let missing = time_to_first_output(&command_line(Path::new("/nowhere/podman"), &[])).unwrap_err();
        assert_eq!(missing.to_string(), "/nowhere/podman is not installed");
    }
}
