//! What a sandbox is for: a language, the root file system that has it, and variables.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::flavor::Flavor;
use crate::spec::{Command, Network, PROXY_PORT, Root, Spec, WORKSPACE, Weakness};
use crate::suggest::join;

/// What the kernel of a session speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    Python,
    Node,
    Bash,
}

impl Language {
    pub const ALL: [Self; 3] = [Self::Python, Self::Node, Self::Bash];

    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }

    /// The program that a template of this language promises.
    pub fn interpreter(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }
}

/// What a sandbox is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub name: Arc<str>,
    pub language: Language,
    pub root: Root,
    /// What the root is unpacked from. Until it is, the root is the image itself, in which nothing can be started.
    pub image: Option<PathBuf>,
    /// Beside those that every sandbox has.
    pub environment: BTreeMap<String, String>,
}

/// Where programs are looked for inside.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Template {
    /// The built-in one of a language: the host's `/usr`.
    pub fn builtin(language: Language) -> Self {
        Self { name: language.name().into(), language, root: Root::Host, image: None, environment: BTreeMap::new() }
    }

    /// A sandbox of this template with the defaults for everything else.
    pub fn spec(&self, flavor: &Flavor, argv: Vec<OsString>) -> Spec {
        let mut environment = base_environment();
        environment.extend(self.environment.clone());
        Spec {
            root: self.root.clone(),
            volumes: Vec::new(),
            protected_paths: Vec::new(),
            strict_volumes: None,
            files: BTreeMap::new(),
            workspace: flavor.workspace,
            uid: 1000,
            limits: flavor.limits,
            network: Network::None,
            environment,
            command: Some(Command { argv, workdir: WORKSPACE.into() }),
            accept: default_accepted_weaknesses(),
        }
    }
}

/// What an ordinary user's host usually lacks; each is reported by `ringfence doctor`.
pub fn default_accepted_weaknesses() -> BTreeSet<Weakness> {
    [Weakness::Cgroup, Weakness::OwnUid].into()
}

/// The templates that there are: the built-in ones first, then the others by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Templates(Vec<Template>);

impl Templates {
    pub fn new(mut templates: Vec<Template>) -> Self {
        let place =
            |name: &str| Language::ALL.iter().position(|language| language.name() == name).unwrap_or(usize::MAX);
        templates.sort_by(|one, other| (place(&one.name), &one.name).cmp(&(place(&other.name), &other.name)));
        Self(templates)
    }

    /// Finds one by name. `shell` is `bash` by another name, unless there is one that is called so.
    pub fn find(&self, name: &str) -> Result<&Template, UnknownTemplate> {
        let called = |name: &str| self.iter().find(|template| &*template.name == name);
        let other_name = || if name == "shell" { called("bash") } else { None };
        let unknown =
            || UnknownTemplate { name: name.into(), known: join(self.iter().map(|template| &*template.name)) };
        called(name).or_else(other_name).ok_or_else(unknown)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Template> {
        self.0.iter()
    }
}

impl Default for Templates {
    /// The built-in ones.
    fn default() -> Self {
        Self(Language::ALL.map(Template::builtin).into())
    }
}

/// A template that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown template `{name}`; there are {known}")]
pub struct UnknownTemplate {
    name: String,
    known: String,
}

impl FromStr for Template {
    type Err = UnknownTemplate;

    /// Takes the name of a built-in one.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Templates::default().find(name).cloned()
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
