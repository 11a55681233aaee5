//! `[flavors.NAME]` and `[templates.NAME]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ringfence_core::Language;
use ringfence_entries::AllowEntry;
use schemars::JsonSchema;
use serde::Deserialize;

use super::units::ByteSize;

/// The size of a sandbox.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FlavorConfig {
    pub(crate) cpus: Option<f64>,
    pub(crate) memory: Option<ByteSize>,
    /// Maximum number of processes and threads.
    pub(crate) pids: Option<u32>,
    /// Maximum number of open files of each process; at most 512 in a sandbox that runs with the uid of the server.
    pub(crate) open_files: Option<u32>,
    /// Maximum size of all files in /workspace, /tmp and /dev/shm; half of the memory by default.
    pub(crate) workspace: Option<ByteSize>,
    /// Maximum number of files and directories there.
    pub(crate) workspace_inodes: Option<u64>,
}

/// The language and the root file system of a sandbox.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TemplateConfig {
    pub(crate) language: Option<LanguageConfig>,
    /// A directory with a root file system. By default, the sandbox uses /usr of the host.
    pub(crate) root: Option<PathBuf>,
    /// An OCI image on disk, instead of `root`: a layout directory or a tar archive. Variables in `env` override those
    /// of the image.
    pub(crate) image: Option<PathBuf>,
    /// Environment variables of every process in the sandbox.
    pub(crate) env: BTreeMap<String, String>,
    /// Python packages that sessions with this template have, such as `pandas==2.*`. They are installed once.
    pub(crate) packages: Vec<String>,
    /// Hosts that sessions with this template may connect to, as `HOST[:PORT][+private]`, in addition to
    /// `sessions.allow`.
    #[schemars(with = "Vec<AllowEntry>")]
    pub(crate) allow: Vec<toml::Value>,
    /// The secrets of sessions with this template, in addition to `sessions.secrets`.
    pub(crate) secrets: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LanguageConfig {
    Python,
    Node,
    Bash,
}

impl From<LanguageConfig> for Language {
    fn from(language: LanguageConfig) -> Self {
        match language {
            LanguageConfig::Python => Self::Python,
            LanguageConfig::Node => Self::Node,
            LanguageConfig::Bash => Self::Bash,
        }
    }
}
