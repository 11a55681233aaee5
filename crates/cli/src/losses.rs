//! Reports a broken state database on standard error, in every command.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use ringfence_store::{Loss, Store, losses};

use crate::commands::session::visible;
use crate::failure::{Failure, hint, notice};

/// The exit code of a command whose output may be incomplete because of a loss.
pub(crate) const INCOMPLETE: u8 = 1;

/// Maximum number of losses that are reported in full; the rest are only counted.
const MAX_SHOWN: usize = 3;

static IS_CHECKED: AtomicBool = AtomicBool::new(false);

/// Opens the store and reports losses.
pub(crate) fn open(state: &Path) -> Result<(Store, Vec<Loss>), Failure> {
    let store = Store::open(state)?;
    IS_CHECKED.store(true, Ordering::Relaxed);
    Ok((store, report(state)))
}

/// Opens the database once per process, so that damage or a newer format is detected even if no server runs.
pub(crate) fn check(state: &Path) -> Result<(), Failure> {
    if state.join("ringfence.db").exists() && !IS_CHECKED.load(Ordering::Relaxed) {
        open(state)?;
    }
    Ok(())
}

/// Reports the losses of this state directory, once for each process.
pub(crate) fn report(state: &Path) -> Vec<Loss> {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let losses = losses(state);
    if losses.is_empty() || IS_REPORTED.swap(true, Ordering::Relaxed) {
        return losses;
    }
    for loss in losses.iter().rev().take(MAX_SHOWN) {
        notice(&format!("warning: {}", visible(&loss.message())));
        hint(&visible(&loss.hint()));
    }
    if let Some(more @ 1..) = losses.len().checked_sub(MAX_SHOWN) {
        notice(&format!("warning: {more} earlier broken databases are kept beside it"));
    }
    losses
}

/// Whether rows of one of these tables may be lost.
pub(crate) fn affect(losses: &[Loss], tables: &[&str]) -> bool {
    losses.iter().any(|loss| tables.iter().any(|table| loss.affects(table)))
}
