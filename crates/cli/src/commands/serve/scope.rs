//! The scope of the run that a server is started for, if it is for one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_config::Environment;
use ringfence_config::Settings;
use ringfence_config::{NotKept, Own};
use ringfence_config::{SCOPE_DIGEST_VARIABLE, SCOPE_FILE_VARIABLE, Scope, ScopeFile};

use crate::failure::Failure;

pub(crate) struct Scoped {
    pub(crate) scope: Arc<Scope>,
    file: ScopeFile,
    is_ours: bool,
}

impl Scoped {
    /// Reads it. One that is named by the option is this server's own; one that is named by the variable belongs to
    /// whoever set that, and will start a next server with it if this one dies.
    pub(crate) fn load(option: Option<&Path>, environment: &Environment) -> Result<Option<Self>, Failure> {
        let variable = environment.get(SCOPE_FILE_VARIABLE).map(PathBuf::from);
        let Some(path) = option.map(Path::to_owned).or(variable) else { return Ok(None) };
        let (scope, file) = Scope::load(&path)?;
        if let (None, Some(meant)) = (option, environment.get(SCOPE_DIGEST_VARIABLE)) {
            scope.check_digest(meant, &file)?;
        }
        Ok(Some(Self { scope: Arc::new(scope), file, is_ours: option.is_some() }))
    }

    /// Wherever whoever reads it next may be.
    pub(crate) fn path(&self) -> Result<PathBuf, Failure> {
        let failed = |error: std::io::Error| Failure::new("the file of the scope cannot be named").because(&error);
        std::path::absolute(self.file.path()).map_err(failed)
    }

    /// Binds sessions to it.
    pub(super) fn bind(&self, settings: Settings) -> Result<Settings, Failure> {
        let before = settings.volumes.clone();
        let bound = settings.within(&self.scope)?;
        if let Some(file) = Own::new(Vec::new(), vec![self.path()?]).written_in(&bound.volumes) {
            return Err(Failure::new(format!("guests could write the scope {}", file.display()))
                .hint("put it where no volume that is `rw` shows it"));
        }
        for (volume, given) in bound.volumes.iter().zip(&before).filter(|(bound, given)| bound.access != given.access) {
            let (host, guest) = (given.host.display(), volume.guest.display());
            tracing::warn!("{host} is shown at {guest} read-only: a parallel worker writes in its own directory alone");
        }
        Ok(bound)
    }

    /// Its file is not for guests either.
    pub(super) fn keep(&self, own: Own) -> Result<Own, Failure> {
        Ok(own.with_file(self.path()?))
    }

    /// For the time that the server serves: what removes the file at its end.
    pub(crate) fn removal(self) -> Option<Removal> {
        self.is_ours.then(|| Removal(Some(self.file)))
    }
}

/// Keeps from the guests of sessions what is not theirs.
pub(crate) fn keep(settings: Settings, own: &Own) -> Result<Settings, Failure> {
    let refused =
        |why: String| Failure::new(why).hint("let guests write elsewhere, or keep the root file system elsewhere");
    settings.check_roots(own).map_err(refused)?;
    settings.keeping(own).map_err(|error| Failure::new(error.to_string()).hint(NotKept::HINT))
}

pub(crate) struct Removal(Option<ScopeFile>);

impl Drop for Removal {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(ScopeFile::remove) {
            tracing::warn!("the file of the scope cannot be removed: {error}");
        }
    }
}
