//! Parses commands that install a package and run it, such as `npx` and `uvx`.
//!
//! The runner itself is never executed. The package is installed once into the cache, and its program is started from
//! there, so that a second start needs no network. A package without a version is resolved at the first installation
//! and keeps that version until its directory in the cache is removed.

use super::host_paths::interpreter_name;

/// The packages and the program of a runner's command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunnerCommand {
    /// Packages from npm. Without `program`, the default program of the first package is run.
    Npm { packages: Vec<String>, program: Option<String>, args: Vec<String> },
    /// Requirements in pip's syntax.
    Python { requirements: Vec<String>, program: String, args: Vec<String> },
    /// A command in the environment of a Python project, with additional requirements.
    InProject { requirements: Vec<String>, directory: Option<String>, command: String, args: Vec<String> },
}

/// The reason why a command cannot be parsed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RunnerError {
    #[error("`{command}` has an option that ringfence does not support: {option}")]
    Option { command: String, option: String },
    #[error("`{command}` names no package")]
    NoPackage { command: String },
}

impl RunnerCommand {
    /// Parses a command. Returns `None` if it is not the command of a package runner.
    pub(super) fn parse(command: &str, args: &[String]) -> Result<Option<Self>, RunnerError> {
        let first = args.first().map(String::as_str);
        let rest = || args.get(1..).unwrap_or_default();
        Ok(Some(match (interpreter_name(command), first) {
            (Some("npx" | "bunx"), _) => npm("npx", args)?,
            (Some("npm"), Some("exec" | "x")) => npm("npm exec", rest())?,
            (Some("pnpm" | "yarn"), Some("dlx")) | (Some("bun"), Some("x")) => npm("dlx", rest())?,
            (Some("uvx"), _) => python("uvx", args, "--from")?,
            (Some("pipx"), Some("run")) => python("pipx run", rest(), "--spec")?,
            (Some("uv"), _) => return uv(args),
            _ => return Ok(None),
        }))
    }
}

fn npm(command: &str, args: &[String]) -> Result<RunnerCommand, RunnerError> {
    let mut options = Options { command, args };
    let mut packages = Vec::new();
    loop {
        match options.next() {
            Some(("-y" | "--yes" | "-q" | "--quiet" | "-s" | "--silent" | "--prefer-offline" | "--bun", None)) => {}
            Some(("-p" | "--package", value)) => packages.push(options.value("--package", value)?),
            Some((option, _)) => return Err(options.unsupported(option)),
            None => break,
        }
    }
    let mut rest = options.args.iter().cloned();
    let named = rest.next().ok_or_else(|| RunnerError::NoPackage { command: command.into() })?;
    if named.starts_with('-') {
        return Err(options.unsupported(&named));
    }
    let program = if packages.is_empty() {
        packages.push(named);
        None
    } else {
        Some(named)
    };
    Ok(RunnerCommand::Npm { packages, program, args: rest.collect() })
}

fn python(command: &str, args: &[String], from: &str) -> Result<RunnerCommand, RunnerError> {
    let mut options = Options { command, args };
    let mut requirements = Vec::new();
    let mut source = None;
    loop {
        match options.next() {
            Some((option, value)) if option == from => source = Some(options.value(from, value)?),
            Some(("--with" | "-w", value)) => requirements.extend(pip_requirements(&options.value("--with", value)?)),
            Some((option, _)) if is_ignored_option(option) => {}
            Some((option, _)) => return Err(options.unsupported(option)),
            None => break,
        }
    }
    let mut rest = options.args.iter().cloned();
    let named = rest.next().ok_or_else(|| RunnerError::NoPackage { command: command.into() })?;
    let program = package_name(&named).to_owned();
    requirements.insert(0, pip_requirement(source.as_deref().unwrap_or(&named)));
    Ok(RunnerCommand::Python { requirements, program, args: rest.collect() })
}

