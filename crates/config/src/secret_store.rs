//! The secrets that were added with `ringfence secret`: a private file in the state directory.
//!
//! The file is replaced as a whole, so that a reader sees either the old or the new secrets. Errors never contain a part of
//! the file.

mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_egress::SecretValue;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::document::LocationConfig;
use crate::guest_writable::VolumeRecord;
use crate::private_file::{self, PrivateFileError, PrivateFileKind};
pub(crate) use settings::SecretUse;
pub use settings::{InvalidSecret, SecretSettings, default_variable};

const FILE_NAME: &str = "secrets.json";
const KIND: PrivateFileKind = PrivateFileKind { content: "secrets", max_bytes: 8 << 20 };
const MAX_SECRETS: usize = 256;
/// Maximum time to wait for another process that changes the file, which takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The stored secrets of one state directory. Cheap to clone; values are not cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretStore {
    path: PathBuf,
    /// The record of volumes that guests could write.
    record: Option<VolumeRecord>,
}

/// A stored secret. `Debug` does not show its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSecret {
    pub value: SecretValue,
    pub settings: SecretSettings,
}

/// Whether a new secret may replace one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExisting {
    Refuse,
    Replace,
}

#[derive(Debug, thiserror::Error)]
pub enum SecretStoreError {
    #[error("cannot read the stored secrets in {}: {problem}", path.display())]
    Unreadable { path: PathBuf, problem: String },
    /// Another user or a guest may have read or written the file.
    #[error("the stored secrets are not used: {} {problem}", path.display())]
    Untrusted { path: PathBuf, problem: String, hint: String },
    #[error("cannot store secrets in {}: {problem}", path.display())]
    Unwritable { path: PathBuf, problem: String },
    #[error("the secret `{name}` already exists")]
    Exists { name: String },
    #[error("too many stored secrets: at most {MAX_SECRETS}, of 8 MiB together")]
    Full,
}

impl SecretStoreError {
    pub fn hint(&self) -> String {
        match self {
            Self::Unreadable { path, .. } => {
                format!("restore {}, or remove it and add the secrets again", path.display())
            }
            Self::Untrusted { hint, .. } => hint.clone(),
            Self::Unwritable { .. } => "check the permissions of the state directory, and the space on its disk".into(),
            Self::Exists { .. } => "choose another name, or replace it with --replace".into(),
            Self::Full => "remove secrets that are not used with `ringfence secret remove`".into(),
        }
    }
}

/// Identifies the content of the file: each change creates a new file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecretsRevision(Option<(u64, u64, i64, i64)>);

impl SecretStore {
    pub(crate) fn new(state_directory: &Path, record_directory: Option<&Path>) -> Self {
        Self { path: state_directory.join(FILE_NAME), record: record_directory.map(VolumeRecord::in_directory) }
    }

    /// Returns all secrets by name.
    pub fn read(&self) -> Result<BTreeMap<String, StoredSecret>, SecretStoreError> {
        let text = match private_file::read(&self.path, KIND) {
            Ok((text, _)) => text,
            Err(PrivateFileError::Unreadable(error)) if error.kind() == ErrorKind::NotFound => {
                return Ok(BTreeMap::new());
            }
            Err(error) => return Err(self.refused(error)),
        };
        if let Some(volume) = self.record.as_ref().and_then(|record| record.written_by_guest(&self.path)) {
            return Err(SecretStoreError::Untrusted {
                path: self.path.clone(),
                problem: format!("may be written by a guest: {} was a read-write volume", volume.display()),
                hint: "remove the file, add the secrets again, and use a state directory outside of all `rw` volumes"
                    .into(),
            });
        }
        let unreadable = |problem| SecretStoreError::Unreadable { path: self.path.clone(), problem };
        // The message of the error could contain a value.
        let document: Document = serde_json::from_slice(&text).map_err(|error| {
            unreadable(format!("invalid content in line {}, column {}", error.line(), error.column()))
        })?;
        if document.version != VERSION {
            return Err(unreadable(format!("its version is {}, and this program reads {VERSION}", document.version)));
        }
        let parse = |(name, record): (String, Record)| {
            let secret = record.parse().map_err(|problem| unreadable(format!("secret `{name}`: {problem}")))?;
            Ok((name, secret))
        };
        document.secrets.into_iter().map(parse).collect()
    }

    /// Adds a secret whose settings were checked.
    pub fn add(&self, name: &str, secret: StoredSecret, on_existing: OnExisting) -> Result<(), SecretStoreError> {
        self.update(|secrets| {
            if on_existing == OnExisting::Refuse && secrets.contains_key(name) {
                return Err(SecretStoreError::Exists { name: name.to_owned() });
            }
            secrets.insert(name.to_owned(), secret);
            if secrets.len() > MAX_SECRETS { Err(SecretStoreError::Full) } else { Ok(()) }
        })
    }

