//! Limits how often lookups of names that are not allowed are recorded.
//!
//! Programs look a name up several times in a row: for both address families, on retries, and with search suffixes.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::rules::Host;

/// Time in which a name is recorded once.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of names to record in one window.
const MAX_NAMES: usize = 64;
/// Domains that programs append to names. A name with such a suffix is not recorded if the name without it was.
const SEARCH_SUFFIXES: [&str; 5] = [".localdomain", ".local", ".lan", ".internal", ".home.arpa"];

/// Whether a refused lookup is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recording {
    New,
    Repeated,
    /// Too many names were recorded recently.
    Dropped,
}

/// The names that were recorded recently. Names that no host can have count as one, `None`.
#[derive(Debug, Default)]
pub(super) struct RefusedNames {
    recorded: HashMap<Option<Host>, Instant>,
    /// The report in which they were recorded.
    report: u64,
}

impl RefusedNames {
    pub(super) fn add(&mut self, host: Option<&Host>, report: u64) -> Recording {
        let now = Instant::now();
        if report != self.report {
            self.recorded.clear();
            self.report = report;
        }
        self.recorded.retain(|_, at| now.duration_since(*at) < WINDOW);
        let is_recent = |host: &Option<Host>| self.recorded.contains_key(host);
        let host = host.cloned();
        if is_recent(&host) || host.as_ref().and_then(without_suffix).is_some_and(|host| is_recent(&Some(host))) {
            return Recording::Repeated;
        }
        if self.recorded.len() >= MAX_NAMES {
            return Recording::Dropped;
        }
        self.recorded.insert(host, now);
        Recording::New
    }
}

fn without_suffix(host: &Host) -> Option<Host> {
    let Host::Name(name) = host else { return None };
    let shorter = SEARCH_SUFFIXES.iter().find_map(|suffix| name.as_str().strip_suffix(suffix))?;
    shorter.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn name_is_recorded_once_per_window() {
        let mut names = RefusedNames::default();
        let mut add = |text: &str| names.add(Some(&text.parse().unwrap()), 0);
        assert_eq!(add("a.test"), Recording::New);
        assert_eq!(add("A.test."), Recording::Repeated);
        assert_eq!(add("a.test.localdomain"), Recording::Repeated);
        assert_eq!(add("b.test.localdomain"), Recording::New);
        assert_eq!(add("x.a.test"), Recording::New);
        tokio::time::sleep(WINDOW).await;
        assert_eq!(add("a.test"), Recording::New);
        assert_eq!((names.add(None, 0), names.add(None, 0)), (Recording::New, Recording::Repeated));
        assert_eq!((names.add(None, 1), names.add(None, 1)), (Recording::New, Recording::Repeated), "a new report");
    }

    #[tokio::test(start_paused = true)]
    async fn flood_of_names_is_bounded() {
        let mut names = RefusedNames::default();
        let recordings: Vec<_> = (0..1000).map(|n| names.add(Some(&format!("{n}.test").parse().unwrap()), 0)).collect();
        assert_eq!(recordings.iter().filter(|recording| **recording == Recording::New).count(), MAX_NAMES);
        assert_eq!((names.recorded.len(), recordings[999]), (MAX_NAMES, Recording::Dropped));
    }
}
