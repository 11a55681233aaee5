use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn project(host: &Path) -> Project {
    Project { host: Some(host.to_owned()), within: None, guest: WORKSPACE.into(), link: None }
}

const WIDE: Bounds = Bounds { bytes: 1 << 20, files: 1000 };

/// Writes the archive and has a real `tar` unpack it.
fn unpacked(project: &Project, bounds: Bounds) -> Result<tempfile::TempDir, StageError> {
    let into = tempfile::tempdir().unwrap();
    let path = into.path().join("archive");
    send(project, std::fs::File::create(&path).unwrap().into(), bounds)?;
    let result = tempfile::tempdir().unwrap();
    let tar = std::process::Command::new("tar").arg("-xf").arg(&path).arg("-C").arg(result.path()).status().unwrap();
    assert!(tar.success());
    Ok(result)
}

fn write(top: &Path, path: &str, content: &str) {
    let path = top.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn all(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            }
            found.push(entry.path().strip_prefix(top).unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    found
}

#[test]
fn files_modes_and_long_names_are_kept_and_what_is_made_is_left_out() {
    let from = tempfile::tempdir().unwrap();
    let long = format!("deep/{}/{}", "d".repeat(120), "f".repeat(200));
    for path in ["server.py", "empty", &long, ".git/config", "a/__pycache__/x.pyc", "a/node_modules/m/index.js"] {
        write(from.path(), path, path);
    }
    write(from.path(), "empty", "");
    write(from.path(), "block", &"x".repeat(1024));
    std::fs::set_permissions(from.path().join("server.py"), std::fs::Permissions::from_mode(0o755)).unwrap();
    for left_out in [".venv/bin/python", "venv/x", ".mypy_cache/x", ".ruff_cache/x", ".pytest_cache/x"] {
        write(from.path(), left_out, "");
    }
    let copy = unpacked(&project(from.path()), WIDE).unwrap();
    let deep = format!("deep/{}", "d".repeat(120));
    assert_eq!(all(copy.path()), ["a", "block", "deep", &deep, &long, "empty", "server.py"]);
    assert_eq!(std::fs::read_to_string(copy.path().join(&long)).unwrap(), long);
    assert_eq!(std::fs::read(copy.path().join("block")).unwrap().len(), 1024);
    let mode = std::fs::metadata(copy.path().join("server.py")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[test]
fn links_stay_links_and_nothing_special_is_copied() {
    let from = tempfile::tempdir().unwrap();
    let host = std::fs::canonicalize(from.path()).unwrap();
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "secret", "secret");
    write(&host, "own", "own");
    std::os::unix::fs::symlink(outside.path(), host.join("out")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), host.join("secret")).unwrap();
    std::os::unix::fs::symlink(host.join("own"), host.join("inside")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, host.join("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(host.join("socket")).unwrap();
    let copy = unpacked(&project(&host), WIDE).unwrap();
    assert_eq!(all(copy.path()), ["inside", "out", "own", "secret"]);
    assert_eq!(std::fs::read_link(copy.path().join("out")).unwrap(), outside.path());
    assert_eq!(std::fs::read_link(copy.path().join("inside")).unwrap(), Path::new("/workspace/own"));
}

#[test]
fn what_does_not_fit_is_refused() {
    let from = tempfile::tempdir().unwrap();
    write(from.path(), "a", &"x".repeat(1000));
    write(from.path(), "b", &"x".repeat(1000));
    let too_large = unpacked(&project(from.path()), Bounds { bytes: 1500, files: 10 }).unwrap_err();
    assert!(matches!(too_large, StageError::TooLarge { .. }) && too_large.hint().is_some(), "{too_large}");
    let too_many = unpacked(&project(from.path()), Bounds { bytes: 1 << 20, files: 1 }).unwrap_err();
    assert!(matches!(too_many, StageError::TooMany { .. }), "{too_many}");
    let deep = "d/".repeat(100);
    write(from.path(), &format!("{deep}x"), "");
    let too_deep = unpacked(&project(from.path()), WIDE).unwrap_err();
    assert!(matches!(too_deep, StageError::TooDeep { .. }), "{too_deep}");
}

#[test]
fn a_place_of_its_own_and_a_link_in_place_of_what_was_left_out() {
    let from = tempfile::tempdir().unwrap();
    write(from.path(), "index.js", "");
    let guest = Path::new(WORKSPACE).join(".mcp/id/workspace");
    let project = Project {
        host: Some(from.path().to_owned()),
        within: None,
        guest,
        link: Some(("node_modules".into(), "/packages/m".into())),
    };
    let copy = unpacked(&project, WIDE).unwrap();
    let top = copy.path().join(".mcp/id/workspace");
    assert!(top.join("index.js").is_file());
    assert_eq!(std::fs::read_link(top.join("node_modules")).unwrap(), Path::new("/packages/m"));
}
