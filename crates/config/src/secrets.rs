//! The secrets of sandboxes: those of the configuration, which has only the locations of their values, and those of the
//! store. Values are never printed.

mod listing;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_core::suggest::closest;
use ringfence_egress::{Rule, SecretDefinition, SecretValue};
use zeroize::Zeroizing;

use crate::error::ConfigError;
use crate::origin::Origin;
use crate::secret_store::{SecretStore, SecretStoreError, SecretUse, SecretsRevision, StoredSecret};
use crate::sources::Environment;
pub(crate) use listing::list;
pub use listing::{ListedSecret, SecretOrigin};

/// Timeout for a command that prints a value.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A value is shorter, see [`SecretValue`]. A command that prints more than a pipe takes does not end.
const MAX_READ_BYTES: u64 = 64 * 1024;

/// A secret of the configuration whose value was not read yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretSource {
    pub(crate) name: String,
    pub(crate) location: ValueLocation,
    pub(crate) usage: SecretUse,
    pub(crate) origin: Origin,
}

/// The location of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueLocation {
    Variable(String),
    File(PathBuf),
    Command(Vec<String>),
}

/// The secrets of the configuration with their values, and those of the store, which are read when they are selected.
/// A stored secret takes precedence over one of the configuration with the same name. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    configured: Arc<BTreeMap<String, SecretDefinition>>,
    store: Option<SecretStore>,
}

/// Reason why secrets cannot be selected. The message has no details, because clients may see it; the hint has.
#[derive(Debug, thiserror::Error)]
pub enum SelectSecretsError {
    #[error("the secret `{name}` does not exist")]
    Unknown { name: String, known: Vec<String> },
    #[error("the stored secrets cannot be read")]
    Store(#[source] SecretStoreError),
}

impl SelectSecretsError {
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { name, known } => {
                let known = || known.iter().map(String::as_str);
                let add = format!("add it with `ringfence secret add {name}`, or as a table [secrets.{name}]");
                closest(name, known()).map_or(add, |similar| format!("did you mean `{similar}`?"))
            }
            Self::Store(_) => "`ringfence secret list` shows the reason".into(),
        }
    }
}

impl Secrets {
    /// Returns the secrets with these names.
    pub fn select<'a>(
        &self,
        names: impl IntoIterator<Item = &'a String>,
    ) -> Result<Vec<SecretDefinition>, SelectSecretsError> {
        let names: BTreeSet<&String> = names.into_iter().collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut stored = self.stored()?;
        let mut selected = Vec::new();
        for name in names {
            let found = stored.remove(name).or_else(|| self.configured.get(name).cloned());
            selected.push(found.ok_or_else(|| SelectSecretsError::Unknown {
                name: name.clone(),
                known: stored.keys().chain(self.configured.keys()).cloned().collect(),
            })?);
        }
        Ok(selected)
    }

    /// Returns the hosts of the secrets with these names. Secrets that no longer exist are left out.
    pub(crate) fn hosts<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Vec<Rule> {
        let stored = self.stored().unwrap_or_default();
        let find = |name: &String| stored.get(name).or_else(|| self.configured.get(name));
        names.into_iter().filter_map(find).flat_map(|secret| secret.hosts.clone()).collect()
    }

    /// Identifies the stored secrets at this moment. Without names, it never changes.
    pub(crate) fn revision<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> SecretsRevision {
        let is_needed = names.into_iter().next().is_some();
        self.store.as_ref().filter(|_| is_needed).map(SecretStore::revision).unwrap_or_default()
    }

    fn stored(&self) -> Result<BTreeMap<String, SecretDefinition>, SelectSecretsError> {
        let Some(store) = &self.store else { return Ok(BTreeMap::new()) };
        let stored = store.read().map_err(SelectSecretsError::Store)?;
        let define = |(name, secret): (String, StoredSecret)| {
            // The settings were checked when the file was read.
            let usage = secret.settings.parse().ok()?;
            Some((name.clone(), usage.define(name, secret.value)))
        };
        Ok(stored.into_iter().filter_map(define).collect())
    }
}

impl SecretUse {
    fn define(self, name: String, value: SecretValue) -> SecretDefinition {
        let Self { variable, hosts, requests, locations } = self;
        SecretDefinition { name, variable, value, hosts, requests, locations }
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
        let value = SecretValue::new(&text).map_err(|error| failed(error.to_string()))?;
        Ok(self.usage.clone().define(self.name.clone(), value))
    }
}

/// Reads the values of all secrets of the configuration, except for those that stored secrets replace.
pub(crate) fn read(
    sources: &[SecretSource],
    environment: &Environment,
    store: Option<SecretStore>,
) -> Result<Secrets, ConfigError> {
    let stored = store.as_ref().map_or_else(|| Ok(BTreeMap::new()), SecretStore::read)?;
    let used = sources.iter().filter(|source| !stored.contains_key(&source.name));
    let read = |source: &SecretSource| Ok((source.name.clone(), source.read(environment)?));
    let configured = used.map(read).collect::<Result<_, ConfigError>>()?;
    Ok(Secrets { configured: Arc::new(configured), store })
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
