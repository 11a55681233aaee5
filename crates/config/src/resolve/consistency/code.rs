//! Checks `[code]` against the settings of sessions, in which the code runs.

use ringfence_core::Language;

use super::{invalid, seconds};
use crate::configuration::{CODE_FLAVOR, CodeSettings, SessionSettings};
use crate::error::ConfigError;
use crate::values::Values;

/// Makes the timeouts of code fit into those of sessions. Must run before the timeouts of sessions are checked.
pub(super) fn reconcile_timeouts(
    sessions: &mut SessionSettings,
    code: &mut CodeSettings,
    values: &mut Values,
) -> Result<(), ConfigError> {
    let (key, max_key) = ("code.max_timeout_s", "sessions.max_timeout_s");
    if code.max_timeout > sessions.max_timeout {
        match (values.is_set(key), values.is_set(max_key)) {
            (true, true) => {
                return Err(ConfigError::Conflict {
                    problem: format!("{} is more than {}", values.describe(key), values.describe(max_key)),
                    hint: format!("code runs in a session: lower {key} or raise {max_key}"),
                });
            }
            (true, false) => {
                sessions.max_timeout = code.max_timeout;
                values.set_default(max_key, seconds(code.max_timeout));
            }
            (false, _) => {
                code.max_timeout = sessions.max_timeout;
                values.set_default(key, seconds(sessions.max_timeout));
            }
        }
    }
    let (key, max_key) = ("code.timeout_s", "code.max_timeout_s");
    if code.timeout > code.max_timeout {
        if values.is_set(key) {
            return Err(ConfigError::Conflict {
                problem: format!("{} is more than {}", values.describe(key), values.describe(max_key)),
                hint: format!("lower {key} or raise {max_key}"),
            });
        }
        code.timeout = code.max_timeout;
        values.set_default(key, seconds(code.max_timeout));
    }
    Ok(())
}

/// Checks everything but timeouts. Must run after the settings of sessions were checked.
pub(super) fn check(
    sessions: &SessionSettings,
    code: &mut CodeSettings,
    values: &mut Values,
) -> Result<(), ConfigError> {
    if sessions.flavors.find(CODE_FLAVOR).is_ok() {
        return Err(ConfigError::Invalid {
            origin: values.origin(&["flavors", CODE_FLAVOR]),
            problem: format!("flavors.{CODE_FLAVOR} is reserved: the section [code] sets the size of its sandboxes"),
            hint: Some("set code.memory, code.pids and code.cpus, or choose another name".into()),
        });
    }
    if let Some(max) = sessions.max_total_memory_bytes.filter(|max| code.memory_bytes > *max) {
        if values.is_set("code.memory") {
            return Err(ConfigError::Conflict {
                problem: format!(
                    "{} is less than {}: no code could run",
                    values.describe("sessions.max_total_memory"),
                    values.describe("code.memory")
                ),
                hint: "raise sessions.max_total_memory or lower code.memory".into(),
            });
        }
        code.memory_bytes = max;
        values.set_default("code.memory", i64::try_from(max).unwrap_or(i64::MAX));
    }
    let template = sessions.templates.find(&code.template).map_err(|error| invalid(values, "code.template", &error))?;
    if template.language != Language::Python {
        return Err(ConfigError::Invalid {
            origin: values.origin(&["code", "template"]),
            problem: format!("code.template: `{}` is not a Python template", code.template),
            hint: Some("choose a template with language = \"python\"".into()),
        });
    }
    let spec = template.spec(&code.flavor(), vec!["true".into()]);
    spec.validate().map_err(|error| invalid(values, "code", &error))
}
