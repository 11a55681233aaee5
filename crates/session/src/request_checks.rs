//! What callers may ask of sessions: checked before anything is done.

use std::time::Duration;

use ringfence_core::bytes;

use super::{Choice, Sessions};
use crate::session_record::SessionDescriptor;
use ringfence_config::CODE_FLAVOR;
use ringfence_config::SessionSettings;
use ringfence_core::Flavor;
use ringfence_core::Template;
use ringfence_core::{Failure, Kind, SessionId};

/// More than anybody writes; interpreters take twice as much, with what is escaped.
const MOST_CODE_BYTES: usize = 8 << 20;

/// A shell is given its line as an argument, which Linux bounds at 128 KiB, and in a frame of the init's.
const MOST_LINE_BYTES: usize = 96 << 10;

/// What a request says about the session it wants.
pub(crate) struct Wanted {
    pub(crate) template: Option<String>,
    pub(crate) flavor: Option<String>,
    pub(crate) session_id: Option<SessionId>,
    pub(crate) timeout: Option<Duration>,
}

impl Sessions {
    /// What callers may ask for.
    pub fn choice(&self) -> Choice {
        let SessionSettings { templates, flavors, default_template, default_flavor, .. } = &self.0.settings;
        let sizes = flavors.iter().map(|flavor| &*flavor.name).filter(|name| *name != CODE_FLAVOR);
        Choice {
            templates: offer(templates.iter().map(|template| &*template.name), default_template),
            flavors: offer(sizes, default_flavor),
        }
    }
}

/// Names as they are offered, with the one that is taken where none is named.
fn offer<'a>(names: impl Iterator<Item = &'a str>, default: &str) -> String {
    let mark = |name: &str| if name == default { format!("{name} (default)") } else { name.to_owned() };
    names.map(mark).collect::<Vec<_>>().join(", ")
}

/// What a new session is to be.
pub(crate) fn choose<'a>(
    settings: &'a SessionSettings,
    wanted: &Wanted,
) -> Result<(&'a Template, &'a Flavor), Failure> {
    let template = wanted.template.as_deref().unwrap_or(&settings.default_template);
    let flavor = wanted.flavor.as_deref().unwrap_or(&settings.default_flavor);
    let template = settings.templates.find(template).map_err(|error| unknown(&error))?;
    Ok((template, settings.flavors.find(flavor).map_err(|error| unknown(&error))?))
}

/// What is asked of a session that is another already, in words; a wish that cannot be one is refused.
pub(crate) fn compare(
    settings: &SessionSettings,
    wanted: &Wanted,
    has: &SessionDescriptor,
) -> Result<Vec<String>, Failure> {
    let mut ignored = Vec::new();
    if wanted.template.is_none() && wanted.flavor.is_none() {
        return Ok(ignored);
    }
    let (template, flavor) = choose(settings, wanted)?;
    for (what, is_asked, asked, has) in [
        ("template", wanted.template.is_some(), &template.name, &has.template.name),
        ("flavor", wanted.flavor.is_some(), &flavor.name, &has.flavor.name),
    ] {
        if is_asked && asked != has {
            ignored.push(format!("{what} `{asked}` is ignored: this session has `{has}`"));
        }
    }
    Ok(ignored)
}

pub(crate) fn unknown(error: &dyn std::error::Error) -> Failure {
    Failure::new(Kind::Validation, error.to_string())
        .hint("name one of those, or leave it out")
        .hint("or let an administrator add it to the configuration")
}

pub(crate) fn check_timeout(settings: &SessionSettings, wanted: Option<Duration>) -> Result<Duration, Failure> {
    let most = settings.max_timeout;
    match wanted {
        None => Ok(settings.timeout.min(most)),
        Some(timeout) if !timeout.is_zero() && timeout <= most => Ok(timeout),
        Some(timeout) => {
            let message = format!("a timeout of {} s is not between 0 and {} s", timeout.as_secs_f64(), most.as_secs());
            Err(Failure::new(Kind::Validation, message)
                .with("rule", "sessions.max_timeout_s")
                .hint("ask for less time, or let an administrator raise sessions.max_timeout_s"))
        }
    }
}

pub(crate) fn check_code(code: &str) -> Result<(), Failure> {
    if code.trim().is_empty() {
        return Err(Failure::new(Kind::Validation, "code is empty").hint("send the code to run"));
    }
    check_length("code", code, MOST_CODE_BYTES)
        .map_err(|failure| failure.hint("write data and programs to files with write_file, and run those"))
}

pub(crate) fn check_line(line: &str) -> Result<(), Failure> {
    if line.trim().is_empty() {
        return Err(Failure::new(Kind::Validation, "command is empty").hint("send the shell line to run"));
    }
    if line.contains('\0') {
        return Err(Failure::new(Kind::Validation, "command has a NUL in it, which no argument can have")
            .hint("write binary data with write_file"));
    }
    check_length("command", line, MOST_LINE_BYTES).map_err(|failure| {
        failure.hint("write it to a file with write_file and run that, or use the bash template of execute_code")
    })
}

fn check_length(what: &str, text: &str, most: usize) -> Result<(), Failure> {
    if text.len() <= most {
        return Ok(());
    }
    let message = format!("{what} has {} bytes, more than the limit of {}", text.len(), bytes::format(most as u64));
    Err(Failure::new(Kind::Validation, message).with("field", what))
}
