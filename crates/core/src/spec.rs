//! The specification of a sandbox: plain data that can be serialized, sent and validated.
//!
//! [`Spec::validate`] finds errors that do not depend on the host. The rest (whether a volume exists, whether Linux
//! has Landlock) is checked when the sandbox starts. Field names are part of the frame format between the server and its
//! launchers.

mod error;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::allowed_root::AllowedRoot;
pub use error::SpecError;

/// The writable directory of a guest, and its default working directory.
pub const WORKSPACE: &str = "/workspace";

/// The port of the resolver inside a sandbox with [`Network::Egress`].
pub const DNS_PORT: u16 = 53;

/// The port of the explicit proxy inside a sandbox with [`Network::Egress`].
pub const PROXY_PORT: u16 = 3128;

/// The port of the package mirror inside a sandbox with [`Network::Egress`].
pub const MIRROR_PORT: u16 = 3129;

/// The addresses of allowed names inside a sandbox with [`Network::Egress`]: a range for benchmarks of networks
/// (RFC 2544), which no host on the internet has.
pub const EGRESS_RANGE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

/// The length of the network prefix of [`EGRESS_RANGE`].
pub const EGRESS_PREFIX_LENGTH: u8 = 15;

/// The ports for transparent connections that every sandbox with [`Network::Egress`] has.
pub const DEFAULT_EGRESS_PORTS: [u16; 2] = [80, 443];

/// Maximum number of ports of [`Network::Egress`] besides [`DEFAULT_EGRESS_PORTS`], including those that are opened while
/// the sandbox runs.
pub const MAX_EGRESS_PORTS: usize = 16;

/// The content of a placeholder file at a protected name. It is a comment in most formats of settings files.
///
/// Readers compare files with this text, so a change would make placeholders of earlier versions look like real files.
pub const PLACEHOLDER: &str = "# held by ringfence while a sandbox may write this directory; removed afterwards\n";

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Everything that determines how a sandbox is built, and the command that it starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub root: Root,
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// Directories and files of ringfence itself, by their real paths. Inside a volume, the guest sees such a directory
    /// as empty and such a file as read-only.
    #[serde(default, rename = "kept")]
    pub protected_paths: Vec<PathBuf>,
    /// If set, absent protected names in read-write volumes are occupied by placeholders and repositories there are
    /// read-only. The value is a private directory of the host for the locks that this needs.
    #[serde(default)]
    pub strict_volumes: Option<PathBuf>,
    /// Small read-only files in the sandbox: absolute path to content.
    #[serde(default)]
    pub files: BTreeMap<PathBuf, String>,
    pub workspace: Workspace,
    /// Entries that the workspace has from the start, parents first. They belong to the guest.
    #[serde(default)]
    pub workspace_entries: Vec<WorkspaceEntry>,
    /// The uid and gid of the guest inside the sandbox.
    #[serde(default = "default_uid")]
    pub uid: u32,
    pub limits: Limits,
    #[serde(default)]
    pub network: Network,
    /// The whole environment of the guest. No variable of the host is added.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The sandbox ends with this command. Without one it runs until it is stopped.
    #[serde(default)]
    pub command: Option<Command>,
    /// Weaknesses of the host that are accepted. Any other weakness is an error at the start.
    #[serde(default)]
    pub accept: BTreeSet<Weakness>,
}

fn default_uid() -> u32 {
    1000
}

/// The root file system of the guest. It is always read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Root {
    /// The host's `/usr` with a minimal `/etc`.
    Host,
    /// A directory with a root file system.
    Directory(PathBuf),
}

/// A directory or file of the host that is mounted into the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    pub host: PathBuf,
    pub guest: PathBuf,
    pub access: Access,
    /// The directory that `host` must be beneath, if the volume is confined to one.
    #[serde(default, rename = "within")]
    pub allowed_root: Option<AllowedRoot>,
}

