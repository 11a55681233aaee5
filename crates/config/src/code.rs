//! Code that calls tools: `[code]`.

use std::time::Duration;

use ringfence_core::Limits;
use schemars::JsonSchema;
use serde::Deserialize;

use super::file::{Count, Seconds};
use super::size::ByteSize;
use ringfence_core::Flavor;

/// The flavor of the sessions in which `run_python` runs.
pub const CODE_FLAVOR: &str = "code";

/// Code that calls the tools of other servers.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CodeConfig {
    /// The time limit of a `run_python` that names none.
    pub timeout_s: Option<Seconds>,
    /// The longest time limit that it may ask for.
    pub max_timeout_s: Option<Seconds>,
    /// The memory of its session.
    pub memory: Option<ByteSize>,
    /// Processes and threads of its session together.
    pub pids: Option<u32>,
    pub cpus: Option<f64>,
    /// The template of its session: one of Python.
    pub template: Option<String>,
    /// How it is answered.
    pub output_mode: Option<OutputMode>,
    /// How many calls of one session a server works on at once.
    pub calls_per_server: Option<Count>,
    /// The time limit of a call to a tool that names none.
    pub call_timeout_s: Option<Seconds>,
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OutputMode {
    /// Text, with nothing that needs no saying.
    #[default]
    Compact,
    /// One block in the notation TOON.
    Toon,
}

/// What code that calls tools may be and have.
#[derive(Debug, Clone, PartialEq)]
pub struct CodeSettings {
    pub timeout: Duration,
    pub most_timeout: Duration,
    pub memory_bytes: u64,
    pub pids: u32,
    pub cpus: f64,
    pub template: String,
    pub output_mode: OutputMode,
    pub calls_per_server: usize,
    pub call_timeout: Duration,
}

impl Default for CodeSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            most_timeout: Duration::from_secs(120),
            memory_bytes: 512 << 20,
            pids: 128,
            cpus: 1.0,
            template: "python".into(),
            output_mode: OutputMode::Compact,
            calls_per_server: 8,
            call_timeout: Duration::from_secs(60),
        }
    }
}

impl CodeSettings {
    /// The size of its sessions.
    pub fn flavor(&self) -> Flavor {
        const OPEN_FILES: u32 = 1024;
        let Self { memory_bytes, pids, cpus, .. } = *self;
        Flavor::new(CODE_FLAVOR, Limits { memory_bytes, pids, cpus, open_files: OPEN_FILES })
    }
}

pub(super) fn resolve(given: &CodeConfig) -> CodeSettings {
    let usual = CodeSettings::default();
    CodeSettings {
        timeout: given.timeout_s.map_or(usual.timeout, Seconds::duration),
        most_timeout: given.max_timeout_s.map_or(usual.most_timeout, Seconds::duration),
        memory_bytes: given.memory.map_or(usual.memory_bytes, |size| size.0),
        pids: given.pids.unwrap_or(usual.pids),
        cpus: given.cpus.unwrap_or(usual.cpus),
        template: given.template.clone().unwrap_or(usual.template),
        output_mode: given.output_mode.unwrap_or(usual.output_mode),
        calls_per_server: given.calls_per_server.map_or(usual.calls_per_server, Count::get),
        call_timeout: given.call_timeout_s.map_or(usual.call_timeout, Seconds::duration),
    }
}
