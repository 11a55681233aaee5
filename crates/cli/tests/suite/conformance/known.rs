//! Lists of what is known to fail: nothing else may, and nothing listed may pass.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::run::{Check, Era};

/// Judges a run by a list of `tests/conformance`.
pub(crate) fn judge(checks: &[Check], list: &str, era: Era) {
    let failed = checks.iter().filter(|check| check.status == "FAILURE");
    let failed: BTreeSet<(&str, &str)> = failed.map(|check| (&*check.scenario, &*check.id)).collect();
    let known = read(list, era);
    let covers = |(scenario, id): &(String, Option<String>), failure: &(&str, &str)| {
        scenario == failure.0 && id.as_deref().is_none_or(|id| id == failure.1)
    };
    let surprises: Vec<_> =
        failed.iter().filter(|failure| !known.iter().any(|listed| covers(listed, failure))).collect();
    let rotten: Vec<_> = known.iter().filter(|listed| !failed.iter().any(|failure| covers(listed, failure))).collect();
    assert!(surprises.is_empty(), "not listed, and fails: {surprises:#?}");
    assert!(rotten.is_empty(), "listed, and does not fail: {rotten:#?}");
}

/// Lines `ERA SCENARIO[/CHECK]: reason`.
fn read(list: &str, era: Era) -> Vec<(String, Option<String>)> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance").join(list);
    let text = fs::read_to_string(list).expect("the list is readable");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|line| line.split_once(": ").expect("a reason follows").0);
    entries
        .filter_map(|entry| entry.strip_prefix(era.name)?.strip_prefix(' '))
        .map(|entry| match entry.split_once('/') {
            Some((scenario, id)) => (scenario.to_owned(), Some(id.to_owned())),
            None => (entry.to_owned(), None),
        })
        .collect()
}
