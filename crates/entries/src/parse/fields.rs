//! Typed access to the keys of one table. Keys that were not requested are reported as unknown.

use std::collections::BTreeMap;

use ringfence_core::suggest::{closest, join};
use serde_json::{Map, Value};

use super::error::{EntryError, ExpectedType, Warning, type_name};

/// A table of an entry. A null is treated like a missing key.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The path of the table in messages: empty, or `box.`.
    prefix: &'static str,
    requested: Vec<&'static str>,
    warnings: Vec<Warning>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, prefix: &'static str) -> Self {
        Self { map, prefix, requested: Vec::new(), warnings: Vec::new() }
    }

    /// Returns the first of several spellings of a key that has a value. Different values under other spellings are
    /// reported as ignored.
    pub(super) fn get(&mut self, spellings: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        self.requested.extend(spellings);
        let given = spellings.iter().filter_map(|key| Some((*key, self.map.get(*key)?)));
        let mut given = given.filter(|(_, value)| !value.is_null());
        let first = given.next()?;
        let ignored: Vec<String> =
            given.filter(|(_, value)| *value != first.1).map(|(key, _)| format!("`{}`", self.path(key))).collect();
        if !ignored.is_empty() {
            let verb = if ignored.len() == 1 { "is" } else { "are" };
            let ignored = join(ignored.iter().map(String::as_str));
            self.warn(format!(
                "{ignored} {verb} ignored because `{}` is set too; remove one of them",
                self.path(first.0)
            ));
        }
        Some(first)
    }

    pub(super) fn warn(&mut self, text: String) {
        self.warnings.push(Warning(text));
    }

    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Creates the error for an invalid value. `problem` is a predicate, such as "is empty".
    pub(super) fn invalid(&self, key: &str, problem: impl Into<String>, hint: impl Into<String>) -> EntryError {
        EntryError::InvalidValue { key: self.path(key), problem: problem.into(), hint: hint.into() }
    }

    pub(super) fn wrong_type(&self, key: &str, value: &Value, expected: ExpectedType) -> EntryError {
        EntryError::WrongType { key: self.path(key), found: type_name(value), expected }
    }

    pub(super) fn string(&mut self, spellings: &[&'static str]) -> Result<Option<String>, EntryError> {
        let Some((key, value)) = self.get(spellings) else { return Ok(None) };
        let text = value.as_str().ok_or_else(|| self.wrong_type(key, value, ExpectedType::String))?;
        self.check_nul(key, text)?;
        Ok(Some(text.to_owned()))
    }

    /// Rejects NUL bytes: neither arguments and variables of programs nor headers can contain them.
    fn check_nul(&self, key: &str, text: &str) -> Result<(), EntryError> {
        if text.contains('\0') {
            return Err(self.invalid(key, "contains a NUL byte", "remove the NUL byte"));
        }
        Ok(())
    }

    pub(super) fn boolean(&mut self, spellings: &[&'static str]) -> Result<Option<bool>, EntryError> {
        let Some((key, value)) = self.get(spellings) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong_type(key, value, ExpectedType::Boolean))
    }

    pub(super) fn number(&mut self, key: &'static str, min: f64, max: f64) -> Result<Option<f64>, EntryError> {
        let Some((key, value)) = self.get(&[key]) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.wrong_type(key, value, ExpectedType::Number))?;
        if (min..=max).contains(&number) {
            return Ok(Some(number));
        }
        Err(self.invalid(key, format!("is out of range: {value}"), format!("use a number from {min} to {max}")))
    }

    pub(super) fn integer(&mut self, key: &'static str, min: u64, max: u64) -> Result<Option<u64>, EntryError> {
        let Some((key, value)) = self.get(&[key]) else { return Ok(None) };
        let number = value.as_u64().or_else(|| integral(value.as_f64()?));
        match number {
            Some(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ if !value.is_number() => Err(self.wrong_type(key, value, ExpectedType::Integer)),
            number => {
                let problem = if number.is_some() || value.is_i64() { "is out of range" } else { "is not an integer" };
                Err(self.invalid(key, format!("{problem}: {value}"), format!("use an integer from {min} to {max}")))
            }
        }
    }

    /// Returns an array of strings. Numbers and booleans in it are converted to strings.
    pub(super) fn strings(&mut self, spellings: &[&'static str]) -> Result<Option<Vec<String>>, EntryError> {
        let Some((key, value)) = self.get(spellings) else { return Ok(None) };
        let items = value.as_array().ok_or_else(|| self.wrong_type(key, value, ExpectedType::StringArray))?;
        let read = |item: &Value| {
            let text = scalar(item).ok_or_else(|| EntryError::WrongType {
                key: self.path(key),
                found: "an array of other values",
                expected: ExpectedType::StringArray,
            })?;
            self.check_nul(key, &text)?;
            Ok(text)
        };
        items.iter().map(read).collect::<Result<_, _>>().map(Some)
    }

    /// Returns a table of strings, empty if it is missing. Numbers and booleans in it are converted to strings.
    pub(super) fn table(&mut self, spellings: &[&'static str]) -> Result<BTreeMap<String, String>, EntryError> {
        let Some((key, value)) = self.get(spellings) else { return Ok(BTreeMap::new()) };
        let fields = value.as_object().ok_or_else(|| self.wrong_type(key, value, ExpectedType::StringTable))?;
        let mut table = BTreeMap::new();
        for (name, value) in fields {
            let key = format!("{key}.{name}");
            if value.is_null() {
                self.warn(format!("`{}` is null and ignored; give it a value or remove it", self.path(&key)));
                continue;
            }
            let text = scalar(value).ok_or_else(|| self.wrong_type(&key, value, ExpectedType::String))?;
            self.check_nul(&key, &text)?;
            table.insert(name.clone(), text);
        }
        Ok(table)
    }

    /// Reports keys as ignored that have a meaning only in another mode.
    pub(super) fn ignore_in_mode(&mut self, keys: &[&'static str], mode: &str) {
        for key in keys {
            if self.get(&[key]).is_some() {
                self.warn(format!("`{key}` is ignored in mode {mode}; remove it"));
            }
        }
    }

    /// Returns all warnings, including one for each key that was not requested.
    pub(super) fn finish(mut self) -> Vec<Warning> {
        let is_unknown = |(key, value): &(&String, &Value)| !self.requested.contains(&key.as_str()) && !value.is_null();
        for (key, _) in self.map.iter().filter(is_unknown) {
            let similar = closest(key, self.requested.iter().copied());
            let suggestion = similar.map(|similar| format!("; did you mean `{}`?", self.path(similar)));
            let key = self.path(&key.escape_debug().to_string());
            self.warnings.push(Warning(format!("unknown key `{key}` is ignored{}", suggestion.unwrap_or_default())));
        }
        self.warnings
    }
}

/// Converts a float without a fraction, because some TOML and YAML writers turn `5` into `5.0`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn integral(number: f64) -> Option<u64> {
    /// 2^53: below it, every integer has an exact float.
    const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && (0.0..EXACT_BELOW).contains(&number)).then_some(number as u64)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(boolean) => Some(boolean.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
