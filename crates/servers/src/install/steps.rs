//! The commands of an installation, as they are run inside.

use std::path::{Path, PathBuf};

use super::super::manifests::Manifests;
use super::super::needs::Need;
use super::super::registries::Installer;

/// One thing to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Several where one may not work for every project; the first that does counts.
    pub(super) ways: Vec<Vec<String>>,
    pub(super) workdir: Option<PathBuf>,
}

/// What is being installed, for a person.
pub(super) fn name(need: &Need) -> String {
    match need {
        Need::Npm { packages } => packages.join(", "),
        Need::Pip { requirements } => requirements.join(", "),
        Need::PythonProject { root, .. } | Need::NodeProject { root, .. } => {
            format!("what {} needs", root.directory().display())
        }
    }
}

/// What meets a need, into `prefix`. Reads a project's manifests; may block.
pub(super) fn of(need: &Need, prefix: &Path, installer: &Installer) -> Vec<Step> {
    let prefix_text = prefix.display().to_string();
    match need {
        Need::Npm { packages } => {
            let install = strings(&["npm", "install", "--prefix", &prefix_text, "--"]);
            vec![step([install, packages.clone()].concat())]
        }
        Need::NodeProject { guest, .. } => node_project(guest, &prefix_text),
        Need::Pip { requirements } => {
            vec![environment(&prefix_text), step(install(prefix, installer, requirements))]
        }
        Need::PythonProject { root, guest, requirements } => {
            let mut steps = vec![environment(&prefix_text)];
            steps.extend(package(root, guest).map(|ways| Step {
                ways: ways.into_iter().map(|what| install(prefix, installer, &what)).collect(),
                workdir: Some(guest.clone()),
            }));
            let mut further = Vec::new();
            if read(root, "requirements.txt").is_some() {
                further.extend(strings(&["-r", "requirements.txt"]));
            }
            further.extend(requirements.clone());
            if !further.is_empty() {
                let ways = vec![install(prefix, installer, &further)];
                steps.push(Step { ways, workdir: Some(guest.clone()) });
            }
            steps
        }
    }
}

/// A virtual environment that holds the packages; pip is not part of it.
fn environment(prefix: &str) -> Step {
    step(strings(&["python3", "-m", "venv", "--without-pip", prefix]))
}

fn install(prefix: &Path, installer: &Installer, what: &[String]) -> Vec<String> {
    let python = prefix.join("bin/python").display().to_string();
    let mut argv = match installer {
        Installer::Pip => strings(&[&python, "-m", "pip", "install", "--use-pep517", "--quiet"]),
        Installer::Uv => strings(&["uv", "pip", "install", "--python", &python]),
    };
    argv.extend(what.iter().cloned());
    argv
}

/// The ways to install a project that is a package. So that its code is always the copy that the server is shown, it
/// is linked to, not copied, where it can be.
fn package(root: &Manifests, guest: &Path) -> Option<Vec<Vec<String>>> {
    let guest = guest.display().to_string();
    let manifest = read(root, "pyproject.toml").and_then(|text| text.parse::<toml::Table>().ok());
    let table = manifest.unwrap_or_default();
    let is_built = table.contains_key("build-system") || read(root, "setup.py").is_some();
    let is_poetry = table.get("tool").and_then(|tool| tool.get("poetry")).is_some();
    if !is_built && !is_poetry && !table.contains_key("project") {
        // Settings of tools, no package.
        return None;
    }
    let mut ways = vec![strings(&["--editable", &guest]), vec![guest]];
    let dependencies = table.get("project").and_then(|project| project.get("dependencies")?.as_array());
    if !is_built {
        // Many only list what their scripts need, and cannot be built.
        let listed = dependencies.into_iter().flatten().filter_map(|one| one.as_str()).map(Into::into);
        let listed: Vec<String> = listed.collect();
        match listed.is_empty() {
            true if !is_poetry => return None,
            true => {}
            false => ways = vec![listed],
        }
    }
    Some(ways)
}

/// Scripts of the packages are run, those of the project itself are not: its files are elsewhere.
fn node_project(guest: &Path, prefix: &str) -> Vec<Step> {
    let copy = "for name in package.json package-lock.json npm-shrinkwrap.json; do \
                if [ -f \"$1/$name\" ]; then cp \"$1/$name\" \"$2/$name\" || exit 1; fi; done; mkdir -p \"$2/node_modules\"";
    let guest = guest.display().to_string();
    let npm = |command: &str| strings(&["npm", command, "--prefix", prefix, "--ignore-scripts"]);
    vec![
        step(strings(&["sh", "-c", copy, "copy", &guest, prefix])),
        Step { ways: vec![npm("ci"), npm("install")], workdir: None },
        step(strings(&["npm", "rebuild", "--prefix", prefix])),
    ]
}

fn step(argv: Vec<String>) -> Step {
    Step { ways: vec![argv], workdir: None }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.into()).collect()
}

fn read(root: &Manifests, name: &str) -> Option<String> {
    String::from_utf8(root.read(name, 1 << 20).ok()??).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(files: &[(&str, &str)]) -> Option<Vec<Vec<String>>> {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(root.path().join(name), content).unwrap();
        }
        package(&Manifests::new(root.path().into(), None), Path::new("/workspace"))
    }

    #[test]
    fn a_package_is_installed_and_a_list_of_dependencies_taken_as_one() {
        let built = "[build-system]\nrequires = ['x']\n[project]\nname = 'x'\ndependencies = ['a']";
        let package = vec![strings(&["--editable", "/workspace"]), strings(&["/workspace"])];
        assert_eq!(ways(&[("pyproject.toml", built)]), Some(package.clone()));
        assert_eq!(ways(&[("setup.py", "")]), Some(package.clone()));
        assert_eq!(ways(&[("pyproject.toml", "[tool.poetry]\nname = 'x'")]), Some(package));
        let listed = "[project]\nname = 'x'\nversion = '1'\ndependencies = ['a>=1', 'b']";
        assert_eq!(ways(&[("pyproject.toml", listed)]), Some(vec![strings(&["a>=1", "b"])]));
        assert_eq!(ways(&[("pyproject.toml", "[tool.ruff]\nx = 1")]), None);
        assert_eq!(ways(&[("pyproject.toml", "no toml")]), None);
    }
}