    /// Removes a secret. Returns false if it does not exist.
    pub fn remove(&self, name: &str) -> Result<bool, SecretStoreError> {
        if !self.read()?.contains_key(name) {
            return Ok(false);
        }
        let mut is_removed = false;
        self.update(|secrets| {
            is_removed = secrets.remove(name).is_some();
            Ok(())
        })?;
        Ok(is_removed)
    }

    /// Returns what identifies the current content.
    pub(crate) fn revision(&self) -> SecretsRevision {
        let found = fs::symlink_metadata(&self.path).ok();
        SecretsRevision(found.map(|found| (found.dev(), found.ino(), found.ctime(), found.ctime_nsec())))
    }

    fn update(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, StoredSecret>) -> Result<(), SecretStoreError>,
    ) -> Result<(), SecretStoreError> {
        let unwritable = |error: std::io::Error| self.unwritable(error.to_string());
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unwritable)?;
        private_file::open_directory(&self.path).map_err(|error| self.refused(error))?;
        let _lock = self.lock()?;
        let mut secrets = self.read()?;
        change(&mut secrets)?;
        let text = encode(&secrets).map_err(|error| self.unwritable(error.to_string()))?;
        if text.len() as u64 > KIND.max_bytes {
            return Err(SecretStoreError::Full);
        }
        self.write(directory, &text).map_err(unwritable)
    }

    /// Replaces the file, while this process has the lock.
    fn write(&self, directory: &Path, text: &[u8]) -> std::io::Result<()> {
        // With a fixed name, so that at most one file remains after a crash.
        let next = TemporaryFile(self.path.with_extension("json.new"));
        let _ = fs::remove_file(&next.0);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&next.0)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(&next.0, &self.path)?;
        File::open(directory)?.sync_all()
    }

    /// Waits until no other process changes the file.
    fn lock(&self) -> Result<File, SecretStoreError> {
        let path = self.path.with_extension("lock");
        let mut options = OpenOptions::new();
        let opened = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = opened.map_err(|error| self.unwritable(error.to_string()))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
                Err(TryLockError::WouldBlock) => {
                    return Err(self.unwritable("another process has locked them for 10 s".into()));
                }
                Err(TryLockError::Error(error)) => return Err(self.unwritable(error.to_string())),
            }
        }
    }

    fn unwritable(&self, problem: String) -> SecretStoreError {
        SecretStoreError::Unwritable { path: self.path.clone(), problem }
    }

    fn refused(&self, error: PrivateFileError) -> SecretStoreError {
        let path = self.path.clone();
        match error {
            PrivateFileError::Unreadable(error) => SecretStoreError::Unreadable { path, problem: error.to_string() },
            PrivateFileError::Untrusted { problem, hint } => SecretStoreError::Untrusted { path, problem, hint },
        }
    }
}

/// A file that is removed unless it was renamed.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const VERSION: u32 = 1;

fn encode(secrets: &BTreeMap<String, StoredSecret>) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    let secrets = secrets.iter().map(|(name, secret)| (name.clone(), Record::of(secret))).collect();
    let mut text = Zeroizing::new(Vec::with_capacity(64 << 10));
    serde_json::to_writer_pretty(&mut *text, &Document { version: VERSION, secrets })?;
    text.push(b'\n');
    Ok(text)
}

/// The format of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    secrets: BTreeMap<String, Record>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    value: Text,
    variable: String,
    hosts: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    methods: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    paths: Vec<String>,
    #[serde(rename = "in")]
    locations: Vec<LocationConfig>,
}

/// A value, which is overwritten when it is dropped.
struct Text(Zeroizing<String>);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl Record {
    fn of(secret: &StoredSecret) -> Self {
        let SecretSettings { variable, hosts, methods, paths, locations } = secret.settings.clone();
        Self {
            value: Text(Zeroizing::new(secret.value.expose().to_owned())),
            variable,
            hosts,
            methods,
            paths,
            locations: locations.into_iter().map(Into::into).collect(),
        }
    }

    fn parse(self) -> Result<StoredSecret, String> {
        let settings = SecretSettings {
            variable: self.variable,
            hosts: self.hosts,
            methods: self.methods,
            paths: self.paths,
            locations: self.locations.into_iter().map(Into::into).collect::<BTreeSet<_>>(),
        };
        let usage = settings.parse().map_err(|error| error.to_string())?;
        let value = SecretValue::new(&self.value.0).map_err(|error| error.to_string())?;
        Ok(StoredSecret { value, settings: usage.settings() })
    }
}

#[cfg(test)]
mod tests;
