//! Volumes of a case: a writable project, a writable home directory and a read-only one, beside a directory that is no
//! volume.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::setup::Setup;

/// Options of `ringfence run` that mount all volumes below `/volumes`.
pub const OPTIONS: &str = "--volume {directory}/volumes/rw:/volumes/rw:rw \
     --volume {directory}/volumes/ro:/volumes/ro:ro --volume {directory}/volumes/home:/volumes/home:rw";

/// Like [`OPTIONS`], with all names protected, also those that do not exist.
pub const STRICT_OPTIONS: &str = "--strict-volumes --volume {directory}/volumes/rw:/volumes/rw:rw \
     --volume {directory}/volumes/ro:/volumes/ro:ro --volume {directory}/volumes/home:/volumes/home:rw";

/// The project and the read-only volume, and a directory of the project as another volume.
pub const NESTED_OPTIONS: &str = "--volume {directory}/volumes/rw:/volumes/rw:rw \
     --volume {directory}/volumes/ro:/volumes/ro:ro --volume {directory}/volumes/rw/inner:/volumes/inner:rw";

/// Arguments that tell a script the paths of the volumes.
pub const ARGUMENTS: &str = "--volumes {volumes} --outside {directory}/outside";
pub const PROJECT_ARGUMENTS: &str = "--only project --volumes {volumes}";
pub const HOME_ARGUMENTS: &str = "--only home --volumes {volumes}";

/// Content of the volumes before the case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Volumes {
    None,
    /// No protected names.
    Ordinary,
    /// Names that are protected if they exist.
    WithProtectedNames,
}

const DIRECTORIES: [&str; 10] =
    [".git", ".git/hooks", ".git/info", ".vscode", ".cursor", ".claude", ".gemini", ".codex", ".venv", "venv"];
const PROJECT_FILES: [&str; 4] = [".mcp.json", ".envrc", ".npmrc", "ringfence.toml"];
const HOME_DIRECTORIES: [&str; 14] = [
    ".ssh",
    ".config/systemd",
    ".config/autostart",
    ".config/fish",
    ".config/gcloud",
    ".config/pip",
    ".aws",
    ".kube",
    ".docker",
    ".local/bin",
    ".local/lib",
    ".local/share",
    "bin",
    "dotfiles",
];
const HOME_FILES: [&str; 11] = [
    ".bashrc",
    ".bash_profile",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".gitconfig",
    ".claude.json",
    ".netrc",
    ".pypirc",
    "dotfiles/aliases",
];

impl Volumes {
    pub fn create(self, setup: &Setup) {
        if self == Self::None {
            return;
        }
        let directory = |name: &str| fs::create_dir(setup.path(name)).expect("create a directory of a volume");
        let file = |name: &str| fs::write(setup.path(name), "of the host\n").expect("write a file of a volume");
        for name in ["volumes", "volumes/rw", "volumes/rw/inner", "volumes/ro", "volumes/home", "outside"] {
            directory(name);
        }
        // ringfence creates its directories in a home before a guest could, and leaves them there.
        for name in [".cache/ringfence", ".config/ringfence", ".local/state/ringfence"] {
            fs::create_dir_all(setup.path("volumes/home").join(name)).expect("create a directory of a volume");
        }
        for name in ["volumes/rw/file", "volumes/ro/file", "outside/secret"] {
            file(name);
        }
        symlink(setup.path("outside/secret"), setup.path("volumes/ro/link-to-secret")).expect("create a link");
        symlink("rw/inner", setup.path("volumes/inner")).expect("create a link");
        if self == Self::WithProtectedNames {
            for volume in ["rw", "home"] {
                for name in DIRECTORIES {
                    directory(&format!("volumes/{volume}/{name}"));
                    file(&format!("volumes/{volume}/{name}/config"));
                }
                for name in PROJECT_FILES {
                    file(&format!("volumes/{volume}/{name}"));
                }
            }
            for name in HOME_DIRECTORIES {
                directory(&format!("volumes/home/{name}"));
                file(&format!("volumes/home/{name}/config"));
            }
            symlink("dotfiles/aliases", setup.path("volumes/home/.bash_aliases")).expect("create a link");
            for name in HOME_FILES {
                file(&format!("volumes/home/{name}"));
            }
        }
        for path in listing(setup).keys() {
            setup.give_to_user(path);
        }
    }
}

/// Returns everything in the volumes and beside them, with its mode and content, which a case must not change. The
/// content of the state directory (locks and the record of volumes) is left out: no guest can see it.
pub fn listing(setup: &Setup) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for top in ["volumes", "outside"] {
        collect(&setup.path(top), &mut found);
    }
    let state = setup.path("volumes/home/.local/state/ringfence");
    found.retain(|path, _| path == &state || !path.starts_with(&state));
    found
}

fn collect(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    let content = if metadata.is_symlink() {
        fs::read_link(path).expect("read a link").display().to_string()
    } else if metadata.is_file() {
        fs::read_to_string(path).expect("read a file")
    } else {
        String::new()
    };
    found.insert(path.to_owned(), format!("{:o} {content}", metadata.mode()));
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("list a directory").flatten() {
            collect(&entry.path(), found);
        }
    }
}
