//! What a sandbox should be: plain data that can be written down, sent and checked.
//!
//! `validate` refuses what can be refused without touching the host; the rest (does the volume exist,
//! does the kernel have Landlock) is checked when the sandbox starts.

mod error;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::allowed_root::AllowedRoot;
pub use error::SpecError;

/// The directory that a guest may write, and where it starts.
pub const WORKSPACE: &str = "/workspace";

/// Where the egress proxy listens inside a sandbox with [`Network::Proxy`].
pub const PROXY_PORT: u16 = 3128;

/// The content of a placeholder at a protected name: a comment in most formats of settings.
pub const PLACEHOLDER: &str = "# held by ringfence while a sandbox may write this directory; removed afterwards\n";

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Everything that decides how a sandbox is built, and the command it starts with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub root: Root,
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// Directories and files of whoever makes the sandbox, by their real paths: where they lie in a volume, the
    /// directories are empty and the files read-only there.
    #[serde(default, rename = "kept")]
    pub protected_paths: Vec<PathBuf>,
    /// Whether absent protected names are held in read-write volumes, and repositories are read-only there. A private
    /// directory of the host for the locks that this needs.
    #[serde(default)]
    pub strict_volumes: Option<PathBuf>,
    /// Small files that the guest finds, read-only, by their absolute paths.
    #[serde(default)]
    pub files: BTreeMap<PathBuf, String>,
    pub workspace: Workspace,
    /// The guest's uid and gid as it sees them itself.
    #[serde(default = "default_uid")]
    pub uid: u32,
    pub limits: Limits,
    #[serde(default)]
    pub network: Network,
    /// The whole environment of the guest: nothing of the host's is added.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// What the sandbox is made for, and ends with; without one it stays until it is told to end.
    #[serde(default)]
    pub command: Option<Command>,
    /// Weaknesses of the host that are accepted, each by name; any other is an error.
    #[serde(default)]
    pub accept: BTreeSet<Weakness>,
}

fn default_uid() -> u32 {
    1000
}

/// What the guest sees as `/`, always read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Root {
    /// The host's `/usr` with a minimal `/etc`.
    Host,
    /// A directory that holds a root file system.
    Directory(PathBuf),
}

/// A directory or file of the host, shown to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    pub host: PathBuf,
    pub guest: PathBuf,
    pub access: Access,
    /// The directory that it must lie in, if it is bound to one.
    #[serde(default, rename = "within")]
    pub allowed_root: Option<AllowedRoot>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// The bounds of all that the guest may write outside its volumes: `/workspace`, `/tmp`, `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    pub bytes: u64,
    pub inodes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub memory_bytes: u64,
    /// Processes and threads together, the sandbox's own init included.
    pub pids: u32,
    /// CPU time a second of wall time, in CPUs.
    pub cpus: f64,
    /// Open descriptors of one process; fewer where the guest shares its uid ([`Weakness::OwnUid`]).
    pub open_files: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A loopback interface of its own, and nothing else.
    #[default]
    None,
    /// The same, with a listener on [`PROXY_PORT`] that is handed to the host.
    Proxy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    #[serde(with = "crate::os_strings")]
    pub argv: Vec<OsString>,
    pub workdir: PathBuf,
}

/// A protection that a host may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weakness {
    /// No cgroup can be made: limits are kept by rlimits, affinity and a watchdog instead.
    Cgroup,
    /// The guest has the uid of the user who started it, because there is no range of subordinate ids or a volume is
    /// read-write. It keeps the user's supplementary groups where the kernel does not let it drop them, shares the
    /// kernel's counters for that uid, and has at most [`ringfence_sandbox::MAX_OPEN_FILES_WITH_OWN_UID`] open files a process.
    OwnUid,
    /// No Landlock: the read-only mounts alone keep the guest from writing.
    Landlock,
}

impl Weakness {
    pub const ALL: [Self; 3] = [Self::Cgroup, Self::OwnUid, Self::Landlock];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::OwnUid => "own-uid",
            Self::Landlock => "landlock",
        }
    }
}