fn uv(args: &[String]) -> Result<Option<RunnerCommand>, RunnerError> {
    let mut options = Options { command: "uv", args };
    let mut directory = None;
    let mut requirements = Vec::new();
    loop {
        match options.next() {
            Some(("--directory" | "--project", value)) => directory = Some(options.value("--directory", value)?),
            Some((option, _)) if is_ignored_option(option) => {}
            Some((option, _)) => return Err(options.unsupported(option)),
            None => break,
        }
    }
    match options.args {
        [tool, run, rest @ ..] if tool == "tool" && run == "run" => {
            return python("uv tool run", rest, "--from").map(Some);
        }
        [run, rest @ ..] if run == "run" => options = Options { command: "uv run", args: rest },
        _ => return Ok(None),
    }
    let mut is_module = false;
    while !is_module {
        match options.next() {
            Some(("--directory" | "--project", value)) => directory = Some(options.value("--directory", value)?),
            Some(("--with" | "-w", value)) => requirements.extend(pip_requirements(&options.value("--with", value)?)),
            Some(("-m" | "--module", None)) => is_module = true,
            Some((option, _)) if is_ignored_option(option) => {}
            Some((option, _)) => return Err(options.unsupported(option)),
            None => break,
        }
    }
    let mut rest = options.args.iter().cloned();
    let named = rest.next().ok_or_else(|| RunnerError::NoPackage { command: "uv run".into() })?;
    let (command, before) = if is_module {
        ("python3".to_owned(), vec!["-m".to_owned(), named])
    } else if std::path::Path::new(&named).extension().is_some_and(|extension| extension == "py") {
        ("python3".to_owned(), vec![named])
    } else {
        (interpreter_name(&named).map_or(named.clone(), Into::into), Vec::new())
    };
    let args = before.into_iter().chain(rest).collect();
    Ok(Some(RunnerCommand::InProject { requirements, directory, command, args }))
}

/// Whether an option has no effect on the packages that are installed, or on the program.
fn is_ignored_option(option: &str) -> bool {
    const IGNORED: [&str; 18] = [
        "-q",
        "--quiet",
        "-v",
        "--verbose",
        "--isolated",
        "--no-cache",
        "-n",
        "--offline",
        "--native-tls",
        "--system-certs",
        "--no-progress",
        "--no-config",
        "--frozen",
        "--locked",
        "--no-sync",
        "--no-dev",
        "--no-project",
        "--active",
    ];
    IGNORED.contains(&option)
}

struct Options<'a> {
    command: &'a str,
    args: &'a [String],
}

impl<'a> Options<'a> {
    /// Returns the next option, with its value if that is written with `=`. Returns `None` at the first argument that is
    /// no option.
    fn next(&mut self) -> Option<(&'a str, Option<&'a str>)> {
        let (first, rest) = self.args.split_first()?;
        if !first.starts_with('-') || first == "-" {
            return None;
        }
        self.args = rest;
        if first == "--" {
            return None;
        }
        Some(match first.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (first, None),
        })
    }

    /// Returns the value of an option: the inline one, else the next argument.
    fn value(&mut self, option: &str, inline: Option<&str>) -> Result<String, RunnerError> {
        if let Some(inline) = inline {
            return Ok(inline.into());
        }
        let (value, rest) = self.args.split_first().ok_or_else(|| self.unsupported(option))?;
        self.args = rest;
        Ok(value.clone())
    }

    fn unsupported(&self, option: &str) -> RunnerError {
        RunnerError::Option { command: self.command.into(), option: option.into() }
    }
}

fn pip_requirements(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(|part| pip_requirement(part.trim()))
}

/// Converts `name@1.2` to pip's syntax. Other requirements are returned unchanged.
fn pip_requirement(text: &str) -> String {
    match text.split_once('@') {
        Some((name, "latest")) if !name.is_empty() => name.into(),
        Some((name, version)) if !name.is_empty() && version.starts_with(|first: char| first.is_ascii_digit()) => {
            format!("{name}=={version}")
        }
        _ => text.into(),
    }
}

/// Returns the name of a requirement, without extras and version.
fn package_name(text: &str) -> &str {
    let end = text.find(|character: char| "[@=<>~!; ".contains(character)).unwrap_or(text.len());
    &text[..end]
}

