//! What the figures were taken on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_backend::interpreter;
use ringfence_core::{Language, PATH};
use serde_json::{Value, json};

pub(super) struct Host {
    /// The interpreters that sessions have.
    pub(super) python: Option<PathBuf>,
    pub(super) node: Option<PathBuf>,
    pub(super) bash: Option<PathBuf>,
    python_version: String,
    kernel: String,
    cpus: usize,
    memory_mib: u64,
    is_root: bool,
    load: String,
}

impl Host {
    pub(super) fn look() -> Self {
        let [python, node, bash] = [Language::Python, Language::Node, Language::Bash].map(locate);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            python_version: python.as_deref().map(version).unwrap_or_default(),
            python,
            node,
            bash,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_mib: total.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10,
            is_root: rustix::process::geteuid().is_root(),
            load: load.split(' ').next().unwrap_or_default().to_owned(),
        }
    }

    pub(super) fn caption(&self) -> String {
        format!(
            "ringfence {} ({}), Linux {}, {} CPUs, {} MiB, {}, as {}; load average {} before the run.",
            env!("CARGO_PKG_VERSION"),
            build(),
            self.kernel,
            self.cpus,
            self.memory_mib,
            self.python_version,
            if self.is_root { "root" } else { "an ordinary user" },
            self.load,
        )
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "build": build(),
            "kernel": self.kernel,
            "cpus": self.cpus,
            "memory_mib": self.memory_mib,
            "python": self.python,
            "python_version": self.python_version,
            "is_root": self.is_root,
            "load_average": self.load.parse::<f64>().ok(),
        })
    }
}

fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug build, not to be compared" } else { "release build" }
}

/// The program that a session would run.
fn locate(language: Language) -> Option<PathBuf> {
    let program = language.interpreter();
    let in_view = PATH.split(':').map(|directory| Path::new(directory).join(program)).find(|path| path.exists());
    in_view.or_else(|| interpreter::find(program).map(|found| found.directory.join(program)))
}

fn version(python: &Path) -> String {
    let output = Command::new(python).args(["-I", "-S", "--version"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
