use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn project(host: &Path) -> Project {
    Project { host: Some(host.to_owned()), allowed_root: None, guest: WORKSPACE.into(), link: None }
}

const LARGE: CopyLimits = CopyLimits { bytes: 1 << 20, files: 1000 };

/// Writes the archive and unpacks it with the real `tar`.
fn copy(project: &Project, limits: CopyLimits) -> Result<tempfile::TempDir, StagingError> {
    let into = tempfile::tempdir().unwrap();
    let path = into.path().join("archive");
    send(project, std::fs::File::create(&path).unwrap().into(), limits)?;
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

fn list_files(top: &Path) -> Vec<String> {
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
fn copies_files_modes_and_long_names_but_no_generated_directories() {
    let from = tempfile::tempdir().unwrap();
    let long = format!("deep/{}/{}", "d".repeat(120), "f".repeat(200));
    for path in ["server.py", "empty", &long, ".git/config", "a/__pycache__/x.pyc", "a/node_modules/m/index.js"] {
        write(from.path(), path, path);
    }
    write(from.path(), "empty", "");
    write(from.path(), "block", &"x".repeat(1024));
    std::fs::set_permissions(from.path().join("server.py"), std::fs::Permissions::from_mode(0o755)).unwrap();
    for excluded in [".venv/bin/python", "venv/x", ".mypy_cache/x", ".ruff_cache/x", ".pytest_cache/x"] {
        write(from.path(), excluded, "");
    }
    let copy = copy(&project(from.path()), LARGE).unwrap();
    let deep = format!("deep/{}", "d".repeat(120));
    assert_eq!(list_files(copy.path()), ["a", "block", "deep", &deep, &long, "empty", "server.py"]);
    assert_eq!(std::fs::read_to_string(copy.path().join(&long)).unwrap(), long);
    assert_eq!(std::fs::read(copy.path().join("block")).unwrap().len(), 1024);
    let mode = std::fs::metadata(copy.path().join("server.py")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[test]
fn copies_links_as_links_and_skips_special_files() {
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
    let copy = copy(&project(&host), LARGE).unwrap();
    assert_eq!(list_files(copy.path()), ["inside", "out", "own", "secret"]);
    assert_eq!(std::fs::read_link(copy.path().join("out")).unwrap(), outside.path());
    assert_eq!(std::fs::read_link(copy.path().join("inside")).unwrap(), Path::new("/workspace/own"));
}

#[test]
fn project_over_a_limit_is_refused() {
    let from = tempfile::tempdir().unwrap();
    write(from.path(), "a", &"x".repeat(1000));
    write(from.path(), "b", &"x".repeat(1000));
    let too_large = copy(&project(from.path()), CopyLimits { bytes: 1500, files: 10 }).unwrap_err();
    assert!(matches!(too_large, StagingError::TooManyBytes { .. }) && too_large.hint().is_some(), "{too_large}");
    let too_many = copy(&project(from.path()), CopyLimits { bytes: 1 << 20, files: 1 }).unwrap_err();
    assert!(matches!(too_many, StagingError::TooManyFiles { .. }), "{too_many}");
    let deep = "d/".repeat(100);
    write(from.path(), &format!("{deep}x"), "");
    let too_deep = copy(&project(from.path()), LARGE).unwrap_err();
    assert!(matches!(too_deep, StagingError::TooDeep { .. }), "{too_deep}");
}

#[test]
fn copies_into_subdirectory_and_adds_link() {
    let from = tempfile::tempdir().unwrap();
    write(from.path(), "index.js", "");
    let guest = Path::new(WORKSPACE).join(".mcp/id/workspace");
    let project = Project {
        host: Some(from.path().to_owned()),
        allowed_root: None,
        guest,
        link: Some(("node_modules".into(), "/packages/m".into())),
    };
    let copy = copy(&project, LARGE).unwrap();
    let top = copy.path().join(".mcp/id/workspace");
    assert!(top.join("index.js").is_file());
    assert_eq!(std::fs::read_link(top.join("node_modules")).unwrap(), Path::new("/packages/m"));
}
