use super::*;

/// The paths of all files.
struct Tree(&'static [&'static str]);

impl Probe for Tree {
    fn file_kind(&self, path: &Path) -> Option<FileKind> {
        let path = normalize(path);
        let text = path.to_str()?;
        if self.0.contains(&text) {
            return Some(FileKind::File);
        }
        let prefix = format!("{}/", text.trim_end_matches('/'));
        self.0.iter().any(|known| known.starts_with(&prefix)).then_some(FileKind::Directory)
    }

    fn is_home(&self, path: &Path) -> bool {
        path == Path::new("/home/u")
    }
}

const TREE: Tree = Tree(&[
    "/home/u/proj/server.py",
    "/home/u/proj/src/main.py",
    "/home/u/proj/.venv/bin/python",
    "/home/u/proj/.venv/bin/my-server",
    "/home/u/proj/conf/a.json",
    "/home/u/docs/a.txt",
    "/home/u/token.json",
    "/home/u/env/bin/python",
    "/data/big/x",
    "/etc/app/config.json",
    "/etc/ssl/certs/ca.crt",
    "/opt/node/bin/npx",
    "/opt/tool/bin/tool",
    "/home/u/app/package.json",
    "/home/u/app/dist/index.js",
    "/home/u/app/docs/a.txt",
    "/usr/bin/python3",
    "/dev/null",
]);

fn infer_paths(command: &str, args: &[&str]) -> Result<(Option<String>, Vec<String>), String> {
    infer_with(command, args, None, None)
}

fn infer_with(
    command: &str,
    args: &[&str],
    cwd: Option<&str>,
    host_path: Option<&str>,
) -> Result<(Option<String>, Vec<String>), String> {
    let args: Vec<String> = args.iter().map(|&argument| argument.into()).collect();
    let invocation = Invocation { command, args: &args, cwd: cwd.map(Path::new) };
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    infer(&invocation, host_path.map(Path::new), &TREE)
        .map(|paths| (paths.project.map(text), paths.others.into_iter().map(text).collect()))
        .map_err(|refused| refused.to_string())
}

macro_rules! project {
    ($path:literal) => {
        Ok((Some($path.into()), Vec::new()))
    };
}

const NOTHING: Result<(Option<String>, Vec<String>), String> = Ok((None, Vec::new()));

#[test]
fn common_directory_of_existing_paths_is_the_project() {
    assert_eq!(infer_paths("python3", &["/home/u/proj/server.py"]), project!("/home/u/proj"));
    assert_eq!(
        infer_paths("python3", &["/home/u/proj/src/main.py", "--config=/home/u/proj/conf/a.json"]),
        project!("/home/u/proj")
    );
    assert_eq!(infer_paths("npx", &["-y", "server-filesystem", "/home/u/docs"]), project!("/home/u/docs"));
    assert_eq!(infer_paths("/opt/tool/bin/tool", &[]), project!("/opt/tool/bin"));
    assert_eq!(infer_paths("python3", &["/home/u/proj/src/../server.py", "/no/such/file"]), project!("/home/u/proj"));
    assert_eq!(infer_with("python3", &["server.py"], Some("/home/u/proj"), None), project!("/home/u/proj"));
}

#[test]
fn code_shows_its_project_and_data_only_itself() {
    assert_eq!(infer_paths("node", &["--x", "/home/u/app/dist/index.js"]), project!("/home/u/app"));
    assert_eq!(infer_paths("/home/u/app/dist/index.js", &[]), project!("/home/u/app"));
    assert_eq!(infer_paths("npx", &["server-filesystem", "/home/u/app/docs"]), project!("/home/u/app/docs"));
    assert_eq!(infer_paths("npx", &["x", "--config=/home/u/app/docs/a.txt"]), project!("/home/u/app/docs"));
}

#[test]
fn paths_in_every_sandbox_and_interpreters_are_ignored() {
    for (command, args) in [
        ("/usr/bin/python3", vec!["-m", "x"]),
        ("/opt/node/bin/npx", vec!["-y", "x"]),
        (
            "npx",
            vec!["x", "/", "--log=/dev/null", "--ca=/etc/ssl/certs/ca.crt", "relative/path", "https://example.com"],
        ),
    ] {
        assert_eq!(infer_paths(command, &args), NOTHING, "{command}");
    }
}

#[test]
fn virtualenv_shows_its_project() {
    assert_eq!(infer_paths("/home/u/proj/.venv/bin/python", &["-m", "pkg"]), project!("/home/u/proj"));
    assert_eq!(infer_paths("/home/u/proj/.venv/bin/my-server", &[]), project!("/home/u/proj"));
    assert_eq!(infer_paths("/home/u/proj/.venv/bin/python", &["/home/u/proj/src/main.py"]), project!("/home/u/proj"));
}

#[test]
fn unrelated_paths_are_shown_separately() {
    let both = Ok((Some("/home/u/proj".into()), vec!["/home/u/docs".into(), "/data/big".into()]));
    assert_eq!(infer_paths("python3", &["/home/u/proj/server.py", "/home/u/docs", "/data/big"]), both);
    let file = Ok((Some("/home/u/proj".into()), vec!["/home/u/token.json".into()]));
    assert_eq!(infer_paths("python3", &["/home/u/proj/server.py", "--token=/home/u/token.json"]), file);
    let beside = Ok((Some("/home/u/proj".into()), vec!["/home/u/docs".into()]));
    assert_eq!(infer_with("npx", &["x", "/home/u/docs"], None, Some("/home/u/proj")), beside);
}

#[test]
fn broad_and_system_directories_are_refused() {
    for (command, args, host_path, reason) in [
        ("x", vec!["/home/u"], None, "home directories"),
        ("x", vec!["/home"], None, "more than the files of one server"),
        ("x", vec!["/etc/app/config.json"], None, "belongs to the system"),
        ("/home/u/env/bin/python", vec!["-m", "x"], None, "home directories"),
        ("x", vec![], Some("/"), "more than the files of one server"),
        ("x", vec![], Some("/home/u"), "home directories"),
        ("x", vec![], Some("/home/u/.."), "more than the files of one server"),
        ("x", vec![], Some("/etc/app"), "belongs to the system"),
        ("x", vec![], Some("/home/u/missing"), "no such directory"),
    ] {
        let refused = infer_with(command, &args, None, host_path).unwrap_err();
        assert!(refused.contains(reason), "{command} {args:?} {host_path:?}: {refused}");
    }
}

#[test]
fn recognizes_interpreters() {
    for (command, name) in [
        ("python", Some("python3")),
        ("/x/bin/python3.12", Some("python3")),
        ("/x/npx", Some("npx")),
        ("pythonista", None),
        ("/x/server", None),
    ] {
        assert_eq!(interpreter_name(command), name, "{command}");
    }
}
