//! The builds of templates in this process, and their results.

use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use ringfence_core::Volume;
use ringfence_core::sync::Mutex;
use tokio::sync::watch;

use crate::phase::StartFailure;

/// The time for which a failure is returned without another attempt.
const RETRY_INTERVAL: Duration = Duration::from_secs(20);

/// The builds of this process by their requirements, so at most one for each template.
#[derive(Default)]
pub(crate) struct TemplateBuilds(Mutex<HashMap<Vec<String>, Build>>);

impl TemplateBuilds {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<Vec<String>, Build>> {
        self.0.lock()
    }
}

/// `None` while it runs.
pub(crate) type Build = watch::Receiver<Option<Finished>>;

#[derive(Clone)]
pub(crate) struct Finished {
    pub(crate) result: Result<Volume, StartFailure>,
    pub(crate) at: Instant,
}

impl Finished {
    /// Whether another attempt is not needed. The cache may have been emptied.
    pub(crate) fn is_current(&self) -> bool {
        match &self.result {
            Ok(volume) => volume.host.is_dir(),
            Err(_) => self.at.elapsed() < RETRY_INTERVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_core::Access;

    use super::*;
    use crate::phase::Phase;

    #[test]
    fn failure_is_repeated_for_a_while_and_an_emptied_cache_is_noticed() {
        let failure = StartFailure::permanent(Phase::DepInstall, "no such package");
        let now = Instant::now();
        assert!(Finished { result: Err(failure.clone()), at: now }.is_current());
        assert!(!Finished { result: Err(failure), at: now.checked_sub(RETRY_INTERVAL).unwrap() }.is_current());
        let directory = tempfile::tempdir().unwrap();
        let volume = |host| Volume { host, guest: "/g".into(), access: Access::ReadOnly, allowed_root: None };
        assert!(Finished { result: Ok(volume(directory.path().to_owned())), at: now }.is_current());
        assert!(!Finished { result: Ok(volume(directory.path().join("absent"))), at: now }.is_current());
    }
}
