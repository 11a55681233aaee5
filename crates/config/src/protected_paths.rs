//! Files and directories of the host that guests must not read or write, also if a volume contains them.
//!
//! The directories of ringfence (state, cache, configuration) contain sockets and entries that give access to the host:
//! guests see them empty, and a volume inside of one is refused. Files that determine which programs the host starts are
//! read-only for guests.

use std::fs::DirBuilder;
use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Root, Volume};

use crate::configuration::{Configuration, SessionSettings};
use crate::guest_writable::{GuestWritable, VolumeRecord, absolute, real};
use crate::sources::{Sources, cache_directory};

/// The paths of this process that guests must not reach. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedPaths {
    /// Directories that guests see empty.
    directories: Vec<PathBuf>,
    /// Files that guests cannot write. Relative paths start at the working directory of ringfence.
    files: Vec<PathBuf>,
    /// The files among them that a server obeys as soon as they exist.
    settings: Vec<PathBuf>,
    /// The record of volumes that guests could write.
    record: Option<VolumeRecord>,
    /// The configuration file that the user named explicitly.
    explicit_config: Option<PathBuf>,
}

/// The file name whose creation at the top of a volume is detected: see [`VolumeRecord`].
const CONFIG_FILE_NAME: &str = "ringfence.toml";

/// A volume that guests must not get because of the protected paths in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot mount the volume {}: {problem}", volume.display())]
pub struct VolumeRefused {
    volume: PathBuf,
    problem: String,
}

impl VolumeRefused {
    pub const HINT: &str = "mount a directory that contains only data, or move the files of ringfence (sessions.state_dir, RINGFENCE_CACHE_DIR, --config); if a file is missing, you can create it empty first";
}

impl ProtectedPaths {
    pub fn new(directories: Vec<PathBuf>, files: Vec<PathBuf>) -> Self {
        Self { directories, files, ..Self::default() }
    }

    /// Returns the protected paths of a process with this configuration.
    ///
    /// `client_files` are the settings of MCP clients, which name programs that the host starts.
    pub fn of_process(sources: &Sources, configuration: Option<&Configuration>, client_files: Vec<PathBuf>) -> Self {
        let state = configuration.and_then(|configuration| configuration.state_directory().ok());
        let defaults = [sources.environment.state_directory(), sources.environment.config_directory()];
        let directories = defaults.into_iter().flatten().chain(state).chain(cache_directory());
        let hosting = configuration.map(|configuration| configuration.hosting.clone()).unwrap_or_default();
        let tokens = configuration.into_iter().flat_map(Configuration::secret_files);
        // ringfence executes itself again for launchers and workers.
        let program = std::env::current_exe().ok();
        let files = sources.candidate_files().into_iter().chain(hosting.files);
        let files = files.chain(client_files).chain(tokens).chain(program);
        let record = sources.environment.record_directory().map(|directory| VolumeRecord::in_directory(&directory));
        Self { record, explicit_config: sources.file.clone(), ..Self::new(directories.collect(), files.collect()) }
    }

    /// Returns the protected paths of a server. Unlike other processes, it also obeys settings that are created later.
    pub fn of_server(sources: &Sources, configuration: &Configuration, client_files: Vec<PathBuf>) -> Self {
        let settings = sources.candidate_files().into_iter().chain(configuration.hosting.files.clone());
        let settings = settings.chain(configuration.secret_files()).collect();
        Self { settings, ..Self::of_process(sources, Some(configuration), client_files) }
    }

    /// Adds a file.
    #[must_use]
    pub fn with_file(mut self, file: PathBuf) -> Self {
        self.files.push(file);
        self
    }

    /// Protects all paths in the volumes of sessions.
    pub fn protect_sessions(&self, mut settings: SessionSettings) -> Result<SessionSettings, VolumeRefused> {
        settings.protected_paths = self.protect(&settings.volumes)?;
        Ok(settings)
    }

    /// Returns the paths in these volumes that a sandbox must protect. Creates missing directories that a guest would
    /// see, so that the guest cannot create them. Records read-write volumes.
    pub fn protect(&self, volumes: &[Volume]) -> Result<Vec<PathBuf>, VolumeRefused> {
        let mut protected = Vec::new();
        for volume in volumes {
            self.protect_directories(volume, &mut protected)?;
            self.protect_files(volume, &mut protected)?;
        }
        protected.sort();
        protected.dedup();
        self.record_volumes(volumes, &protected);
        Ok(protected)
    }

    fn protect_directories(&self, volume: &Volume, protected: &mut Vec<PathBuf>) -> Result<(), VolumeRefused> {
        let host = real(&volume.host);
        let refused = |problem| VolumeRefused { volume: volume.host.clone(), problem };
        for directory in self.directories.iter().map(|directory| real(directory)) {
            if host.starts_with(&directory) {
                return Err(refused(format!("it lies in {}, a directory of ringfence", directory.display())));
            }
            // The root of the host is refused later; nothing must be created for it.
            if directory.starts_with(&host) && host.parent().is_some() {
                match DirBuilder::new().recursive(true).mode(0o700).create(&directory) {
                    Ok(()) => protected.push(directory),
                    // The guest has no more permissions than this process, so it cannot create the directory either.
                    Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {}
                    Err(error) => return Err(refused(format!("cannot create {}: {error}", directory.display()))),
                }
            }
        }
        Ok(())
    }

