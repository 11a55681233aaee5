//! Interpreters that live outside of `/usr` (pyenv, nvm, a home directory): found on the host's PATH,
//! and shown to the guest read-only at the same place.
//!
//! Only what belongs to the interpreter is shown: its installation prefix where it has the shape of
//! one, else the program file alone. Never a home directory.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use ringfence_sandbox::{Access, Volume};

/// Programs for which this is done; any other must be mounted by whoever wants it.
const KNOWN: [&str; 10] = ["python3", "python", "pip", "node", "npm", "npx", "uv", "uvx", "deno", "bun"];

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
    directories.iter().find_map(|directory| {
        let found = directory.join(program);
        let real = fs::canonicalize(&found).ok()?;
        if !is_program(&real) {
            return None;
        }
        let prefix = prefix_of(&found, &real).filter(|prefix| home.is_none_or(|home| !home.starts_with(prefix)));
        let (shown, directory) = match prefix {
            Some(prefix) => (prefix.clone(), prefix.join("bin")),
            None => (real.clone(), real.parent()?.to_owned()),
        };
        Some(Interpreter { volume: Volume { host: shown.clone(), guest: shown, access: Access::ReadOnly }, directory })
    })
}

fn in_view(program: &str) -> bool {
    crate::template::PATH.split(':').any(|directory| Path::new(directory).join(program).exists())
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
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_installation_in_a_home_is_shown_and_nothing_more() {
        let home = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(home.path()).unwrap();
        let prefix = home.join(".deno-like/v1");
        fs::create_dir_all(prefix.join("lib/node_modules")).unwrap();
        fs::create_dir_all(prefix.join("bin")).unwrap();
        fs::write(prefix.join("bin/bun"), b"\x7fELF...").unwrap();
        let shims = home.join("shims");
        fs::create_dir(&shims).unwrap();
        fs::write(shims.join("bun"), b"#!/bin/sh\nexec elsewhere").unwrap();
        let found = find_in("bun", &[shims.clone(), prefix.join("bin")], Some(&home)).unwrap();
        assert_eq!((found.volume.host, found.directory), (prefix.clone(), prefix.join("bin")));

        // A lone program in ~/bin, even if ~/lib looks like an installation, must not show the home.
        fs::create_dir_all(home.join("lib/python3.12")).unwrap();
        fs::create_dir(home.join("bin")).unwrap();
        symlink(prefix.join("bin/bun"), home.join("bin/uv")).unwrap();
        fs::write(home.join("bin/deno"), b"\x7fELF").unwrap();
        let lone = find_in("deno", &[home.join("bin")], Some(&home)).unwrap();
        assert_eq!(lone.volume.host, home.join("bin/deno"));
        assert!(find_in("bun", &[shims], Some(&home)).is_none(), "a shim is no interpreter");
        assert!(find_in("passwd", &[home.join("bin")], Some(&home)).is_none(), "not a known interpreter");
    }
}
