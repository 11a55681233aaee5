//! The reasons why an instance could not be created.

use ringfence_core::{Failure, Kind};

/// The reason why [`crate::Backend::create`] failed.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The launcher, the process that creates instances, could not be started.
    #[error("cannot start the sandbox launcher: {0}")]
    LauncherUnavailable(String),
    /// A socket or another descriptor for the communication with the instance could not be opened.
    #[error("cannot open a channel to the sandbox: {0}")]
    Channel(#[from] std::io::Error),
    /// The host or the spec does not allow the instance. `hints` are the next steps for the user.
    #[error("the sandbox could not be started: {message}")]
    Refused { message: String, hints: Vec<String> },
}

impl CreateError {
    /// Whether another attempt may succeed without a change of the request or the host.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::LauncherUnavailable(_) | Self::Channel(_))
    }

    /// The next steps for the user.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::LauncherUnavailable(_) => vec!["try again".into()],
            Self::Refused { hints, .. } => hints.clone(),
            Self::ShuttingDown | Self::Channel(_) => Vec::new(),
        }
    }
}

impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Self {
        let kind = match error {
            CreateError::ShuttingDown => Kind::Busy,
            CreateError::LauncherUnavailable(_) => Kind::Connection,
            CreateError::Channel(_) | CreateError::Refused { .. } => Kind::SandboxCreation,
        };
        error.hints().into_iter().fold(Self::new(kind, error.to_string()), Self::hint)
    }
}
