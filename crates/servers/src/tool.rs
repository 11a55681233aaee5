//! Commands that fetch a package and run it: `npx`, `uvx` and their like, read as what they would install and run.
//!
//! They are not run themselves. The package is installed once into the cache, and what it brings is started from there,
//! so that a second start needs no network. A package without a version is resolved when it is first installed and
//! stays what it was then, until its directory in the cache is removed.

use super::host_path::interpreter_name;

/// What such a command comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tool {
    /// A package from npm; without a program, the one that the first package is made for.
    Npm { packages: Vec<String>, program: Option<String>, args: Vec<String> },
    /// Requirements as pip takes them.
    Python { requirements: Vec<String>, program: String, args: Vec<String> },
    /// A command in the environment of a Python project, with further requirements.
    InProject { requirements: Vec<String>, directory: Option<String>, command: String, args: Vec<String> },
}

/// Why it cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ToolError {
    #[error("`{command}` has an option that is not understood here: {option}")]
    Option { command: String, option: String },
    #[error("`{command}` names no package")]
    NoPackage { command: String },
}

impl Tool {
    /// Reads a command, if it is one of these.
    pub(crate) fn read(command: &str, args: &[String]) -> Result<Option<Self>, ToolError> {
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

fn npm(command: &str, args: &[String]) -> Result<Tool, ToolError> {
    let mut options = Options { command, args };
    let mut packages = Vec::new();
    loop {
        match options.next() {
            Some(("-y" | "--yes" | "-q" | "--quiet" | "-s" | "--silent" | "--prefer-offline" | "--bun", None)) => {}
            Some(("-p" | "--package", value)) => packages.push(options.value("--package", value)?),
            Some((option, _)) => return Err(options.unknown(option)),
            None => break,
        }
    }
    let mut rest = options.args.iter().cloned();
    let named = rest.next().ok_or_else(|| ToolError::NoPackage { command: command.into() })?;
    if named.starts_with('-') {
        return Err(options.unknown(&named));
    }
    let program = if packages.is_empty() {
        packages.push(named);
        None
    } else {
        Some(named)
    };
    Ok(Tool::Npm { packages, program, args: rest.collect() })
}

fn python(command: &str, args: &[String], from: &str) -> Result<Tool, ToolError> {
    let mut options = Options { command, args };
    let mut requirements = Vec::new();
    let mut source = None;
    loop {
        match options.next() {
            Some((option, value)) if option == from => source = Some(options.value(from, value)?),
            Some(("--with" | "-w", value)) => requirements.extend(list(&options.value("--with", value)?)),
            Some((option, _)) if is_harmless(option) => {}
            Some((option, _)) => return Err(options.unknown(option)),
            None => break,
        }
    }
    let mut rest = options.args.iter().cloned();
    let named = rest.next().ok_or_else(|| ToolError::NoPackage { command: command.into() })?;
    let program = bare_name(&named).to_owned();
    requirements.insert(0, requirement(source.as_deref().unwrap_or(&named)));
    Ok(Tool::Python { requirements, program, args: rest.collect() })
}

fn uv(args: &[String]) -> Result<Option<Tool>, ToolError> {
    let mut options = Options { command: "uv", args };
    let mut directory = None;
    let mut requirements = Vec::new();
    loop {
        match options.next() {
            Some(("--directory" | "--project", value)) => directory = Some(options.value("--directory", value)?),
            Some((option, _)) if is_harmless(option) => {}
            Some((option, _)) => return Err(options.unknown(option)),
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
            Some(("--with" | "-w", value)) => requirements.extend(list(&options.value("--with", value)?)),
            Some(("-m" | "--module", None)) => is_module = true,
            Some((option, _)) if is_harmless(option) => {}
            Some((option, _)) => return Err(options.unknown(option)),
            None => break,
        }
    }
    let mut rest = options.args.iter().cloned();
    let named = rest.next().ok_or_else(|| ToolError::NoPackage { command: "uv run".into() })?;
    let (command, before) = if is_module {
        ("python3".to_owned(), vec!["-m".to_owned(), named])
    } else if std::path::Path::new(&named).extension().is_some_and(|extension| extension == "py") {
        ("python3".to_owned(), vec![named])
    } else {
        (interpreter_name(&named).map_or(named.clone(), Into::into), Vec::new())
    };
    let args = before.into_iter().chain(rest).collect();
    Ok(Some(Tool::InProject { requirements, directory, command, args }))
}

/// Options that decide nothing that matters here.
fn is_harmless(option: &str) -> bool {
    const HARMLESS: [&str; 18] = [
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
    HARMLESS.contains(&option)
}

struct Options<'a> {
    command: &'a str,
    args: &'a [String],
}

impl<'a> Options<'a> {
    /// The next option, with its value where that is written with `=`.
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

    fn value(&mut self, option: &str, written: Option<&str>) -> Result<String, ToolError> {
        if let Some(written) = written {
            return Ok(written.into());
        }
        let (value, rest) = self.args.split_first().ok_or_else(|| self.unknown(option))?;
        self.args = rest;
        Ok(value.clone())
    }

    fn unknown(&self, option: &str) -> ToolError {
        ToolError::Option { command: self.command.into(), option: option.into() }
    }
}

fn list(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(|part| requirement(part.trim()))
}

/// `name@1.2` as pip writes it; what else it may be, pip understands.
fn requirement(text: &str) -> String {
    match text.split_once('@') {
        Some((name, "latest")) if !name.is_empty() => name.into(),
        Some((name, version)) if !name.is_empty() && version.starts_with(|first: char| first.is_ascii_digit()) => {
            format!("{name}=={version}")
        }
        _ => text.into(),
    }
}

/// A requirement without extras and version.
fn bare_name(text: &str) -> &str {
    let end = text.find(|character: char| "[@=<>~!; ".contains(character)).unwrap_or(text.len());
    &text[..end]
}

/// An npm package without its version.
pub(crate) fn npm_name(package: &str) -> &str {
    match package.rfind('@') {
        Some(at) if at > 0 => &package[..at],
        _ => package,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Tool {
        let mut words = line.split(' ').map(str::to_owned);
        let command = words.next().unwrap();
        Tool::read(&command, &words.collect::<Vec<_>>()).unwrap().unwrap()
    }

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.into()).collect()
    }

    #[test]
    fn packages_of_npm() {
        let plain = |packages: &[&str], program: Option<&str>, args: &[&str]| Tool::Npm {
            packages: strings(packages),
            program: program.map(Into::into),
            args: strings(args),
        };
        assert_eq!(read("npx -y @a/b@1.2 stdio --x"), plain(&["@a/b@1.2"], None, &["stdio", "--x"]));
        assert_eq!(read("/opt/bin/npx x -y"), plain(&["x"], None, &["-y"]));
        assert_eq!(read("npx --yes --package=a -p b cmd 1"), plain(&["a", "b"], Some("cmd"), &["1"]));
        assert_eq!(read("npx -y -- x"), plain(&["x"], None, &[]));
        for line in ["bunx x", "bun x x", "npm exec -y x", "pnpm dlx x", "yarn dlx x"] {
            assert_eq!(read(line), plain(&["x"], None, &[]), "{line}");
        }
        assert_eq!((npm_name("@a/b@1.2"), npm_name("@a/b"), npm_name("b@x")), ("@a/b", "@a/b", "b"));
    }

    #[test]
    fn packages_of_python() {
        let plain = |requirements: &[&str], program: &str, args: &[&str]| Tool::Python {
            requirements: strings(requirements),
            program: program.into(),
            args: strings(args),
        };
        assert_eq!(
            read("uvx mcp-server-time --zone X"),
            plain(&["mcp-server-time"], "mcp-server-time", &["--zone", "X"])
        );
        assert_eq!(read("uvx mcp-server-time@1.2"), plain(&["mcp-server-time==1.2"], "mcp-server-time", &[]));
        assert_eq!(read("uvx x@latest"), plain(&["x"], "x", &[]));
        assert_eq!(read("uvx x[cli]==2"), plain(&["x[cli]==2"], "x", &[]));
        assert_eq!(read("uvx -q --with a,b@1 --from x[cli] run-x y"), plain(&["x[cli]", "a", "b==1"], "run-x", &["y"]));
        assert_eq!(read("uv tool run --from=git+https://h/r@v1 x"), plain(&["git+https://h/r@v1"], "x", &[]));
        assert_eq!(read("pipx run --spec x==1 y"), plain(&["x==1"], "y", &[]));
    }

    #[test]
    fn commands_of_a_project() {
        let plain = |directory: Option<&str>, command: &str, args: &[&str]| Tool::InProject {
            requirements: Vec::new(),
            directory: directory.map(Into::into),
            command: command.into(),
            args: strings(args),
        };
        assert_eq!(read("uv --directory /p run my-server --x"), plain(Some("/p"), "my-server", &["--x"]));
        assert_eq!(read("uv run --project=/p server.py 1"), plain(Some("/p"), "python3", &["server.py", "1"]));
        assert_eq!(read("uv run -m pkg"), plain(None, "python3", &["-m", "pkg"]));
        assert_eq!(read("uv run python -m pkg"), plain(None, "python3", &["-m", "pkg"]));
    }

    #[test]
    fn what_is_not_one_of_these_and_what_cannot_be_read() {
        for line in ["python3 server.py", "node x", "uv pip list", "npm start", "my-npx x"] {
            let mut words = line.split(' ').map(str::to_owned);
            let command = words.next().unwrap();
            assert_eq!(Tool::read(&command, &words.collect::<Vec<_>>()), Ok(None), "{line}");
        }
        for (command, args) in
            [("npx", "--call x"), ("npx", "-y"), ("uvx", "--python 3.9 x"), ("uvx", ""), ("uv", "run --with")]
        {
            let args: Vec<String> = args.split_whitespace().map(Into::into).collect();
            assert!(Tool::read(command, &args).is_err(), "{command} {args:?}");
        }
    }
}
