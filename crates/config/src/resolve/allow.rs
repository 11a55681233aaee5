//! Parses lists of hosts that sandboxes may connect to.

use std::error::Error as _;

use ringfence_core::MAX_EGRESS_PORTS;
use ringfence_egress::{Policy, Rule};
use ringfence_entries::AllowEntry;
use serde::Deserialize as _;

use crate::document::plain_message;
use crate::error::ConfigError;
use crate::values::Values;

/// Parses the rules of a list. `key` is the key of the list.
pub(super) fn parse(texts: &[String], key: &[&str], values: &Values) -> Result<Vec<Rule>, ConfigError> {
    let invalid = |problem: String, hint: &str| ConfigError::Invalid {
        origin: values.origin(key),
        problem,
        hint: Some(hint.into()),
    };
    let name = key.join(".");
    let parse = |text: &String| {
        text.parse::<Rule>().map_err(|error| {
            let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            invalid(format!("{name}: {error}{cause}"), error.hint())
        })
    };
    texts.iter().map(parse).collect()
}

/// Parses a list whose entries are texts, or tables with methods and paths.
pub(super) fn parse_entries(entries: &[toml::Value], key: &[&str], values: &Values) -> Result<Vec<Rule>, ConfigError> {
    let parse_entry = |entry: &toml::Value| match entry.as_str() {
        Some(text) => parse(&[text.to_owned()], key, values).map(|mut rules| rules.remove(0)),
        None => AllowEntry::deserialize(entry.clone()).map(|entry| entry.0).map_err(|error| ConfigError::Invalid {
            origin: values.origin(key),
            problem: format!("{}: {}", key.join("."), plain_message(error.message())),
            hint: Some("write a host, or a table such as { host = \"example.com\", methods = [\"GET\"] }".into()),
        }),
    };
    entries.iter().map(parse_entry).collect()
}

/// Refuses rules that name more ports than a sandbox can have.
pub(super) fn check_ports(rules: &[Rule], key: &[&str], values: &Values) -> Result<(), ConfigError> {
    let mut ports: Vec<u16> = rules.iter().filter_map(Rule::port).collect();
    ports.sort_unstable();
    ports.dedup();
    if ports.len() <= MAX_EGRESS_PORTS || ports.len() == Policy::named_ports(rules).len() {
        return Ok(());
    }
    Err(ConfigError::Invalid {
        origin: values.origin(key),
        problem: format!("{}: the rules name more than {MAX_EGRESS_PORTS} ports", key.join(".")),
        hint: Some("programs that use the proxy variables reach every port of a rule with `:*`".into()),
    })
}
