//! Reads a configuration file; what is wrong with it is told with its line.

use std::path::Path;

use serde::de::IntoDeserializer as _;
use toml::Value;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::file::Config;
use super::origin::{Origin, line_of};
use super::values::Values;
use ringfence_core::suggest::closest;

const DEFAULTS: &str = include_str!("defaults.toml");

pub(super) fn defaults() -> Result<Values, ConfigError> {
    let mut values = Values::default();
    let read = parse(DEFAULTS).map_err(|Problem { message, .. }| ConfigError::Conflict {
        problem: format!("the defaults do not hold: {message}"),
        hint: "this is a mistake of ringfence itself; please report it".into(),
    })?;
    for (path, value, _) in read {
        values.set(path, value, Origin::Default);
    }
    Ok(values)
}

pub(super) fn read(text: &str, file: &Path) -> Result<Values, ConfigError> {
    let origin = |offset| Origin::File { path: file.to_owned(), line: line_of(text, offset) };
    let read = parse(text).map_err(|Problem { message, hint, offset }| ConfigError::Wrong {
        origin: origin(offset),
        problem: message,
        hint,
    })?;
    let mut values = Values::default();
    for (path, value, offset) in read {
        values.set(path, value, origin(offset));
    }
    Ok(values)
}

struct Problem {
    message: String,
    hint: Option<String>,
    offset: usize,
}

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
    let message = error.message();
    let Some((unknown, known)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) else {
        return Problem { message: plain(message), hint: None, offset };
    };
    // serde names them all, in backticks.
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let hint = match closest(unknown, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("there are {}", ringfence_core::suggest::join(known)),
    };
    Problem { message: format!("unknown key `{unknown}`"), hint: Some(hint), offset }
}

/// serde's words in those of somebody who does not know Rust.
pub(super) fn plain(message: &str) -> String {
    let words = [
        ("unknown variant", "unknown value"),
        ("expected u16", "expected a number from 0 to 65535"),
        ("expected u32", "expected a whole number"),
        ("expected u64", "expected a whole number, not below 0"),
        ("expected usize", "expected a whole number, not below 0"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
        ("expected a map", "expected a table"),
    ];
    words.into_iter().fold(message.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}
