//! Templates: the language of a session, the root file system that contains its interpreter, and variables.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::flavor::Flavor;
use crate::spec::{Command, Network, PROXY_PORT, Root, Spec, Volume, WORKSPACE, Weakness};
use crate::suggest::join;

/// The language of a session's kernel.
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

    /// Finds a language by a name that its users also call it.
    fn from_alias(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "python3" | "py" | "ipython" => Some(Self::Python),
            "javascript" | "js" | "nodejs" | "node.js" => Some(Self::Node),
            "sh" | "shell" => Some(Self::Bash),
            _ => None,
        }
    }

    /// The program that the root file system of such a template must contain.
    pub fn interpreter(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
            Self::Bash => "bash",
        }
    }
}

/// The kind of a sandbox: language, root file system and variables, without limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pub name: Arc<str>,
    pub language: Language,
    pub root: Root,
    /// The OCI image that `root` is unpacked from. Before that, `root` is the path of the image itself, and no sandbox can
    /// start from it.
    pub image: Option<PathBuf>,
    /// Variables in addition to those that every sandbox has.
    pub environment: BTreeMap<String, String>,
    /// Requirements of Python packages, such as `pandas==2.*`. They are installed once, in a separate sandbox.
    pub packages: Vec<String>,
    /// The installed packages, as a virtual environment. A session is given them when it is created.
    pub installed_packages: Option<Volume>,
}

/// The name and the packages of the built-in template for data analysis.
const DATA: &str = "data";
const DATA_PACKAGES: [&str; 6] = ["numpy", "pandas", "matplotlib", "pillow", "requests", "openpyxl"];

/// The `PATH` of programs inside a sandbox.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Template {
    /// The built-in template of a language. Its root is the host's `/usr`.
    pub fn builtin(language: Language) -> Self {
        Self {
            name: language.name().into(),
            language,
            root: Root::Host,
            image: None,
            environment: BTreeMap::new(),
            packages: Vec::new(),
            installed_packages: None,
        }
    }

    /// The built-in template `data`: Python with packages for data analysis.
    fn data() -> Self {
        let packages = DATA_PACKAGES.map(Into::into).into();
        Self { name: DATA.into(), packages, ..Self::builtin(Language::Python) }
    }

    /// Returns the spec of a sandbox with this template and flavor, and defaults for everything else.
    pub fn spec(&self, flavor: &Flavor, argv: Vec<OsString>) -> Spec {
        let mut environment = base_environment();
        environment.extend(self.environment.clone());
        Spec {
            root: self.root.clone(),
            volumes: self.installed_packages.iter().cloned().collect(),
            protected_paths: Vec::new(),
            strict_volumes: None,
            files: BTreeMap::new(),
            workspace: flavor.workspace,
            workspace_entries: Vec::new(),
            uid: 1000,
            limits: flavor.limits,
            network: Network::None,
            environment,
            command: Some(Command { argv, workdir: WORKSPACE.into() }),
            accept: default_accepted_weaknesses(),
        }
    }
}

/// The weaknesses that are accepted by default, because most hosts have them for ordinary users.
///
/// `ringfence doctor` reports each of them.
pub fn default_accepted_weaknesses() -> BTreeSet<Weakness> {
    [Weakness::Cgroup, Weakness::OwnUid].into()
}

/// All available templates: the built-in ones first, then the others by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Templates(Vec<Template>);

impl Templates {
    pub fn new(mut templates: Vec<Template>) -> Self {
        let rank = |name: &str| Language::ALL.iter().position(|language| language.name() == name).unwrap_or(usize::MAX);
        templates.sort_by(|left, right| (rank(&left.name), &left.name).cmp(&(rank(&right.name), &right.name)));
        Self(templates)
    }

    /// Finds a template by name. Surrounding white space and the case of letters do not matter, and other names of a
    /// language (`python3`, `javascript`) stand for its template, unless a template has exactly that name.
    pub fn find(&self, name: &str) -> Result<&Template, UnknownTemplate> {
        let exact = || self.iter().find(|template| &*template.name == name);
        let similar = |name: &str| self.iter().find(|template| template.name.eq_ignore_ascii_case(name));
        let by_alias = |name: &str| Language::from_alias(name).and_then(|language| similar(language.name()));
        let unknown =
            || UnknownTemplate { name: name.into(), known: join(self.iter().map(|template| &*template.name)) };
        let trimmed = name.trim();
        exact().or_else(|| similar(trimmed)).or_else(|| by_alias(trimmed)).ok_or_else(unknown)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Template> {
        self.0.iter()
    }
}

impl Default for Templates {
    /// The built-in templates.
    fn default() -> Self {
        Self(Language::ALL.map(Template::builtin).into_iter().chain([Template::data()]).collect())
    }
}

/// The error for a template that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown template `{name}`; available templates: {known}")]
pub struct UnknownTemplate {
    name: String,
    known: String,
}

impl FromStr for Template {
    type Err = UnknownTemplate;

    /// Finds the built-in template of a language by name.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Templates(Language::ALL.map(Self::builtin).into()).find(name).cloned()
    }
}

/// The variables that every sandbox has.
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

/// The variables that make programs use the egress proxy. A program that ignores them has no network.
pub fn proxy_environment() -> impl Iterator<Item = (String, String)> {
    let url = format!("http://127.0.0.1:{PROXY_PORT}");
    let proxies = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let direct = ["NO_PROXY", "no_proxy"].map(|name| (name.to_owned(), "localhost,127.0.0.1,::1".to_owned()));
    let node = ("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    proxies.map(|name| (name.to_owned(), url.clone())).into_iter().chain(direct).chain([node])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_of_a_language_find_its_template() {
        let templates = Templates::default();
        let found = |name: &str| templates.find(name).map(|template| template.name.to_string()).ok();
        for (name, template) in [
            ("python", "python"),
            (" Python ", "python"),
            ("python3", "python"),
            ("JavaScript", "node"),
            ("js", "node"),
            ("nodejs", "node"),
            ("sh", "bash"),
            ("shell", "bash"),
            ("DATA", "data"),
        ] {
            assert_eq!(found(name).as_deref(), Some(template), "{name}");
        }
        assert_eq!(found("ruby"), None);
        let own = Template { name: "js".into(), ..Template::builtin(Language::Bash) };
        let templates = Templates::new(vec![Template::builtin(Language::Node), own]);
        assert_eq!(templates.find("js").unwrap().language, Language::Bash, "the exact name wins");
    }
}
