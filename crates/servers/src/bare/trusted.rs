//! Decides whether a command may run on the host: not if guests could have written its program, scripts or settings.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::super::host_path::path_in;
use super::super::phase::{Phase, StartFailure};
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_entries::StdioSettings;

pub(super) fn working_directory(settings: &StdioSettings) -> PathBuf {
    settings.cwd.clone().unwrap_or_else(|| PathBuf::from("/"))
}

/// The directories of a PATH that guests cannot write. Relative ones are left out too.
pub(super) fn search_path(path: &OsStr, writable: &GuestWritable) -> OsString {
    let is_trusted = |directory: &PathBuf| directory.is_absolute() && writable.check(directory).is_ok();
    std::env::join_paths(std::env::split_paths(path).filter(is_trusted)).unwrap_or_default()
}

/// The program to execute, after a check of the program, its scripts and its settings.
pub(super) fn program(
    settings: &StdioSettings,
    path: Option<&OsString>,
    writable: &GuestWritable,
) -> Result<PathBuf, StartFailure> {
    let directory = working_directory(settings);
    let refuse = |error: GuestWritten| {
        let message = format!("{} cannot run on the host: {error}", settings.command);
        StartFailure::lasting(Phase::ProcessStart, message)
            .hint("leave `sandbox = false` out of the entry, so that it runs in a sandbox")
            .hint(GuestWritten::HINT)
    };
    let program = if settings.command.contains('/') {
        directory.join(&settings.command)
    } else {
        let directories = path.iter().flat_map(|path| std::env::split_paths(path.as_os_str())).collect::<Vec<_>>();
        let found = directories.iter().map(|directory| directory.join(&settings.command)).find(|path| is_program(path));
        found.ok_or_else(|| {
            StartFailure::lasting(Phase::ProcessStart, format!("{} cannot be started: not found", settings.command))
                .hint("give a program by its full path, or one on the PATH of the user who runs ringfence")
                .hint("directories of PATH that guests may write are not searched")
        })?
    };
    writable.check(&program).map_err(refuse)?;
    if settings.cwd.is_some() {
        writable.check(&directory).map_err(refuse)?;
    }
    // Directories are data; a file may be a script.
    let files = settings.args.iter().map(|argument| directory.join(path_in(argument))).filter(|path| path.is_file());
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

/// Programs read settings and modules from the home: `.config`, `.local/lib`, `.npmrc` and many more.
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

    fn written(host: &Path) -> GuestWritable {
        let volume =
            Volume { host: host.to_owned(), guest: "/x".into(), access: Access::ReadWrite, allowed_root: None };
        GuestWritable::from_volumes(&[volume])
    }

    #[test]
    fn nothing_that_guests_wrote_is_executed() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let (shown, own) = (base.join("shown"), base.join("own"));
        for place in [&shown, &own] {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("tool"), "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(place.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let writable = written(&shown);
        let path = search_path(&std::env::join_paths([&shown, Path::new("relative"), &own]).unwrap(), &writable);
        assert_eq!(path, own.as_os_str(), "a planted program is not found");
        let run = |command: &str, args: &[&Path], cwd: Option<&Path>| {
            let mut settings = StdioSettings::new(command);
            settings.args = args.iter().map(|path| path.display().to_string()).collect();
            settings.cwd = cwd.map(Path::to_owned);
            program(&settings, Some(&path), &writable)
        };
        assert_eq!(run("tool", &[], None), Ok(own.join("tool")));
        assert_eq!(run("tool", &[&shown], None), Ok(own.join("tool")), "a directory is data");
        let (tool, command) = (shown.join("tool"), shown.join("tool").display().to_string());
        for refused in [
            run(&command, &[], None),
            run("tool", &[&tool], None),
            run("tool", &[], Some(&shown)),
            run("tool", &[Path::new("../shown/tool")], Some(&own)),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.message.contains("guests may write") && refused.hints.len() == 2, "{refused:?}");
        }
        assert!(run("none", &[], None).is_err());
    }

    #[test]
    fn settings_in_the_home_are_not_the_guests() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join(".config/tool")).unwrap();
        for refused in ["", ".config", ".config/tool", ".local/lib/python3.11", ".local/bin"] {
            assert!(check_home(&home, &written(&home.join(refused))).is_err(), "{refused}");
        }
        for allowed in ["project", "work/project"] {
            assert_eq!(check_home(&home, &written(&home.join(allowed))), Ok(()), "{allowed}");
        }
    }
}
