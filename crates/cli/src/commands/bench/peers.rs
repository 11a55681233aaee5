//! Programs that print something and end: bare interpreters, and the same in other sandboxes.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::turns::Contestant;

/// For a program to print something.
const DEADLINE: Duration = Duration::from_secs(30);

/// A contestant that runs a program until it has printed.
pub(super) fn program<'a>(name: impl Into<String>, command: Vec<OsString>) -> Contestant<'a> {
    Contestant::new(name, move || time_to_print(&command))
}

/// The same behind bubblewrap.
pub(super) fn bubblewrap<'a>(name: &str, command: &[OsString]) -> Contestant<'a> {
    let before = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc"];
    let whole = before.iter().chain(&["--dev", "/dev", "--"]).map(OsString::from).chain(command.iter().cloned());
    program(format!("bwrap, {name}"), whole.collect())
}

/// A command line.
pub(super) fn words(program: &Path, arguments: &[&str]) -> Vec<OsString> {
    std::iter::once(program.into()).chain(arguments.iter().map(OsString::from)).collect()
}

/// From before a program is started until its first output is here. It is then read to its end.
pub(super) fn time_to_print(command: &[OsString]) -> Result<Duration> {
    let start = Instant::now();
    let mut process = Running(spawn(command)?);
    let mut stdout = process.0.stdout.take().context("it has no standard output")?;
    let mut time = None;
    while read_some(&mut stdout, start + DEADLINE)? > 0 {
        time.get_or_insert_with(|| start.elapsed());
    }
    process.await_end(start + DEADLINE)?;
    let Some(time) = time else {
        let mut said = String::new();
        let _ = process.0.stderr.take().map(|stderr| stderr.take(4096).read_to_string(&mut said));
        // Where there is a traceback, the last line says most.
        bail!("it printed nothing: {}", said.trim().lines().last().unwrap_or_default());
    };
    Ok(time)
}

fn read_some(stdout: &mut ChildStdout, deadline: Instant) -> Result<usize> {
    let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap_or_default();
    if poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&left))? == 0 {
        bail!("it did not end in {} s", DEADLINE.as_secs());
    }
    Ok(stdout.read(&mut [0; 4096])?)
}

fn spawn(command: &[OsString]) -> Result<Child> {
    let [program, arguments @ ..] = command else { bail!("there is no command") };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => anyhow::anyhow!("{} is not installed", program.display()),
        _ => error.into(),
    })
}

/// A process that is ended when it is no longer wanted.
struct Running(Child);

impl Running {
    fn await_end(&mut self, deadline: Instant) -> Result<()> {
        while self.0.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("it did not end in {} s", DEADLINE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str) -> Result<Duration> {
        time_to_print(&words(Path::new("/bin/sh"), &["-c", script]))
    }

    #[test]
    fn the_first_output_counts() {
        assert!(run("echo 1; sleep 0.3").unwrap() < run("sleep 0.3; echo 1").unwrap());
    }

    #[test]
    fn one_that_prints_nothing_says_why() {
        assert!(run("echo no such image >&2; exit 1").unwrap_err().to_string().contains("no such image"));
        let missing = time_to_print(&words(Path::new("/nowhere/podman"), &[])).unwrap_err();
        assert_eq!(missing.to_string(), "/nowhere/podman is not installed");
    }
}
