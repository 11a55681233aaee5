//! The errors of this crate.
//!
//! Each message names the object and the cause; [`Error::hints`] gives the next steps for the user.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::io::Errno;

use ringfence_core::{SpecError, Weakness};

const DOCTOR_HINT: &str = "`ringfence doctor` checks every protection of this host";

/// The reason why a sandbox could not be started, reached or taken over.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("this host lacks {protection}: {reason}")]
    MissingProtection { protection: &'static str, reason: String, remedy: String, weakness: Option<Weakness> },
    #[error("the host has run out of {resource}")]
    ResourceExhausted { resource: &'static str, remedy: String },
    #[error("a sandbox can only be started from a process with one thread, but this process has {0}")]
    MultipleThreads(usize),
    #[error("cannot mount volume {}", path.display())]
    Volume { path: PathBuf, source: Errno, hint: String },
    /// A step of the setup failed. `step` completes the sentence "cannot …".
    #[error("cannot {step}")]
    Setup { step: String, source: Errno },
    #[error("command not found: {}", name.display())]
    CommandNotFound { name: OsString },
    #[error("command cannot be executed: {}", name.display())]
    CommandNotExecutable { name: OsString, source: Errno },
    /// An error that the launcher reported, with its own message and hints.
    #[error("{message}")]
    Refused { message: String, hints: Vec<String> },
    #[error("the zygote process ended or did not respond in time")]
    ZygoteLost,
    #[error("the sandbox ended unexpectedly")]
    SandboxLost,
    #[error("the launcher process ended or did not respond in time")]
    LauncherLost,
    #[error("the sandbox accepts no requests: the request queue of its init is full")]
    SandboxBusy,
    /// A peer sent something that the protocol does not allow.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
}

impl Error {
    /// The next steps for the user, most specific first.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Spec(error) => error.hints(),
            Self::MissingProtection { remedy, weakness, .. } => {
                let mut hints = vec![remedy.clone()];
                hints.extend(weakness.map(|weakness| {
                    format!("or accept that this protection is missing: add `{}` to --accept", weakness.name())
                }));
                hints.push(DOCTOR_HINT.into());
                hints
            }
            Self::ResourceExhausted { remedy, .. } => vec![remedy.clone()],
            Self::Volume { hint, .. } => vec![hint.clone()],
            Self::Refused { hints, .. } => hints.clone(),
            Self::Setup { .. } => vec![DOCTOR_HINT.into()],
            Self::CommandNotFound { name } => vec![format!(
                "`{}` is searched for inside the sandbox, on the sandbox's PATH; mount programs from outside of /usr with --volume",
                name.display()
            )],
            Self::CommandNotExecutable { .. } => vec![
                "the file must be a program or a script with a `#!` line, have execute permission, and its interpreter must exist in the sandbox"
                    .into(),
            ],
            Self::SandboxLost => {
                vec!["start a new sandbox; the kernel log (`dmesg`) shows whether the kernel killed this one".into()]
            }
            Self::LauncherLost | Self::ZygoteLost => vec!["try again: another process is started".into()],
            Self::SandboxBusy => vec!["try again, or end the sandbox".into()],
            Self::MultipleThreads(_) => vec!["start the sandbox through a launcher process".into()],
            Self::Protocol(_) => vec!["restart ringfence, so that all of its processes have the same version".into()],
        }
    }

    /// Returns a conversion from an errno, for `map_err`. `step` completes the sentence "cannot …".
    pub(crate) fn setup(step: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Setup { step: step.into(), source }
    }
}

/// The errno of an I/O error; `EIO` if it has none.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A failed step of the setup inside the sandbox. The init reports it to the host.
#[derive(Debug)]
pub(crate) struct SetupError {
    /// Completes the sentence "cannot …".
    pub(crate) step: String,
    pub(crate) errno: Errno,
}

/// Adds the name of the failed step to a system call's result.
pub(crate) trait SetupStep<T> {
    /// `step` completes the sentence "cannot …".
    fn step(self, step: impl FnOnce() -> String) -> Result<T, SetupError>;
}

impl<T> SetupStep<T> for rustix::io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, SetupError> {
        self.map_err(|errno| SetupError { step: step(), errno })
    }
}
