//! The host that the figures were measured on, and its interpreters.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_backend::interpreter;
use ringfence_core::{Language, PATH};
use serde_json::{Value, json};

pub(crate) struct Host {
    /// The interpreters that sessions use.
    pub(crate) python: Option<PathBuf>,
    pub(crate) node: Option<PathBuf>,
    pub(crate) bash: Option<PathBuf>,
    python_version: String,
    ringfence_version: String,
    kernel: String,
    cpus: usize,
    memory_mib: u64,
    is_root: bool,
    load_average: String,
}

impl Host {
    pub(crate) fn inspect(ringfence: Option<&Path>) -> Self {
        let [python, node, bash] = [Language::Python, Language::Node, Language::Bash].map(locate);
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
        let load_average = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            python_version: python.as_deref().map(|path| version(path, &["-I", "-S"])).unwrap_or_default(),
            ringfence_version: ringfence.map_or_else(
                || env!("CARGO_PKG_VERSION").to_owned(),
                |path| version(path, &[]).trim_start_matches("ringfence ").to_owned(),
            ),
            python,
            node,
            bash,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_mib: total.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10,
            is_root: rustix::process::geteuid().is_root(),
            load_average: load_average.split(' ').next().unwrap_or_default().to_owned(),
        }
    }

    /// Returns the sentence above the table.
    pub(crate) fn caption(&self) -> String {
        format!(
            "ringfence {} ({}), Linux {}, {} CPUs, {} MiB, {}, as {}; load average {} before the run.",
            self.ringfence_version,
            build(),
            self.kernel,
            self.cpus,
            self.memory_mib,
            self.python_version,
            if self.is_root { "root" } else { "an ordinary user" },
            self.load_average,
        )
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "version": self.ringfence_version,
            "build": build(),
            "kernel": self.kernel,
            "cpus": self.cpus,
            "memory_mib": self.memory_mib,
            "python": self.python,
            "python_version": self.python_version,
            "is_root": self.is_root,
            "load_average": self.load_average.parse::<f64>().ok(),
        })
    }
}

/// The build profile of this program; `ringfence` is usually built with the same one.
fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug build, not to be compared" } else { "release build" }
}

/// Returns the program that a session would run.
fn locate(language: Language) -> Option<PathBuf> {
    let program = language.interpreter();
    let in_sandbox = PATH.split(':').map(|directory| Path::new(directory).join(program)).find(|path| path.exists());
    in_sandbox.or_else(|| interpreter::find(program).map(|found| found.directory.join(program)))
}

fn version(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).arg("--version").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