/// The access of the guest to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// The limits of everything that the guest writes outside of its volumes: `/workspace`, `/tmp` and `/dev/shm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    pub bytes: u64,
    pub inodes: u64,
}

/// An entry of the workspace. `path` is relative to the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceEntry {
    Directory { path: PathBuf },
    File { path: PathBuf, text: String },
    Link { path: PathBuf, target: PathBuf },
}

/// The resource limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub memory_bytes: u64,
    /// Processes and threads together, including the init of the sandbox.
    pub pids: u32,
    /// CPU time per second of wall time, in CPUs.
    pub cpus: f64,
    /// Open descriptors per process. The limit is lower if the guest has the uid of its user ([`Weakness::OwnUid`]).
    pub open_files: u32,
}

/// The network interfaces of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// A private loopback interface only.
    #[default]
    None,
    /// A private loopback interface with [`EgressSockets`](crate::EgressSockets), which the host serves.
    Egress {
        /// The ports on which the guest can connect to allowed hosts as if it had a network, besides
        /// [`DEFAULT_EGRESS_PORTS`].
        ports: BTreeSet<u16>,
    },
}

impl Network {
    /// A network whose transparent connections use only the ports 80 and 443.
    pub fn egress() -> Self {
        Self::Egress { ports: BTreeSet::new() }
    }

    /// Whether a port is valid for transparent connections: the services inside the sandbox use some ports themselves.
    pub fn is_egress_port(port: u16) -> bool {
        ![0, DNS_PORT, PROXY_PORT, MIRROR_PORT].contains(&port)
    }

    /// Returns the ports for transparent connections, including the default ones. `None` without egress.
    pub fn egress_ports(&self) -> Option<BTreeSet<u16>> {
        match self {
            Self::None => None,
            Self::Egress { ports } => Some(ports.iter().copied().chain(DEFAULT_EGRESS_PORTS).collect()),
        }
    }

    fn validate(&self) -> Result<(), SpecError> {
        let ports = self.egress_ports().unwrap_or_default();
        if let Some(port) = ports.iter().find(|port| !Self::is_egress_port(**port)) {
            return Err(SpecError::EgressPort(*port));
        }
        let count = ports.len().saturating_sub(DEFAULT_EGRESS_PORTS.len());
        if count > MAX_EGRESS_PORTS { Err(SpecError::TooManyEgressPorts(count)) } else { Ok(()) }
    }
}

/// A program with its arguments, and its working directory in the sandbox.
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
    /// No cgroup can be created. Resource limits are enforced by rlimits, CPU affinity and a watchdog instead.
    Cgroup,
    /// The guest has the uid of the user who started it, because no range of subordinate ids exists or a volume is
    /// read-write. It retains the supplementary groups of the user if the kernel does not allow dropping them, shares the
    /// kernel's counters for that uid, and has at most `ringfence_sandbox::MAX_OPEN_FILES_WITH_SHARED_UID` open files per
    /// process.
    OwnUid,
    /// No Landlock. Only the read-only mounts prevent the guest from writing.
    Landlock,
}

impl Weakness {
    pub const ALL: [Self; 3] = [Self::Cgroup, Self::OwnUid, Self::Landlock];

    /// The name of the weakness in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::OwnUid => "own-uid",
            Self::Landlock => "landlock",
        }
    }
}

impl Spec {
    /// Finds errors that do not depend on the host.
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
            if self.volumes[..index].iter().any(|earlier| earlier.guest == volume.guest) {
                return Err(SpecError::DuplicateGuestPath(volume.guest.clone()));
            }
        }
        for path in self.files.keys() {
            check_absolute(path).map_err(|problem| SpecError::File { path: path.clone(), problem })?;
        }
        for entry in &self.workspace_entries {
            entry.validate()?;
        }
        for (name, value) in &self.environment {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(SpecError::Environment(name.clone()));
            }
        }
        self.network.validate()?;
        self.command.as_ref().map_or(Ok(()), Command::validate)
    }
}

