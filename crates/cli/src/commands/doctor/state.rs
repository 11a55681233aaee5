//! Checks the state database, and shows the last report of damage.

use std::error::Error as _;
use std::path::Path;

use ringfence_store::{Store, damage_reports};

use super::{Check, State};
use crate::configuration::load;
use crate::database;
use crate::output::visible;

const NAME: &str = "state database";

pub(super) fn check() -> Check {
    let directory = load(None, Vec::new()).and_then(|configuration| Ok(configuration.state_directory()?));
    match directory {
        Ok(directory) => check_in(&directory),
        Err(failure) => {
            let detail = visible(&failure.to_string());
            Check::lacking(NAME, State::Missing, detail, "choose a state directory with RINGFENCE_STATE_DIR")
        }
    }
}

fn check_in(directory: &Path) -> Check {
    if !database::exists(directory) {
        return Check::ok(NAME, format!("not created yet in {}", directory.display()));
    }
    if let Err(error) = Store::open(directory) {
        let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        let detail = visible(&format!("{error}{cause}"));
        return Check::lacking(NAME, State::Missing, detail, error.hints().join("; "));
    }
    match damage_reports(directory).last() {
        Some(report) => Check::lacking(NAME, State::Weaker, visible(&report.message()), visible(&report.hint())),
        None => Check::ok(NAME, directory.display().to_string()),
    }
}