impl Spec {
    /// Refuses what cannot make sense on any host.
    pub fn validate(&self) -> Result<(), SpecError> {
        self.limits.validate()?;
        self.workspace.validate(&self.limits)?;
        if self.uid == 0 || self.uid >= 65534 {
            return Err(SpecError::Uid(self.uid));
        }
        for volume in &self.volumes {
            volume.validate()?;
        }
        for (index, volume) in self.volumes.iter().enumerate() {
            if self.volumes[..index].iter().any(|other| other.guest == volume.guest) {
                return Err(SpecError::VolumeTwice(volume.guest.clone()));
            }
        }
        for path in self.files.keys() {
            plain_absolute(path).map_err(|problem| SpecError::Volume { path: path.clone(), problem })?;
        }
        for (name, value) in &self.environment {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(SpecError::Environment(name.clone()));
            }
        }
        self.command.as_ref().map_or(Ok(()), Command::validate)
    }
}

impl Command {
    pub fn validate(&self) -> Result<(), SpecError> {
        plain_absolute(&self.workdir).map_err(|problem| SpecError::Workdir { path: self.workdir.clone(), problem })?;
        if self.argv.first().is_none_or(|name| name.is_empty()) {
            return Err(SpecError::NoCommand);
        }
        Ok(())
    }
}

impl Limits {
    fn validate(&self) -> Result<(), SpecError> {
        // Below this an interpreter does not even start; above it the number is surely a slip.
        within("memory", self.memory_bytes, 16 * MIB, TIB, Unit::Bytes)?;
        within("pids", self.pids.into(), 2, 1 << 22, Unit::Count)?;
        within("open files", self.open_files.into(), 16, 1 << 20, Unit::Count)?;
        if !(self.cpus.is_finite() && (0.01..=1024.0).contains(&self.cpus)) {
            return Err(SpecError::Cpus(self.cpus));
        }
        Ok(())
    }
}

impl Workspace {
    fn validate(&self, limits: &Limits) -> Result<(), SpecError> {
        within("workspace", self.bytes, MIB, TIB, Unit::Bytes)?;
        within("workspace inodes", self.inodes, 64, 1 << 32, Unit::Count)?;
        // On cgroup v1 a full tmpfs stays charged: were it as large as the memory limit, every later
        // process of the sandbox would be killed.
        if self.bytes > limits.memory_bytes / 4 * 3 {
            return Err(SpecError::WorkspaceOverMemory { workspace: self.bytes, memory: limits.memory_bytes });
        }
        Ok(())
    }
}

impl Volume {
    fn validate(&self) -> Result<(), SpecError> {
        let refuse = |problem| SpecError::Volume { path: self.guest.clone(), problem };
        plain_absolute(&self.guest).map_err(refuse)?;
        if self.host.components().any(|part| part == Component::ParentDir) {
            return Err(SpecError::Volume { path: self.host.clone(), problem: "has `..` in it" });
        }
        if Path::new(WORKSPACE) == self.guest {
            return Err(refuse("is the workspace, which every sandbox has of its own: choose another, such as /data"));
        }
        let kept = ["/", "/proc", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/tmp"];
        if kept.iter().any(|kept| Path::new(kept) == self.guest) {
            return Err(refuse("is a place of the sandbox's own"));
        }
        if ["/proc", "/dev"].iter().any(|kept| self.guest.starts_with(kept)) {
            return Err(refuse("lies under /proc or /dev"));
        }
        Ok(())
    }
}

/// An absolute path without `.`, `..` or NUL, so that it means the same to every reader.
fn plain_absolute(path: &Path) -> Result<(), &'static str> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if !path.is_absolute() {
        return Err("is not an absolute path");
    }
    if bytes.contains(&0) {
        return Err("has a NUL in it");
    }
    let odd = |part: &[u8]| part == b"." || part == b"..";
    if bytes.split(|byte| *byte == b'/').any(odd) {
        return Err("has `.` or `..` in it");
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Count,
}

fn within(what: &'static str, value: u64, least: u64, most: u64, unit: Unit) -> Result<(), SpecError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let show = |number| match unit {
        Unit::Bytes => crate::bytes::format(number),
        Unit::Count => number.to_string(),
    };
    Err(SpecError::OutOfRange { what, value: show(value), least: show(least), most: show(most) })
}

#[cfg(test)]
mod tests;
