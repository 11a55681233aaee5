//! From the file's types to what the program works with.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use ringfence_core::{Limits, Root};

use super::check;
use super::code::{self, CodeSettings};
use super::error::ConfigError;
use super::file::{Config, Count, HostingConfig, LogFormat, LogLevel, Seconds, SessionsConfig, TemplateConfig};
use super::find::Environment;
use super::foreign;
use super::keys;
use super::profiles;
use super::servers::{self, ConfiguredServer};
use super::times::Times;
use super::token::{self, Token, TokenSource};
use super::values::Values;
use super::volume::parse_volume;
use crate::Settings;
use ringfence_core::{Flavor, Flavors};
use ringfence_core::{Template, Templates};
use ringfence_egress::Rule;
use ringfence_entries::Profile;
use ringfence_images::SAVE_HINT;

/// Where the defaults do not say it.
const MOST_REQUESTS: usize = 512;
const MOST_CONNECTIONS: usize = 1024;

/// A configuration that holds.
#[derive(Debug)]
pub struct Configuration {
    /// The file that was read, if there is one.
    pub file: Option<PathBuf>,
    pub server: Server,
    pub sessions: Settings,
    pub code: CodeSettings,
    pub hosting: Hosting,
    /// The servers of the file, by name.
    pub servers: Vec<ConfiguredServer>,
    /// What is offered at `/mcp/NAME`: those of the file, and `code`.
    pub profiles: BTreeMap<String, Profile>,
    pub log: Log,
    /// What was given and is not followed, for the log.
    pub warnings: Vec<String>,
    pub(super) values: Values,
    state_directory: Option<PathBuf>,
    tokens: Vec<TokenSource>,
    environment: Environment,
}

/// How MCP is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub host: IpAddr,
    pub port: u16,
    pub enable_cors: bool,
    /// Whether every user of this host may connect where there is no token.
    pub allow_local_users: bool,
    pub allowed_hosts: Vec<String>,
    /// The profile of the default endpoint and of stdio, one of those that there are; nothing means all.
    pub profile: Option<String>,
    pub most_requests: usize,
    pub most_connections: usize,
    pub times: Times,
}

/// Where further servers come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hosting {
    pub files: Vec<PathBuf>,
    pub import: bool,
    /// Whether what a server offers when it is first connected is accepted.
    pub pin_on_first_use: bool,
    /// Hosts that installations may reach besides the registries.
    pub install_allow: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    pub level: LogLevel,
    pub format: LogFormat,
}

impl Configuration {
    /// The files that hold secrets of tokens.
    pub(crate) fn token_files(&self) -> Vec<PathBuf> {
        self.tokens.iter().filter_map(|token| token.file().map(PathBuf::from)).collect()
    }

    /// Reads the secrets of all tokens.
    pub fn tokens(&self) -> Result<Vec<Token>, ConfigError> {
        self.tokens.iter().map(|token| token.read(&self.environment)).collect()
    }

    pub(super) fn has_secret(&self, name: &str) -> bool {
        self.tokens.iter().any(|token| token.name == name && token.read(&self.environment).is_ok())
    }

    /// Where the locks of strict volumes are kept.
    pub fn volume_locks(&self) -> Result<PathBuf, ConfigError> {
        self.state_directory().map(|state| volume_locks(&state))
    }

    /// Where sessions and the audit are kept.
    pub fn state_directory(&self) -> Result<PathBuf, ConfigError> {
        self.state_directory.clone().ok_or(ConfigError::NoStateDirectory)
    }
}

