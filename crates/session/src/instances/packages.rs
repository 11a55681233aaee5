//! Packages in sessions: the virtual environment of a Python session, and where npm installs.
//!
//! The environment consists of a few directories and links that the init creates with the workspace, so a session does
//! not wait for it. Its Python sees the packages of the system as well.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ringfence_backend::interpreter::{self, GuestPython};
use ringfence_config::{GuestWritable, SessionSettings};
use ringfence_core::{Access, Language, Network, Root, Spec, Template, Volume, WORKSPACE, WorkspaceEntry};
use ringfence_guest::sources;

/// The directory of the virtual environment, relative to the workspace. Listings of the workspace leave it out.
pub(crate) const ENVIRONMENT: &str = ".venv";

/// The directory with uv inside a session.
const UV_DIRECTORY: &str = "/run/ringfence/bin";

/// The directory of `npm install --global`, which may not write to the directory of Node.
const NPM_PREFIX: &str = "/workspace/.npm-global";

/// Adds what a session needs to install packages. `PATH` of the spec contains the interpreter already.
pub(super) fn add(spec: &mut Spec, template: &Template, settings: &SessionSettings) {
    match template.language {
        Language::Python => add_python(spec, template, settings),
        Language::Node => add_npm(spec),
        Language::Bash => {}
    }
}

