//! The commands of an installation, which are run inside its sandbox.

use std::path::{Path, PathBuf};

use super::registries::PythonInstaller;
use crate::plan::{Dependency, ManifestDirectory};

/// One step of an installation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Commands that do the same, because one alone does not work for every project. They are tried in order until one
    /// succeeds.
    pub(super) alternatives: Vec<Vec<String>>,
    pub(super) workdir: Option<PathBuf>,
}

/// Returns the name of a dependency for messages.
pub(super) fn display_name(dependency: &Dependency) -> String {
    match dependency {
        Dependency::NpmPackages { packages } => packages.join(", "),
        Dependency::PipPackages { requirements } => requirements.join(", "),
        Dependency::PythonProject { root, .. } | Dependency::NodeProject { root, .. } => {
            format!("the dependencies of {}", root.path().display())
        }
    }
}

/// Returns the steps that install a dependency into `prefix`. Reads manifests; may block.
pub(super) fn plan(dependency: &Dependency, prefix: &Path, installer: &PythonInstaller) -> Vec<Step> {
    let prefix_text = prefix.display().to_string();
    match dependency {
        Dependency::NpmPackages { packages } => {
            let install = strings(&["npm", "install", "--prefix", &prefix_text, "--"]);
            vec![step([install, packages.clone()].concat())]
        }
        Dependency::NodeProject { guest, .. } => node_project(guest, &prefix_text),
        Dependency::PipPackages { requirements } => {
            vec![create_virtualenv(&prefix_text), step(pip_install(prefix, installer, requirements))]
        }
        Dependency::PythonProject { root, guest, requirements } => {
            let mut steps = vec![create_virtualenv(&prefix_text)];
            steps.extend(project_arguments(root, guest).map(|alternatives| Step {
                alternatives: alternatives.iter().map(|arguments| pip_install(prefix, installer, arguments)).collect(),
                workdir: Some(guest.clone()),
            }));
            let mut additional = Vec::new();
            if read(root, "requirements.txt").is_some() {
                additional.extend(strings(&["-r", "requirements.txt"]));
            }
            additional.extend(requirements.clone());
            if !additional.is_empty() {
                let alternatives = vec![pip_install(prefix, installer, &additional)];
                steps.push(Step { alternatives, workdir: Some(guest.clone()) });
            }
            steps
        }
    }
}

/// Creates the virtual environment for the packages, without pip.
fn create_virtualenv(prefix: &str) -> Step {
    step(strings(&["python3", "-m", "venv", "--without-pip", prefix]))
}

fn pip_install(prefix: &Path, installer: &PythonInstaller, arguments: &[String]) -> Vec<String> {
    let python = prefix.join("bin/python").display().to_string();
    let mut argv = match installer {
        PythonInstaller::Pip => strings(&[&python, "-m", "pip", "install", "--use-pep517", "--quiet"]),
        PythonInstaller::Uv => strings(&["uv", "pip", "install", "--python", &python]),
    };
    argv.extend(arguments.iter().cloned());
    argv
}

/// Returns the alternative arguments of `pip install` for a project, or `None` if the project is no package. An editable
/// installation is preferred: the server then runs the code of the current copy of the project, not that of the
/// installation.
fn project_arguments(root: &ManifestDirectory, guest: &Path) -> Option<Vec<Vec<String>>> {
    let guest = guest.display().to_string();
    let manifest = read(root, "pyproject.toml").and_then(|text| text.parse::<toml::Table>().ok());
    let table = manifest.unwrap_or_default();
    let is_built = table.contains_key("build-system") || read(root, "setup.py").is_some();
    let is_poetry = table.get("tool").and_then(|tool| tool.get("poetry")).is_some();
    if !is_built && !is_poetry && !table.contains_key("project") {
        // The file only has settings of tools.
        return None;
    }
    let mut alternatives = vec![strings(&["--editable", &guest]), vec![guest]];
    let dependencies = table.get("project").and_then(|project| project.get("dependencies")?.as_array());
    if !is_built {
        // Many projects only list the dependencies of their scripts, and cannot be built.
        let listed = dependencies.into_iter().flatten().filter_map(|dependency| dependency.as_str()).map(Into::into);
        let listed: Vec<String> = listed.collect();
        match listed.is_empty() {
            true if !is_poetry => return None,
            true => {}
            false => alternatives = vec![listed],
        }
    }
    Some(alternatives)
}

/// Installs the packages of a Node project from a copy of its manifests. Install scripts of the packages are run, but not
/// those of the project, because its other files are not in the copy.
fn node_project(guest: &Path, prefix: &str) -> Vec<Step> {
    let copy = "for name in package.json package-lock.json npm-shrinkwrap.json; do \
                if [ -f \"$1/$name\" ]; then cp \"$1/$name\" \"$2/$name\" || exit 1; fi; done; mkdir -p \"$2/node_modules\"";
    let guest = guest.display().to_string();
    let npm = |command: &str| strings(&["npm", command, "--prefix", prefix, "--ignore-scripts"]);
    vec![
        step(strings(&["sh", "-c", copy, "copy", &guest, prefix])),
        Step { alternatives: vec![npm("ci"), npm("install")], workdir: None },
        step(strings(&["npm", "rebuild", "--prefix", prefix])),
    ]
}

fn step(argv: Vec<String>) -> Step {
    Step { alternatives: vec![argv], workdir: None }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.into()).collect()
}

fn read(root: &ManifestDirectory, name: &str) -> Option<String> {
    String::from_utf8(root.read(name, 1 << 20).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(files: &[(&str, &str)]) -> Option<Vec<Vec<String>>> {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(root.path().join(name), content).unwrap();
        }
        project_arguments(&ManifestDirectory::new(root.path().into(), None), Path::new("/workspace"))
    }

    #[test]
    fn packages_are_installed_and_other_projects_only_get_their_dependencies() {
        let built = "[build-system]\nrequires = ['x']\n[project]\nname = 'x'\ndependencies = ['a']";
        let package = vec![strings(&["--editable", "/workspace"]), strings(&["/workspace"])];
        assert_eq!(arguments(&[("pyproject.toml", built)]), Some(package.clone()));
        assert_eq!(arguments(&[("setup.py", "")]), Some(package.clone()));
        assert_eq!(arguments(&[("pyproject.toml", "[tool.poetry]\nname = 'x'")]), Some(package));
        let listed = "[project]\nname = 'x'\nversion = '1'\ndependencies = ['a>=1', 'b']";
        assert_eq!(arguments(&[("pyproject.toml", listed)]), Some(vec![strings(&["a>=1", "b"])]));
        assert_eq!(arguments(&[("pyproject.toml", "[tool.ruff]\nx = 1")]), None);
        assert_eq!(arguments(&[("pyproject.toml", "no toml")]), None);
    }
}
