use super::*;

/// Files and directories, the latter with a slash at the end.
struct Tree(&'static [&'static str]);

impl Probe for Tree {
    fn kind(&self, path: &Path) -> Option<Kind> {
        let path = plain(path);
        let text = path.to_str()?;
        if self.0.contains(&text) {
            return Some(Kind::File);
        }
        let inside = format!("{}/", text.trim_end_matches('/'));
        self.0.iter().any(|known| known.starts_with(&inside)).then_some(Kind::Directory)
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

fn shown(command: &str, args: &[&str]) -> Result<(Option<String>, Vec<String>), String> {
    shown_with(command, args, None, None)
}

fn shown_with(
    command: &str,
    args: &[&str],
    cwd: Option<&str>,
    given: Option<&str>,
) -> Result<(Option<String>, Vec<String>), String> {
    let args: Vec<String> = args.iter().map(|&argument| argument.into()).collect();
    let invocation = Invocation { command, args: &args, cwd: cwd.map(Path::new) };
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    infer(&invocation, given.map(Path::new), &TREE)
        .map(|shown| (shown.project.map(text), shown.others.into_iter().map(text).collect()))
        .map_err(|refused| refused.to_string())
}

macro_rules! project {
    ($path:literal) => {
        Ok((Some($path.into()), Vec::new()))
    };
}

const NOTHING: Result<(Option<String>, Vec<String>), String> = Ok((None, Vec::new()));

#[test]
fn the_common_directory_of_existing_paths() {
    assert_eq!(shown("python3", &["/home/u/proj/server.py"]), project!("/home/u/proj"));
    assert_eq!(
        shown("python3", &["/home/u/proj/src/main.py", "--config=/home/u/proj/conf/a.json"]),
        project!("/home/u/proj")
    );
    assert_eq!(shown("npx", &["-y", "server-filesystem", "/home/u/docs"]), project!("/home/u/docs"));
    assert_eq!(shown("/opt/tool/bin/tool", &[]), project!("/opt/tool/bin"));
    assert_eq!(shown("python3", &["/home/u/proj/src/../server.py", "/no/such/file"]), project!("/home/u/proj"));
    assert_eq!(shown_with("python3", &["server.py"], Some("/home/u/proj"), None), project!("/home/u/proj"));
}

#[test]
fn code_stands_for_its_project_and_data_for_itself() {
    assert_eq!(shown("node", &["--x", "/home/u/app/dist/index.js"]), project!("/home/u/app"));
    assert_eq!(shown("/home/u/app/dist/index.js", &[]), project!("/home/u/app"));
    assert_eq!(shown("npx", &["server-filesystem", "/home/u/app/docs"]), project!("/home/u/app/docs"));
    assert_eq!(shown("npx", &["x", "--config=/home/u/app/docs/a.txt"]), project!("/home/u/app/docs"));
}

#[test]
fn what_every_sandbox_has_is_not_counted() {
    for (command, args) in [
        ("/usr/bin/python3", vec!["-m", "x"]),
        ("/opt/node/bin/npx", vec!["-y", "x"]),
        (
            "npx",
            vec!["x", "/", "--log=/dev/null", "--ca=/etc/ssl/certs/ca.crt", "relative/path", "https://example.com"],
        ),
    ] {
        assert_eq!(shown(command, &args), NOTHING, "{command}");
    }
}

#[test]
fn a_virtualenv_stands_for_its_project() {
    assert_eq!(shown("/home/u/proj/.venv/bin/python", &["-m", "pkg"]), project!("/home/u/proj"));
    assert_eq!(shown("/home/u/proj/.venv/bin/my-server", &[]), project!("/home/u/proj"));
    assert_eq!(shown("/home/u/proj/.venv/bin/python", &["/home/u/proj/src/main.py"]), project!("/home/u/proj"));
}

#[test]
fn paths_with_nothing_in_common_are_shown_one_by_one() {
    let both = Ok((Some("/home/u/proj".into()), vec!["/home/u/docs".into(), "/data/big".into()]));
    assert_eq!(shown("python3", &["/home/u/proj/server.py", "/home/u/docs", "/data/big"]), both);
    let file = Ok((Some("/home/u/proj".into()), vec!["/home/u/token.json".into()]));
    assert_eq!(shown("python3", &["/home/u/proj/server.py", "--token=/home/u/token.json"]), file);
    let beside = Ok((Some("/home/u/proj".into()), vec!["/home/u/docs".into()]));
    assert_eq!(shown_with("npx", &["x", "/home/u/docs"], None, Some("/home/u/proj")), beside);
}

#[test]
fn what_is_too_much_is_refused() {
    for (command, args, given, why) in [
        ("x", vec!["/home/u"], None, "a home directory"),
        ("x", vec!["/home"], None, "more than one server's files"),
        ("x", vec!["/etc/app/config.json"], None, "belongs to the system"),
        ("/home/u/env/bin/python", vec!["-m", "x"], None, "a home directory"),
        ("x", vec![], Some("/"), "more than one server's files"),
        ("x", vec![], Some("/home/u"), "a home directory"),
        ("x", vec![], Some("/home/u/.."), "more than one server's files"),
        ("x", vec![], Some("/etc/app"), "belongs to the system"),
        ("x", vec![], Some("/home/u/missing"), "no such directory"),
    ] {
        let refused = shown_with(command, &args, None, given).unwrap_err();
        assert!(refused.contains(why), "{command} {args:?} {given:?}: {refused}");
    }
}

#[test]
fn interpreters_by_name() {
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
