//! Installs packages with the package managers of this host, through a mirror of the registries that they are set to.
//!
//! Ignored by default, because it needs these registries, pip, uv and npm:
//!
//! ```text
//! cargo test -p ringfence-egress --test real_registries -- --ignored --nocapture
//! ```
#![allow(clippy::print_stderr)]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use ringfence_core::mirror_environment;
use ringfence_egress::{DecisionLog, Mirror, MirrorSettings, NpmRegistries, PythonIndexes, RegistrySource};

/// A mirror on a port of loopback, which ends when it is dropped.
struct Served {
    base: String,
    _runtime: tokio::runtime::Runtime,
}

fn output(command: &mut Command) -> Output {
    let output = command.output().expect("the program starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}");
    output
}

fn printed(program: &str, arguments: &[&str]) -> String {
    String::from_utf8(output(Command::new(program).args(arguments)).stdout).expect("UTF-8").trim().to_owned()
}

fn serve(cache: &Path, registries: RegistrySource) -> Served {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let settings = MirrorSettings { cache_directory: cache.to_owned(), max_bytes: 4 << 30, registries };
    let mirror = Mirror::new(settings);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let (log, mut decisions) = DecisionLog::bounded(1024);
    runtime.spawn(async move { mirror.serve(listener, log).await });
    runtime.spawn(async move {
        while let Some(decision) = decisions.recv().await {
            eprintln!("{}: {}", decision.package.unwrap_or_default(), decision.reason);
        }
    });
    Served { base, _runtime: runtime }
}

fn registries_of_host() -> RegistrySource {
    let print_index = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)";
    let index = std::env::var("PIP_INDEX_URL").unwrap_or_else(|_| printed("python3", &["-c", print_index]));
    let registry = printed("npm", &["config", "get", "registry"]);
    let certificates: Vec<Vec<u8>> = std::env::var_os("SSL_CERT_FILE")
        .map(|file| std::fs::read(file).expect("a readable file"))
        .into_iter()
        .collect();
    RegistrySource::known(
        PythonIndexes { urls: vec![index], certificates: certificates.clone() },
        NpmRegistries { url: registry, certificates, ..NpmRegistries::default() },
    )
}

impl Served {
    /// A command with only the variables that a sandbox has.
    fn command(&self, program: &str, home: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(home).env("HOME", home).env("LANG", "C.UTF-8");
        command.env("PATH", std::env::var_os("PATH").expect("PATH is set"));
        for (name, value) in mirror_environment() {
            command.env(name, value.replace("http://127.0.0.1:3129", &self.base));
        }
        command
    }
}

#[test]
#[ignore = "needs the registries of this host"]
fn package_managers_install_through_the_mirror() {
    let (cache, home) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    let home = home.path();
    let served = serve(cache.path(), registries_of_host());
    output(served.command("python3", home).args(["-m", "pip", "download", "--no-deps", "-d", "downloaded", "six"]));
    output(served.command("python3", home).args(["-m", "venv", "with-pip"]));
    output(served.command("with-pip/bin/pip", home).args(["install", "requests"]));
    output(served.command("with-pip/bin/python", home).args(["-c", "import requests"]));
    output(served.command("npm", home).args(["install", "left-pad", "@types/left-pad"]));
    assert!(home.join("node_modules/left-pad/package.json").is_file());
    let uv = |served: &Served, target: &str| {
        let started = Instant::now();
        // Without uv's cache, as in a new sandbox.
        let arguments = ["pip", "install", "--no-cache", "--target", target, "requests", "numpy"];
        output(served.command("uv", home).args(arguments));
        started.elapsed()
    };
    let cold = uv(&served, "first");
    // A registry that does not exist: everything comes from the cache.
    drop(served);
    let served = serve(cache.path(), registries_of_host());
    let warm = (0..3).map(|index| uv(&served, &format!("warm{index}"))).min().expect("three runs");
    eprintln!("uv pip install requests numpy: {cold:?}, warm {warm:?}");
    assert!(home.join("warm0/requests").is_dir());
}
