//! The built-in templates: the host's `/usr` with an interpreter.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::str::FromStr;

use ringfence_sandbox::{Command, Network, PROXY_PORT, Root, Spec, WORKSPACE, Weakness};

use crate::flavor::Flavor;

/// What a sandbox is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Template {
    Python,
    Node,
    Bash,
}

/// A template that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown template `{0}`; there are python, node and bash")]
pub struct UnknownTemplate(String);

impl FromStr for Template {
    type Err = UnknownTemplate;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "python" => Ok(Self::Python),
            "node" => Ok(Self::Node),
            "bash" | "shell" => Ok(Self::Bash),
            _ => Err(UnknownTemplate(name.into())),
        }
    }
}

/// Where programs are looked for inside.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Template {
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }

    /// The program that this template promises.
    pub fn interpreter(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }

    /// A sandbox of this template with the defaults for everything else.
    pub fn spec(self, flavor: Flavor, argv: Vec<OsString>) -> Spec {
        Spec {
            root: Root::Host,
            volumes: Vec::new(),
            files: BTreeMap::new(),
            workspace: flavor.workspace,
            uid: 1000,
            limits: flavor.limits,
            network: Network::None,
            environment: base_environment(),
            command: Some(Command { argv, workdir: WORKSPACE.into() }),
            // What an ordinary user's host usually lacks; each is reported by `ringfence doctor`.
            accept: [Weakness::Cgroup, Weakness::OwnUid].into(),
        }
    }
}

fn base_environment() -> BTreeMap<String, String> {
    let pairs = [
        ("HOME", WORKSPACE),
        ("LANG", "C.UTF-8"),
        ("LOGNAME", "agent"),
        ("PATH", PATH),
        ("SHELL", "/bin/sh"),
        ("TMPDIR", "/tmp"),
        ("USER", "agent"),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The variables by which programs find the egress proxy. A program that ignores them reaches nothing.
pub fn proxy_environment() -> impl Iterator<Item = (String, String)> {
    let url = format!("http://127.0.0.1:{PROXY_PORT}");
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let direct = ["NO_PROXY", "no_proxy"].map(|name| (name.to_owned(), "localhost,127.0.0.1,::1".to_owned()));
    let node = ("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    proxies.map(|name| (name.to_owned(), url.clone())).into_iter().chain(direct).chain([node])
}
