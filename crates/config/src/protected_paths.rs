//! What on the host is ringfence's own, and is kept from guests where a volume holds it.
//!
//! The directories of its state, packages and settings hold sockets and entries by which the host itself is reached:
//! guests find them empty, and volumes that lie in them are refused. Files that say what is started on the host are
//! read-only for guests.

mod record;
mod writable;

use std::fs::DirBuilder;
use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ringfence_core::{Access, Volume};

pub(crate) use record::Record;
pub use writable::{GuestWritable, GuestWritten, HostExecutes};

use crate::cache_directory::cache_directory;
use crate::{Configuration, Sources};

/// Directories and files of ringfence. Cheap enough to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// Not shown at all.
    directories: Vec<PathBuf>,
    /// Not written. Relative ones are of the directory that ringfence was started in.
    files: Vec<PathBuf>,
    /// Those of them that a server obeys as soon as they are there.
    settings: Vec<PathBuf>,
    /// The directory with the record of volumes that guests could write.
    record: Option<Record>,
    /// The configuration that the user has named.
    named: Option<PathBuf>,
}

/// The name whose creation is detected at the top of every volume.
const NOTICED: &str = "ringfence.toml";

/// A volume that cannot be shown without giving away what is ringfence's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the volume {} cannot be shown to guests: {problem}", volume.display())]
pub struct NotKept {
    volume: PathBuf,
    problem: String,
}

impl NotKept {
    pub const HINT: &str = "choose a directory of data alone, or keep what is ringfence's own elsewhere (sessions.state_dir, RINGFENCE_CACHE_DIR, --config); a file that is missing can be made first, and be empty";
}

impl Own {
    pub fn new(directories: Vec<PathBuf>, files: Vec<PathBuf>) -> Self {
        Self { directories, files, ..Self::default() }
    }

    /// What a process with this configuration has.
    ///
    /// `client_files` are the settings of MCP clients, which name programs that the host starts.
    pub fn of(sources: &Sources, configuration: Option<&Configuration>, client_files: Vec<PathBuf>) -> Self {
        let state = configuration.and_then(|configuration| configuration.state_directory().ok());
        let usual = [sources.environment.state_directory(), sources.environment.config_directory()];
        let directories = usual.into_iter().flatten().chain(state).chain(cache_directory());
        let hosting = configuration.map(|configuration| configuration.hosting.clone()).unwrap_or_default();
        let tokens = configuration.into_iter().flat_map(Configuration::token_files);
        // Executed again for launchers and workers.
        let program = std::env::current_exe().ok();
        let files = sources.files().into_iter().chain(hosting.files).chain(client_files).chain(tokens).chain(program);
        let record = sources.environment.record_directory().map(|directory| Record::in_directory(&directory));
        Self { record, named: sources.file.clone(), ..Self::new(directories.collect(), files.collect()) }
    }

    /// The same of a server, which obeys settings that are made later.
    pub fn of_server(sources: &Sources, configuration: &Configuration, client_files: Vec<PathBuf>) -> Self {
        let settings = sources.files().into_iter().chain(configuration.hosting.files.clone());
        let settings = settings.chain(configuration.token_files()).collect();
        Self { settings, ..Self::of(sources, Some(configuration), client_files) }
    }

    /// The same, with one more file.
    #[must_use]
    pub fn with_file(mut self, file: PathBuf) -> Self {
        self.files.push(file);
        self
    }

    /// What a sandbox with these volumes must keep from its guest. Makes directories that are missing where a guest
    /// would see them: it must not be the one who makes them.
    pub fn keep(&self, volumes: &[Volume]) -> Result<Vec<PathBuf>, NotKept> {
        let mut kept = Vec::new();
        for volume in volumes {
            let host = real(&volume.host);
            let refuse = |problem| NotKept { volume: volume.host.clone(), problem };
            for directory in self.directories.iter().map(|directory| real(directory)) {
                if host.starts_with(&directory) {
                    return Err(refuse(format!("it lies in {}, which is ringfence's own", directory.display())));
                }
                // The root of the host is no volume: it is refused, and nothing is to be made for it.
                if directory.starts_with(&host) && host.parent().is_some() {
                    match DirBuilder::new().recursive(true).mode(0o700).create(&directory) {
                        Ok(()) => kept.push(directory),
                        // Where we may not make it, neither may the guest.
                        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {}
                        Err(error) => return Err(refuse(format!("{} cannot be made: {error}", directory.display()))),
                    }
                }
            }
            for file in self.files_in(volume) {
                // In a directory that guests find empty it is neither seen nor written.
                if kept.iter().any(|directory| file.starts_with(directory)) {
                    continue;
                }
                let metadata = std::fs::symlink_metadata(&file);
                if metadata.as_ref().is_ok_and(std::fs::Metadata::is_symlink) {
                    return Err(refuse(format!("guests could exchange the link {}", file.display())));
                }
                if file == host {
                    return Err(refuse("it says what is started on this host".into()));
                }
                let is_noticed = file.parent() == Some(&host) && file.file_name().is_some_and(|name| name == NOTICED);
                if metadata.is_err() && !is_noticed && self.settings.iter().any(|setting| named(setting) == file) {
                    let shown = file.display();
                    return Err(refuse(format!("guests could make {shown}, by which a server is told what to start")));
                }
                kept.extend(metadata.is_ok().then_some(file));
            }
        }
        kept.sort();
        kept.dedup();
        self.remember(volumes, &kept);
        Ok(kept)
    }

