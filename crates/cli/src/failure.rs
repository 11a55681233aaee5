//! What a person sees when something fails: `error:`, `caused by:`, `hint:`, and an exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use ringfence_config::ConfigError;
use ringfence_config::NotUnpacked;
use ringfence_config::ScopeError;
use ringfence_core::hidden_text::escape;
use ringfence_sandbox::Error as SandboxError;
use ringfence_store::StoreError;

/// Exit codes as shells and container tools use them.
pub(crate) const OWN_FAILURE: u8 = 125;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;
pub(crate) const TIMED_OUT: u8 = 124;
pub(crate) const SIGNAL_BASE: u8 = 128;
/// `EX_TEMPFAIL` of sysexits(3).
pub(crate) const GAVE_UP: u8 = 75;

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
        Self { message: message.into(), causes: Vec::new(), hints: Vec::new(), exit_code: OWN_FAILURE }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub(crate) fn because(mut self, error: &dyn Error) -> Self {
        self.causes.push(error.to_string());
        self
    }

    /// Shows it on standard error, and gives the exit code.
    pub(crate) fn show(&self) -> ExitCode {
        let mut text = format!("error: {}\n", self.message);
        for cause in &self.causes {
            let _ = writeln!(text, "  caused by: {cause}");
        }
        for hint in &self.hints {
            let _ = writeln!(text, "hint: {hint}");
        }
        // Nobody is left to tell if this fails.
        let _ = anstream::stderr().write_all(escape(&text).as_bytes());
        ExitCode::from(self.exit_code)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let causes = error.source().map(ToString::to_string).into_iter().collect();
        Self { message: error.to_string(), causes, hints: error.hints(), exit_code: OWN_FAILURE }
    }
}

/// In one line, for a log.
impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.message)?;
        self.causes.iter().try_for_each(|cause| write!(formatter, ": {cause}"))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let causes = error.source().map(ToString::to_string).into_iter().collect();
        Self { message: error.to_string(), causes, hints: error.hints(), exit_code: OWN_FAILURE }
    }
}

impl From<ScopeError> for Failure {
    fn from(error: ScopeError) -> Self {
        let causes = error.source().map(ToString::to_string).into_iter().collect();
        Self { message: error.to_string(), causes, hints: error.hints(), exit_code: OWN_FAILURE }
    }
}

impl From<NotUnpacked> for Failure {
    fn from(error: NotUnpacked) -> Self {
        let hints = vec![error.hint().into()];
        Self { message: error.to_string(), causes: causes(&error), hints, exit_code: OWN_FAILURE }
    }
}

/// What is behind an error, from the nearest to the last.
fn causes(error: &dyn Error) -> Vec<String> {
    let mut causes = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    causes
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        let exit_code = match error {
            SandboxError::CommandNotFound { .. } => NOT_FOUND,
            SandboxError::CommandNotExecutable { .. } => NOT_EXECUTABLE,
            _ => OWN_FAILURE,
        };
        Self { message: error.to_string(), causes: causes(&error), hints: error.hints(), exit_code }
    }
}

/// Says something to the person, beside what the command itself writes.
pub(crate) fn notice(text: &str) {
    let _ = writeln!(anstream::stderr(), "ringfence: {}", escape(text));
}

/// A next step, after a notice.
pub(crate) fn hint(text: &str) {
    let _ = writeln!(anstream::stderr(), "hint: {text}");
}
