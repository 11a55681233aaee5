//! Interpreters of the host: those outside of `/usr` (pyenv, nvm, a home directory) are found on the host's PATH and
//! mounted read-only at the same path in the guest.
//!
//! Only files of the interpreter are mounted: its installation prefix if the directory has the layout of one, else the
//! program file alone. Never a home directory.

mod parts;
mod python;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub use parts::{executed_parts, prefixes, versions};
pub use python::{GuestPython, guest_python};
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_core::{Access, Language, PATH, Volume};

/// Programs that are mounted. Users must mount others themselves.
const KNOWN_PROGRAMS: [&str; 10] = ["python3", "python", "pip", "node", "npm", "npx", "uv", "uvx", "deno", "bun"];

/// Programs that consist of a single file.
const SINGLE_FILES: [&str; 4] = ["uv", "uvx", "deno", "bun"];

/// The entries at the top of an installation of Python or Node. A directory with any other entry, such as `~/.local`,
/// contains more than an installation.
const INSTALLATION_ENTRIES: [&str; 14] = [
    "bin",
    "etc",
    "include",
    "lib",
    "lib64",
    "libexec",
    "man",
    "sbin",
    "share",
    "ssl",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "pyvenv.cfg",
];

/// The entries of `share` in an installation.
const SHARE_ENTRIES: [&str; 6] = ["doc", "info", "locale", "man", "systemtap", "terminfo"];

/// The changes to a sandbox with which it finds a program.
#[derive(Debug, PartialEq, Eq)]
pub struct Interpreter {
    pub volume: Volume,
    /// To prepend to the guest's PATH.
    pub directory: PathBuf,
}

/// Finds a program on the host's PATH. `None` if every guest has it, or it is not a known interpreter.
pub fn find(program: &str) -> Option<Interpreter> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let search = env::var_os("PATH")?;
    let directories: Vec<PathBuf> = env::split_paths(&search).collect();
    find_in(program, &directories, home.as_deref())
}

fn find_in(program: &str, directories: &[PathBuf], home: Option<&Path>) -> Option<Interpreter> {
    if !KNOWN_PROGRAMS.contains(&program) || is_in_every_guest(program) {
        return None;
    }
    locate(program, directories, home)
}

fn locate(program: &str, directories: &[PathBuf], home: Option<&Path>) -> Option<Interpreter> {
    directories.iter().find_map(|directory| {
        let found = directory.join(program);
        let real = fs::canonicalize(&found).ok()?;
        if !is_program(&real) {
            return None;
        }
        let is_safe = |prefix: &PathBuf| home.is_none_or(|home| !home.starts_with(prefix)) && is_installation(prefix);
        let prefix = prefix_of(&found, &real).filter(|prefix| !SINGLE_FILES.contains(&program) && is_safe(prefix));
        let (mounted, directory) = match prefix {
            Some(prefix) => (prefix.clone(), prefix.join("bin")),
            None => (real.clone(), real.parent()?.to_owned()),
        };
        Some(Interpreter {
            volume: Volume { host: mounted.clone(), guest: mounted, access: Access::ReadOnly, allowed_root: None },
            directory,
        })
    })
}

fn is_in_every_guest(program: &str) -> bool {
    PATH.split(':').any(|directory| Path::new(directory).join(program).exists())
}

/// The installation of a program: `PREFIX/bin/PROGRAM` beside `PREFIX/lib/{python3.*,node_modules}`.
fn prefix_of(found: &Path, real: &Path) -> Option<PathBuf> {
    let bin = [real, found].into_iter().filter_map(Path::parent).find(|bin| bin.ends_with("bin"))?;
    let prefix = fs::canonicalize(bin.parent()?).ok()?;
    let libraries = fs::read_dir(prefix.join("lib")).ok()?;
    let is_library = |entry: fs::DirEntry| {
        let name = entry.file_name();
        name == "node_modules" || name.to_string_lossy().starts_with("python3.")
    };
    libraries.flatten().any(is_library).then_some(prefix)
}

fn is_installation(prefix: &Path) -> bool {
    let has_only = |directory: &Path, known: &[&str]| {
        let Ok(mut entries) = fs::read_dir(directory) else { return true };
        entries.all(|entry| entry.is_ok_and(|entry| known.iter().any(|name| entry.file_name() == *name)))
    };
    has_only(prefix, &INSTALLATION_ENTRIES) && has_only(&prefix.join("share"), &SHARE_ENTRIES)
}

/// Whether the file is a compiled program, or a script of node (npx is a link to one). The shell shims of pyenv are
/// not: they work only on the host.
fn is_program(path: &Path) -> bool {
    let start = fs::File::open(path).and_then(|mut file| {
        let mut start = [0; 64];
        let length = std::io::Read::read(&mut file, &mut start)?;
        Ok(start[..length].to_vec())
    });
    start.is_ok_and(|start| start.starts_with(b"\x7fELF") || start.starts_with(b"#!/usr/bin/env node"))
}

/// Returns the Python of sessions if the host may execute it: guests must not have been able to write any part of it.
pub fn host_python(writable: &GuestWritable) -> Option<PathBuf> {
    let directory = find(Language::Python.interpreter()).map(|found| found.directory);
    let python = find_program(Language::Python.interpreter(), directory.as_deref())?;
    match writable.register_executed(&executed_parts(&python)) {
        Ok(()) => Some(python),
        Err(error) => {
            tracing::warn!(
                "{} is not executed on the host, so Python sessions start cold: {error}; hint: {}",
                python.display(),
                GuestWritten::HINT
            );
            None
        }
    }
}

/// Finds the file that a session would execute: the host's directories have the same paths in the guest.
fn find_program(program: &str, first: Option<&Path>) -> Option<PathBuf> {
    let directories = first.into_iter().chain(PATH.split(':').map(Path::new));
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that no guest has by default.
    const NAME: &str = "npx-of-a-test";

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"\x7fELF...").unwrap();
    }

    fn mounted(name: &str, directories: &[PathBuf], home: &Path) -> Option<PathBuf> {
        locate(name, directories, Some(home)).map(|found| found.volume.host)
    }

    #[test]
    fn only_the_installation_in_a_home_directory_is_mounted() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = home.join(".nvm/versions/v1");
        program(&prefix.join("bin").join(NAME));
        fs::create_dir_all(prefix.join("lib/node_modules")).unwrap();
        fs::create_dir_all(prefix.join("share/man")).unwrap();
        let shims = home.join("shims");
        fs::create_dir(&shims).unwrap();
        fs::write(shims.join(NAME), b"#!/bin/sh\nexec elsewhere").unwrap();
        assert_eq!(mounted(NAME, &[shims.clone(), prefix.join("bin")], &home), Some(prefix.clone()));
        assert_eq!(mounted(NAME, &[shims], &home), None, "a shim is not an interpreter");
        assert_eq!(find_in("passwd", &[prefix.join("bin")], Some(&home)), None, "not a known interpreter");
    }

    #[test]
    fn directory_with_other_files_is_not_mounted() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        for prefix in [home.clone(), home.join(".local")] {
            program(&prefix.join("bin").join(NAME));
            fs::create_dir_all(prefix.join("lib/python3.12")).unwrap();
        }
        fs::create_dir_all(home.join(".local/share/keyrings")).unwrap();
        for directory in [home.join("bin"), home.join(".local/bin")] {
            assert_eq!(mounted(NAME, std::slice::from_ref(&directory), &home), Some(directory.join(NAME)));
        }
    }
}
