//! What becomes of an entry inside its sandbox: what is shown of the host, and the command as it is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Volume, WORKSPACE};

use super::host_path::{self, Disk, Invocation, Refused, Shown};
use super::phase::{Phase, StartFailure};
use super::rewrite::{Moved, Moves};
use super::shared::Lodger;
use ringfence_config::{Confinement, OutsideAllowedRoots};
use ringfence_config::{ProtectedPaths, VolumeRefused};
use ringfence_entries::{HostPathMode, ServerEntry, StdioSettings};

/// An entry, thought through.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The command as it is written in the entry, with paths of the sandbox.
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) workdir: PathBuf,
    /// The entry's own.
    pub(crate) environment: BTreeMap<String, String>,
    /// The project on the host and where it is inside.
    pub(crate) project: Option<Moved>,
    pub(crate) mode: HostPathMode,
    /// What is mounted besides a project that is copied.
    pub(crate) volumes: Vec<Volume>,
}

impl Plan {
    /// Looks at the host's files; may block.
    pub(crate) fn of(entry: &ServerEntry, settings: &StdioSettings) -> Result<Self, StartFailure> {
        let walls = &settings.sandbox_settings;
        let invocation = Invocation { command: &settings.command, args: &settings.args, cwd: settings.cwd.as_deref() };
        let Shown { project, others } = host_path::infer(&invocation, walls.host_path.as_deref(), &Disk)
            .map_err(|refused| StartFailure::lasting(Phase::SessionCreate, refused.to_string()).hint(Refused::HINT))?;
        let mut volumes =
            others.iter().map(|path| volume(path, path, Access::ReadOnly)).collect::<Result<Vec<_>, _>>()?;
        let mut moves = Moves::default();
        let mut moved = None;
        if let Some(project) = project {
            let guest = place(entry, walls.shared, walls.host_path_mode, &project);
            let real = real(&project)?;
            // It may be named through a link, or as it is.
            moves.0.push(Moved { host: project, guest: guest.clone(), within: None });
            moves.0.push(Moved { host: real.clone(), guest: guest.clone(), within: None });
            if walls.host_path_mode == HostPathMode::ReadWrite {
                volumes.push(volume(&real, &guest, Access::ReadWrite)?);
            }
            moved = Some(Moved { host: real, guest, within: None });
        }
        if walls.shared && !volumes.is_empty() {
            let names: Vec<String> = volumes.iter().map(|volume| volume.host.display().to_string()).collect();
            let message = format!("a shared sandbox cannot mount what one server needs: {}", names.join(", "));
            return Err(StartFailure::lasting(Phase::SessionCreate, message)
                .hint("leave `shared` out of the entry's box, or keep all that it needs in one directory"));
        }
        let home = || PathBuf::from(if walls.shared { Lodger::area(&entry.uuid) } else { WORKSPACE.into() });
        let workdir = match &settings.cwd {
            Some(cwd) if cwd.is_absolute() => moves.path(cwd),
            _ => moved.as_ref().map_or_else(home, |moved| moved.guest.clone()),
        };
        let mut environment = moves.environment(&settings.env);
        environment.extend(moves.environment(&walls.env));
        Ok(Self {
            command: moves.command(&settings.command),
            args: settings.args.iter().map(|argument| moves.argument(argument)).collect(),
            workdir,
            environment,
            project: moved,
            mode: walls.host_path_mode,
            volumes,
        })
    }

    /// Binds all that it shows of the host to what a scope allows.
    pub(crate) fn confine(&mut self, confinement: &Confinement) -> Result<(), StartFailure> {
        let refused = |error: OutsideAllowedRoots| {
            StartFailure::lasting(Phase::SessionCreate, error.to_string()).hint(OutsideAllowedRoots::HINT)
        };
        if let Some(project) = &mut self.project {
            project.within = Some(confinement.find_root(&project.host).map_err(refused)?);
        }
        for volume in &mut self.volumes {
            confinement.confine(volume).map_err(refused)?;
        }
        Ok(())
    }
}

impl Plan {
    /// What of all that it shows is kept from the server.
    pub(crate) fn keep(&self, own: &ProtectedPaths) -> Result<Vec<PathBuf>, StartFailure> {
        let refused = |message: String| StartFailure::lasting(Phase::SessionCreate, message).hint(VolumeRefused::HINT);
        if let Some(project) = self.project.as_ref().filter(|project| own.overlaps(&project.host)) {
            let project = project.host.display();
            return Err(refused(format!("{project} holds what is ringfence's own, or lies in it")));
        }
        own.protect(&self.volumes).map_err(|error| refused(error.to_string()))
    }
}

/// Where a project is inside: a copy is the workspace itself; what is mounted keeps its name there, because the
/// workspace is the sandbox's own.
fn place(entry: &ServerEntry, shared: bool, mode: HostPathMode, project: &Path) -> PathBuf {
    let workspace = Path::new(WORKSPACE);
    match mode {
        HostPathMode::ReadOnly if shared => Path::new(&Lodger::area(&entry.uuid)).join("workspace"),
        HostPathMode::ReadOnly => workspace.to_owned(),
        HostPathMode::ReadWrite => {
            project.file_name().map_or_else(|| workspace.join("project"), |name| workspace.join(name))
        }
    }
}

fn volume(host: &Path, guest: &Path, access: Access) -> Result<Volume, StartFailure> {
    Ok(Volume { host: real(host)?, guest: guest.to_owned(), access, allowed_root: None })
}

/// A person may name a directory through links; what is mounted is what they lead to.
fn real(path: &Path) -> Result<PathBuf, StartFailure> {
    std::fs::canonicalize(path).map_err(|error| {
        StartFailure::lasting(Phase::SessionCreate, format!("{} cannot be used: {error}", path.display()))
    })
}
