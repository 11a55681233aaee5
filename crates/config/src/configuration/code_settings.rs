//! Settings of code that calls tools.

use std::time::Duration;

use ringfence_core::{Flavor, Limits};

use crate::document::OutputMode;

/// The flavor of the sessions in which `run_python` runs.
pub const CODE_FLAVOR: &str = "code";

/// Settings of `run_python` and of the sessions in which it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct CodeSettings {
    pub timeout: Duration,
    pub max_timeout: Duration,
    pub memory_bytes: u64,
    pub pids: u32,
    pub cpus: f64,
    pub template: String,
    pub output_mode: OutputMode,
    /// Maximum number of concurrent calls from one session to one server.
    pub calls_per_server: usize,
    /// The time limit of a tool call, unless the code sets one.
    pub call_timeout: Duration,
}

impl Default for CodeSettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            max_timeout: Duration::from_mins(2),
            memory_bytes: 512 << 20,
            pids: 128,
            cpus: 1.0,
            template: "python".into(),
            output_mode: OutputMode::Compact,
            calls_per_server: 8,
            call_timeout: Duration::from_mins(1),
        }
    }
}

impl CodeSettings {
    /// Returns the flavor of the sessions.
    pub fn flavor(&self) -> Flavor {
        const OPEN_FILES: u32 = 1024;
        let Self { memory_bytes, pids, cpus, .. } = *self;
        Flavor::new(CODE_FLAVOR, Limits { memory_bytes, pids, cpus, open_files: OPEN_FILES })
    }
}
