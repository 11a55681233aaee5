//! Values that must hold together.
//!
//! Two that were given and contradict each other are an error that names both. A default that contradicts a given one
//! follows it. The idle timeout may be shorter than a call: a session with a call under way is not idle.

mod code;
mod order;

use std::time::Duration;

use ringfence_core::bytes;

use super::code::CodeSettings;
use super::error::ConfigError;
use super::origin::Origin;
use super::times::Times;
use super::values::Values;
use crate::Settings;
use ringfence_core::Flavor;
use ringfence_core::fair_share;

pub(super) fn check(
    settings: &mut Settings,
    code: &mut CodeSettings,
    times: &mut Times,
    values: &mut Values,
) -> Result<(), ConfigError> {
    known_names(settings, values)?;
    code::reach(settings, code, values)?;
    order::hold(settings, times, values)?;
    // Code follows sessions that have followed what is above them.
    code::reach(settings, code, values)?;
    timeouts(settings, values)?;
    pools(settings, values)?;
    memory(settings, values)?;
    for flavor in settings.flavors.iter() {
        workspace(flavor, values)?;
    }
    sandboxes(settings, values)?;
    code::check(settings, code, values)
}

/// `sessions.timeout_s (30, default)`.
fn tell(values: &Values, key: &str) -> String {
    match values.get(key) {
        Some(given) => format!("{key} ({}, {})", given.value, given.origin),
        None => key.into(),
    }
}

fn wrong(values: &Values, key: &str, problem: &dyn std::error::Error) -> ConfigError {
    let parts: Vec<&str> = key.split('.').collect();
    ConfigError::Wrong { origin: values.origin(&parts), problem: format!("{key}: {problem}"), hint: None }
}

fn known_names(settings: &Settings, values: &Values) -> Result<(), ConfigError> {
    if let Err(error) = settings.templates.find(&settings.default_template) {
        return Err(wrong(values, "sessions.default_template", &error));
    }
    if let Err(error) = settings.flavors.find(&settings.default_flavor) {
        return Err(wrong(values, "sessions.default_flavor", &error));
    }
    for name in settings.pool.keys() {
        if let Err(error) = settings.templates.find(name) {
            return Err(wrong(values, &format!("sessions.pool.{name}"), &error));
        }
    }
    Ok(())
}

fn timeouts(settings: &mut Settings, values: &mut Values) -> Result<(), ConfigError> {
    let (key, most) = ("sessions.timeout_s", "sessions.max_timeout_s");
    if settings.timeout <= settings.most_timeout {
        return Ok(());
    }
    if was_given(values, key) {
        return Err(ConfigError::Conflict {
            problem: format!("{} is more than {}", tell(values, key), tell(values, most)),
            hint: format!("lower sessions.timeout_s, or raise {most}"),
        });
    }
    settings.timeout = settings.most_timeout;
    follow(values, key, seconds(settings.most_timeout));
    Ok(())
}

fn pools(settings: &mut Settings, values: &mut Values) -> Result<(), ConfigError> {
    let most = settings.most_sessions;
    let keys: Vec<String> = settings.pool.keys().map(|name| format!("sessions.pool.{name}")).collect();
    let given: Vec<&String> = keys.iter().filter(|key| was_given(values, key)).collect();
    let size = |settings: &Settings, key: &String| settings.pool.get(&key[POOL.len()..]).copied().unwrap_or_default();
    let mut left = most;
    for key in &given {
        let wanted = size(settings, key);
        left = left.checked_sub(wanted).ok_or_else(|| {
            let pools: Vec<String> = given.iter().map(|key| tell(values, key)).collect();
            ConfigError::Conflict {
                problem: format!("{} are more than {}", pools.join(" + "), tell(values, "sessions.max_sessions")),
                hint:
                    "a sandbox that waits counts as a session: make the pools smaller, or raise sessions.max_sessions"
                        .into(),
            }
        })?;
    }
    let defaults: Vec<String> = keys.iter().filter(|key| !given.contains(key)).cloned().collect();
    for key in defaults {
        let wanted = size(settings, &key);
        let kept = wanted.min(left);
        left -= kept;
        if kept < wanted {
            settings.pool.insert(key[POOL.len()..].to_owned(), kept);
            follow(values, &key, i64::try_from(kept).unwrap_or(i64::MAX));
        }
    }
    Ok(())
}

/// Limits the sessions of each principal if there are several, unless the configuration sets that limit.
pub(super) fn share_sessions(settings: &mut Settings, principals: usize, values: &mut Values) {
    if principals > 1 && settings.most_sessions_per_principal.is_none() {
        let share = fair_share(settings.most_sessions);
        settings.most_sessions_per_principal = Some(share);
        follow(values, "sessions.max_sessions_per_principal", i64::try_from(share).unwrap_or(i64::MAX));
    }
}

const POOL: &str = "sessions.pool.";

fn memory(settings: &Settings, values: &Values) -> Result<(), ConfigError> {
    let (Some(most), Ok(flavor)) = (settings.most_memory_bytes, settings.flavors.find(&settings.default_flavor)) else {
        return Ok(());
    };
    if flavor.limits.memory_bytes <= most {
        return Ok(());
    }
    let key = format!("flavors.{}.memory", flavor.name);
    Err(ConfigError::Conflict {
        problem: format!(
            "{} is less than {}, the memory of the default flavor: no session could start",
            tell(values, "sessions.max_total_memory"),
            tell(values, &key)
        ),
        hint: "raise sessions.max_total_memory, or choose a smaller sessions.default_flavor".into(),
    })
}

fn workspace(flavor: &Flavor, values: &Values) -> Result<(), ConfigError> {
    let most = flavor.limits.memory_bytes / 4 * 3;
    if flavor.workspace.bytes <= most {
        return Ok(());
    }
    let key = |part: &str| format!("flavors.{}.{part}", flavor.name);
    Err(ConfigError::Conflict {
        problem: format!(
            "{} is more than three quarters of {}",
            tell(values, &key("workspace")),
            tell(values, &key("memory"))
        ),
        hint: format!("the workspace lives in the memory: give it {} at most, or more memory", bytes::format(most)),
    })
}

/// Every flavor and template must make a sandbox that can be asked for.
fn sandboxes(settings: &Settings, values: &Values) -> Result<(), ConfigError> {
    let Ok(template) = settings.templates.find(&settings.default_template) else { return Ok(()) };
    for flavor in settings.flavors.iter() {
        let spec = template.spec(flavor, vec!["true".into()]);
        spec.validate().map_err(|error| wrong(values, &format!("flavors.{}", flavor.name), &error))?;
    }
    let Ok(flavor) = settings.flavors.find(&settings.default_flavor) else { return Ok(()) };
    for template in settings.templates.iter() {
        let spec = template.spec(flavor, vec!["true".into()]);
        spec.validate().map_err(|error| wrong(values, &format!("templates.{}", template.name), &error))?;
    }
    let mut spec = template.spec(flavor, vec!["true".into()]);
    spec.volumes.clone_from(&settings.volumes);
    spec.validate().map_err(|error| wrong(values, "sessions.volumes", &error))
}

fn was_given(values: &Values, key: &str) -> bool {
    values.get(key).is_some_and(|given| given.origin != Origin::Default)
}

fn follow(values: &mut Values, key: &str, value: i64) {
    values.set(key.split('.').map(Into::into).collect(), value.into(), Origin::Default);
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