/// Returns the name of an npm package, without its version.
pub(super) fn npm_package_name(package: &str) -> &str {
    match package.rfind('@') {
        Some(at) if at > 0 => &package[..at],
        _ => package,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> RunnerCommand {
        let mut words = line.split(' ').map(str::to_owned);
        let command = words.next().unwrap();
        RunnerCommand::parse(&command, &words.collect::<Vec<_>>()).unwrap().unwrap()
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.into()).collect()
    }

    #[test]
    fn parses_npm_runners() {
        let expected = |packages: &[&str], program: Option<&str>, args: &[&str]| RunnerCommand::Npm {
            packages: strings(packages),
            program: program.map(Into::into),
            args: strings(args),
        };
        assert_eq!(parse("npx -y @a/b@1.2 stdio --x"), expected(&["@a/b@1.2"], None, &["stdio", "--x"]));
        assert_eq!(parse("/opt/bin/npx x -y"), expected(&["x"], None, &["-y"]));
        assert_eq!(parse("npx --yes --package=a -p b cmd 1"), expected(&["a", "b"], Some("cmd"), &["1"]));
        assert_eq!(parse("npx -y -- x"), expected(&["x"], None, &[]));
        for line in ["bunx x", "bun x x", "npm exec -y x", "pnpm dlx x", "yarn dlx x"] {
            assert_eq!(parse(line), expected(&["x"], None, &[]), "{line}");
        }
        assert_eq!(
            (npm_package_name("@a/b@1.2"), npm_package_name("@a/b"), npm_package_name("b@x")),
            ("@a/b", "@a/b", "b")
        );
    }

    #[test]
    fn parses_python_runners() {
        let expected = |requirements: &[&str], program: &str, args: &[&str]| RunnerCommand::Python {
            requirements: strings(requirements),
            program: program.into(),
            args: strings(args),
        };
        assert_eq!(
            parse("uvx mcp-server-time --zone X"),
            expected(&["mcp-server-time"], "mcp-server-time", &["--zone", "X"])
        );
        assert_eq!(parse("uvx mcp-server-time@1.2"), expected(&["mcp-server-time==1.2"], "mcp-server-time", &[]));
        assert_eq!(parse("uvx x@latest"), expected(&["x"], "x", &[]));
        assert_eq!(parse("uvx x[cli]==2"), expected(&["x[cli]==2"], "x", &[]));
        assert_eq!(
            parse("uvx -q --with a,b@1 --from x[cli] run-x y"),
            expected(&["x[cli]", "a", "b==1"], "run-x", &["y"])
        );
        assert_eq!(parse("uv tool run --from=git+https://h/r@v1 x"), expected(&["git+https://h/r@v1"], "x", &[]));
        assert_eq!(parse("pipx run --spec x==1 y"), expected(&["x==1"], "y", &[]));
    }

    #[test]
    fn parses_uv_run_in_project() {
        let expected = |directory: Option<&str>, command: &str, args: &[&str]| RunnerCommand::InProject {
            requirements: Vec::new(),
            directory: directory.map(Into::into),
            command: command.into(),
            args: strings(args),
        };
        assert_eq!(parse("uv --directory /p run my-server --x"), expected(Some("/p"), "my-server", &["--x"]));
        assert_eq!(parse("uv run --project=/p server.py 1"), expected(Some("/p"), "python3", &["server.py", "1"]));
        assert_eq!(parse("uv run -m pkg"), expected(None, "python3", &["-m", "pkg"]));
        assert_eq!(parse("uv run python -m pkg"), expected(None, "python3", &["-m", "pkg"]));
    }

    #[test]
    fn other_commands_are_ignored_and_unsupported_options_are_errors() {
        for line in ["python3 server.py", "node x", "uv pip list", "npm start", "my-npx x"] {
            let mut words = line.split(' ').map(str::to_owned);
            let command = words.next().unwrap();
            assert_eq!(RunnerCommand::parse(&command, &words.collect::<Vec<_>>()), Ok(None), "{line}");
        }
        for (command, args) in
            [("npx", "--call x"), ("npx", "-y"), ("uvx", "--python 3.9 x"), ("uvx", ""), ("uv", "run --with")]
        {
            let args: Vec<String> = args.split_whitespace().map(Into::into).collect();
            assert!(RunnerCommand::parse(command, &args).is_err(), "{command} {args:?}");
        }
    }
}
