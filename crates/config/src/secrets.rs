//! The secrets of sandboxes. The configuration has only the locations of their values; values are never printed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_core::suggest::{closest, join};
use ringfence_egress::{Location, RequestScope, Rule, SecretDefinition, SecretValue};
use zeroize::Zeroizing;

use crate::error::ConfigError;
use crate::sources::Environment;

/// Timeout for a command that prints a value.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A value is shorter, see [`SecretValue`]. A command that prints more than a pipe takes does not end.
const MAX_READ_BYTES: u64 = 64 * 1024;

/// A secret whose value was not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretSource {
    pub(crate) name: String,
    pub(crate) variable: String,
    pub(crate) location: ValueLocation,
    pub(crate) hosts: Vec<Rule>,
    pub(crate) requests: RequestScope,
    pub(crate) locations: BTreeSet<Location>,
}

/// The location of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueLocation {
    Variable(String),
    File(PathBuf),
    Command(Vec<String>),
}

/// The secrets of the configuration, with their values. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets(Arc<BTreeMap<String, SecretDefinition>>);

/// The error for a secret that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown secret `{name}`; {}", if known.is_empty() { "the configuration has no secrets".to_owned() } else { format!("the secrets are {known}") })]
pub struct UnknownSecret {
    name: String,
    known: String,
    similar: Option<String>,
}

impl UnknownSecret {
    pub fn hint(&self) -> String {
        match &self.similar {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => format!("add a table [secrets.{}] to the configuration", self.name),
        }
    }
}

impl Secrets {
    /// Returns the secrets with these names.
    pub fn select<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<Vec<SecretDefinition>, UnknownSecret> {
        let known = || self.0.keys().map(String::as_str);
        let find = |name: &String| {
            self.0.get(name).cloned().ok_or_else(|| UnknownSecret {
                name: name.clone(),
                known: join(known()),
                similar: closest(name, known()).map(str::to_owned),
            })
        };
        let names: BTreeSet<&String> = names.into_iter().collect();
        names.into_iter().map(find).collect()
    }
}

impl SecretSource {
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.location {
            ValueLocation::File(path) => Some(path),
            ValueLocation::Variable(_) | ValueLocation::Command(_) => None,
        }
    }

    fn read(&self, environment: &Environment) -> Result<SecretDefinition, ConfigError> {
        let failed = |problem: String| ConfigError::SecretValue { name: self.name.clone(), problem };
        let text = match &self.location {
            ValueLocation::Variable(name) => Zeroizing::new(
                environment
                    .get(name)
                    .ok_or_else(|| failed(format!("the environment variable {name} is not set")))?
                    .to_owned(),
            ),
            ValueLocation::File(path) => {
                let text = std::fs::read_to_string(path).map(Zeroizing::new);
                text.map_err(|error| failed(format!("cannot read {}: {error}", path.display())))?
            }
            ValueLocation::Command(command) => output_of(command).map_err(failed)?,
        };
        Ok(SecretDefinition {
            name: self.name.clone(),
            variable: self.variable.clone(),
            value: SecretValue::new(&text).map_err(|error| failed(error.to_string()))?,
            hosts: self.hosts.clone(),
            requests: self.requests.clone(),
            locations: self.locations.clone(),
        })
    }
}

/// Reads the values of all secrets.
pub(crate) fn read(sources: &[SecretSource], environment: &Environment) -> Result<Secrets, ConfigError> {
    let read = |source: &SecretSource| Ok((source.name.clone(), source.read(environment)?));
    sources.iter().map(read).collect::<Result<_, _>>().map(|secrets| Secrets(Arc::new(secrets)))
}

/// Runs a command and returns what it prints. Its arguments and output may be secret, so that errors have neither.
fn output_of(command: &[String]) -> Result<Zeroizing<String>, String> {
    let (program, arguments) = command.split_first().ok_or("its command is empty")?;
    let mut started = Command::new(program);
    started.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = started.spawn().map_err(|error| format!("cannot run {program}: {error}"))?;
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            result => {
                let _ = child.kill();
                let _ = child.wait();
                let reason = result.err().map_or_else(|| "timeout after 10 s".to_owned(), |error| error.to_string());
                return Err(format!("{program}: {reason}"));
            }
        }
    };
    if !status.success() {
        return Err(format!("{program} failed: {status}"));
    }
    let mut text = Zeroizing::new(String::new());
    let output = child.stdout.take().ok_or("its output was lost")?;
    // A background process of the command may keep the pipe open: only what is in the pipe already counts.
    rustix::fs::fcntl_setfl(&output, rustix::fs::OFlags::NONBLOCK).map_err(|error| error.to_string())?;
    match output.take(MAX_READ_BYTES).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(text),
        Err(error) => Err(format!("cannot read the output of {program}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_prints_the_value_or_fails() {
        let run = |script: &str| output_of(&["sh", "-c", script].map(str::to_owned));
        assert_eq!(run("echo 0123456789").unwrap().as_str(), "0123456789\n");
        let error = run("echo 0123456789; exit 3").unwrap_err();
        assert!(error.contains("exit status: 3") && !error.contains("0123"), "{error}");
        assert!(output_of(&["/absent".to_owned()]).unwrap_err().contains("/absent"));
    }
}
