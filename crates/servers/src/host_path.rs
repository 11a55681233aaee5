//! Which directories of the host a server is shown: the one that its entry gives, or what the existing absolute paths
//! in its command and arguments have in common.
//!
//! Pure decisions over a look at the file system. Never `/`, a home directory as a whole or a directory of the system.
//! Places that every sandbox has anyway, and interpreters, are not counted.

use std::path::{Component, Path, PathBuf};

/// A look at the host's files; links are followed.
pub(crate) trait Probe {
    fn kind(&self, path: &Path) -> Option<Kind>;
    fn is_home(&self, path: &Path) -> bool;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
}

/// What a server is shown of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Where the server's own files are: staged, or mounted to be written.
    pub(crate) project: Option<PathBuf>,
    /// What else its arguments name, outside of it: shown read-only at the same place.
    pub(crate) others: Vec<PathBuf>,
}

/// A path that cannot be shown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} cannot be shown to a server: {why}", path.display())]
pub(crate) struct Refused {
    path: PathBuf,
    why: &'static str,
}

impl Refused {
    pub(crate) const HINT: &'static str =
        "put the server's files into a directory of their own, and name it as `host_path` in the entry's box";
}

/// A command as far as it matters here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Invocation<'a> {
    pub(crate) command: &'a str,
    pub(crate) args: &'a [String],
    pub(crate) cwd: Option<&'a Path>,
}

const VIRTUALENVS: [&str; 4] = [".venv", "venv", "env", ".env"];

/// Programs that are looked for inside, by name; where they lie on the host says nothing about the server.
const INTERPRETERS: [&str; 14] =
    ["python", "pip", "pipx", "uv", "uvx", "node", "npm", "npx", "pnpm", "yarn", "bun", "bunx", "deno", "sh"];

/// What stands at the top of a project.
const MANIFESTS: [&str; 5] = ["pyproject.toml", "setup.py", "requirements.txt", "package.json", "deno.json"];

/// How far above its code the top of a project is looked for.
const MOST_LEVELS: usize = 4;

/// What every sandbox has at the same place.
const IN_VIEW: [&str; 15] = [
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

/// With all that is below them.
const SYSTEM: [&str; 7] = ["/etc", "/boot", "/sys", "/run", "/usr", "/dev", "/proc"];

/// Only as a whole.
const TOO_WIDE: [&str; 17] = [
    "/", "/home", "/root", "/Users", "/Library", "/var", "/opt", "/srv", "/mnt", "/media", "/tmp", "/bin", "/sbin",
    "/lib", "/lib64", "/var/lib", "/var/tmp",
];

/// Decides what is shown.
pub(crate) fn infer(invocation: &Invocation<'_>, given: Option<&Path>, probe: &impl Probe) -> Result<Shown, Refused> {
    if let Some(given) = given {
        if probe.kind(given) != Some(Kind::Directory) {
            return Err(Refused { path: given.to_owned(), why: "there is no such directory" });
        }
        check(given, probe)?;
    }
    let named = named_paths(invocation, probe);
    let project = match given {
        Some(given) => Some(plain(given)),
        None => project_of(&named, probe),
    };
    let mut others: Vec<PathBuf> = Vec::new();
    for Named { path, directory } in named {
        let is_shown = |shown: &PathBuf| path.starts_with(shown);
        if project.as_ref().is_some_and(is_shown) || others.iter().any(is_shown) {
            continue;
        }
        // A file in a directory that is too much is shown alone.
        let shown = if check(&directory, probe).is_ok() { directory } else { path };
        if probe.kind(&shown) != Some(Kind::File) || SYSTEM.iter().any(|system| shown.starts_with(system)) {
            check(&shown, probe)?;
        }
        others.retain(|other| !other.starts_with(&shown));
        others.push(shown);
    }
    Ok(Shown { project, others })
}

/// The name by which an interpreter is found inside, if that is what a command is: `/opt/x/bin/python3.12` is
/// `python3`.
pub(crate) fn interpreter_name(command: &str) -> Option<&'static str> {
    let name = Path::new(command).file_name()?.to_str()?;
    let is_version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if name.strip_prefix("python").is_some_and(is_version) {
        return Some("python3");
    }
    INTERPRETERS.into_iter().find(|interpreter| *interpreter == name)
}

/// The project that a virtualenv is in, and what lies in its `bin`; from the path as it is written, since a
/// virtualenv's python is a link out of it.
pub(crate) fn unwrap_virtualenv(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let parts: Vec<Component<'_>> = path.components().collect();
    let is = |part: &Component<'_>, names: &[&str]| names.iter().any(|name| part.as_os_str() == *name);
    let at = parts.windows(2).position(|pair| is(&pair[0], &VIRTUALENVS) && is(&pair[1], &["bin", "Scripts"]))?;
    Some((parts[..at].iter().collect(), parts[at + 2..].iter().collect()))
}