    /// Records the read-write volumes of guests, and the configuration files in them that guests cannot write.
    fn remember(&self, volumes: &[Volume], kept: &[PathBuf]) {
        let Some(record) = &self.record else { return };
        let written = volumes.iter().filter(|volume| volume.access == Access::ReadWrite);
        let written: Vec<PathBuf> = written.map(|volume| real(&volume.host)).collect();
        if written.is_empty() {
            return;
        }
        // Its name is protected at the top of every volume where it exists.
        let tops = written.iter().map(|volume| volume.join(NOTICED)).filter(|path| path.is_file());
        let present: Vec<PathBuf> = kept.iter().cloned().chain(tops).collect();
        let named = self.named.as_deref().map(real);
        if let Err(error) = record.note(&written, &present, named.as_deref()) {
            tracing::warn!("cannot record read-write volumes in the state directory: {error}");
        }
    }

    /// One of the files that a guest could write or make, if there is such a volume.
    pub fn written_in(&self, volumes: &[Volume]) -> Option<PathBuf> {
        volumes.iter().find_map(|volume| self.files_in(volume).into_iter().next())
    }

    /// Whether copying a directory would copy what is not shown, or it is a part of that.
    pub fn overlaps(&self, directory: &Path) -> bool {
        let given = real(directory);
        self.directories.iter().map(|own| real(own)).any(|own| given.starts_with(&own) || own.starts_with(&given))
    }

    /// The real path of a root file system, if guests cannot write it and it contains nothing that must stay hidden.
    pub fn root(&self, given: &Path, writable: &GuestWritable) -> Result<PathBuf, String> {
        let root = given.canonicalize().map_err(|error| format!("{} cannot be used: {error}", given.display()))?;
        let shown = root.display();
        if root.parent().is_none() {
            return Err(format!("{shown} is the root of the host: all its files would be shown"));
        }
        if self.overlaps(&root) {
            return Err(format!("{shown} holds what is ringfence's own, or lies in it"));
        }
        unwritten(&root, writable)
    }

    /// The files by the names under which they are found, and by what those lead to.
    fn files_in(&self, volume: &Volume) -> Vec<PathBuf> {
        if volume.access == Access::ReadOnly {
            return Vec::new();
        }
        let host = real(&volume.host);
        let places = self.files.iter().flat_map(|file| [named(file), real(file)]);
        let mut places: Vec<PathBuf> = places.filter(|place| place.starts_with(&host)).collect();
        places.dedup();
        places
    }
}

/// A file by the name under which it is found, in the real directory of that.
fn named(file: &Path) -> PathBuf {
    match (absolute(file).parent(), file.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => real(file),
    }
}

