//! Calls the stdio upstream directly, over the pipes of a child process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::echo_client::{echo_request, is_echo_response};
use crate::child::KillOnDrop;
use crate::peers::echo_stdio;

pub(super) struct StdioClient {
    _process: KillOnDrop,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl StdioClient {
    pub(super) fn start(echo_program: &Path) -> Result<Self> {
        let [program, role] = echo_stdio::command_line(echo_program);
        let mut command = Command::new(program);
        command.arg(role).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = KillOnDrop(command.spawn().context("cannot start the echo server")?);
        let streams = process.0.stdin.take().zip(process.0.stdout.take());
        let (input, output) = streams.context("the echo server has no streams")?;
        Ok(Self { _process: process, input, output: BufReader::new(output) })
    }

    /// Calls `echo`. This upstream needs no `initialize`.
    pub(super) fn call(&mut self) -> Result<Duration> {
        let request = echo_request("echo");
        let start = Instant::now();
        self.input.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(is_echo_response(line.as_bytes()), "unexpected response of the echo server: {line:?}");
        Ok(start.elapsed())
    }
}
