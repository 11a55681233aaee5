//! Interpreters that live outside of `/usr` (pyenv, nvm, a home directory): found on the host's PATH,
//! and shown to the guest read-only at the same place.
//!
//! Only what belongs to the interpreter is shown: its installation prefix where it has the shape of
//! one, else the program file alone. Never a home directory.

mod parts;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

pub use parts::{executed_parts, prefixes, versions};
use ringfence_core::{Access, Volume};

/// Programs for which this is done; any other must be mounted by whoever wants it.
const KNOWN: [&str; 10] = ["python3", "python", "pip", "node", "npm", "npx", "uv", "uvx", "deno", "bun"];

/// Programs that are one file and need nothing beside it.
const SINGLE_FILES: [&str; 4] = ["uv", "uvx", "deno", "bun"];

/// What an installation of Python or Node has at its top, and below `share`. A directory with anything else,
/// such as `~/.local`, holds more than that.
const INSTALLED: [&str; 14] = [
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
const INSTALLED_SHARE: [&str; 6] = ["doc", "info", "locale", "man", "systemtap", "terminfo"];

/// What must be added to a sandbox for a program to be found in it.
#[derive(Debug, PartialEq, Eq)]
pub struct Interpreter {
    pub volume: Volume,
    /// To be put before the guest's PATH.
    pub directory: PathBuf,
}

/// Finds `program` on the host, unless the guest has it anyway.
pub fn find(program: &str) -> Option<Interpreter> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let search = env::var_os("PATH")?;
    let directories: Vec<PathBuf> = env::split_paths(&search).collect();
    find_in(program, &directories, home.as_deref())
}

fn find_in(program: &str, directories: &[PathBuf], home: Option<&Path>) -> Option<Interpreter> {
    if !KNOWN.contains(&program) || in_view(program) {
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
        let (shown, directory) = match prefix {
            Some(prefix) => (prefix.clone(), prefix.join("bin")),
            None => (real.clone(), real.parent()?.to_owned()),
        };
        Some(Interpreter {
            volume: Volume { host: shown.clone(), guest: shown, access: Access::ReadOnly, allowed_root: None },
            directory,
        })
    })
}

fn in_view(program: &str) -> bool {
    ringfence_core::PATH.split(':').any(|directory| Path::new(directory).join(program).exists())
}

/// The installation that a program belongs to: `PREFIX/bin/PROGRAM` beside `PREFIX/lib/{python3.*,node_modules}`.
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
    let holds_only = |directory: &Path, known: &[&str]| {
        let Ok(mut entries) = fs::read_dir(directory) else { return true };
        entries.all(|entry| entry.is_ok_and(|entry| known.iter().any(|name| entry.file_name() == *name)))
    };
    holds_only(prefix, &INSTALLED) && holds_only(&prefix.join("share"), &INSTALLED_SHARE)
}

/// A compiled program, or a script that node runs (npx is a link to one); not a shell shim as pyenv's,
/// which only finds its way outside.
fn is_program(path: &Path) -> bool {
    let start = fs::File::open(path).and_then(|mut file| {
        let mut start = [0; 64];
        let length = std::io::Read::read(&mut file, &mut start)?;
        Ok(start[..length].to_vec())
    });
    start.is_ok_and(|start| start.starts_with(b"\x7fELF") || start.starts_with(b"#!/usr/bin/env node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with a name that the guest does not have anyway.
    const NAME: &str = "npx-of-a-test";

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"\x7fELF...").unwrap();
    }

    fn shown(name: &str, directories: &[PathBuf], home: &Path) -> Option<PathBuf> {
        locate(name, directories, Some(home)).map(|found| found.volume.host)
    }

    #[test]
    fn an_installation_in_a_home_is_shown_and_nothing_more() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = home.join(".nvm/versions/v1");
        program(&prefix.join("bin").join(NAME));
        fs::create_dir_all(prefix.join("lib/node_modules")).unwrap();
        fs::create_dir_all(prefix.join("share/man")).unwrap();
        let shims = home.join("shims");
        fs::create_dir(&shims).unwrap();
        fs::write(shims.join(NAME), b"#!/bin/sh\nexec elsewhere").unwrap();
        assert_eq!(shown(NAME, &[shims.clone(), prefix.join("bin")], &home), Some(prefix.clone()));
        assert_eq!(shown(NAME, &[shims], &home), None, "a shim is no interpreter");
        assert_eq!(find_in("passwd", &[prefix.join("bin")], Some(&home)), None, "not a known interpreter");
    }

    #[test]
    fn what_holds_more_than_an_installation_is_not_shown() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        for prefix in [home.clone(), home.join(".local")] {
            program(&prefix.join("bin").join(NAME));
            fs::create_dir_all(prefix.join("lib/python3.12")).unwrap();
        }
        fs::create_dir_all(home.join(".local/share/keyrings")).unwrap();
        for directory in [home.join("bin"), home.join(".local/bin")] {
            assert_eq!(shown(NAME, std::slice::from_ref(&directory), &home), Some(directory.join(NAME)));
        }
    }
}
