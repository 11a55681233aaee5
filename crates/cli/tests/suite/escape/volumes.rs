//! The volumes of a case: a project and a home that may be written, one that may not, and a place that is none.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::stage::Stage;

/// Options of `ringfence run` that show all of them under `/volumes`.
pub(super) const OPTIONS: &str = "--volume {stage}/volumes/rw:/volumes/rw:rw \
     --volume {stage}/volumes/ro:/volumes/ro:ro --volume {stage}/volumes/home:/volumes/home:rw";

/// The same, with all protected names held.
pub(super) const STRICT_OPTIONS: &str = "--strict-volumes --volume {stage}/volumes/rw:/volumes/rw:rw \
     --volume {stage}/volumes/ro:/volumes/ro:ro --volume {stage}/volumes/home:/volumes/home:rw";

/// The first, and a directory of the project once more as a volume of its own.
pub(super) const NESTED_OPTIONS: &str = "--volume {stage}/volumes/rw:/volumes/rw:rw \
     --volume {stage}/volumes/ro:/volumes/ro:ro --volume {stage}/volumes/rw/inner:/volumes/inner:rw";

/// The arguments by which a script finds them.
pub(super) const ARGUMENTS: &str = "--volumes {volumes} --outside {stage}/outside";
pub(super) const PROJECT_ARGUMENTS: &str = "--only project --volumes {volumes}";
pub(super) const HOME_ARGUMENTS: &str = "--only home --volumes {volumes}";

/// What the volumes hold beforehand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Volumes {
    None,
    /// Nothing that is protected.
    Ordinary,
    /// Names that are protected where they exist.
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
            for name in HOME_DIRECTORIES {
                directory(&format!("volumes/home/{name}"));
                file(&format!("volumes/home/{name}/config"));
            }
            symlink("dotfiles/aliases", stage.path("volumes/home/.bash_aliases")).expect("a link");
            for name in HOME_FILES {
                file(&format!("volumes/home/{name}"));
            }
        }
        for path in listing(stage).keys() {
            stage.give(path);
        }
    }
}

/// Everything in the volumes and outside of them, with its content: the same before a case as after it. The content of
/// the state directory (locks and the record of volumes) is left out: it is in the home, but no guest sees it.
pub(super) fn listing(stage: &Stage) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for top in ["volumes", "outside"] {
        collect(&stage.path(top), &mut found);
    }
    let state = stage.path("volumes/home/.local/state/ringfence");
    found.retain(|path, _| path == &state || !path.starts_with(&state));
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
