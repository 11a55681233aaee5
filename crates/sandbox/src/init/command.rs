//! Starts commands. Programs are searched for on the guest's PATH, and get only the descriptors of the request.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::termios::Winsize;

use crate::error::{SetupError, SetupStep};
use crate::sys;
use crate::sys::{ExecStrings, StandardStreams};
use ringfence_core::Command;
use ringfence_core::SpecError;

const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A command whose C strings are ready.
#[derive(Debug)]
pub(crate) struct PreparedCommand {
    argv: ExecStrings,
    environment: ExecStrings,
    path: String,
    workdir: PathBuf,
}

/// The descriptors of a process.
pub(crate) enum ProcessStreams {
    /// From 0 on.
    Descriptors(Vec<OwnedFd>),
    /// A new terminal of this size in the sandbox. The host gets its controlling side.
    Terminal(Winsize),
}

impl ProcessStreams {
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Self::Descriptors(descriptors) => descriptors.iter().map(AsRawFd::as_raw_fd).collect(),
            Self::Terminal(_) => Vec::new(),
        }
    }
}

impl PreparedCommand {
    pub(crate) fn new(command: &Command, environment: &BTreeMap<String, String>) -> Result<Self, SpecError> {
        let argv = command.argv.iter().map(|argument| CString::new(argument.clone().into_vec()));
        let pairs = environment.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        Ok(Self {
            argv: ExecStrings::new(argv.collect::<Result<_, _>>().map_err(|_| SpecError::NoCommand)?),
            environment: ExecStrings::new(
                pairs.collect::<Result<_, _>>().map_err(|_| SpecError::Environment("(NUL)".into()))?,
            ),
            path: environment.get("PATH").cloned().unwrap_or_else(|| DEFAULT_PATH.into()),
            workdir: command.workdir.clone(),
        })
    }

    /// Changes to the working directory of the command.
    pub(crate) fn enter_workdir(&self) -> Result<(), SetupError> {
        rustix::process::chdir(&self.workdir).step(|| format!("enter the working directory {}", self.workdir.display()))
    }

    /// Finds the program as a shell does: a name with a slash is a path, other names are searched for on PATH.
    fn resolve(&self) -> Result<CString, Errno> {
        let name = Path::new(OsStr::from_bytes(self.argv.first().ok_or(Errno::NOENT)?.to_bytes()));
        let candidates: Vec<PathBuf> = if name.as_os_str().as_bytes().contains(&b'/') {
            vec![name.to_owned()]
        } else {
            self.path.split(':').filter(|part| !part.is_empty()).map(|part| Path::new(part).join(name)).collect()
        };
        let mut error = Errno::NOENT;
        for candidate in candidates {
            match rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK) {
                Ok(()) if candidate.is_dir() => error = Errno::ACCESS,
                Ok(()) => return CString::new(candidate.into_os_string().into_vec()).map_err(|_| Errno::INVAL),
                Err(Errno::ACCESS) => error = Errno::ACCESS,
                Err(_) => {}
            }
        }
        Err(error)
    }
}

/// Starts a command. Returns its pid, and the controlling side of its terminal if it has one.
pub(crate) fn start(command: &PreparedCommand, streams: ProcessStreams) -> Result<(Pid, Option<OwnedFd>), Errno> {
    let program = command.resolve()?;
    // All descriptors should be close-on-exec already. This makes sure that none reaches the guest.
    sys::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed())?;
    match streams {
        ProcessStreams::Descriptors(descriptors) => {
            let streams = StandardStreams::Descriptors(descriptors.iter().map(AsFd::as_fd).collect());
            Ok((sys::spawn(&program, &command.argv, &command.environment, &streams)?, None))
        }
        ProcessStreams::Terminal(size) => {
            let controlling = open_terminal(size)?;
            let path = rustix::pty::ptsname(&controlling, Vec::new())?;
            let streams = StandardStreams::Terminal(&path);
            Ok((sys::spawn(&program, &command.argv, &command.environment, &streams)?, Some(controlling)))
        }
    }
}

fn open_terminal(size: Winsize) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let controlling = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty())?;
    rustix::pty::unlockpt(&controlling)?;
    // Before the command starts, so that it sees this size from the beginning.
    rustix::termios::tcsetwinsize(&controlling, size)?;
    Ok(controlling)
}
