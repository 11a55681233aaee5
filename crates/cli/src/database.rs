//! Opens the state database, and reports on standard error if it was damaged.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_store::{DamageReport, Store, damage_reports};

use crate::failure::Failure;
use crate::output::{hint, notice, visible};

/// Maximum number of reports that are shown in full; the rest are only counted.
const MAX_SHOWN: usize = 3;

static IS_CHECKED: AtomicBool = AtomicBool::new(false);

/// Returns true if the state directory has a database, which the first server or `ringfence server add` creates.
pub(crate) fn exists(state: &Path) -> bool {
    state.join("ringfence.db").exists()
}

/// Opens the store and shows the reports of damage.
pub(crate) fn open(state: &Path) -> Result<(Store, Vec<DamageReport>), Failure> {
    let store = Store::open(state)?;
    IS_CHECKED.store(true, Ordering::Relaxed);
    Ok((store, show_reports(state)))
}

/// Opens the database once per process, so that damage or a newer format is detected even if no server runs.
pub(crate) fn check(state: &Path) -> Result<(), Failure> {
    if exists(state) && !IS_CHECKED.load(Ordering::Relaxed) {
        open(state)?;
    }
    Ok(())
}

/// Shows the reports of this state directory, once per process, and returns them.
pub(crate) fn show_reports(state: &Path) -> Vec<DamageReport> {
    static ARE_SHOWN: AtomicBool = AtomicBool::new(false);
    let reports = damage_reports(state);
    if reports.is_empty() || ARE_SHOWN.swap(true, Ordering::Relaxed) {
        return reports;
    }
    for report in reports.iter().rev().take(MAX_SHOWN) {
        notice(&format!("warning: {}", visible(&report.message())));
        hint(&visible(&report.hint()));
    }
    if let Some(more @ 1..) = reports.len().checked_sub(MAX_SHOWN) {
        notice(&format!("warning: there are {more} earlier reports of a damaged state database"));
    }
    reports
}
