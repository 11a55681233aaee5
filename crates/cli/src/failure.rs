//! The failure of a command as a person sees it: `error:`, `caused by:`, `hint:`, and an exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use ringfence_config::{ConfigError, ImageUnpackError, ScopeError, SecretStoreError};
use ringfence_core::hidden_text::escape;
use ringfence_sandbox::Error as SandboxError;
use ringfence_store::StoreError;

use crate::exit_code::{NOT_EXECUTABLE, NOT_FOUND, RINGFENCE_FAILED};

/// A failure of ringfence itself, ready to be shown.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    causes: Vec<String>,
    hints: Vec<String>,
    exit_code: u8,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), causes: Vec::new(), hints: Vec::new(), exit_code: RINGFENCE_FAILED }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn caused_by(mut self, error: &dyn Error) -> Self {
        self.causes.push(error.to_string());
        self
    }

    /// Writes the failure to standard error and returns its exit code.
    pub(crate) fn show(&self) -> ExitCode {
        let mut text = format!("error: {}\n", self.message);
        for cause in &self.causes {
            let _ = writeln!(text, "  caused by: {cause}");
        }
        for hint in &self.hints {
            let _ = writeln!(text, "hint: {hint}");
        }
        // If this fails, there is no other way to report it.
        let _ = anstream::stderr().write_all(escape(&text).as_bytes());
        ExitCode::from(self.exit_code)
    }

    /// Makes a failure of an error whose message does not repeat its direct cause.
    fn of(error: &dyn Error, hints: Vec<String>) -> Self {
        let causes = error.source().map(ToString::to_string).into_iter().collect();
        Self { message: error.to_string(), causes, hints, exit_code: RINGFENCE_FAILED }
    }
}

/// One line, for a log.
impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)?;
        self.causes.iter().try_for_each(|cause| write!(formatter, ": {cause}"))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::of(&error, error.hints())
    }
}

impl From<SecretStoreError> for Failure {
    fn from(error: SecretStoreError) -> Self {
        Self::of(&error, vec![error.hint()])
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::of(&error, error.hints())
    }
}

impl From<ScopeError> for Failure {
    fn from(error: ScopeError) -> Self {
        Self::of(&error, error.hints())
    }
}

impl From<ImageUnpackError> for Failure {
    fn from(error: ImageUnpackError) -> Self {
        Self { causes: all_causes(&error), ..Self::of(&error, vec![error.hint().into()]) }
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        let exit_code = match error {
            SandboxError::CommandNotFound { .. } => NOT_FOUND,
            SandboxError::CommandNotExecutable { .. } => NOT_EXECUTABLE,
            _ => RINGFENCE_FAILED,
        };
        Self { causes: all_causes(&error), exit_code, ..Self::of(&error, error.hints()) }
    }
}

/// Returns the sources of an error, the direct one first.
fn all_causes(error: &dyn Error) -> Vec<String> {
    let mut causes = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    causes
}
