//! The volumes of a case: a project and a home that may be written, one that may not, and a place that is none.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::stage::Stage;

/// Options of `ringfence run` that show all of them under `/volumes`.
pub(super) const OPTIONS: &str = "--volume {stage}/volumes/rw:/volumes/rw:rw \
     --volume {stage}/volumes/ro:/volumes/ro:ro --volume {stage}/volumes/home:/volumes/home:rw";

/// The same, and a directory of the project once more as a volume of its own.
pub(super) const NESTED_OPTIONS: &str = "--volume {stage}/volumes/rw:/volumes/rw:rw \
     --volume {stage}/volumes/ro:/volumes/ro:ro --volume {stage}/volumes/rw/inner:/volumes/inner:rw";

/// The arguments by which a script finds them.
pub(super) const ARGUMENTS: &str = "--volumes {volumes} --outside {stage}/outside";

/// What the volumes hold beforehand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Volumes {
    None,
    /// Nothing that is protected.
    Ordinary,
    /// Every protected name.
    WithProtectedNames,
}

const DIRECTORIES: [&str; 6] = [".git", ".vscode", ".cursor", ".claude", ".venv", "venv"];
const PROJECT_FILES: [&str; 3] = [".mcp.json", ".envrc", "ringfence.toml"];
const HOME_FILES: [&str; 6] = [".bashrc", ".bash_profile", ".profile", ".zshrc", ".zshenv", ".zprofile"];

impl Volumes {
    pub(super) fn make(self, stage: &Stage) {
        if self == Self::None {
            return;
        }
        let directory = |name: &str| fs::create_dir(stage.path(name)).expect("a directory of a volume");
        let file = |name: &str| fs::write(stage.path(name), "of the host\n").expect("a file of a volume");
        for name in ["volumes", "volumes/rw", "volumes/rw/inner", "volumes/ro", "volumes/home", "outside"] {
            directory(name);
        }
        // What is ringfence's own in a home is made before a guest could make it, and stays.
        for name in [".cache/ringfence", ".config/ringfence", ".local/state/ringfence"] {
            fs::create_dir_all(stage.path("volumes/home").join(name)).expect("a directory of a volume");
        }
        for name in ["volumes/rw/file", "volumes/ro/file", "outside/secret"] {
            file(name);
        }
        symlink(stage.path("outside/secret"), stage.path("volumes/ro/link-to-secret")).expect("a link");
        symlink("rw/inner", stage.path("volumes/inner")).expect("a link");
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
            for name in HOME_FILES {
                file(&format!("volumes/home/{name}"));
            }
        }
        for path in listing(stage).keys() {
            stage.give(path);
        }
    }
}

/// Everything in the volumes and outside of them, with what it holds: the same before a case as after it.
pub(super) fn listing(stage: &Stage) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for top in ["volumes", "outside"] {
        collect(&stage.path(top), &mut found);
    }
    found
}

fn collect(path: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    let content = if metadata.is_symlink() {
        fs::read_link(path).expect("a link is readable").display().to_string()
    } else if metadata.is_file() {
        fs::read_to_string(path).expect("a file is readable")
    } else {
        String::new()
    };
    found.insert(path.to_owned(), format!("{:o} {content}", metadata.mode()));
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("a directory is readable").flatten() {
            collect(&entry.path(), found);
        }
    }
}
