//! What must hold for code that calls tools.

use super::super::code::{CODE_FLAVOR, CodeSettings};
use super::super::error::ConfigError;
use super::super::values::Values;
use super::{follow, seconds, tell, was_given, wrong};
use crate::Settings;
use ringfence_core::Language;

/// Such code runs in a session, which must be allowed as much time. Before the times of sessions are checked.
pub(super) fn reach(settings: &mut Settings, code: &mut CodeSettings, values: &mut Values) -> Result<(), ConfigError> {
    let (key, most) = ("code.max_timeout_s", "sessions.max_timeout_s");
    if code.most_timeout > settings.most_timeout {
        match (was_given(values, key), was_given(values, most)) {
            (true, true) => {
                return Err(ConfigError::Conflict {
                    problem: format!("{} is more than {}", tell(values, key), tell(values, most)),
                    hint: format!("lower {key}, or raise {most}: code runs in a session"),
                });
            }
            (true, false) => {
                settings.most_timeout = code.most_timeout;
                follow(values, most, seconds(code.most_timeout));
            }
            (false, _) => {
                code.most_timeout = settings.most_timeout;
                follow(values, key, seconds(settings.most_timeout));
            }
        }
    }
    let (key, most) = ("code.timeout_s", "code.max_timeout_s");
    if code.timeout > code.most_timeout {
        if was_given(values, key) {
            return Err(ConfigError::Conflict {
                problem: format!("{} is more than {}", tell(values, key), tell(values, most)),
                hint: format!("lower {key}, or raise {most}"),
            });
        }
        code.timeout = code.most_timeout;
        follow(values, key, seconds(code.most_timeout));
    }
    Ok(())
}

/// After everything of sessions was checked.
pub(super) fn check(settings: &Settings, code: &mut CodeSettings, values: &mut Values) -> Result<(), ConfigError> {
    if settings.flavors.find(CODE_FLAVOR).is_ok() {
        return Err(ConfigError::Wrong {
            origin: values.origin(&["flavors", CODE_FLAVOR]),
            problem: format!("flavors.{CODE_FLAVOR} is the size of run_python, and has a section of its own"),
            hint: Some("set code.memory, code.pids and code.cpus, or choose another name".into()),
        });
    }
    if let Some(most) = settings.most_memory_bytes.filter(|most| code.memory_bytes > *most) {
        if was_given(values, "code.memory") {
            return Err(ConfigError::Conflict {
                problem: format!(
                    "{} is less than {}: no code could run",
                    tell(values, "sessions.max_total_memory"),
                    tell(values, "code.memory")
                ),
                hint: "raise sessions.max_total_memory, or lower code.memory".into(),
            });
        }
        code.memory_bytes = most;
        follow(values, "code.memory", i64::try_from(most).unwrap_or(i64::MAX));
    }
    let template = settings.templates.find(&code.template).map_err(|error| wrong(values, "code.template", &error))?;
    if template.language != Language::Python {
        return Err(ConfigError::Wrong {
            origin: values.origin(&["code", "template"]),
            problem: format!("code.template: `{}` is not a template of Python", code.template),
            hint: Some("choose one with language = \"python\"".into()),
        });
    }
    let spec = template.spec(&code.flavor(), vec!["true".into()]);
    spec.validate().map_err(|error| wrong(values, "code", &error))
}