fn add_python(spec: &mut Spec, template: &Template, settings: &SessionSettings) {
    // An image may have an environment of its own.
    if spec.environment.contains_key("VIRTUAL_ENV") {
        return;
    }
    let path = spec.environment.get("PATH").cloned().unwrap_or_default();
    let Some(python) = interpreter::guest_python(&template.root, &path) else { return };
    spec.workspace_entries.extend(environment_entries(&python));
    spec.files.insert(sources::PIP.0.into(), sources::PIP.1.into());
    let environment = Path::new(WORKSPACE).join(ENVIRONMENT);
    let mut directories = vec![environment.join("bin")];
    if let Some(installed) = &template.installed_packages {
        spec.workspace_entries.push(link_to_template(&python, &installed.guest));
        directories.push(installed.guest.join("bin"));
    }
    if let Some(uv) = host_uv(template, &settings.guest_writable) {
        spec.volumes.push(uv);
        directories.push(UV_DIRECTORY.into());
    } else if let Some(uv) = uv_of_the_mirror(spec, template, settings) {
        spec.volumes.push(uv);
        // Until a session has requested uv, the directory is empty, so the shim is first on PATH.
        let shim = |name: &str| WorkspaceEntry::Link {
            path: Path::new(ENVIRONMENT).join("bin").join(name),
            target: sources::PIP.0.into(),
        };
        spec.workspace_entries.extend(["uv", "uvx"].map(shim));
    }
    let directories: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
    spec.environment.insert("PATH".into(), format!("{}:{path}", directories.join(":")));
    // In the file system of the environment, so that uv links files instead of copying them.
    let cache = environment.join(".cache/uv");
    let variables = [
        ("VIRTUAL_ENV", environment.display().to_string()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".into()),
        ("PIP_NO_CACHE_DIR", "1".into()),
        ("UV_CACHE_DIR", cache.display().to_string()),
        ("UV_PYTHON_DOWNLOADS", "never".into()),
    ];
    add_variables(&mut spec.environment, variables);
}

/// The uv of the host, if it is not in `/usr`, which every session has. It may need the host's C library.
fn host_uv(template: &Template, writable: &GuestWritable) -> Option<Volume> {
    let found = interpreter::find("uv").filter(|_| template.root == Root::Host)?;
    writable.check(&found.volume.host).ok()?;
    Some(Volume { guest: Path::new(UV_DIRECTORY).join("uv"), ..found.volume })
}

/// The directory in which the package mirror provides uv, for a session that would have none.
fn uv_of_the_mirror(spec: &Spec, template: &Template, settings: &SessionSettings) -> Option<Volume> {
    let has_mirror = spec.network != Network::None && settings.network.packages;
    let mirror = settings.network.mirror.as_ref().filter(|_| has_mirror && template.root == Root::Host)?;
    if ["/usr/local/bin/uv", "/usr/bin/uv"].iter().any(|path| Path::new(path).exists()) {
        return None;
    }
    let host = mirror.uv_directory()?;
    Some(Volume { host, guest: UV_DIRECTORY.into(), access: Access::ReadOnly, allowed_root: None })
}

/// The `.pth` file that adds the packages of the template to those of the environment. The latter come first.
fn link_to_template(python: &GuestPython, installed: &Path) -> WorkspaceEntry {
    let packages = |base: &Path| base.join("lib").join(&python.version).join("site-packages");
    WorkspaceEntry::File {
        path: packages(Path::new(ENVIRONMENT)).join("ringfence-template.pth"),
        text: format!("{}\n", packages(installed).display()),
    }
}

/// The entries of the environment, as `venv` creates them, with `pip`.
fn environment_entries(python: &GuestPython) -> Vec<WorkspaceEntry> {
    let base = Path::new(ENVIRONMENT);
    let libraries = base.join("lib").join(&python.version);
    let packages = libraries.join("site-packages");
    let home = python.program.parent().unwrap_or(Path::new("/usr/bin"));
    let settings = format!("home = {}\ninclude-system-site-packages = true\n", home.display());
    let directories = [base.to_owned(), base.join("bin"), base.join("lib"), libraries, packages.clone()];
    let program = |name: &str, target: &Path| WorkspaceEntry::Link {
        path: base.join("bin").join(name),
        target: target.to_owned(),
    };
    let pip = Path::new(sources::PIP.0);
    directories
        .into_iter()
        .map(|path| WorkspaceEntry::Directory { path })
        .chain([
            WorkspaceEntry::File { path: base.join("pyvenv.cfg"), text: settings },
            program("python", &python.program),
            program("python3", Path::new("python")),
            program(&python.version, Path::new("python")),
            program("pip", pip),
            program("pip3", pip),
            // For `python -m pip`.
            WorkspaceEntry::Link { path: packages.join("pip.py"), target: pip.to_owned() },
        ])
        .collect()
}

fn add_npm(spec: &mut Spec) {
    let programs = Path::new(WORKSPACE).join("node_modules/.bin");
    let of_npm: PathBuf = Path::new(NPM_PREFIX).join("bin");
    let path = spec.environment.entry("PATH".into()).or_default();
    // Last, so that a package does not replace the programs of the session.
    *path = format!("{path}:{}:{}", programs.display(), of_npm.display());
    let variables = [
        ("npm_config_prefix", NPM_PREFIX),
        // A cache in /workspace would be listed there.
        ("npm_config_cache", "/tmp/.npm"),
        ("npm_config_update_notifier", "false"),
        ("npm_config_fund", "false"),
        ("npm_config_audit", "false"),
    ];
    add_variables(&mut spec.environment, variables.map(|(name, value)| (name, value.to_owned())));
}

/// Adds variables, except those that the template sets.
fn add_variables<const N: usize>(environment: &mut BTreeMap<String, String>, variables: [(&str, String); N]) {
    for (name, value) in variables {
        environment.entry(name.into()).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use ringfence_core::{Access, Flavors};

    use super::*;

    fn spec_of(template: &Template) -> Spec {
        let flavors = Flavors::default();
        let mut spec = template.spec(flavors.find("small").unwrap(), Vec::new());
        spec.command = None;
        add(&mut spec, template, &SessionSettings::default());
        spec
    }

    #[test]
    fn environment_is_valid_and_its_python_is_that_of_the_session() {
        let spec = spec_of(&Template::builtin(Language::Python));
        assert_eq!(spec.validate().map_err(|error| error.to_string()), Ok(()));
        assert!(spec.environment["PATH"].starts_with("/workspace/.venv/bin:"));
        assert_eq!(spec.environment["VIRTUAL_ENV"], "/workspace/.venv");
        let python = spec.workspace_entries.iter().find(|entry| entry.path().ends_with("bin/python"));
        let Some(WorkspaceEntry::Link { target, .. }) = python else { panic!("no link: {python:?}") };
        assert!(target.is_absolute() && target.is_file(), "{}", target.display());
    }

    #[test]
    fn packages_of_the_template_are_mounted_and_added_to_the_environment() {
        let (host, guest) = ("/cache/x".into(), "/run/ringfence/packages/x".into());
        let volume = Volume { host, guest, access: Access::ReadOnly, allowed_root: None };
        let mut template = Template::builtin(Language::Python);
        template.installed_packages = Some(volume.clone());
        let spec = spec_of(&template);
        assert_eq!(spec.validate().map_err(|error| error.to_string()), Ok(()));
        assert!(spec.volumes.contains(&volume));
        assert!(spec.environment["PATH"].starts_with("/workspace/.venv/bin:/run/ringfence/packages/x/bin:"));
        let added = spec.workspace_entries.iter().find(|entry| entry.path().ends_with("ringfence-template.pth"));
        let Some(WorkspaceEntry::File { text, .. }) = added else { panic!("no file: {added:?}") };
        assert!(text.starts_with("/run/ringfence/packages/x/lib/python3."), "{text}");
        assert!(text.ends_with("/site-packages\n"), "{text}");
    }

    #[test]
    fn environment_of_an_image_and_variables_of_a_template_are_left_alone() {
        let mut template = Template::builtin(Language::Python);
        template.environment.insert("VIRTUAL_ENV".into(), "/opt/venv".into());
        assert!(spec_of(&template).workspace_entries.is_empty());
        template.environment = [("UV_CACHE_DIR".to_owned(), "/tmp/own".to_owned())].into();
        assert_eq!(spec_of(&template).environment["UV_CACHE_DIR"], "/tmp/own");
        template.root = Root::Directory("/nonexistent".into());
        assert!(spec_of(&template).workspace_entries.is_empty());
    }
}
