//! The default registries of pip and npm, which print them inside a sandbox without network.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Command, Network, Volume, WORKSPACE};

use super::{failed, read_only, without_credentials};
use crate::context::Context;
use crate::install::interpreters::path_of;
use crate::phase::StartFailure;
use crate::server_sandbox::{
    ProcessExit, RefusalReport, ServerEgress, ServerSandbox, add_interpreters, read_head, sandbox_spec,
};
use ringfence_backend::interpreter;
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_entries::SandboxSettings;

/// The path of pip inside the sandbox.
pub(in crate::install) const PIP_DIRECTORY: &str = "/run/ringfence/pip";

/// Timeout for pip or npm to print its default.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Python code that prints the default index of the pip in a directory or wheel.
const PRINT_INDEX: &str = "import sys; sys.path.insert(0, sys.argv[1]); \
                           from pip._internal.models.index import PyPI; \
                           print(PyPI.simple_url, PyPI.file_storage_domain)";

/// Returns the default index of a pip and the host of its files.
pub(super) async fn python_index(context: &Context, pip: &Volume) -> Result<Vec<String>, StartFailure> {
    let printed = print(context, vec![pip.clone()], &["python3", "-I", "-c", PRINT_INDEX, PIP_DIRECTORY]).await?;
    let urls: Vec<String> = printed.split_whitespace().map(str::to_owned).collect();
    if urls.len() != 2 || without_credentials(&urls[0]).is_none() {
        return Err(failed("the default index of pip cannot be determined".into())
            .hint("set the index with PIP_INDEX_URL or in /etc/pip.conf"));
    }
    Ok(urls)
}

/// Returns the default registry of npm.
pub(super) async fn npm_registry(context: &Context) -> Result<String, StartFailure> {
    let argv = ["npm", "config", "get", "registry", "--userconfig=/none/user", "--globalconfig=/none/global"];
    let printed = print(context, Vec::new(), &argv).await?;
    without_credentials(printed.trim()).ok_or_else(|| {
        failed("the default registry of npm cannot be determined".into())
            .hint("set the registry with npm_config_registry")
    })
}

/// Runs a program in a sandbox that has only the interpreters of the host and no network. Returns its standard output.
async fn print(context: &Context, volumes: Vec<Volume>, argv: &[&str]) -> Result<String, StartFailure> {
    let mut spec = sandbox_spec(&SandboxSettings::default(), &[], &context.settings.accept);
    spec.network = Network::None;
    spec.volumes.extend(volumes);
    add_interpreters(&mut spec, &["python3", "node", "npm"]);
    let path = spec.environment.get("PATH").cloned().unwrap_or_default();
    let environment = [("PATH", path.as_str()), ("HOME", "/tmp"), ("LANG", "C.UTF-8")]
        .map(|(name, value)| (name.into(), value.into()));
    let report = RefusalReport::Installation(Arc::default());
    let egress = ServerEgress { rules: Vec::new(), credentials: None, report };
    let sandbox = ServerSandbox::launch(&context.backend, spec, egress).await?;
    let command = Command { argv: argv.iter().map(Into::into).collect(), workdir: WORKSPACE.into() };
    let process = sandbox.start(&command, &environment.into())?;
    let handle = process.handle();
    drop(process.stdin);
    let work = async {
        let (stdout, stderr) = tokio::join!(read_head(process.stdout), read_head(process.stderr));
        (stdout, stderr, handle.wait_for_exit().await)
    };
    let finished = tokio::time::timeout(TIMEOUT, work).await;
    sandbox.end().await;
    match finished {
        Ok((stdout, _, ProcessExit::Exited(0))) => Ok(stdout),
        Ok((_, stderr, exit)) => {
            let output: String = stderr.chars().take(500).collect();
            Err(failed(format!("{} {exit}: {output}", argv[0])))
        }
        Err(_) => Err(failed(format!("{} did not print its default registry within 30 s", argv[0]))),
    }
}

/// Finds the pip of the Python that sandboxes use, else that of another Python of this host: pip is pure Python, so any
/// Python can run it. If there is none, returns the reason why one was refused.
pub(super) fn find_pip(writable: &GuestWritable) -> Result<Volume, Option<GuestWritten>> {
    let mut refused = None;
    for (pip, guest) in pythons().iter().flat_map(|python| candidates(python)).chain(user_packages()) {
        match writable.check_tree(&pip) {
            Ok(()) => {
                let real = std::fs::canonicalize(&pip).map_err(|_| refused.clone())?;
                return Ok(read_only(&real, &guest));
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused)
}

fn pythons() -> Vec<PathBuf> {
    let on_path = std::env::var_os("PATH");
    let on_path = on_path.iter().flat_map(std::env::split_paths).map(|directory| directory.join("python3"));
    path_of("python3").into_iter().chain(on_path.filter(|path| path.is_file())).collect()
}

/// Returns the packages and wheels of pip that belong to a Python, each with its path inside the sandbox.
fn candidates(python: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for prefix in interpreter::prefixes(python) {
        let versions = interpreter::versions(&prefix, python);
        let libraries = || {
            let all = versions.iter().flat_map(|version| ["lib", "lib64", "local/lib"].map(|lib| (lib, version)));
            all.map(|(lib, version)| prefix.join(lib).join(version))
        };
        found.extend(libraries().flat_map(|library| packages(&library)));
        found.extend(libraries().flat_map(|library| wheels(&library.join("ensurepip/_bundled"))));
        found.extend(wheels(&prefix.join("share/python-wheels")));
    }
    found.extend(wheels(Path::new("/usr/share/python-wheels")));
    // Packages are preferred to wheels, in all prefixes.
    found.sort_by_key(|(path, _)| !path.is_dir());
    found
}

/// Returns the packages that `pip install --user pip` has installed.
fn user_packages() -> Vec<(PathBuf, PathBuf)> {
    let library = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/lib"));
    let versions = library.iter().flat_map(|library| std::fs::read_dir(library).into_iter().flatten().flatten());
    versions.flat_map(|version| packages(&version.path())).collect()
}

fn packages(library: &Path) -> Vec<(PathBuf, PathBuf)> {
    let packages = ["site-packages", "dist-packages"].map(|site| library.join(site).join("pip"));
    let packages = packages.into_iter().filter(|package| package.join("__init__.py").is_file());
    packages.map(|package| (package, Path::new(PIP_DIRECTORY).join("pip"))).collect()
}

fn wheels(directory: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_pip = |path: &PathBuf| {
        let is_wheel = path.extension().is_some_and(|extension| extension == "whl");
        is_wheel && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pip-"))
    };
    entries.filter(is_pip).map(|wheel| (wheel, PathBuf::from(PIP_DIRECTORY))).collect()
}