impl Command {
    pub fn validate(&self) -> Result<(), SpecError> {
        check_absolute(&self.workdir).map_err(|problem| SpecError::Workdir { path: self.workdir.clone(), problem })?;
        if self.argv.first().is_none_or(|name| name.is_empty()) {
            return Err(SpecError::NoCommand);
        }
        Ok(())
    }
}

impl Limits {
    fn validate(&self) -> Result<(), SpecError> {
        // With less memory no interpreter starts; more than the maximum is surely a mistake.
        check_range("memory", self.memory_bytes, 16 * MIB, TIB, Unit::Bytes)?;
        check_range("pids", self.pids.into(), 2, 1 << 22, Unit::Count)?;
        check_range("open files", self.open_files.into(), 16, 1 << 20, Unit::Count)?;
        if !(self.cpus.is_finite() && (0.01..=1024.0).contains(&self.cpus)) {
            return Err(SpecError::Cpus(self.cpus));
        }
        Ok(())
    }
}

impl Workspace {
    fn validate(&self, limits: &Limits) -> Result<(), SpecError> {
        check_range("workspace", self.bytes, MIB, TIB, Unit::Bytes)?;
        check_range("workspace inodes", self.inodes, 64, 1 << 32, Unit::Count)?;
        // On cgroup v1 the pages of a full tmpfs stay charged. If it could reach the memory limit, the kernel would kill
        // every later process of the sandbox.
        if self.bytes > limits.memory_bytes / 4 * 3 {
            return Err(SpecError::WorkspaceOverMemory { workspace: self.bytes, memory: limits.memory_bytes });
        }
        Ok(())
    }
}

impl WorkspaceEntry {
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory { path } | Self::File { path, .. } | Self::Link { path, .. } => path,
        }
    }

    fn validate(&self) -> Result<(), SpecError> {
        let path = Path::new(WORKSPACE).join(self.path());
        let problem =
            if self.path().is_absolute() { Err("is not relative to the workspace") } else { check_absolute(&path) };
        problem.map_err(|problem| SpecError::File { path: self.path().to_owned(), problem })
    }
}

impl Volume {
    fn validate(&self) -> Result<(), SpecError> {
        let invalid = |problem| SpecError::Volume { path: self.guest.clone(), problem };
        check_absolute(&self.guest).map_err(invalid)?;
        if self.host.components().any(|part| part == Component::ParentDir) {
            return Err(SpecError::Volume { path: self.host.clone(), problem: "contains `..`" });
        }
        if Path::new(WORKSPACE) == self.guest {
            return Err(invalid("is the workspace of the sandbox; choose another guest path, such as /data"));
        }
        let reserved = ["/", "/proc", "/dev", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/tmp"];
        if reserved.iter().any(|path| Path::new(path) == self.guest) {
            return Err(invalid("is reserved for the sandbox; choose another guest path, such as /data"));
        }
        if ["/proc", "/dev"].iter().any(|path| self.guest.starts_with(path)) {
            return Err(invalid("is under /proc or /dev; choose another guest path, such as /data"));
        }
        Ok(())
    }
}

/// Checks that a path is absolute and has no `.`, `..` or NUL, so that every component reads it in the same way.
fn check_absolute(path: &Path) -> Result<(), &'static str> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if !path.is_absolute() {
        return Err("is not an absolute path");
    }
    if bytes.contains(&0) {
        return Err("contains a NUL byte");
    }
    let is_relative = |part: &[u8]| part == b"." || part == b"..";
    if bytes.split(|byte| *byte == b'/').any(is_relative) {
        return Err("contains `.` or `..`");
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Count,
}

fn check_range(name: &'static str, value: u64, min: u64, max: u64, unit: Unit) -> Result<(), SpecError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    let format = |number| match unit {
        Unit::Bytes => crate::bytes::format(number),
        Unit::Count => number.to_string(),
    };
    Err(SpecError::OutOfRange { name, value: format(value), min: format(min), max: format(max) })
}

#[cfg(test)]
mod tests;
