//! Decides which directories of the host a server sees: the `host_path` of its entry, or the common parent of the
//! existing absolute paths in its command and arguments.
//!
//! `/`, a whole home directory and directories of the system are never shown. Paths that every sandbox has anyway, and
//! interpreters, are not considered. The file system is accessed only through [`Probe`].

use std::path::{Component, Path, PathBuf};

/// Inspects the host's files; links are followed.
pub(super) trait Probe {
    fn file_kind(&self, path: &Path) -> Option<FileKind>;
    fn is_home(&self, path: &Path) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Directory,
}

/// The paths of the host that a server sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct VisiblePaths {
    /// The directory of the server's code: copied, or mounted read-write.
    pub(crate) project: Option<PathBuf>,
    /// Other paths in its arguments: mounted read-only at the same path.
    pub(crate) others: Vec<PathBuf>,
}

/// A path that no server may see.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} cannot be made visible to a server: {reason}", path.display())]
pub(super) struct PathRefused {
    path: PathBuf,
    reason: &'static str,
}

impl PathRefused {
    pub(super) const HINT: &'static str =
        "put the server's files into a separate directory, and set `host_path` in the entry's box to it";
}

/// The command of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Invocation<'a> {
    pub(crate) command: &'a str,
    pub(crate) args: &'a [String],
    pub(crate) cwd: Option<&'a Path>,
}

const VIRTUALENVS: [&str; 4] = [".venv", "venv", "env", ".env"];

/// Programs that are found by name inside the sandbox. Their directories on the host are not those of the server.
const INTERPRETERS: [&str; 14] =
    ["python", "pip", "pipx", "uv", "uvx", "node", "npm", "npx", "pnpm", "yarn", "bun", "bunx", "deno", "sh"];

/// Files that mark the top directory of a project.
const MANIFESTS: [&str; 5] = ["pyproject.toml", "setup.py", "requirements.txt", "package.json", "deno.json"];

/// Maximum number of directories, from that of the code upwards, in which a manifest is searched.
const MAX_LEVELS: usize = 4;

/// Directories that every sandbox has at the same path.
const IN_EVERY_SANDBOX: [&str; 15] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/dev",
    "/proc",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/localtime",
];

/// Directories of the system: neither they nor anything beneath them is shown.
const SYSTEM: [&str; 7] = ["/etc", "/boot", "/sys", "/run", "/usr", "/dev", "/proc"];

/// Directories that are not shown as a whole; directories beneath them may be.
const TOO_BROAD: [&str; 17] = [
    "/", "/home", "/root", "/Users", "/Library", "/var", "/opt", "/srv", "/mnt", "/media", "/tmp", "/bin", "/sbin",
    "/lib", "/lib64", "/var/lib", "/var/tmp",
];

/// Decides which paths a server sees. `host_path` is that of its entry.
pub(super) fn infer(
    invocation: &Invocation<'_>,
    host_path: Option<&Path>,
    probe: &impl Probe,
) -> Result<VisiblePaths, PathRefused> {
    if let Some(path) = host_path {
        if probe.file_kind(path) != Some(FileKind::Directory) {
            return Err(PathRefused { path: path.to_owned(), reason: "no such directory" });
        }
        check(path, probe)?;
    }
    let named = named_paths(invocation, probe);
    let project = match host_path {
        Some(path) => Some(normalize(path)),
        None => common_project(&named, probe),
    };
    let mut others: Vec<PathBuf> = Vec::new();
    for NamedPath { path, directory } in named {
        let contains_path = |visible: &PathBuf| path.starts_with(visible);
        if project.as_ref().is_some_and(contains_path) || others.iter().any(contains_path) {
            continue;
        }
        // If the directory of a file must not be shown, only the file is.
        let visible = if check(&directory, probe).is_ok() { directory } else { path };
        if probe.file_kind(&visible) != Some(FileKind::File) || SYSTEM.iter().any(|system| visible.starts_with(system))
        {
            check(&visible, probe)?;
        }
        others.retain(|other| !other.starts_with(&visible));
        others.push(visible);
    }
    Ok(VisiblePaths { project, others })
}

/// Returns the name of an interpreter inside the sandbox, if the command is one: `python3` for `/opt/x/bin/python3.12`.
pub(crate) fn interpreter_name(command: &str) -> Option<&'static str> {
    let name = Path::new(command).file_name()?.to_str()?;
    let is_version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if name.strip_prefix("python").is_some_and(is_version) {
        return Some("python3");
    }
    INTERPRETERS.into_iter().find(|interpreter| *interpreter == name)
}

/// Splits a path into a virtualenv into the project that contains the virtualenv and the path below its `bin`. Links are
/// not resolved, because the `python` of a virtualenv is a link out of it.
pub(super) fn split_virtualenv(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let parts: Vec<Component<'_>> = path.components().collect();
    let is = |part: &Component<'_>, names: &[&str]| names.iter().any(|name| part.as_os_str() == *name);
    let at = parts.windows(2).position(|pair| is(&pair[0], &VIRTUALENVS) && is(&pair[1], &["bin", "Scripts"]))?;
    Some((parts[..at].iter().collect(), parts[at + 2..].iter().collect()))
}

