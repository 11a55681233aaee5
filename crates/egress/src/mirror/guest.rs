//! The sandbox that sends a request to the mirror: its limits and its log.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::budget::Budget;
use super::error::MirrorError;
use crate::decision::{Decision, DecisionLog, Source};

/// Maximum number of requests of one sandbox that wait for a registry.
const MAX_FETCHES: usize = 32;
/// Maximum number of files that are downloaded for one sandbox at the same time. They continue when it ends.
const MAX_DOWNLOADS: usize = 8;
/// Maximum time that a request waits for its budget or for others.
const WAIT: Duration = Duration::from_secs(20);

/// The limits and the log of one sandbox.
#[derive(Debug)]
pub(super) struct Guest {
    budget: Budget,
    fetches: Semaphore,
    downloads: Arc<Semaphore>,
    log: DecisionLog,
}

/// The limits of all sandboxes together.
#[derive(Debug)]
pub(super) struct Admission {
    budget: Budget,
    fetches: Semaphore,
}

/// Permission to send one request to a registry.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    _own: SemaphorePermit<'a>,
    _all: SemaphorePermit<'a>,
}

impl Admission {
    pub(super) fn new() -> Self {
        Self { budget: Budget::of_process(), fetches: Semaphore::new(48) }
    }
}

impl Guest {
    pub(super) fn new(log: DecisionLog) -> Self {
        let downloads = Arc::new(Semaphore::new(MAX_DOWNLOADS));
        Self { budget: Budget::of_sandbox(), fetches: Semaphore::new(MAX_FETCHES), downloads, log }
    }

    #[cfg(test)]
    pub(super) fn with_budget(log: DecisionLog, budget: Budget) -> Self {
        Self { budget, ..Self::new(log) }
    }

    /// Waits until this sandbox may make the mirror send a request.
    pub(super) async fn admit<'a>(&'a self, admission: &'a Admission) -> Result<Admitted<'a>, MirrorError> {
        let permits = async {
            let own = self.fetches.acquire().await.map_err(|_| MirrorError::Budget)?;
            let all = admission.fetches.acquire().await.map_err(|_| MirrorError::Budget)?;
            Ok(Admitted { _own: own, _all: all })
        };
        if !self.budget.take(WAIT).await || !admission.budget.take(WAIT).await {
            return Err(MirrorError::Budget);
        }
        tokio::time::timeout(WAIT, permits).await.unwrap_or(Err(MirrorError::Budget))
    }

    /// Waits until this sandbox may start another download, which has the permit until it ends. A download has a deadline,
    /// so this wait has one too.
    pub(super) async fn begin_download(&self) -> Result<OwnedSemaphorePermit, MirrorError> {
        Arc::clone(&self.downloads).acquire_owned().await.map_err(|_| MirrorError::Interrupted)
    }

    /// Charges the sandbox for what its request has caused.
    pub(super) fn charge(&self, admission: &Admission, cost: f64) {
        self.budget.charge(cost);
        admission.budget.charge(cost);
    }

    /// Records that the mirror requested a package from a registry, or why it did not.
    pub(super) fn record<T>(&self, package: &str, url: Option<&Url>, outcome: &Result<T, MirrorError>) {
        let host = url.and_then(Url::host_str).and_then(|host| host.parse().ok());
        self.log.record(Decision {
            is_allowed: outcome.is_ok(),
            method: Some("GET".into()),
            host,
            port: url.and_then(Url::port_or_known_default),
            reason: outcome.as_ref().err().map_or("allowed", MirrorError::code),
            source: Source::Mirror,
            package: Some(package.to_owned()),
            ..Decision::default()
        });
    }
}
