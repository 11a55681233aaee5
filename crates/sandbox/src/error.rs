//! What can go wrong, said so that a person can act on it: each error names its object, and
//! `hints` says what to do next.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::io::Errno;

use ringfence_core::{SpecError, Weakness};

/// A sandbox that could not be made, or was lost.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("this host lacks {protection}: {why}")]
    MissingProtection { protection: &'static str, why: String, remedy: String, weakness: Option<Weakness> },
    #[error("the host has run out of {resource}")]
    ResourceExhausted { resource: &'static str, remedy: String },
    #[error("a sandbox can only be started from a process with one thread, this one has {0}")]
    MultipleThreads(usize),
    #[error("volume {}", path.display())]
    Volume { path: PathBuf, source: Errno, hint: String },
    #[error("cannot {step}")]
    Setup { step: String, source: Errno },
    #[error("command not found: {}", name.display())]
    CommandNotFound { name: OsString },
    #[error("command cannot be executed: {}", name.display())]
    CommandNotExecutable { name: OsString, source: Errno },
    /// What the launcher has answered, in its own words.
    #[error("{message}")]
    Refused { message: String, hints: Vec<String> },
    #[error("the warm interpreter that sandboxes are forked from is gone")]
    ZygoteLost,
    #[error("the sandbox ended before it was ready")]
    LauncherLost,
    #[error("the sandbox is too busy to read what it is told")]
    SandboxBusy,
    #[error("the sandbox's init broke the protocol: {0}")]
    Protocol(&'static str),
}

impl Error {
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Spec(error) => error.hints(),
            Self::MissingProtection { remedy, weakness, .. } => {
                let mut hints = vec![remedy.clone()];
                hints.extend(
                    weakness.map(|weakness| {
                        format!("or accept exactly this weakness: add `{}` to --accept", weakness.name())
                    }),
                );
                hints.push("`ringfence doctor` checks every protection of this host".into());
                hints
            }
            Self::ResourceExhausted { remedy, .. } => vec![remedy.clone()],
            Self::Volume { hint, .. } => vec![hint.clone()],
            Self::Refused { hints, .. } => hints.clone(),
            Self::Setup { .. } => vec!["`ringfence doctor` checks every protection of this host".into()],
            Self::CommandNotFound { name } => vec![format!(
                "`{}` is looked for inside the sandbox, on its own PATH; what lies outside of /usr must be mounted with --volume",
                name.display()
            )],
            _ => Vec::new(),
        }
    }

    pub(crate) fn setup(step: impl Into<String>) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Setup { step: step.into(), source }
    }
}

/// A step of the set-up that failed, as it is reported from inside.
#[derive(Debug)]
pub(crate) struct StepError {
    pub(crate) step: String,
    pub(crate) errno: Errno,
}

pub(crate) trait Step<T> {
    /// Names what was being done, as the rest of the sentence "cannot …".
    fn step(self, step: impl FnOnce() -> String) -> Result<T, StepError>;
}

impl<T> Step<T> for rustix::io::Result<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, StepError> {
        self.map_err(|errno| StepError { step: step(), errno })
    }
}
