//! Converts the merged values of all sources to a [`Configuration`].
//!
//! Steps: deserialize the values, convert each section, then check the sections against each other (`consistency`). A
//! default that contradicts a value that the user set is adjusted; two values that the user set and that contradict each
//! other are an error.

mod allow;
mod bridge_variables;
mod code;
mod consistency;
mod packages;
mod profiles;
mod sandboxes;
mod secrets;
mod servers;
mod sessions;
mod tokens;
mod volume;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

pub use volume::parse_volume;

use crate::configuration::{
    Configuration, HostingSettings, LogSettings, ServerSettings, Timeouts, secret_store, volume_lock_directory,
};
use crate::document::{Count, HostingConfig, LogConfig, LogFormat, LogLevel, Seconds, ServerConfig};
use crate::error::ConfigError;
use crate::sources::{Environment, foreign_key_warning, misspelt_variables};
use crate::values::Values;

const DEFAULT_MAX_REQUESTS: usize = 512;
const DEFAULT_MAX_CONNECTIONS: usize = 1024;

/// What to do with names of secrets that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingSecrets {
    Refuse,
    Accept,
}

pub(crate) fn resolve(
    mut values: Values,
    file: Option<PathBuf>,
    environment: Environment,
    missing_secrets: MissingSecrets,
) -> Result<Configuration, ConfigError> {
    let config = values.config().map_err(|problem| ConfigError::Conflict {
        problem,
        hint: "run `ringfence config show` to see the origin of each value".into(),
    })?;
    let state_directory = config.sessions.state_dir.clone();
    let state_directory = state_directory.map(|path| values.origin(&["sessions", "state_dir"]).resolve_path(&path));
    let state_directory = state_directory.or_else(|| environment.state_directory());
    let mut sessions = sessions::resolve(&config, &values)?;
    if missing_secrets == MissingSecrets::Refuse {
        let store = state_directory.as_deref().map(|state| secret_store(state, &environment));
        secrets::check_names(&config, &values, store.as_ref())?;
    }
    let mut warnings = bridge_variables::apply(&mut values, &sessions.templates, &environment);
    warnings.extend(misspelt_variables(&environment));
    warnings.extend(foreign_key_warning(&environment));
    let mut code = code::resolve(&config.code);
    if let Some(template) = values.get("code.template").and_then(|found| found.value.as_str()) {
        template.clone_into(&mut code.template);
    }
    let mut timeouts = timeouts(&config.server);
    consistency::check(&mut sessions, &mut code, &mut timeouts, &mut values)?;
    let tokens = tokens::resolve(&config.server.tokens, &values)?;
    consistency::limit_sessions_per_principal(&mut sessions, tokens.len(), &mut values);
    let server = server(config.server, timeouts);
    let secrets = secrets::resolve(&config.secrets, &values)?;
    let hosting = hosting(&config.hosting, &values)?;
    let packages = packages::resolve(&config.packages, &values)?;
    sessions.network.packages &= packages.is_enabled;
    let servers = servers::resolve(&config.servers, &values)?;
    let profiles = profiles::resolve(config.profiles);
    profiles::check_default(server.profile.as_deref(), &profiles, &values)?;
    if config.sessions.strict_volumes.unwrap_or_default() {
        let state = state_directory.as_deref().ok_or(ConfigError::NoStateDirectory)?;
        sessions.strict_volumes = Some(volume_lock_directory(state));
    }
    Ok(Configuration {
        file,
        server,
        sessions,
        code,
        hosting,
        packages,
        servers,
        profiles,
        log: log(&config.log),
        warnings,
        values,
        state_directory,
        tokens,
        secrets,
        environment,
    })
}

fn timeouts(config: &ServerConfig) -> Timeouts {
    let default = Timeouts::default();
    Timeouts {
        request: config.request_timeout_s.map_or(default.request, Seconds::duration),
        drain: config.drain_timeout_s.map_or(default.drain, Seconds::duration),
        client: config.client_timeout_s.map_or(default.client, Seconds::duration),
    }
}

fn server(config: ServerConfig, timeouts: Timeouts) -> ServerSettings {
    ServerSettings {
        host: config.host.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        port: config.port.unwrap_or(8000),
        enable_cors: config.enable_cors.unwrap_or_default(),
        allow_local_users: config.allow_local_users.unwrap_or_default(),
        allowed_hosts: config.allowed_hosts.unwrap_or_default(),
        profile: config.profile,
        max_concurrent_requests: config.max_concurrent_requests.map_or(DEFAULT_MAX_REQUESTS, Count::get),
        max_connections: config.max_connections.map_or(DEFAULT_MAX_CONNECTIONS, Count::get),
        timeouts,
    }
}

fn hosting(config: &HostingConfig, values: &Values) -> Result<HostingSettings, ConfigError> {
    let origin = values.origin(&["hosting", "files"]);
    Ok(HostingSettings {
        files: config.files.iter().flatten().map(|path| origin.resolve_path(Path::new(path))).collect(),
        import: config.import.unwrap_or_default(),
        discover: config.discover.unwrap_or(true),
        pin_on_first_use: config.pin_on_first_use.unwrap_or_default(),
        install_allow: install_allow(config, values)?,
    })
}

fn install_allow(config: &HostingConfig, values: &Values) -> Result<Vec<String>, ConfigError> {
    let texts = config.install_allow.clone().unwrap_or_default();
    allow::parse(&texts, &["hosting", "install_allow"], values)?;
    Ok(texts)
}

fn log(config: &LogConfig) -> LogSettings {
    LogSettings { level: config.level.unwrap_or(LogLevel::Info), format: config.format.unwrap_or(LogFormat::Text) }
}
