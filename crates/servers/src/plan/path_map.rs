//! Maps paths of the host in a server's command and variables to paths inside its sandbox.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_core::AllowedRoot;

use super::host_paths::{interpreter_name, is_in_every_sandbox, path_in_argument, split_virtualenv};

/// A directory of the host and its path inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappedDirectory {
    pub(crate) host: PathBuf,
    pub(crate) guest: PathBuf,
    /// The allowed root that must contain it, if a scope confines the server.
    pub(crate) allowed_root: Option<AllowedRoot>,
}

/// The directories whose paths differ inside the sandbox. The first that contains a path is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PathMap(Vec<MappedDirectory>);

impl PathMap {
    pub(super) fn add(&mut self, directory: MappedDirectory) {
        self.0.push(directory);
    }

    /// Maps the program to start. An interpreter, and a program that is installed in a virtualenv, become a bare name,
    /// because their paths inside may differ.
    pub(super) fn map_command(&self, command: &str) -> String {
        let path = Path::new(command);
        if let Some(name) = interpreter_name(command).filter(|_| !is_in_every_sandbox(path)) {
            return name.into();
        }
        match split_virtualenv(path) {
            Some((_, program)) if !is_in_every_sandbox(path) => program.to_string_lossy().into_owned(),
            _ => self.map_text(command),
        }
    }

    pub(super) fn map_argument(&self, argument: &str) -> String {
        if split_virtualenv(Path::new(argument)).is_some() && interpreter_name(argument).is_some() {
            return self.map_command(argument);
        }
        let path = path_in_argument(argument);
        let option = &argument[..argument.len() - path.len()];
        format!("{option}{}", self.map_text(path))
    }

    /// Maps values of variables, which may be lists such as `PYTHONPATH`.
    pub(super) fn map_environment(&self, environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let map_value = |value: &String| value.split(':').map(|part| self.map_text(part)).collect::<Vec<_>>().join(":");
        environment.iter().map(|(name, value)| (name.clone(), map_value(value))).collect()
    }

    pub(super) fn map_path(&self, path: &Path) -> PathBuf {
        path.to_str().map_or_else(|| path.to_owned(), |text| self.map_text(text).into())
    }

    fn map_text(&self, text: &str) -> String {
        if !text.starts_with('/') {
            return text.to_owned();
        }
        let guest_path = |directory: &MappedDirectory| {
            let rest = Path::new(text).strip_prefix(&directory.host).ok()?;
            let guest = if rest.as_os_str().is_empty() { directory.guest.clone() } else { directory.guest.join(rest) };
            Some(guest.to_string_lossy().into_owned())
        };
        self.0.iter().find_map(guest_path).unwrap_or_else(|| text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_map() -> PathMap {
        PathMap(vec![MappedDirectory { host: "/home/u/proj".into(), guest: "/workspace".into(), allowed_root: None }])
    }

    #[test]
    fn maps_arguments_and_values_of_options() {
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
            assert_eq!(path_map().map_argument(before), after);
        }
    }

    #[test]
    fn maps_programs() {
        for (before, after) in [
            ("/home/u/proj/.venv/bin/python3.11", "python3"),
            ("/home/u/proj/venv/bin/my-server", "my-server"),
            ("/home/u/proj/bin/server", "/workspace/bin/server"),
            ("/opt/node/bin/npx", "npx"),
            ("python", "python3"),
            ("/usr/bin/python3.11", "/usr/bin/python3.11"),
            ("my-server", "my-server"),
        ] {
            assert_eq!(path_map().map_command(before), after);
        }
    }

    #[test]
    fn maps_variables_and_lists_of_paths() {
        let before = BTreeMap::from([
            ("PYTHONPATH".to_owned(), "/home/u/proj/src:/usr/lib/x:/home/u/proj".to_owned()),
            ("URL".to_owned(), "http://host:80/home/u/proj".to_owned()),
        ]);
        let after = path_map().map_environment(&before);
        assert_eq!(after["PYTHONPATH"], "/workspace/src:/usr/lib/x:/workspace");
        assert_eq!(after["URL"], "http://host:80/home/u/proj");
    }
}
