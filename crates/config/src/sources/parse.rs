//! Parses the text of a configuration file. Errors name the line.

use std::path::Path;

use serde::de::IntoDeserializer as _;
use toml::Value;
use toml::de::{DeTable, DeValue};

use crate::document::{Config, plain_message, unknown_key};
use crate::error::ConfigError;
use crate::origin::{Origin, line_of};
use crate::values::Values;
use ringfence_core::suggest::{closest, join};

const DEFAULTS: &str = include_str!("../defaults.toml");

/// Returns the built-in defaults.
pub(super) fn defaults() -> Result<Values, ConfigError> {
    let mut values = Values::default();
    let leaves = parse(DEFAULTS).map_err(|Problem { message, .. }| ConfigError::Conflict {
        problem: format!("invalid built-in defaults: {message}"),
        hint: "this is a bug in ringfence; please report it".into(),
    })?;
    for (path, value, _) in leaves {
        values.set(path, value, Origin::Default);
    }
    Ok(values)
}

/// Returns the values of a configuration file with the lines where they are set.
pub(crate) fn parse_file(text: &str, file: &Path) -> Result<Values, ConfigError> {
    let origin = |offset| Origin::File { path: file.to_owned(), line: line_of(text, offset) };
    let leaves = parse(text).map_err(|Problem { message, hint, offset }| ConfigError::Invalid {
        origin: origin(offset),
        problem: message,
        hint,
    })?;
    let mut values = Values::default();
    for (path, value, offset) in leaves {
        values.set(path, value, origin(offset));
    }
    Ok(values)
}

struct Problem {
    message: String,
    hint: Option<String>,
    offset: usize,
}

/// Values with the parts of their keys and the byte offsets of their keys.
type Leaves = Vec<(Vec<String>, Value, usize)>;

fn parse(text: &str) -> Result<Leaves, Problem> {
    let document = DeTable::parse(text).map_err(|error| problem(&error))?;
    toml::from_str::<Config>(text).map_err(|error| problem(&error))?;
    let mut leaves = Vec::new();
    collect(document.get_ref(), &mut Vec::new(), &mut leaves)?;
    Ok(leaves)
}

fn collect(table: &DeTable<'_>, path: &mut Vec<String>, leaves: &mut Leaves) -> Result<(), Problem> {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        if let DeValue::Table(inner) = value.get_ref()
            && !inner.is_empty()
        {
            collect(inner, path, leaves)?;
        } else {
            let owned = serde::Deserialize::deserialize(value.clone().into_deserializer());
            leaves.push((path.clone(), owned.map_err(|error| problem(&error))?, key.span().start));
        }
        path.pop();
    }
    Ok(())
}

fn problem(error: &toml::de::Error) -> Problem {
    let offset = error.span().map_or(0, |span| span.start);
    let Some((unknown, known)) = unknown_key(error.message()) else {
        return Problem { message: plain_message(error.message()), hint: None, offset };
    };
    let hint = match closest(unknown, known.iter().copied()) {
        Some(suggestion) => format!("did you mean `{suggestion}`?"),
        None => format!("known keys: {}", join(known)),
    };
    Problem { message: format!("unknown key `{unknown}`"), hint: Some(hint), offset }
}
