//! The files that decide what runs when the host executes an interpreter: program, libraries, start-up files.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Directories that the dynamic linker searches, and its settings.
const SYSTEM: [&str; 7] =
    ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/ld.so.preload"];

/// The directories of programs and libraries in a prefix. Debian's Python also imports from `/usr/local/lib`.
const PREFIX_PARTS: [&str; 5] = ["bin", "lib", "lib64", "local/lib", "pyvenv.cfg"];

const SITE_DIRECTORIES: [&str; 2] = ["site-packages", "dist-packages"];

/// Modules that Python imports at every start, unless an option disables it.
const START_UP: [&str; 2] = ["sitecustomize.py", "usercustomize.py"];

const MAX_ENTRIES: usize = 20_000;
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Everything that must not be written by guests for the host to execute this program in isolated mode (`-I`).
pub fn executed_parts(program: &Path) -> Vec<PathBuf> {
    let mut parts = vec![program.to_owned()];
    for prefix in prefixes(program) {
        parts.extend(PREFIX_PARTS.iter().map(|name| prefix.join(name)));
        for directory in library_directories(&prefix) {
            parts.extend(START_UP.iter().map(|name| directory.join(name)));
            for site in SITE_DIRECTORIES.iter().map(|name| directory.join(name)) {
                add_site(&site, &mut parts);
            }
        }
    }
    parts.extend(SYSTEM.iter().map(PathBuf::from));
    parts
}

/// The installation prefixes of a program: of its path, of the target of its links, and of a virtual environment's
/// base.
pub fn prefixes(program: &Path) -> Vec<PathBuf> {
    let of = |program: &Path| Some(program.parent()?.parent()?.to_owned());
    let real = fs::canonicalize(program).ok();
    let mut prefixes: Vec<PathBuf> = [Some(program), real.as_deref()].into_iter().flatten().filter_map(of).collect();
    let base = prefixes.iter().find_map(|prefix| {
        let text = read(&prefix.join("pyvenv.cfg"))?;
        let home = text.lines().find_map(|line| line.split_once('=').filter(|(key, _)| key.trim() == "home"))?;
        of(&Path::new(home.1.trim()).join("python3"))
    });
    prefixes.extend(base);
    prefixes.dedup();
    prefixes
}

/// The names of a prefix's library directories (`python3.11`), that of this program first.
pub fn versions(prefix: &Path, program: &Path) -> Vec<String> {
    let own = fs::canonicalize(program).ok();
    let own = own.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let mut names: Vec<String> =
        ["lib", "lib64", "local/lib"].iter().flat_map(|lib| python_names(&prefix.join(lib))).collect();
    names.sort();
    names.dedup();
    names.sort_by_key(|name| Some(name) != own.as_ref());
    names
}

fn python_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("python3")).collect()
}

fn library_directories(prefix: &Path) -> Vec<PathBuf> {
    let of = |lib: &str| {
        let directory = prefix.join(lib);
        python_names(&directory).into_iter().map(move |name| directory.join(name)).collect::<Vec<_>>()
    };
    ["lib", "lib64", "local/lib"].into_iter().flat_map(of).collect()
}

/// The paths that a package directory refers to: targets of links, `.pth` files and editable installs.
fn add_site(site: &Path, parts: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(site).into_iter().flatten().flatten().take(MAX_ENTRIES) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            parts.push(entry.path());
        }
        if name.ends_with(".pth") {
            let text = read(&entry.path()).unwrap_or_default();
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            for line in lines {
                if line.starts_with("import ") || line.starts_with("import\t") {
                    parts.extend(quoted_paths(line));
                } else {
                    parts.push(site.join(line));
                }
            }
        } else if name.starts_with("__editable__") && name.ends_with(".py") {
            parts.extend(quoted_paths(&read(&entry.path()).unwrap_or_default()));
        }
    }
}

/// The absolute paths among the string literals of a module.
fn quoted_paths(source: &str) -> Vec<PathBuf> {
    let literals = source.split(['\'', '"']).filter(|text| text.starts_with('/') && !text.contains('\n'));
    literals.filter(|text| text.len() > 1).map(PathBuf::from).collect()
}

fn read(path: &Path) -> Option<String> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use ringfence_core::{Access, Volume};

    use super::*;
    use ringfence_config::GuestWritable;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn interpreter_is_refused_for_every_part_that_guests_may_write() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let site = base.join("prefix/lib/python3.11/site-packages");
        write(&base.join("prefix/bin/python3.11"), "");
        std::os::unix::fs::symlink("python3.11", base.join("prefix/bin/python3")).unwrap();
        write(
            &site.join("one.pth"),
            "# comment\n\n../relative\n/absolute/of/pth\nimport sys; sys.path.append('/by/import')\n",
        );
        write(&site.join("__editable___x_finder.py"), "MAPPING = {'x': '/editable/x'}\n");
        std::os::unix::fs::symlink("/linked/package", site.join("package")).unwrap();
        let python = base.join("prefix/bin/python3");
        let check = |volume: &Path| {
            let host = volume.to_owned();
            let volume = Volume { host, guest: "/shown".into(), access: Access::ReadWrite, allowed_root: None };
            GuestWritable::from_volumes(&[volume]).register_executed(&executed_parts(&python))
        };
        for volume in [
            base.clone(),
            base.join("prefix/bin"),
            base.join("prefix/lib/python3.11/site-packages"),
            base.join("prefix/lib/python3.11/relative"),
            "/absolute/of".into(),
            "/by/import".into(),
            "/editable".into(),
            "/linked".into(),
            "/usr/local/lib/python3.11".into(),
        ] {
            assert!(check(&volume).is_err(), "{}", volume.display());
        }
        for volume in [base.join("prefix/share"), base.join("data"), "/usr/src".into()] {
            assert_eq!(check(&volume), Ok(()), "{}", volume.display());
        }
    }

    #[test]
    fn virtual_environment_has_the_prefix_of_its_base() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        write(&base.join("venv/bin/python3"), "");
        write(&base.join("venv/pyvenv.cfg"), "home = /opt/python/bin\nversion = 3.11\n");
        let found = prefixes(&base.join("venv/bin/python3"));
        assert_eq!(found, [base.join("venv"), "/opt/python".into()]);
    }
}
