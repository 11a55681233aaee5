//! What sessions may be and have.

use std::time::Duration;

use ringfence_sandbox::Volume;

/// The settings of a server's sessions.
#[derive(Debug, Clone)]
pub struct Settings {
    pub default_template: String,
    pub default_flavor: String,
    pub volumes: Vec<Volume>,
    pub timeout: Duration,
    pub most_timeout: Duration,
    pub most_sessions: usize,
    pub idle_timeout: Duration,
    /// Sandboxes that are kept ready of a template: of Python, and of each other.
    pub pooled_python: usize,
    pub pooled_others: usize,
    /// Modules that Python sessions have imported already, where the interpreter has them.
    pub preload: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_template: "python".into(),
            default_flavor: "small".into(),
            volumes: Vec::new(),
            timeout: Duration::from_secs(30),
            most_timeout: Duration::from_secs(120),
            most_sessions: 64,
            idle_timeout: Duration::from_secs(1800),
            pooled_python: 4,
            pooled_others: 1,
            preload: ["numpy", "pandas", "matplotlib.pyplot"].map(Into::into).into(),
        }
    }
}
