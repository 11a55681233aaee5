//! Ten attempts to escape from a sandbox, made from inside it for `ringfence doctor`.
//!
//! Each is harmless if it succeeds: it only reads, connects, or changes its own process. The full list of attacks is the
//! escape suite under `tests/escape`.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use ringfence_sandbox::host::enter_user_namespace;
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// First argument of this program in the role that tries to escape.
pub(crate) const ROLE: &str = "escape";

/// Objects on the host that must not be reachable from the sandbox.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The id of a process on the host
    #[arg(long = "host-pid")]
    pid: i32,
    /// A TCP port on the host's loopback address
    #[arg(long = "host-port")]
    port: u16,
    /// The name of an abstract Unix socket on the host
    #[arg(long = "host-socket")]
    socket: String,
}

/// The result of an attempt.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attempt {
    #[serde(rename = "attempt")]
    pub(crate) name: String,
    pub(crate) contained: bool,
    pub(crate) saw: String,
}

pub(crate) const ATTEMPTS: usize = 10;

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let results: [(&str, Result<(), String>); ATTEMPTS] = [
        ("read the host's password hashes", fs::read("/etc/shadow").map(drop).map_err(text)),
        ("see a process of the host", see_process(arguments.pid)),
        ("write outside of the workspace", fs::write("/usr/ringfence-escape", "").map_err(text)),
        ("mount a file system", mount("none", "/tmp", "tmpfs", MountFlags::empty(), None).map_err(text)),
        ("take a descriptor of the init", take_descriptor().map_err(text)),
        ("read the init's environment", fs::read("/proc/1/environ").map_err(text).and_then(|bytes| non_empty(&bytes))),
        ("make a device node", make_device().map_err(text)),
        ("connect to a port of the host", connect(arguments.port)),
        ("connect to an abstract socket of the host", connect_abstract(&arguments.socket).map_err(text)),
        // Last, because its success would change the results of the others.
        ("become root of a new user namespace", enter_user_namespace().map_err(text)),
    ];
    let mut output = anstream::stdout();
    for (name, result) in results {
        let contained = result.is_err();
        let saw = result.err().unwrap_or_else(|| "the attempt succeeded".into());
        let line = serde_json::to_string(&Attempt { name: name.into(), contained, saw })
            .map_err(|error| Failure::new("cannot format the result of an attempt").caused_by(&error))?;
        writeln!(output, "{line}")
            .map_err(|error| Failure::new("cannot write to standard output").caused_by(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn see_process(pid: i32) -> Result<(), String> {
    let visible = Path::new("/proc").join(pid.to_string()).exists();
    if visible { Ok(()) } else { Err("the process is not in /proc".into()) }
}

fn non_empty(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() { Err("the file is empty".into()) } else { Ok(()) }
}

fn take_descriptor() -> rustix::io::Result<()> {
    let init = pidfd_open(Pid::INIT, PidfdFlags::empty())?;
    pidfd_getfd(init, 0, PidfdGetfdFlags::empty()).map(drop)
}

fn make_device() -> rustix::io::Result<()> {
    let path = "/tmp/ringfence-escape";
    let made = rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 1));
    if made.is_ok() {
        rustix::fs::unlink(path)?;
    }
    made
}

fn connect(port: u16) -> Result<(), String> {
    TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(text)
}

fn connect_abstract(name: &str) -> Result<(), Errno> {
    SocketAddr::from_abstract_name(name)
        .and_then(|address| UnixStream::connect_addr(&address))
        .map(drop)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
