//! Ten ways out of a sandbox, tried from inside it by `ringfence doctor`.
//!
//! Each is harmless where it is not contained: it reads, asks, or changes only itself. The full list of
//! attempts is the escape suite under `tests/escape`.

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

/// Marks on the host that must not be reachable from inside.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A process of the host
    #[arg(long = "host-pid")]
    pid: i32,
    /// A TCP port on the host's loopback address
    #[arg(long = "host-port")]
    port: u16,
    /// The name of an abstract socket of the host
    #[arg(long = "host-socket")]
    socket: String,
}

/// What came of an attempt.
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
        ("read the host's password hashes", fs::read("/etc/shadow").map(drop).map_err(say)),
        ("see a process of the host", see_process(arguments.pid)),
        ("write outside of the workspace", fs::write("/usr/ringfence-escape", "").map_err(say)),
        ("mount a file system", mount("none", "/tmp", "tmpfs", MountFlags::empty(), None).map_err(say)),
        ("take a descriptor of the init", take_descriptor().map_err(say)),
        ("read the init's environment", fs::read("/proc/1/environ").map_err(say).and_then(|bytes| non_empty(&bytes))),
        ("make a device node", make_device().map_err(say)),
        ("connect to a port of the host", connect(arguments.port)),
        ("connect to an abstract socket of the host", connect_abstract(&arguments.socket).map_err(say)),
        // Last, because where it succeeds it changes what the others would find.
        ("become root of a new user namespace", enter_user_namespace().map_err(say)),
    ];
    let mut output = anstream::stdout();
    for (name, result) in results {
        let contained = result.is_err();
        let saw = result.err().unwrap_or_else(|| "it succeeded".into());
        let line = serde_json::to_string(&Attempt { name: name.into(), contained, saw })
            .map_err(|error| Failure::new("an attempt cannot be reported").because(&error))?;
        writeln!(output, "{line}").map_err(|error| Failure::new("nobody reads the report").because(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn say(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn see_process(pid: i32) -> Result<(), String> {
    let visible = Path::new("/proc").join(pid.to_string()).exists();
    if visible { Ok(()) } else { Err("it is not in /proc".into()) }
}

fn non_empty(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() { Err("it is empty".into()) } else { Ok(()) }
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
    TcpStream::connect(("127.0.0.1", port)).map(drop).map_err(say)
}

fn connect_abstract(name: &str) -> Result<(), Errno> {
    SocketAddr::from_abstract_name(name)
        .and_then(|address| UnixStream::connect_addr(&address))
        .map(drop)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
