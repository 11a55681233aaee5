//! Starts a real sandbox with the default configuration and tries to escape from it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use ringfence_core::{Access, Flavors, Language, Template, Volume};
use ringfence_sandbox::{Stdio, Streams};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::escape::{self, ATTEMPTS, Attempt};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Path of this program in the sandbox.
const PROGRAM: &str = "/opt/ringfence";

/// Maximum size of the program's output, more than the lines of all attempts. The rest is not read.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    attempts: Vec<Attempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hints: Vec<String>,
}

impl Outcome {
    pub(super) fn passed(&self) -> bool {
        self.error.is_none() && self.attempts.len() == ATTEMPTS && self.attempts.iter().all(|attempt| attempt.contained)
    }

    pub(super) fn write_text(&self, text: &mut String) {
        *text += "\nSelf-test: ten attempts to escape from a sandbox\n";
        for Attempt { name, contained, saw } in &self.attempts {
            let state = if *contained { "ok" } else { "ESCAPED" };
            let _ = writeln!(text, "{state:8} {name}: {saw}");
        }
        if let Some(error) = &self.error {
            let _ = writeln!(text, "MISSING  {error}");
        }
        for hint in &self.hints {
            let _ = writeln!(text, "         hint: {hint}");
        }
    }
}

pub(super) fn run() -> Outcome {
    match try_to_escape() {
        Ok(attempts) => {
            let complete = attempts.len() == ATTEMPTS;
            let error = (!complete).then(|| format!("only {} of {ATTEMPTS} attempts were reported", attempts.len()));
            Outcome { attempts, error, hints: Vec::new() }
        }
        Err((error, hints)) => Outcome { attempts: Vec::new(), error: Some(error), hints },
    }
}

/// A message and hints.
type SelfTestError = (String, Vec<String>);

fn try_to_escape() -> Result<Vec<Attempt>, SelfTestError> {
    let plain = |error: std::io::Error| (format!("cannot prepare the self-test: {error}"), Vec::new());
    // Real objects on the host: to reach one of them is a real escape.
    let port = TcpListener::bind(("127.0.0.1", 0)).map_err(plain)?;
    let name = format!("ringfence-doctor-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).map_err(plain)?;
    let _socket = UnixListener::bind_addr(&address).map_err(plain)?;
    let host_port = port.local_addr().map_err(plain)?.port();

    let command = [PROGRAM, escape::ROLE, "--host-pid", &std::process::id().to_string()].map(Into::into);
    let targets = ["--host-port", &host_port.to_string(), "--host-socket", &name].map(Into::into);
    let flavors = Flavors::default();
    let flavor = flavors.iter().next().ok_or_else(|| ("no flavor is defined".to_owned(), Vec::new()))?;
    let mut spec = Template::builtin(Language::Bash).spec(flavor, command.into_iter().chain(targets).collect());
    let program = std::env::current_exe().map_err(plain)?;
    spec.volumes.push(Volume { host: program, guest: PROGRAM.into(), access: Access::ReadOnly, allowed_root: None });

    let (sandbox, streams) = ringfence_sandbox::start(&spec, Stdio::Pipes).map_err(|error| {
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            let _ = write!(message, ": {cause}");
            source = cause.source();
        }
        (message, error.hints())
    })?;
    let output = read_output(streams).map_err(plain)?;
    sandbox.finish(None);
    Ok(output.lines().filter_map(|line| serde_json::from_str(line).ok()).take(ATTEMPTS).collect())
}

/// Returns the output of the program until it ends or the timeout is reached.
fn read_output(mut streams: Streams) -> std::io::Result<String> {
    let Some([_, stdout, _]) = streams.take_pipes() else { return Ok(String::new()) };
    let deadline = Instant::now() + TIMEOUT;
    let mut output = Vec::new();
    let mut stdout = File::from(stdout).take(MAX_OUTPUT_BYTES);
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(remaining).unwrap_or_default();
        if poll(&mut [PollFd::new(stdout.get_ref(), PollFlags::IN)], Some(&timeout))? == 0 {
            break;
        }
        let mut chunk = [0; 4096];
        match stdout.read(&mut chunk)? {
            0 => break,
            length => output.extend_from_slice(&chunk[..length]),
        }
    }
    Ok(String::from_utf8_lossy(&output).into_owned())
}
