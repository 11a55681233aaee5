//! The lists of known failures in `tests/conformance`.

use std::collections::BTreeSet;
use std::fs;

use super::run::{Check, Era};
use crate::repository_path;

/// Panics if a check fails that the list does not contain, or if one that it contains does not fail.
pub fn assert_only_known_failures(checks: &[Check], list: &str, era: Era) {
    let failed = checks.iter().filter(|check| check.status == "FAILURE");
    let failed: BTreeSet<(&str, &str)> = failed.map(|check| (&*check.scenario, &*check.id)).collect();
    let known = read(list, era);
    let covers = |(scenario, id): &(String, Option<String>), failure: &(&str, &str)| {
        scenario == failure.0 && id.as_deref().is_none_or(|id| id == failure.1)
    };
    let unknown: Vec<_> = failed.iter().filter(|failure| !known.iter().any(|listed| covers(listed, failure))).collect();
    let fixed: Vec<_> = known.iter().filter(|listed| !failed.iter().any(|failure| covers(listed, failure))).collect();
    assert!(unknown.is_empty(), "these checks fail and are not listed: {unknown:#?}");
    assert!(fixed.is_empty(), "these checks are listed and do not fail: {fixed:#?}");
}

/// Reads the scenarios, and checks where they are named, from lines `ERA SCENARIO[/CHECK]: reason`.
fn read(list: &str, era: Era) -> Vec<(String, Option<String>)> {
    let text = fs::read_to_string(repository_path("tests/conformance").join(list)).expect("read the list");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|line| line.split_once(": ").expect("a reason for each entry").0);
    entries
        .filter_map(|entry| entry.strip_prefix(era.name)?.strip_prefix(' '))
        .map(|entry| match entry.split_once('/') {
            Some((scenario, id)) => (scenario.to_owned(), Some(id.to_owned())),
            None => (entry.to_owned(), None),
        })
        .collect()
}
