//! The upstream on standard streams, called by whoever started it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{talk, upstream};

/// Dropped, it is ended.
pub(super) struct Pipe {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Pipe {
    pub(super) fn start(program: &Path) -> Result<Self> {
        let [program, role] = upstream(program);
        let mut command = Command::new(program);
        command.arg(role).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().context("the echo server cannot be started")?;
        let streams = process.stdin.take().zip(process.stdout.take());
        let (input, output) = streams.context("the echo server has no streams")?;
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    /// This upstream asks for no greetings.
    pub(super) fn call(&mut self) -> Result<Duration> {
        let body = talk::echo("echo");
        let start = Instant::now();
        self.input.write_all(format!("{body}\n").as_bytes())?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(talk::is_answer(line.as_bytes()), "the echo server answered {line:?}");
        Ok(start.elapsed())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
