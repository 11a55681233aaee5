//! Decides whether a command may run on the host. It may not if guests could have written its program, scripts or
//! settings.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::phase::{Phase, StartFailure};
use crate::plan::path_in_argument;
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_entries::StdioSettings;

pub(super) fn working_directory(settings: &StdioSettings) -> PathBuf {
    settings.cwd.clone().unwrap_or_else(|| PathBuf::from("/"))
}

/// Returns the directories of a PATH without those that guests may write, and without relative ones.
pub(super) fn search_path(path: &OsStr, writable: &GuestWritable) -> OsString {
    let is_trusted = |directory: &PathBuf| directory.is_absolute() && writable.check(directory).is_ok();
    std::env::join_paths(std::env::split_paths(path).filter(is_trusted)).unwrap_or_default()
}

/// Finds the program to execute, and checks the program, its scripts and its settings.
pub(super) fn program(
    settings: &StdioSettings,
    path: Option<&OsString>,
    writable: &GuestWritable,
) -> Result<PathBuf, StartFailure> {
    let directory = working_directory(settings);
    let refuse = |error: GuestWritten| {
        let message = format!("{} cannot run on the host: {error}", settings.command);
        StartFailure::permanent(Phase::ProcessStart, message)
            .hint("remove `sandbox = false` from the entry, so that the server runs in a sandbox")
            .hint(GuestWritten::HINT)
    };
    let program = if settings.command.contains('/') {
        directory.join(&settings.command)
    } else {
        let directories = path.iter().flat_map(|path| std::env::split_paths(path.as_os_str())).collect::<Vec<_>>();
        let found = directories.iter().map(|directory| directory.join(&settings.command)).find(|path| is_program(path));
        found.ok_or_else(|| {
            StartFailure::permanent(
                Phase::ProcessStart,
                format!("{} cannot be started: the program was not found", settings.command),
            )
            .hint("give the full path of the program, or a name on the PATH of the user who runs ringfence")
            .hint("directories on the PATH that guests may write are not searched")
        })?
    };
    writable.check(&program).map_err(refuse)?;
    if settings.cwd.is_some() {
        writable.check(&directory).map_err(refuse)?;
    }
    // A directory is data, but a file may be a script.
    let files =
        settings.args.iter().map(|argument| directory.join(path_in_argument(argument))).filter(|path| path.is_file());
    for file in files {
        writable.check(&file).map_err(refuse)?;
    }
    if let Some(home) = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) {
        check_home(&home, writable).map_err(refuse)?;
    }
    Ok(program)
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Checks the settings and modules that programs read from the home directory: `.config`, `.local/lib`, `.npmrc` and
/// many more.
fn check_home(home: &Path, writable: &GuestWritable) -> Result<(), GuestWritten> {
    writable.check(home)?;
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    let hidden = entries.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with('.'));
    for name in hidden.chain([".local".into(), ".config".into()]) {
        // A project may be in a hidden directory, but not in the same one as a program's settings.
        writable.check(&home.join(&name))?;
        for part in ["lib", "bin", "share"] {
            writable.check_tree(&home.join(&name).join(part))?;
        }
    }
    writable.check_tree(&home.join(".config"))
}

#[cfg(test)]
mod tests {
    use ringfence_core::{Access, Volume};

    use super::*;

    fn guest_writable(host: &Path) -> GuestWritable {
        let volume =
            Volume { host: host.to_owned(), guest: "/x".into(), access: Access::ReadWrite, allowed_root: None };
        GuestWritable::from_volumes(&[volume])
    }

    #[test]
    fn programs_and_scripts_that_guests_may_write_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let (shared, private) = (base.join("shared"), base.join("private"));
        for directory in [&shared, &private] {
            std::fs::create_dir(directory).unwrap();
            std::fs::write(directory.join("tool"), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(directory.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let writable = guest_writable(&shared);
        let path = search_path(&std::env::join_paths([&shared, Path::new("relative"), &private]).unwrap(), &writable);
        assert_eq!(path, private.as_os_str(), "a planted program is not found");
        let run = |command: &str, args: &[&Path], cwd: Option<&Path>| {
            let mut settings = StdioSettings::new(command);
            settings.args = args.iter().map(|path| path.display().to_string()).collect();
            settings.cwd = cwd.map(Path::to_owned);
            program(&settings, Some(&path), &writable)
        };
        assert_eq!(run("tool", &[], None), Ok(private.join("tool")));
        assert_eq!(run("tool", &[&shared], None), Ok(private.join("tool")), "a directory is data");
        let (tool, command) = (shared.join("tool"), shared.join("tool").display().to_string());
        for refused in [
            run(&command, &[], None),
            run("tool", &[&tool], None),
            run("tool", &[], Some(&shared)),
            run("tool", &[Path::new("../shared/tool")], Some(&private)),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.message.contains("guests may write") && refused.hints.len() == 2, "{refused:?}");
        }
        assert!(run("none", &[], None).is_err());
    }

    #[test]
    fn home_with_settings_that_guests_may_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join(".config/tool")).unwrap();
        for refused in ["", ".config", ".config/tool", ".local/lib/python3.11", ".local/bin"] {
            assert!(check_home(&home, &guest_writable(&home.join(refused))).is_err(), "{refused}");
        }
        for allowed in ["project", "work/project"] {
            assert_eq!(check_home(&home, &guest_writable(&home.join(allowed))), Ok(()), "{allowed}");
        }
    }
}