/// Whether every sandbox has it.
pub(crate) fn is_in_view(path: &Path) -> bool {
    IN_VIEW.iter().any(|place| path.starts_with(place))
}

/// The part of an argument that may be a path: all of it, or what follows `=`.
pub(crate) fn path_in(argument: &str) -> &str {
    match argument.split_once('=') {
        Some((name, value)) if !name.contains('/') => value,
        _ => argument,
    }
}

struct Named {
    path: PathBuf,
    /// Itself, or the directory that it is in; of code, that of its project.
    directory: PathBuf,
}

fn named_paths(invocation: &Invocation<'_>, probe: &impl Probe) -> Vec<Named> {
    let command = Some(invocation.command)
        .filter(|command| interpreter_name(command).is_none() || unwrap_virtualenv(Path::new(command)).is_some());
    // An interpreter's first argument that is no option is its script.
    let script = match command {
        None => invocation.args.iter().position(|argument| !argument.starts_with('-')),
        Some(_) => None,
    };
    let arguments = invocation.args.iter().enumerate();
    let arguments = arguments.map(|(index, argument)| (path_in(argument), Some(index) == script));
    let cwd = invocation.cwd.and_then(Path::to_str).map(|cwd| (cwd, false));
    let texts = cwd.into_iter().chain(command.map(|command| (command, true))).chain(arguments);
    texts.filter_map(|(text, is_code)| name(Path::new(text), is_code, probe)).collect()
}

fn name(path: &Path, is_code: bool, probe: &impl Probe) -> Option<Named> {
    if !path.is_absolute() || path == Path::new("/") {
        return None;
    }
    let kind = probe.kind(path)?;
    let path = plain(path);
    if is_in_view(&path) {
        return None;
    }
    if let Some((project, _)) = unwrap_virtualenv(&path) {
        return Some(Named { path: project.clone(), directory: project });
    }
    let directory = match kind {
        Kind::Directory => path.clone(),
        Kind::File if is_code => top_of(path.parent()?, probe),
        Kind::File => path.parent()?.to_owned(),
    };
    Some(Named { path, directory })
}

/// The project that code belongs to: `dist/index.js` needs what stands beside `dist`.
fn top_of(directory: &Path, probe: &impl Probe) -> PathBuf {
    let has_manifest =
        |directory: &&Path| MANIFESTS.iter().any(|name| probe.kind(&directory.join(name)) == Some(Kind::File));
    let mut above = directory.ancestors().take(MOST_LEVELS).take_while(|directory| check(directory, probe).is_ok());
    above.find(has_manifest).unwrap_or(directory).to_owned()
}

/// What all have in common; where that is too much, what the first has in common with those near it.
fn project_of(named: &[Named], probe: &impl Probe) -> Option<PathBuf> {
    let mut project: Option<PathBuf> = None;
    for Named { directory, .. } in named {
        let wider = match &project {
            None => directory.clone(),
            Some(project) => common(project, directory),
        };
        if check(&wider, probe).is_ok() {
            project = Some(wider);
        }
    }
    project
}

fn common(one: &Path, other: &Path) -> PathBuf {
    one.components().zip(other.components()).take_while(|(one, other)| one == other).map(|(one, _)| one).collect()
}

fn check(path: &Path, probe: &impl Probe) -> Result<(), Refused> {
    let path = plain(path);
    let why = if probe.is_home(&path) {
        "it is a home directory"
    } else if SYSTEM.iter().any(|system| path.starts_with(system)) && !path.starts_with("/run/media") {
        "it belongs to the system"
    } else if TOO_WIDE.iter().any(|wide| path == Path::new(wide)) || !path.is_absolute() {
        "it is more than one server's files"
    } else {
        return Ok(());
    };
    Err(Refused { path, why })
}

/// The path without `.` and `..`, as it is written.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// The real file system.
pub(crate) struct Disk;

impl Probe for Disk {
    fn kind(&self, path: &Path) -> Option<Kind> {
        let found = std::fs::metadata(path).ok()?;
        Some(if found.is_dir() { Kind::Directory } else { Kind::File })
    }

    fn is_home(&self, path: &Path) -> bool {
        let own = std::env::var_os("HOME").is_some_and(|home| Path::new(&home).starts_with(path));
        let listed = || {
            let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
            // Accounts of services have the directory of their data as home.
            let is_person = |line: &&str| {
                line.split(':').nth(2).and_then(|uid| uid.parse().ok()).is_some_and(|uid: u32| uid == 0 || uid >= 1000)
            };
            let homes = passwd.lines().filter(is_person).filter_map(|line| line.split(':').nth(5));
            homes.filter(|home| home.len() > 1).any(|home| Path::new(home) == path)
        };
        own || listed()
    }
}

#[cfg(test)]
mod tests;
