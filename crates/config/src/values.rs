//! Single values by their keys, each with where it came from.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::{Table, Value};

use super::document::plain;
use super::file::Config;
use super::origin::Origin;

/// The parts of a key: `sessions.pool.python` has three.
pub(super) type Path = Vec<String>;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Given {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Values(BTreeMap<Path, Given>);

impl Values {
    /// A value is a leaf, or a table that has none.
    pub(super) fn set(&mut self, path: Path, value: Value, origin: Origin) {
        self.0.insert(path, Given { value, origin });
    }

    pub(super) fn get(&self, key: &str) -> Option<&Given> {
        self.0.get(&key.split('.').map(Into::into).collect::<Path>())
    }

    /// Where a value, or what was first given of a table, came from; what nobody gave is a default.
    pub(super) fn origin(&self, path: &[&str]) -> Origin {
        let within = |key: &Path| key.len() >= path.len() && key.iter().zip(path).all(|(part, other)| part == other);
        let mut origins = self.0.iter().filter(|(key, _)| within(key)).map(|(_, given)| &given.origin);
        origins.find(|origin| **origin != Origin::Default).cloned().unwrap_or(Origin::Default)
    }

    /// Puts stronger values over these.
    pub(super) fn overlay(&mut self, stronger: Self) {
        for (path, given) in stronger.0 {
            // A token has its secret in one place: a stronger one takes the place of a weaker.
            if path.len() == 4 && path[..2] == ["server", "tokens"] {
                let kind = std::mem::discriminant(&given.origin);
                self.0.retain(|key, old| !key.starts_with(&path[..3]) || std::mem::discriminant(&old.origin) == kind);
            }
            self.0.insert(path, given);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (String, &Given)> {
        self.0.iter().filter(|(_, given)| !given.value.is_table()).map(|(path, given)| (show_key(path), given))
    }

    /// The same as the file's own types, which say what is wrong.
    pub(super) fn config(&self) -> Result<Config, String> {
        let mut root = Table::new();
        for (path, given) in &self.0 {
            put(&mut root, path, given.value.clone());
        }
        Config::deserialize(root).map_err(|error| plain(error.message()))
    }
}

fn put(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => {
            table.insert(name.clone(), value);
        }
        [name, rest @ ..] => {
            let inner = table.entry(name.clone()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

/// A key as it would be written in the file.
pub(super) fn show_key(path: &[String]) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let show = |part: &String| {
        if !part.is_empty() && part.chars().all(is_bare) { part.clone() } else { format!("{part:?}") }
    };
    path.iter().map(show).collect::<Vec<_>>().join(".")
}