pub(super) fn resolve(
    mut values: Values,
    file: Option<PathBuf>,
    environment: Environment,
) -> Result<Configuration, ConfigError> {
    let config = values.config().map_err(|problem| ConfigError::Conflict {
        problem,
        hint: "`ringfence config show` tells where each value comes from".into(),
    })?;
    let mut sessions = settings(&config, &values)?;
    let mut warnings = foreign::follow(&mut values, &sessions.templates, &environment);
    warnings.extend(keys::misspelt(&environment));
    let mut code = code::resolve(&config.code);
    if let Some(template) = values.get("code.template").and_then(|given| given.value.as_str()) {
        template.clone_into(&mut code.template);
    }
    let mut times = Times::of(&config.server);
    check::check(&mut sessions, &mut code, &mut times, &mut values)?;
    let tokens = token::sources(&config.server.tokens, &values)?;
    check::share_sessions(&mut sessions, tokens.len(), &mut values);
    let given = config.sessions.state_dir.map(|path| values.origin(&["sessions", "state_dir"]).anchor(&path));
    let server = Server {
        host: config.server.host.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        port: config.server.port.unwrap_or(8000),
        enable_cors: config.server.enable_cors.unwrap_or_default(),
        allow_local_users: config.server.allow_local_users.unwrap_or_default(),
        allowed_hosts: config.server.allowed_hosts.unwrap_or_default(),
        profile: config.server.profile,
        most_requests: config.server.max_concurrent_requests.map_or(MOST_REQUESTS, Count::get),
        most_connections: config.server.max_connections.map_or(MOST_CONNECTIONS, Count::get),
        times,
    };
    let files = config.hosting.files.iter().flatten();
    let hosting = Hosting {
        files: files.map(|path| values.origin(&["hosting", "files"]).anchor(Path::new(path))).collect(),
        import: config.hosting.import.unwrap_or_default(),
        pin_on_first_use: config.hosting.pin_on_first_use.unwrap_or_default(),
        install_allow: install_allow(&config.hosting, &values)?,
    };
    let servers = servers::resolve(&config.servers, &values)?;
    let profiles = profiles::resolve(config.profiles);
    profiles::check_default(server.profile.as_deref(), &profiles, &values)?;
    let log =
        Log { level: config.log.level.unwrap_or(LogLevel::Info), format: config.log.format.unwrap_or(LogFormat::Text) };
    let state_directory = given.or_else(|| environment.state_directory());
    if config.sessions.strict_volumes.unwrap_or_default() {
        let state = state_directory.as_deref().ok_or(ConfigError::NoStateDirectory)?;
        sessions.strict_volumes = Some(volume_locks(state));
    }
    Ok(Configuration {
        file,
        server,
        sessions,
        code,
        hosting,
        servers,
        profiles,
        log,
        warnings,
        values,
        state_directory,
        tokens,
        environment,
    })
}

fn install_allow(given: &HostingConfig, values: &Values) -> Result<Vec<String>, ConfigError> {
    let rules = given.install_allow.clone().unwrap_or_default();
    for rule in &rules {
        rule.parse::<Rule>().map_err(|error| ConfigError::Wrong {
            origin: values.origin(&["hosting", "install_allow"]),
            problem: format!("hosting.install_allow: `{rule}`: {error}"),
            hint: Some("write HOST, HOST:PORT or HOST:PORT+private".into()),
        })?;
    }
    Ok(rules)
}

fn settings(config: &Config, values: &Values) -> Result<Settings, ConfigError> {
    let usual = Settings::default();
    let given: &SessionsConfig = &config.sessions;
    let volumes = given.volumes.iter().flatten().map(|text| {
        let origin = values.origin(&["sessions", "volumes"]);
        let mut volume =
            parse_volume(text).map_err(|problem| ConfigError::Wrong { origin: origin.clone(), problem, hint: None })?;
        volume.host = origin.anchor(&volume.host);
        Ok(volume)
    });
    Ok(Settings {
        templates: templates(config, values)?,
        flavors: flavors(config, values)?,
        default_template: given.default_template.clone().unwrap_or(usual.default_template),
        default_flavor: given.default_flavor.clone().unwrap_or(usual.default_flavor),
        volumes: volumes.collect::<Result<_, _>>()?,
        kept: usual.kept,
        guest_writable: usual.guest_writable,
        strict_volumes: usual.strict_volumes,
        accept: given.accept.iter().flatten().map(|weakness| (*weakness).into()).collect(),
        timeout: given.timeout_s.map_or(usual.timeout, Seconds::duration),
        most_timeout: given.max_timeout_s.map_or(usual.most_timeout, Seconds::duration),
        most_sessions: given.max_sessions.map_or(usual.most_sessions, Count::get),
        most_sessions_per_principal: given.max_sessions_per_principal.map(Count::get),
        most_memory_bytes: given.max_total_memory.map(|size| size.0),
        most_queued_calls: given.max_queued_calls.map_or(usual.most_queued_calls, Count::get),
        idle_timeout: given.idle_timeout_s.map_or(usual.idle_timeout, Seconds::duration),
        most_age: given.max_age_s.map(Seconds::duration),
        evict_idle: given.evict_idle.unwrap_or(usual.evict_idle),
        lease: given.lease_s.map_or(usual.lease, Seconds::duration),
        pool: given.pool.clone().unwrap_or(usual.pool),
        preload: given.preload.clone().unwrap_or(usual.preload),
        scope: None,
    })
}

