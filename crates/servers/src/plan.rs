//! The plan for a server in its sandbox: the directories of the host that it sees, its command with the paths inside,
//! and the dependencies to install first.
//!
//! Planning reads files of the host, but writes nothing and starts nothing.

mod dependencies;
mod host_paths;
mod manifests;
mod package_runner;
mod path_map;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Volume, WORKSPACE};

use crate::phase::{Phase, StartFailure};
use crate::server_sandbox::shared::SharedServer;
use ringfence_config::{Confinement, OutsideAllowedRoots};
use ringfence_config::{ProtectedPaths, VolumeRefused};
use ringfence_entries::{HostPathMode, ServerEntry, StdioSettings};

pub(crate) use dependencies::{Dependency, Ecosystem, LaunchCommand, NODE_MANIFESTS, PYTHON_MANIFESTS, Program};
use host_paths::{Disk, Invocation, PathRefused, VisiblePaths};
pub(crate) use host_paths::{interpreter_name, is_in_every_sandbox, path_in_argument};
pub(crate) use manifests::ManifestDirectory;
pub(crate) use path_map::MappedDirectory;
use path_map::PathMap;

/// The plan for an entry.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The command and arguments of the entry, with paths inside the sandbox.
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) workdir: PathBuf,
    /// The variables of the entry.
    pub(crate) environment: BTreeMap<String, String>,
    /// The project's directory on the host and inside.
    pub(crate) project: Option<MappedDirectory>,
    pub(crate) mode: HostPathMode,
    /// The mounted directories and files. A project that is copied is not among them.
    pub(crate) volumes: Vec<Volume>,
}

impl Plan {
    /// Plans how to run an entry. Reads files; may block.
    pub(crate) fn of(entry: &ServerEntry, settings: &StdioSettings) -> Result<Self, StartFailure> {
        let sandbox = &settings.sandbox_settings;
        let invocation = Invocation { command: &settings.command, args: &settings.args, cwd: settings.cwd.as_deref() };
        let VisiblePaths { project, others } = host_paths::infer(&invocation, sandbox.host_path.as_deref(), &Disk)
            .map_err(|refused| {
                StartFailure::permanent(Phase::SessionCreate, refused.to_string()).hint(PathRefused::HINT)
            })?;
        let mut volumes =
            others.iter().map(|path| volume(path, path, Access::ReadOnly)).collect::<Result<Vec<_>, _>>()?;
        let mut paths = PathMap::default();
        let mut mapped_project = None;
        if let Some(project) = project {
            let guest = guest_directory(entry, sandbox.shared, sandbox.host_path_mode, &project);
            let real = canonicalize(&project)?;
            // The entry may contain the path as the user wrote it, or with links resolved.
            paths.add(MappedDirectory { host: project, guest: guest.clone(), allowed_root: None });
            paths.add(MappedDirectory { host: real.clone(), guest: guest.clone(), allowed_root: None });
            if sandbox.host_path_mode == HostPathMode::ReadWrite {
                volumes.push(volume(&real, &guest, Access::ReadWrite)?);
            }
            mapped_project = Some(MappedDirectory { host: real, guest, allowed_root: None });
        }
        if sandbox.shared && !volumes.is_empty() {
            let names: Vec<String> = volumes.iter().map(|volume| volume.host.display().to_string()).collect();
            let message = format!("a shared sandbox cannot mount the directories of one server: {}", names.join(", "));
            return Err(StartFailure::permanent(Phase::SessionCreate, message).hint(
                "remove `shared` from the entry's box, or put all files that the server needs in one directory",
            ));
        }
        let home =
            || PathBuf::from(if sandbox.shared { SharedServer::directory(&entry.uuid) } else { WORKSPACE.into() });
        let workdir = match &settings.cwd {
            Some(cwd) if cwd.is_absolute() => paths.map_path(cwd),
            _ => mapped_project.as_ref().map_or_else(home, |project| project.guest.clone()),
        };
        let mut environment = paths.map_environment(&settings.env);
        environment.extend(paths.map_environment(&sandbox.env));
        Ok(Self {
            command: paths.map_command(&settings.command),
            args: settings.args.iter().map(|argument| paths.map_argument(argument)).collect(),
            workdir,
            environment,
            project: mapped_project,
            mode: sandbox.host_path_mode,
            volumes,
        })
    }

    /// Confines all directories of the host that the server sees to the allowed roots of a scope.
    pub(crate) fn confine(&mut self, confinement: &Confinement) -> Result<(), StartFailure> {
        let refused = |error: OutsideAllowedRoots| {
            StartFailure::permanent(Phase::SessionCreate, error.to_string()).hint(OutsideAllowedRoots::HINT)
        };
        if let Some(project) = &mut self.project {
            project.allowed_root = Some(confinement.find_root(&project.host).map_err(refused)?);
        }
        for volume in &mut self.volumes {
            confinement.confine(volume).map_err(refused)?;
        }
        Ok(())
    }

    /// Returns the paths in the volumes that must be hidden from the server because they are files of ringfence.
    pub(crate) fn protected_paths(&self, protected: &ProtectedPaths) -> Result<Vec<PathBuf>, StartFailure> {
        let refused =
            |message: String| StartFailure::permanent(Phase::SessionCreate, message).hint(VolumeRefused::HINT);
        if let Some(project) = self.project.as_ref().filter(|project| protected.overlaps(&project.host)) {
            let project = project.host.display();
            return Err(refused(format!("{project} contains files of ringfence itself, or is inside its directories")));
        }
        protected.protect(&self.volumes).map_err(|error| refused(error.to_string()))
    }
}

/// Returns the project's directory inside the sandbox. A copy is the workspace itself. A mounted project is a directory
/// of the same name in the workspace, because the workspace is a tmpfs of the sandbox.
fn guest_directory(entry: &ServerEntry, is_shared: bool, mode: HostPathMode, project: &Path) -> PathBuf {
    let workspace = Path::new(WORKSPACE);
    match mode {
        HostPathMode::ReadOnly if is_shared => Path::new(&SharedServer::directory(&entry.uuid)).join("workspace"),
        HostPathMode::ReadOnly => workspace.to_owned(),
        HostPathMode::ReadWrite => {
            project.file_name().map_or_else(|| workspace.join("project"), |name| workspace.join(name))
        }
    }
}

fn volume(host: &Path, guest: &Path, access: Access) -> Result<Volume, StartFailure> {
    Ok(Volume { host: canonicalize(host)?, guest: guest.to_owned(), access, allowed_root: None })
}

/// Resolves links: users may name a directory through them, but volumes need the real path.
fn canonicalize(path: &Path) -> Result<PathBuf, StartFailure> {
    std::fs::canonicalize(path).map_err(|error| {
        StartFailure::permanent(Phase::SessionCreate, format!("{} cannot be used: {error}", path.display()))
    })
}
