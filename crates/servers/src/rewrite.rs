//! Paths of the host in a server's command, as they are inside its sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_core::AllowedRoot;

use super::host_path::{interpreter_name, is_in_view, unwrap_virtualenv};

/// Where a directory of the host is found inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) host: PathBuf,
    pub(crate) guest: PathBuf,
    /// What it must lie in on the host, if it is bound to something.
    pub(crate) within: Option<AllowedRoot>,
}

/// All that has another place inside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Moves(pub(super) Vec<Moved>);

impl Moves {
    /// The program to start: an interpreter by its name, since inside it may lie elsewhere, and so what a virtualenv
    /// has installed.
    pub(crate) fn command(&self, command: &str) -> String {
        let path = Path::new(command);
        if let Some(name) = interpreter_name(command).filter(|_| !is_in_view(path)) {
            return name.into();
        }
        match unwrap_virtualenv(path) {
            Some((_, program)) if !is_in_view(path) => program.to_string_lossy().into_owned(),
            _ => self.text(command),
        }
    }

    pub(crate) fn argument(&self, argument: &str) -> String {
        if unwrap_virtualenv(Path::new(argument)).is_some() && interpreter_name(argument).is_some() {
            return self.command(argument);
        }
        match argument.split_once('=') {
            Some((name, value)) if !name.contains('/') => format!("{name}={}", self.text(value)),
            _ => self.text(argument),
        }
    }

    /// Values may be lists, as that of `PYTHONPATH` is.
    pub(crate) fn environment(&self, environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let rewrite = |value: &String| value.split(':').map(|part| self.text(part)).collect::<Vec<_>>().join(":");
        environment.iter().map(|(name, value)| (name.clone(), rewrite(value))).collect()
    }

    pub(crate) fn path(&self, path: &Path) -> PathBuf {
        path.to_str().map_or_else(|| path.to_owned(), |text| self.text(text).into())
    }

    fn text(&self, text: &str) -> String {
        if !text.starts_with('/') {
            return text.to_owned();
        }
        let inside = |moved: &Moved| {
            let rest = Path::new(text).strip_prefix(&moved.host).ok()?;
            let guest = if rest.as_os_str().is_empty() { moved.guest.clone() } else { moved.guest.join(rest) };
            Some(guest.to_string_lossy().into_owned())
        };
        self.0.iter().find_map(inside).unwrap_or_else(|| text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moves() -> Moves {
        Moves(vec![Moved { host: "/home/u/proj".into(), guest: "/workspace".into(), within: None }])
    }

    #[test]
    fn arguments_and_flags() {
        for (before, after) in [
            ("/home/u/proj", "/workspace"),
            ("/home/u/proj/src/main.py", "/workspace/src/main.py"),
            ("--config=/home/u/proj/a=b.json", "--config=/workspace/a=b.json"),
            ("KEY=/home/u/proj", "KEY=/workspace"),
            ("/home/u/project/x", "/home/u/project/x"),
            ("/home/u", "/home/u"),
            ("see /home/u/proj", "see /home/u/proj"),
            ("https://example.com/?x=/home/u/proj", "https://example.com/?x=/home/u/proj"),
            ("/home/u/proj/.venv/bin/python", "python3"),
            ("/elsewhere/x=/home/u/proj", "/elsewhere/x=/home/u/proj"),
        ] {
            assert_eq!(moves().argument(before), after);
        }
    }

    #[test]
    fn programs() {
        for (before, after) in [
            ("/home/u/proj/.venv/bin/python3.11", "python3"),
            ("/home/u/proj/venv/bin/my-server", "my-server"),
            ("/home/u/proj/bin/server", "/workspace/bin/server"),
            ("/opt/node/bin/npx", "npx"),
            ("python", "python3"),
            ("/usr/bin/python3.11", "/usr/bin/python3.11"),
            ("my-server", "my-server"),
        ] {
            assert_eq!(moves().command(before), after);
        }
    }

    #[test]
    fn values_and_lists_of_paths() {
        let before = BTreeMap::from([
            ("PYTHONPATH".to_owned(), "/home/u/proj/src:/usr/lib/x:/home/u/proj".to_owned()),
            ("URL".to_owned(), "http://host:80/home/u/proj".to_owned()),
        ]);
        let after = moves().environment(&before);
        assert_eq!(after["PYTHONPATH"], "/workspace/src:/usr/lib/x:/workspace");
        assert_eq!(after["URL"], "http://host:80/home/u/proj");
    }
}