    fn protect_files(&self, volume: &Volume, protected: &mut Vec<PathBuf>) -> Result<(), VolumeRefused> {
        let host = real(&volume.host);
        let refused = |problem| VolumeRefused { volume: volume.host.clone(), problem };
        for file in self.writable_files(volume) {
            // Guests can neither see nor write files in a directory that they see empty.
            if protected.iter().any(|directory| file.starts_with(directory)) {
                continue;
            }
            let metadata = std::fs::symlink_metadata(&file);
            if metadata.as_ref().is_ok_and(std::fs::Metadata::is_symlink) {
                return Err(refused(format!("guests could replace the symbolic link {}", file.display())));
            }
            if file == host {
                return Err(refused("the file determines which programs the host starts".into()));
            }
            let is_detected =
                file.parent() == Some(&host) && file.file_name().is_some_and(|name| name == CONFIG_FILE_NAME);
            if metadata.is_err() && !is_detected && self.settings.iter().any(|setting| lookup_path(setting) == file) {
                let problem = format!("guests could create {}, which a server would obey", file.display());
                return Err(refused(problem));
            }
            protected.extend(metadata.is_ok().then_some(file));
        }
        Ok(())
    }

    /// Records the read-write volumes of guests, and the configuration files in them that guests cannot write.
    fn record_volumes(&self, volumes: &[Volume], protected: &[PathBuf]) {
        let Some(record) = &self.record else { return };
        let writable = volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
        let writable: Vec<PathBuf> = writable.map(|volume| real(&volume.host)).collect();
        if writable.is_empty() {
            return;
        }
        // A configuration file at the top of a volume is always protected.
        let at_top = writable.iter().map(|volume| volume.join(CONFIG_FILE_NAME)).filter(|path| path.is_file());
        let present: Vec<PathBuf> = protected.iter().cloned().chain(at_top).collect();
        let explicit_config = self.explicit_config.as_deref().map(real);
        if let Err(error) = record.add(&writable, &present, explicit_config.as_deref()) {
            tracing::warn!("cannot record read-write volumes in the state directory: {error}");
        }
    }

    /// Returns a protected file that a guest with these volumes could write or create, if there is one.
    pub fn find_writable_file(&self, volumes: &[Volume]) -> Option<PathBuf> {
        volumes.iter().find_map(|volume| self.writable_files(volume).into_iter().next())
    }

    /// Whether a directory contains a protected directory or lies in one, so that it must not be copied for guests.
    pub fn overlaps(&self, directory: &Path) -> bool {
        let given = real(directory);
        let protected = self.directories.iter().map(|directory| real(directory));
        protected.into_iter().any(|directory| given.starts_with(&directory) || directory.starts_with(&given))
    }

    /// Checks that the root file systems and images of templates can be used. The error is a message.
    pub fn check_template_roots(&self, settings: &SessionSettings) -> Result<(), String> {
        let writable = GuestWritable::from_volumes(&settings.volumes);
        for template in settings.templates.iter() {
            let (key, checked) = match (&template.image, &template.root) {
                (Some(image), _) => ("image", check_trusted_tree(image, &writable)),
                (None, Root::Directory(root)) => ("root", self.check_root(root, &writable)),
                (None, Root::Host) => continue,
            };
            checked.map_err(|problem| format!("templates.{}.{key}: {problem}", template.name))?;
        }
        Ok(())
    }

    /// Returns the real path of a root file system, after checking that guests cannot write it and that it contains no
    /// protected directory.
    pub fn check_root(&self, path: &Path, writable: &GuestWritable) -> Result<PathBuf, String> {
        let root = path.canonicalize().map_err(|error| format!("cannot use {}: {error}", path.display()))?;
        let shown = root.display();
        if root.parent().is_none() {
            return Err(format!("{shown} is the root directory of the host: sandboxes would see all files"));
        }
        if self.overlaps(&root) {
            return Err(format!("{shown} contains a directory of ringfence, or lies in one"));
        }
        check_trusted_tree(&root, writable)
    }

    /// Returns the protected files that a guest with this volume could write or create: both the paths under which they
    /// are looked up and their real paths.
    fn writable_files(&self, volume: &Volume) -> Vec<PathBuf> {
        if volume.access == Access::ReadOnly {
            return Vec::new();
        }
        let host = real(&volume.host);
        let paths = self.files.iter().flat_map(|file| [lookup_path(file), real(file)]);
        let mut paths: Vec<PathBuf> = paths.filter(|path| path.starts_with(&host)).collect();
        paths.dedup();
        paths
    }
}

/// Returns the path of a file in its real directory. The file itself may be a symbolic link.
fn lookup_path(file: &Path) -> PathBuf {
    match (absolute(file).parent(), file.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => real(file),
    }
}

/// Returns the real path of a file or directory, after checking that guests cannot write it.
pub fn check_trusted_tree(path: &Path, writable: &GuestWritable) -> Result<PathBuf, String> {
    writable.check_tree(path).map_err(|error| error.to_string())?;
    Ok(real(path))
}

#[cfg(test)]
mod tests;