/// The real path of a tree that guests cannot write.
pub fn unwritten(given: &Path, writable: &GuestWritable) -> Result<PathBuf, String> {
    writable.check_tree(given).map_err(|error| error.to_string())?;
    Ok(real(given))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The real path of what is there of it, and the rest as it is written.
fn real(path: &Path) -> PathBuf {
    let path = absolute(path);
    let found = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match found {
        Some((above, real)) => {
            let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
            if rest.as_os_str().is_empty() { real } else { real.join(rest) }
        }
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(host: &Path, access: Access) -> Volume {
        Volume { host: host.to_owned(), guest: "/shown".into(), access, allowed_root: None }
    }

    #[test]
    fn what_is_its_own_is_kept_from_volumes_and_refused_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        let (state, config) = (home.join(".local/state/ringfence"), home.join("project/ringfence.toml"));
        std::fs::create_dir(home.join("project")).unwrap();
        let own = Own::new(vec![state.clone()], vec![config.clone()]);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            assert_eq!(own.keep(&[volume(&home, access)]), Ok(vec![state.clone()]));
            assert!(state.is_dir(), "no guest can make it");
            for inside in [&state, &state.join("launchers")] {
                assert!(own.keep(&[volume(inside, access)]).is_err(), "{}", inside.display());
            }
            assert_eq!(own.keep(&[volume(&home.join("other"), access)]), Ok(vec![]));
        }
        std::fs::write(&config, "").unwrap();
        let project = home.join("project");
        assert_eq!(own.keep(&[volume(&project, Access::ReadWrite)]), Ok(vec![config.clone()]));
        assert_eq!(own.keep(&[volume(&project, Access::ReadOnly)]), Ok(vec![]));
        assert!(own.keep(&[volume(&config, Access::ReadWrite)]).is_err());
        assert!(own.overlaps(&home) && own.overlaps(&state.join("x")) && !own.overlaps(&project));
    }

    #[test]
    fn nothing_is_made_for_what_is_refused_anyway() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        let own = Own::new(vec![state.clone()], Vec::new());
        assert_eq!(own.keep(&[volume(Path::new("/"), Access::ReadWrite)]), Ok(vec![]));
        assert!(!state.exists());
    }

    #[test]
    fn settings_that_are_missing_cannot_be_made_by_guests() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let project = base.join("project");
        std::fs::create_dir(&project).unwrap();
        let config = project.join("ringfence.toml");
        let settings = |file: &Path| Own { settings: vec![file.into()], ..Own::new(Vec::new(), vec![file.into()]) };
        // At the top of a volume its creation is noticed.
        assert_eq!(settings(&config).keep(&[volume(&project, Access::ReadWrite)]), Ok(vec![]));
        let refusal = settings(&config).keep(&[volume(&base, Access::ReadWrite)]).unwrap_err();
        assert!(refusal.to_string().contains("guests could make"), "{refusal}");
        assert!(settings(&project.join("servers.json")).keep(&[volume(&project, Access::ReadWrite)]).is_err());
        assert_eq!(settings(&config).keep(&[volume(&base, Access::ReadOnly)]), Ok(vec![]));
        std::fs::write(&config, "").unwrap();
        assert_eq!(settings(&config).keep(&[volume(&base, Access::ReadWrite)]), Ok(vec![config]));
    }

    #[test]
    fn files_in_a_directory_that_guests_find_empty_need_nothing_more() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        let config = home.join(".config/ringfence");
        let file = config.join("ringfence.toml");
        let own = Own { settings: vec![file.clone()], ..Own::new(vec![config.clone()], vec![file.clone()]) };
        assert_eq!(own.keep(&[volume(&home, Access::ReadWrite)]), Ok(vec![config.clone()]), "it is missing");
        std::fs::write(&file, "").unwrap();
        assert_eq!(own.keep(&[volume(&home, Access::ReadWrite)]), Ok(vec![config]));
    }

    #[test]
    fn a_root_file_system_is_no_guests() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for made in ["image", "data/image", "state"] {
            std::fs::create_dir_all(base.join(made)).unwrap();
        }
        std::os::unix::fs::symlink("/", base.join("everything")).unwrap();
        std::os::unix::fs::symlink("image", base.join("named")).unwrap();
        let own = Own::new(vec![base.join("state")], Vec::new());
        let volumes = [volume(&base.join("data"), Access::ReadWrite), volume(&base, Access::ReadOnly)];
        let written = GuestWritable::of(&volumes);
        assert_eq!(own.root(&base.join("named"), &written), Ok(base.join("image")), "links are resolved at once");
        for (bad, reason) in [
            (Path::new("/").to_owned(), "the root of the host"),
            (base.join("everything"), "the root of the host"),
            (base.clone(), "ringfence's own"),
            (base.join("state"), "ringfence's own"),
            (base.join("data/image"), "guests may write"),
            (base.join("missing"), "cannot be used"),
        ] {
            let said = own.root(&bad, &written).unwrap_err();
            assert!(said.contains(reason), "{}: {said}", bad.display());
        }
    }

    #[test]
    fn a_name_that_is_a_link_is_seen_through_and_at() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        for made in ["shown", "elsewhere"] {
            std::fs::create_dir(base.join(made)).unwrap();
        }
        let (link, file) = (base.join("shown/ringfence.toml"), base.join("elsewhere/real.toml"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let own = Own::new(Vec::new(), vec![link]);
        let (shown, elsewhere) = (base.join("shown"), base.join("elsewhere"));
        assert!(own.keep(&[volume(&shown, Access::ReadWrite)]).is_err(), "the link could be exchanged");
        assert_eq!(own.keep(&[volume(&elsewhere, Access::ReadWrite)]), Ok(vec![file]));
        assert!(own.written_in(&[volume(&shown, Access::ReadOnly)]).is_none());
        assert!(own.written_in(&[volume(&elsewhere, Access::ReadWrite)]).is_some());
    }
}
