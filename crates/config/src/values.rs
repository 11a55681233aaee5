//! Single values by their keys, each with its origin.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Table, Value};

use crate::document::{Config, plain_message};
use crate::origin::Origin;

/// The parts of a key: `sessions.pool.python` has three.
pub(crate) type KeyPath = Vec<String>;

/// Splits a key at its dots.
pub(crate) fn key_path(key: &str) -> KeyPath {
    key.split('.').map(Into::into).collect()
}

/// A value with its origin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValueWithOrigin {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// The values of one or several sources.
#[derive(Debug, Clone, Default)]
pub(crate) struct Values(BTreeMap<KeyPath, ValueWithOrigin>);

impl Values {
    /// Sets a value, which is not a table or is an empty table.
    pub(crate) fn set(&mut self, path: KeyPath, value: Value, origin: Origin) {
        self.0.insert(path, ValueWithOrigin { value, origin });
    }

    /// Sets a default that was derived from other values.
    pub(crate) fn set_default(&mut self, key: &str, value: i64) {
        self.set(key_path(key), value.into(), Origin::Default);
    }

    pub(crate) fn get(&self, key: &str) -> Option<&ValueWithOrigin> {
        self.0.get(&key_path(key))
    }

    /// Whether the user set the value: it is present and not a default.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.get(key).is_some_and(|found| found.origin != Origin::Default)
    }

    /// Formats a key with its value and origin, for messages: `sessions.timeout_s (30, default)`.
    pub(crate) fn describe(&self, key: &str) -> String {
        match self.get(key) {
            Some(found) => format!("{key} ({}, {})", found.value, found.origin),
            None => key.into(),
        }
    }

    /// Returns the origin of a value, or of the first value in a table that the user set.
    pub(crate) fn origin(&self, path: &[&str]) -> Origin {
        let is_below =
            |key: &KeyPath| key.len() >= path.len() && key.iter().zip(path).all(|(part, other)| part == other);
        let mut origins = self.0.iter().filter(|(key, _)| is_below(key)).map(|(_, found)| &found.origin);
        origins.find(|origin| **origin != Origin::Default).cloned().unwrap_or(Origin::Default)
    }

    /// Replaces values with those of a source that takes precedence.
    pub(crate) fn overlay(&mut self, overriding: Self) {
        for (path, new) in overriding.0 {
            // `env` and `file` of a token exclude each other: a source that sets one removes the other of an earlier
            // source.
            if path.len() == 4 && path[..2] == ["server", "tokens"] {
                let kind = std::mem::discriminant(&new.origin);
                self.0.retain(|key, old| !key.starts_with(&path[..3]) || std::mem::discriminant(&old.origin) == kind);
            }
            self.0.insert(path, new);
        }
    }

    /// Iterates over all values that are not tables, with their keys as they are written in the file.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (String, &ValueWithOrigin)> {
        self.0.iter().filter(|(_, found)| !found.value.is_table()).map(|(path, found)| (format_key(path), found))
    }

    /// Converts the values to the types of the file, which checks them.
    pub(crate) fn config(&self) -> Result<Config, String> {
        let mut root = Table::new();
        for (path, found) in &self.0 {
            insert(&mut root, path, found.value.clone());
        }
        Config::deserialize(root).map_err(|error| plain_message(error.message()))
    }
}

fn insert(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => {
            table.insert(name.clone(), value);
        }
        [name, rest @ ..] => {
            let inner = table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// Formats a key as it is written in the file.
fn format_key(path: &[String]) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let format_part = |part: &String| {
        if !part.is_empty() && part.chars().all(is_bare) { part.clone() } else { format!("{part:?}") }
    };
    path.iter().map(format_part).collect::<Vec<_>>().join(".")
}
