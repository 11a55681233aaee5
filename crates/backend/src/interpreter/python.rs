//! The Python that a guest executes: its path inside, and its version.

use std::fs;
use std::path::{Path, PathBuf};

use ringfence_core::{Language, Root};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::versions;

/// The Python of a root file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestPython {
    /// The program file inside the guest, not a link.
    pub program: PathBuf,
    /// The name of its directories of libraries, such as `python3.12`.
    pub version: String,
}

/// Finds the Python that a guest with this root and `PATH` executes. Executes nothing. `None` if there is none, if it
/// belongs to a virtual environment, or if its version is not known.
pub fn guest_python(root: &Root, path: &str) -> Option<GuestPython> {
    let name = Language::Python.interpreter();
    let directories = path.split(':').map(Path::new).filter(|directory| directory.is_absolute());
    let mut found =
        directories.filter_map(|directory| resolve(root, &directory.join(name)).map(|file| (directory, file)));
    let (directory, program) = found.next()?;
    let settings = directory.parent()?.join("pyvenv.cfg");
    if matches!(root, Root::Directory(_)) && resolve(root, &settings).is_some() {
        return None;
    }
    let own_name = program.file_name()?.to_str()?.to_owned();
    let version = match root {
        _ if is_version(&own_name) => own_name,
        Root::Host => versions(program.parent()?.parent()?, &program).into_iter().find(|name| is_version(name))?,
        Root::Directory(_) => return None,
    };
    Some(GuestPython { program, version })
}

fn is_version(name: &str) -> bool {
    name.strip_prefix("python3.")
        .is_some_and(|minor| !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Resolves the links of a file as the guest does. The links of an image do not lead out of it.
fn resolve(root: &Root, path: &Path) -> Option<PathBuf> {
    let Root::Directory(root) = root else {
        return fs::canonicalize(path).ok().filter(|path| path.is_file());
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root_fd = rustix::fs::open(root, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let beneath = path.strip_prefix("/").ok()?;
    let file = openat2(&root_fd, beneath, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    let inside = |fd: &std::os::fd::OwnedFd| {
        fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd))).ok()
    };
    let file = fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let resolved = inside(&file.into())?;
    Some(Path::new("/").join(resolved.strip_prefix(inside(&root_fd)?).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn image() -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        for path in ["usr/bin", "opt/venv/bin"] {
            fs::create_dir_all(directory.path().join(path)).unwrap();
        }
        fs::write(directory.path().join("usr/bin/python3.12"), "").unwrap();
        let root = Root::Directory(directory.path().to_owned());
        (directory, root)
    }

    #[test]
    fn links_of_an_image_are_resolved_inside_of_it() {
        let (directory, root) = image();
        assert_eq!(guest_python(&root, "/usr/bin"), None);
        symlink("/usr/bin/python3.12", directory.path().join("usr/bin/python3")).unwrap();
        symlink("usr/bin", directory.path().join("bin")).unwrap();
        let expected = GuestPython { program: "/usr/bin/python3.12".into(), version: "python3.12".into() };
        assert_eq!(guest_python(&root, "relative:/usr/local/bin:/bin:/usr/bin"), Some(expected));
    }

    #[test]
    fn environment_of_an_image_is_left_alone() {
        let (directory, root) = image();
        symlink("/usr/bin/python3.12", directory.path().join("opt/venv/bin/python3")).unwrap();
        fs::write(directory.path().join("opt/venv/pyvenv.cfg"), "").unwrap();
        assert_eq!(guest_python(&root, "/opt/venv/bin:/usr/bin"), None);
    }

    #[test]
    fn name_without_a_version_is_not_guessed_in_an_image() {
        let (directory, root) = image();
        fs::write(directory.path().join("usr/bin/python3"), "").unwrap();
        assert_eq!(guest_python(&root, "/usr/bin"), None);
    }
}
