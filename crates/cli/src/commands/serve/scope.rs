//! The scope of a server that serves a single run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_config::{
    Environment, ProtectedPaths, SCOPE_DIGEST_VARIABLE, SCOPE_FILE_VARIABLE, Scope, ScopeFile, SessionSettings,
    VolumeRefused,
};

use crate::failure::Failure;

pub(crate) struct RunScope {
    pub(crate) scope: Arc<Scope>,
    file: ScopeFile,
    /// True if the server removes the file at the end.
    is_owned: bool,
}

impl RunScope {
    /// Reads the scope file, if one is named. A file that the option names is removed at the end; a file that the variable
    /// names is not, since the process that set the variable may start another server with it.
    pub(crate) fn load(option: Option<&Path>, environment: &Environment) -> Result<Option<Self>, Failure> {
        let variable = environment.get(SCOPE_FILE_VARIABLE).map(PathBuf::from);
        let Some(path) = option.map(Path::to_owned).or(variable) else { return Ok(None) };
        let (scope, file) = Scope::load(&path)?;
        if let (None, Some(expected)) = (option, environment.get(SCOPE_DIGEST_VARIABLE)) {
            scope.check_digest(expected, &file)?;
        }
        Ok(Some(Self { scope: Arc::new(scope), file, is_owned: option.is_some() }))
    }

    /// Returns the absolute path of the file, for a process with another current directory.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new("cannot determine the absolute path of the scope file").caused_by(&error)
        };
        std::path::absolute(self.file.path()).map_err(failed)
    }

    /// Restricts the settings of sessions to the scope.
    pub(super) fn restrict(&self, settings: SessionSettings) -> Result<SessionSettings, Failure> {
        let before = settings.volumes.clone();
        let restricted = settings.confined_to(&self.scope)?;
        if let Some(file) = ProtectedPaths::new(Vec::new(), vec![self.path()?]).find_writable_file(&restricted.volumes)
        {
            return Err(Failure::new(format!(
                "the scope file {} is in a volume that guests may write",
                file.display()
            ))
            .hint("move it out of all `rw` volumes"));
        }
        let changed = restricted.volumes.iter().zip(&before).filter(|(after, before)| after.access != before.access);
        for (after, before) in changed {
            let (host, guest) = (before.host.display(), after.guest.display());
            tracing::warn!("{host} is mounted read-only at {guest}: a parallel worker may write only to its directory");
        }
        Ok(restricted)
    }

    /// Adds the scope file to the paths that are protected from guests.
    pub(super) fn protect_file(&self, protected: ProtectedPaths) -> Result<ProtectedPaths, Failure> {
        Ok(protected.with_file(self.path()?))
    }

    /// Returns a guard that removes the file when it is dropped, if the server has to remove it.
    pub(crate) fn remove_on_drop(self) -> Option<RemoveOnDrop> {
        self.is_owned.then(|| RemoveOnDrop(Some(self.file)))
    }
}

/// Protects the paths of ringfence and of the host's user from the guests of sessions.
pub(crate) fn protect(settings: SessionSettings, protected: &ProtectedPaths) -> Result<SessionSettings, Failure> {
    let refused = |reason: String| Failure::new(reason).hint("move the root file system or the `rw` volume");
    protected.check_template_roots(&settings).map_err(refused)?;
    protected.protect_sessions(settings).map_err(|error| Failure::new(error.to_string()).hint(VolumeRefused::HINT))
}

pub(crate) struct RemoveOnDrop(Option<ScopeFile>);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(ScopeFile::remove) {
            tracing::warn!("cannot remove the scope file: {error}");
        }
    }
}
