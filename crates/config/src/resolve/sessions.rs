//! Converts `[sessions]`.

use ringfence_core::Volume;

use super::allow;
use super::sandboxes::{flavors, templates};
use super::volume::parse_volume;
use crate::configuration::SessionSettings;
use crate::document::{ByteSize, Config, Count, Seconds};
use crate::error::ConfigError;
use crate::network::NetworkSettings;
use crate::values::Values;

pub(super) fn resolve(config: &Config, values: &Values) -> Result<SessionSettings, ConfigError> {
    let default = SessionSettings::default();
    let sessions = &config.sessions;
    Ok(SessionSettings {
        template_packages: None,
        templates: templates(config, values)?,
        flavors: flavors(config, values)?,
        default_template: sessions.default_template.clone().unwrap_or(default.default_template),
        default_flavor: sessions.default_flavor.clone().unwrap_or(default.default_flavor),
        network: network(config, values)?,
        volumes: volumes(sessions.volumes.iter().flatten(), values)?,
        protected_paths: default.protected_paths,
        guest_writable: default.guest_writable,
        strict_volumes: default.strict_volumes,
        accept: sessions.accept.iter().flatten().map(|weakness| (*weakness).into()).collect(),
        timeout: sessions.timeout_s.map_or(default.timeout, Seconds::duration),
        max_timeout: sessions.max_timeout_s.map_or(default.max_timeout, Seconds::duration),
        max_sessions: sessions.max_sessions.map_or(default.max_sessions, Count::get),
        max_sessions_per_principal: sessions.max_sessions_per_principal.map(Count::get),
        max_total_memory_bytes: sessions.max_total_memory.map(|size| size.0),
        max_queued_calls: sessions.max_queued_calls.map_or(default.max_queued_calls, Count::get),
        max_result_text: result_text_bytes(sessions.max_result_text, values)?.unwrap_or(default.max_result_text),
        idle_timeout: sessions.idle_timeout_s.map_or(default.idle_timeout, Seconds::duration),
        max_age: sessions.max_age_s.map(Seconds::duration),
        evict_idle: sessions.evict_idle.unwrap_or(default.evict_idle),
        lease: sessions.lease_s.map_or(default.lease, Seconds::duration),
        pool: sessions.pool.clone().unwrap_or(default.pool),
        preload: sessions.preload.clone().unwrap_or(default.preload),
        rich_html: sessions.rich_html.unwrap_or(default.rich_html),
        scope: None,
        process_name: None,
    })
}

/// The bounds of the setting. A smaller text has no room for a status line; kernels and sessions shorten larger texts.
const RESULT_TEXT_BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=128 << 10;

fn result_text_bytes(size: Option<ByteSize>, values: &Values) -> Result<Option<usize>, ConfigError> {
    let Some(ByteSize(bytes)) = size else { return Ok(None) };
    let invalid = || ConfigError::Invalid {
        origin: values.origin(&["sessions", "max_result_text"]),
        problem: format!("sessions.max_result_text has {bytes} bytes, which is not between 1K and 128K"),
        hint: None,
    };
    let in_range = RESULT_TEXT_BYTES.contains(&bytes).then(|| usize::try_from(bytes).ok()).flatten();
    in_range.map(Some).ok_or_else(invalid)
}

fn network(config: &Config, values: &Values) -> Result<NetworkSettings, ConfigError> {
    let default = NetworkSettings::default();
    let entries = config.sessions.allow.as_deref().unwrap_or_default();
    let mut network = NetworkSettings {
        allow: allow::parse_entries(entries, &["sessions", "allow"], values)?,
        ask: config.sessions.ask.unwrap_or(default.ask),
        secret_names: config.sessions.secrets.clone().unwrap_or_default(),
        ..default
    };
    allow::check_ports(&network.allow, &["sessions", "allow"], values)?;
    for (name, template) in &config.templates {
        let key = ["templates", name, "allow"];
        let rules = allow::parse_entries(&template.allow, &key, values)?;
        network.templates.insert(name.clone(), rules);
        allow::check_ports(&network.rules(name), &key, values)?;
        network.template_secret_names.insert(name.clone(), template.secrets.clone());
    }
    network.templates.retain(|_, rules| !rules.is_empty());
    network.template_secret_names.retain(|_, names| !names.is_empty());
    Ok(network)
}

fn volumes<'a>(texts: impl Iterator<Item = &'a String>, values: &Values) -> Result<Vec<Volume>, ConfigError> {
    let origin = values.origin(&["sessions", "volumes"]);
    let parse = |text: &String| {
        let invalid = |problem| ConfigError::Invalid { origin: origin.clone(), problem, hint: None };
        let mut volume = parse_volume(text).map_err(invalid)?;
        volume.host = origin.resolve_path(&volume.host);
        Ok(volume)
    };
    texts.map(parse).collect()
}