fn flavors(config: &Config, values: &Values) -> Result<Flavors, ConfigError> {
    /// Of a new flavor that does not say.
    const PIDS: u32 = 256;
    const OPEN_FILES: u32 = 1024;
    let resolve = |(name, given): (&String, &super::file::FlavorConfig)| {
        let lacks = |key: &str| ConfigError::Wrong {
            origin: values.origin(&["flavors", name]),
            problem: format!("flavors.{name} has no `{key}`"),
            hint: Some("a flavor has at least cpus and memory, such as cpus = 2.0 and memory = \"2G\"".into()),
        };
        let limits = Limits {
            cpus: given.cpus.ok_or_else(|| lacks("cpus"))?,
            memory_bytes: given.memory.ok_or_else(|| lacks("memory"))?.0,
            pids: given.pids.unwrap_or(PIDS),
            open_files: given.open_files.unwrap_or(OPEN_FILES),
        };
        let mut flavor = Flavor::new(name, limits);
        flavor.workspace.bytes = given.workspace.map_or(flavor.workspace.bytes, |size| size.0);
        flavor.workspace.inodes = given.workspace_inodes.unwrap_or(flavor.workspace.inodes);
        Ok(flavor)
    };
    config.flavors.iter().map(resolve).collect::<Result<_, _>>().map(Flavors::new)
}

fn templates(config: &Config, values: &Values) -> Result<Templates, ConfigError> {
    let resolve = |(name, given): (&String, &TemplateConfig)| {
        let wrong = |key: &str, problem: String, hint: &str| ConfigError::Wrong {
            origin: values.origin(&["templates", name, key]),
            problem,
            hint: Some(hint.into()),
        };
        let language = given.language.ok_or_else(|| ConfigError::Wrong {
            origin: values.origin(&["templates", name]),
            problem: format!("templates.{name} has no `language`"),
            hint: Some("write language = \"python\", \"node\" or \"bash\"".into()),
        })?;
        let image = image(name, given, values)?;
        let root = match (&image, &given.root) {
            (Some(image), _) => Root::Directory(image.clone()),
            (None, None) => Root::Host,
            (None, Some(root)) => {
                let root = values.origin(&["templates", name, "root"]).anchor(root);
                if !root.is_dir() {
                    let problem = format!("templates.{name}.root is not a directory: {}", root.display());
                    return Err(wrong("root", problem, "give a directory that holds a root file system"));
                }
                // Links in it are resolved once, now.
                let root = root.canonicalize().unwrap_or(root);
                if root.parent().is_none() {
                    let problem =
                        format!("templates.{name}.root is the root of the host: all its files would be shown");
                    return Err(wrong("root", problem, "give a directory that holds another root file system"));
                }
                Root::Directory(root)
            }
        };
        let (name, environment) = (name.as_str().into(), given.env.clone());
        Ok(Template { name, language: language.into(), root, image, environment })
    };
    config.templates.iter().map(resolve).collect::<Result<_, _>>().map(Templates::new)
}

/// An image that is there. What is in it is looked at by whoever makes sessions.
fn image(name: &str, given: &TemplateConfig, values: &Values) -> Result<Option<PathBuf>, ConfigError> {
    let Some(image) = &given.image else { return Ok(None) };
    let origin = values.origin(&["templates", name, "image"]);
    let path = origin.anchor(image);
    let wrong = |problem: String, hint: &str| ConfigError::Wrong { origin, problem, hint: Some(hint.into()) };
    if given.root.is_some() {
        let problem = format!("templates.{name} has a `root` and an `image`");
        return Err(wrong(problem, "give the one or the other"));
    }
    if !(path.is_file() || path.is_dir()) {
        let problem = format!("templates.{name}.image is neither a file nor a directory: {}", path.display());
        return Err(wrong(problem, SAVE_HINT));
    }
    // Links to it are resolved once, now.
    Ok(Some(path.canonicalize().unwrap_or(path)))
}

/// The directory for the locks of strict volumes.
fn volume_locks(state_directory: &Path) -> PathBuf {
    state_directory.join("volumes")
}
