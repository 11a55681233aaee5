//! The keys of one table, taken one by one; what is left at the end is unknown.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::{EntryError, Warning, kind};
use ringfence_core::suggest::{closest, join};

pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Before a key when it is told: `box.`.
    prefix: &'static str,
    known: Vec<&'static str>,
    pub warnings: Vec<Warning>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>, prefix: &'static str) -> Self {
        Self { map, prefix, known: Vec::new(), warnings: Vec::new() }
    }

    /// The value under the first of these names that has one. A null is as good as nothing.
    pub(super) fn take(&mut self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        self.known.extend(names);
        let mut given = names.iter().filter_map(|name| Some((*name, self.map.get(*name)?)));
        let mut given = given.by_ref().filter(|(_, value)| !value.is_null());
        let first = given.next()?;
        let others: Vec<&str> = given.filter(|(_, value)| *value != first.1).map(|(name, _)| name).collect();
        if !others.is_empty() {
            let others = join(others);
            self.warn(format!("{} is used, and {others} ignored", self.name(first.0)));
        }
        Some(first)
    }

    pub(super) fn warn(&mut self, text: String) {
        self.warnings.push(Warning(text));
    }

    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) fn wrong(&self, key: &str, problem: impl Into<String>, hint: impl Into<String>) -> EntryError {
        EntryError::Value { key: self.name(key), problem: problem.into(), hint: hint.into() }
    }

    pub(super) fn kind_error(&self, key: &str, value: &Value, expected: &'static str) -> EntryError {
        EntryError::Kind { key: self.name(key), found: kind(value), expected }
    }

    pub(super) fn text(&mut self, names: &[&'static str]) -> Result<Option<String>, EntryError> {
        let Some((key, value)) = self.take(names) else { return Ok(None) };
        let text = value.as_str().ok_or_else(|| self.kind_error(key, value, "a text"))?;
        Ok(Some(self.passable(key, text)?))
    }

    /// Texts reach programs and headers, and none of them takes a NUL.
    fn passable(&self, key: &str, text: &str) -> Result<String, EntryError> {
        if text.contains('\0') {
            return Err(self.wrong(key, "it holds a NUL byte", "remove it; no program can be given one"));
        }
        Ok(text.to_owned())
    }

    pub(super) fn switch(&mut self, names: &[&'static str]) -> Result<Option<bool>, EntryError> {
        let Some((key, value)) = self.take(names) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.kind_error(key, value, "true or false"))
    }

    pub(super) fn number(&mut self, name: &'static str, least: f64, most: f64) -> Result<Option<f64>, EntryError> {
        let Some((key, value)) = self.take(&[name]) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.kind_error(key, value, "a number"))?;
        if (least..=most).contains(&number) {
            return Ok(Some(number));
        }
        Err(self.wrong(key, format!("{value} is out of range"), format!("it may be {least} to {most}")))
    }

    pub(super) fn whole(&mut self, name: &'static str, least: u64, most: u64) -> Result<Option<u64>, EntryError> {
        let Some((key, value)) = self.take(&[name]) else { return Ok(None) };
        let number = value.as_u64().or_else(|| whole_of(value.as_f64()?));
        match number {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ if !value.is_number() => Err(self.kind_error(key, value, "a whole number")),
            _ => {
                let hint = format!("it may be a whole number from {least} to {most}");
                Err(self.wrong(key, format!("{value} is out of range"), hint))
            }
        }
    }

    /// A list of texts; numbers and switches are taken as they are written.
    pub(super) fn texts(&mut self, names: &[&'static str]) -> Result<Option<Vec<String>>, EntryError> {
        let Some((key, value)) = self.take(names) else { return Ok(None) };
        let items = value.as_array().ok_or_else(|| self.kind_error(key, value, "a list of texts"))?;
        let read = |item: &Value| {
            let text = scalar(item).ok_or_else(|| self.kind_error(key, value, "a list of texts"))?;
            self.passable(key, &text)
        };
        items.iter().map(read).collect::<Result<_, _>>().map(Some)
    }

    /// Names with texts. A name without a value is left out, which is told.
    pub(super) fn table(&mut self, names: &[&'static str]) -> Result<BTreeMap<String, String>, EntryError> {
        let Some((key, value)) = self.take(names) else { return Ok(BTreeMap::new()) };
        let fields = value.as_object().ok_or_else(|| self.kind_error(key, value, "a table of texts"))?;
        let mut table = BTreeMap::new();
        for (name, value) in fields {
            let full = format!("{key}.{name}");
            if value.is_null() {
                self.warn(format!("{} has no value and is ignored", self.name(&full)));
                continue;
            }
            let text = scalar(value).ok_or_else(|| self.kind_error(&full, value, "a text"))?;
            table.insert(name.clone(), self.passable(&full, &text)?);
        }
        Ok(table)
    }

    /// Keys that mean something only in another mode.
    pub(super) fn leave(&mut self, names: &[&'static str], mode: &str) {
        for name in names {
            if self.take(&[name]).is_some() {
                self.warn(format!("`{name}` is not used in mode {mode} and ignored"));
            }
        }
    }

    /// Ends the reading: a warning for every key that nobody asked for.
    pub(super) fn finish(mut self) -> Vec<Warning> {
        let is_unknown = |(key, value): &(&String, &Value)| !self.known.contains(&key.as_str()) && !value.is_null();
        for (key, _) in self.map.iter().filter(is_unknown) {
            let meant = closest(key, self.known.iter().copied());
            let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            let key = self.name(&key.escape_debug().to_string());
            self.warnings.push(Warning(format!("unknown key `{key}` is ignored{meant}")));
        }
        self.warnings
    }
}

/// TOML and YAML writers sometimes make `5.0` of 5.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole_of(number: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && (0.0..EXACT).contains(&number)).then_some(number as u64)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(switch) => Some(switch.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