/// Whether every sandbox has this path.
pub(crate) fn is_in_every_sandbox(path: &Path) -> bool {
    IN_EVERY_SANDBOX.iter().any(|directory| path.starts_with(directory))
}

/// Returns the part of an argument that may be a path: the value in `--option=value`, else the whole argument.
pub(crate) fn path_in_argument(argument: &str) -> &str {
    match argument.split_once('=') {
        Some((name, value)) if !name.contains('/') => value,
        _ => argument,
    }
}

/// An existing path in the command, the arguments or the working directory of an entry.
struct NamedPath {
    path: PathBuf,
    /// The path itself if it is a directory, the project of a file of code, or the parent directory of another file.
    directory: PathBuf,
}

fn named_paths(invocation: &Invocation<'_>, probe: &impl Probe) -> Vec<NamedPath> {
    let command = Some(invocation.command)
        .filter(|command| interpreter_name(command).is_none() || split_virtualenv(Path::new(command)).is_some());
    // The first argument of an interpreter that is not an option is its script.
    let script = match command {
        None => invocation.args.iter().position(|argument| !argument.starts_with('-')),
        Some(_) => None,
    };
    let arguments = invocation.args.iter().enumerate();
    let arguments = arguments.map(|(index, argument)| (path_in_argument(argument), Some(index) == script));
    let cwd = invocation.cwd.and_then(Path::to_str).map(|cwd| (cwd, false));
    let texts = cwd.into_iter().chain(command.map(|command| (command, true))).chain(arguments);
    texts.filter_map(|(text, is_code)| named_path(Path::new(text), is_code, probe)).collect()
}

fn named_path(path: &Path, is_code: bool, probe: &impl Probe) -> Option<NamedPath> {
    if !path.is_absolute() || path == Path::new("/") {
        return None;
    }
    let kind = probe.file_kind(path)?;
    let path = normalize(path);
    if is_in_every_sandbox(&path) {
        return None;
    }
    if let Some((project, _)) = split_virtualenv(&path) {
        return Some(NamedPath { path: project.clone(), directory: project });
    }
    let directory = match kind {
        FileKind::Directory => path.clone(),
        FileKind::File if is_code => project_of_code(path.parent()?, probe),
        FileKind::File => path.parent()?.to_owned(),
    };
    Some(NamedPath { path, directory })
}

/// Returns the project that contains code: `dist/index.js` needs the files beside `dist`.
fn project_of_code(directory: &Path, probe: &impl Probe) -> PathBuf {
    let has_manifest =
        |directory: &&Path| MANIFESTS.iter().any(|name| probe.file_kind(&directory.join(name)) == Some(FileKind::File));
    let mut ancestors = directory.ancestors().take(MAX_LEVELS).take_while(|directory| check(directory, probe).is_ok());
    ancestors.find(has_manifest).unwrap_or(directory).to_owned()
}

/// Returns the common parent of all directories. A directory that would make it too broad is left out.
fn common_project(named: &[NamedPath], probe: &impl Probe) -> Option<PathBuf> {
    let mut project: Option<PathBuf> = None;
    for NamedPath { directory, .. } in named {
        let broader = match &project {
            None => directory.clone(),
            Some(project) => common_parent(project, directory),
        };
        if check(&broader, probe).is_ok() {
            project = Some(broader);
        }
    }
    project
}

fn common_parent(first: &Path, second: &Path) -> PathBuf {
    let parts = first.components().zip(second.components());
    parts.take_while(|(first, second)| first == second).map(|(part, _)| part).collect()
}

fn check(path: &Path, probe: &impl Probe) -> Result<(), PathRefused> {
    let path = normalize(path);
    let reason = if probe.is_home(&path) {
        "home directories are not made visible as a whole"
    } else if SYSTEM.iter().any(|system| path.starts_with(system)) && !path.starts_with("/run/media") {
        "the path belongs to the system"
    } else if TOO_BROAD.iter().any(|broad| path == Path::new(broad)) || !path.is_absolute() {
        "the directory contains more than the files of one server"
    } else {
        return Ok(());
    };
    Err(PathRefused { path, reason })
}

/// Removes `.` and `..` from a path without resolving links.
fn normalize(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(normalized.pop()),
            part => normalized.push(part),
        }
    }
    normalized
}

/// The real file system.
pub(super) struct Disk;

impl Probe for Disk {
    fn file_kind(&self, path: &Path) -> Option<FileKind> {
        let found = std::fs::metadata(path).ok()?;
        Some(if found.is_dir() { FileKind::Directory } else { FileKind::File })
    }

    fn is_home(&self, path: &Path) -> bool {
        let is_own_home = std::env::var_os("HOME").is_some_and(|home| Path::new(&home).starts_with(path));
        let is_listed = || {
            let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
            // Service accounts have their data directory as home directory.
            let is_person = |line: &&str| {
                line.split(':').nth(2).and_then(|uid| uid.parse().ok()).is_some_and(|uid: u32| uid == 0 || uid >= 1000)
            };
            let homes = passwd.lines().filter(is_person).filter_map(|line| line.split(':').nth(5));
            homes.filter(|home| home.len() > 1).any(|home| Path::new(home) == path)
        };
        is_own_home || is_listed()
    }
}

#[cfg(test)]
mod tests;
