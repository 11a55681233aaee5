//! Checks values against each other.
//!
//! Two values that the user set and that contradict each other are an error that names both. A default that contradicts
//! a value that the user set is adjusted. The idle timeout may be shorter than a call, because a session is not idle
//! during a call.

mod code;
mod timeouts;

use std::time::Duration;

use ringfence_core::{Flavor, bytes, fair_share};

use crate::configuration::{CodeSettings, SessionSettings, Timeouts};
use crate::error::ConfigError;
use crate::values::{Values, key_path};

pub(super) fn check(
    sessions: &mut SessionSettings,
    code: &mut CodeSettings,
    timeouts: &mut Timeouts,
    values: &mut Values,
) -> Result<(), ConfigError> {
    check_names(sessions, values)?;
    code::reconcile_timeouts(sessions, code, values)?;
    timeouts::reconcile(sessions, timeouts, values)?;
    // The limit of sessions may have been lowered below that of code.
    code::reconcile_timeouts(sessions, code, values)?;
    reconcile_default_timeout(sessions, values)?;
    reconcile_pools(sessions, values)?;
    check_total_memory(sessions, values)?;
    for flavor in sessions.flavors.iter() {
        check_workspace(flavor, values)?;
    }
    check_specs(sessions, values)?;
    code::check(sessions, code, values)
}

/// Limits the sessions of each principal if there are several principals, unless the user set that limit.
pub(super) fn limit_sessions_per_principal(sessions: &mut SessionSettings, principals: usize, values: &mut Values) {
    if principals > 1 && sessions.max_sessions_per_principal.is_none() {
        let share = fair_share(sessions.max_sessions);
        sessions.max_sessions_per_principal = Some(share);
        values.set_default("sessions.max_sessions_per_principal", i64::try_from(share).unwrap_or(i64::MAX));
    }
}

fn invalid(values: &Values, key: &str, problem: &dyn std::error::Error) -> ConfigError {
    let path = key_path(key);
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    ConfigError::Invalid { origin: values.origin(&path), problem: format!("{key}: {problem}"), hint: None }
}

fn check_names(sessions: &SessionSettings, values: &Values) -> Result<(), ConfigError> {
    if let Err(error) = sessions.templates.find(&sessions.default_template) {
        return Err(invalid(values, "sessions.default_template", &error));
    }
    if let Err(error) = sessions.flavors.find(&sessions.default_flavor) {
        return Err(invalid(values, "sessions.default_flavor", &error));
    }
    for name in sessions.pool.keys() {
        if let Err(error) = sessions.templates.find(name) {
            return Err(invalid(values, &format!("{POOL}{name}"), &error));
        }
    }
    Ok(())
}

fn reconcile_default_timeout(sessions: &mut SessionSettings, values: &mut Values) -> Result<(), ConfigError> {
    let (key, max_key) = ("sessions.timeout_s", "sessions.max_timeout_s");
    if sessions.timeout <= sessions.max_timeout {
        return Ok(());
    }
    if values.is_set(key) {
        return Err(ConfigError::Conflict {
            problem: format!("{} is more than {}", values.describe(key), values.describe(max_key)),
            hint: format!("lower {key} or raise {max_key}"),
        });
    }
    sessions.timeout = sessions.max_timeout;
    values.set_default(key, seconds(sessions.max_timeout));
    Ok(())
}

const POOL: &str = "sessions.pool.";

/// Checks that the pools that the user set fit into the maximum number of sessions, and reduces default pools to the rest.
fn reconcile_pools(sessions: &mut SessionSettings, values: &mut Values) -> Result<(), ConfigError> {
    let key = |template: &str| format!("{POOL}{template}");
    let templates: Vec<String> = sessions.pool.keys().cloned().collect();
    let (set, defaults): (Vec<String>, Vec<String>) =
        templates.into_iter().partition(|template| values.is_set(&key(template)));
    let mut free = sessions.max_sessions;
    for template in &set {
        free = free.checked_sub(sessions.pool[template]).ok_or_else(|| {
            let pools: Vec<String> = set.iter().map(|template| values.describe(&key(template))).collect();
            ConfigError::Conflict {
                problem: format!("{} exceed {}", pools.join(" + "), values.describe("sessions.max_sessions")),
                hint: "a pooled sandbox counts as a session: reduce the pools or raise sessions.max_sessions".into(),
            }
        })?;
    }
    for template in defaults {
        let size = sessions.pool[&template];
        let reduced = size.min(free);
        free -= reduced;
        if reduced < size {
            values.set_default(&key(&template), i64::try_from(reduced).unwrap_or(i64::MAX));
            sessions.pool.insert(template, reduced);
        }
    }
    Ok(())
}

fn check_total_memory(sessions: &SessionSettings, values: &Values) -> Result<(), ConfigError> {
    let (Some(max), Ok(flavor)) = (sessions.max_total_memory_bytes, sessions.flavors.find(&sessions.default_flavor))
    else {
        return Ok(());
    };
    if flavor.limits.memory_bytes <= max {
        return Ok(());
    }
    let key = format!("flavors.{}.memory", flavor.name);
    Err(ConfigError::Conflict {
        problem: format!(
            "{} is less than {}, the memory of the default flavor: no session could start",
            values.describe("sessions.max_total_memory"),
            values.describe(&key)
        ),
        hint: "raise sessions.max_total_memory, or choose a smaller sessions.default_flavor".into(),
    })
}

/// Checks that the workspace leaves memory for processes. It is a tmpfs, whose pages count as memory of the sandbox.
fn check_workspace(flavor: &Flavor, values: &Values) -> Result<(), ConfigError> {
    let max = flavor.limits.memory_bytes / 4 * 3;
    if flavor.workspace.bytes <= max {
        return Ok(());
    }
    let key = |part: &str| format!("flavors.{}.{part}", flavor.name);
    Err(ConfigError::Conflict {
        problem: format!(
            "{} is more than three quarters of {}",
            values.describe(&key("workspace")),
            values.describe(&key("memory"))
        ),
        hint: format!("the workspace is stored in memory: set it to at most {}, or raise memory", bytes::format(max)),
    })
}

/// Checks that every flavor, template and volume results in a valid sandbox.
fn check_specs(sessions: &SessionSettings, values: &Values) -> Result<(), ConfigError> {
    let Ok(template) = sessions.templates.find(&sessions.default_template) else { return Ok(()) };
    for flavor in sessions.flavors.iter() {
        let spec = template.spec(flavor, vec!["true".into()]);
        spec.validate().map_err(|error| invalid(values, &format!("flavors.{}", flavor.name), &error))?;
    }
    let Ok(flavor) = sessions.flavors.find(&sessions.default_flavor) else { return Ok(()) };
    for template in sessions.templates.iter() {
        let spec = template.spec(flavor, vec!["true".into()]);
        spec.validate().map_err(|error| invalid(values, &format!("templates.{}", template.name), &error))?;
    }
    let mut spec = template.spec(flavor, vec!["true".into()]);
    spec.volumes.clone_from(&sessions.volumes);
    spec.validate().map_err(|error| invalid(values, "sessions.volumes", &error))
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
