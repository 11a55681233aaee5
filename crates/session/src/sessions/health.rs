//! Whether sessions can be started. A server is healthy from its first successful start of a sandbox of the default
//! template and flavor until such a start fails.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Flavor, Kind, Template};

use super::{Inner, Sessions};
use crate::instances::{self, InterpreterNeed, PreparedInstance};

/// The reason why the last sandbox of the default template and flavor could not be created, and the time of the attempt.
pub(super) struct SandboxFailure {
    reason: String,
    tried: Instant,
}

impl SandboxFailure {
    /// The state of a server that has not created a sandbox yet.
    pub(super) fn untested() -> Self {
        Self { reason: "no sandbox has been started yet".into(), tried: Instant::now() }
    }

    /// The reason for `/health`, which needs no token. A protection that the host lacks is named; other messages may
    /// contain paths of this host.
    fn public_reason(&self) -> String {
        match self.reason.split_once(MISSING_PROTECTION) {
            Some((_, protection)) => format!("no sandbox can be started: {MISSING_PROTECTION}{protection}"),
            None => "no sandbox can be started: `GET /` and the log give the reason".to_owned(),
        }
    }
}

/// The prefix of the sandbox's error message about a missing protection.
const MISSING_PROTECTION: &str = "this host lacks ";

/// Minimum time between two test starts.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Timeout for the test start of a sandbox.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

impl Sessions {
    /// Fails with the reason if no session can be started because the server is ending.
    pub fn health(&self) -> Result<(), String> {
        if self.0.tasks.is_closed() { Err("the server is shutting down".into()) } else { Ok(()) }
    }

    /// The reason why the last sandbox of the default template and flavor could not be created.
    pub fn sandbox_failure(&self) -> Option<String> {
        self.0.sandbox_failure().as_ref().map(|failure| failure.reason.clone())
    }

    /// Creates and removes a sandbox of the default template and flavor, unless one was created already.
    pub async fn test_sandbox(&self) -> Result<(), Failure> {
        if self.0.sandbox_failure().is_none() {
            return Ok(());
        }
        let tested = tokio::time::timeout(TEST_TIMEOUT, self.0.try_sandbox()).await;
        tested.unwrap_or_else(|_| {
            let message = format!("no sandbox could be started within {} s", TEST_TIMEOUT.as_secs());
            Err(Failure::new(Kind::SandboxCreation, message).hint("`ringfence doctor` checks this host"))
        })
    }

    /// Checks whether sandboxes can be created and the store works. Repeats an attempt that has failed.
    pub async fn check_health(&self) -> Result<(), String> {
        self.health()?;
        self.0.check_sandboxes().await?;
        match &self.0.store {
            Some(store) => store.check().await.map_err(|error| format!("the store fails: {error}")),
            None => Ok(()),
        }
    }
}

impl Inner {
    /// Creates an instance. Records a failure if the template and the flavor are the default ones.
    pub(super) async fn create_instance(
        &self,
        template: &Template,
        flavor: &Flavor,
        need: InterpreterNeed,
    ) -> Result<PreparedInstance, Failure> {
        let created = instances::create(&self.backend, template, flavor, &self.settings, need).await;
        match created {
            Ok(prepared) => Ok(self.record_success(template, flavor, prepared)),
            Err(failure) => {
                if self.is_default(template, flavor) {
                    if self.sandbox_failure().is_none() {
                        tracing::error!("sandboxes cannot be created any more: {failure}");
                    }
                    let reason = failure.message.clone();
                    *self.sandbox_failure() = Some(SandboxFailure { reason, tried: Instant::now() });
                }
                Err(failure)
            }
        }
    }

    /// Records that an instance was created.
    pub(super) fn record_success(
        &self,
        template: &Template,
        flavor: &Flavor,
        prepared: PreparedInstance,
    ) -> PreparedInstance {
        if self.is_default(template, flavor) {
            *self.sandbox_failure() = None;
        }
        prepared
    }

    fn is_default(&self, template: &Template, flavor: &Flavor) -> bool {
        *template.name == *self.settings.default_template && *flavor.name == *self.settings.default_flavor
    }

    pub(super) fn sandbox_failure(&self) -> MutexGuard<'_, Option<SandboxFailure>> {
        self.sandbox_failure.lock()
    }

    /// Retries if the last attempt failed, but at a limited rate.
    async fn check_sandboxes(&self) -> Result<(), String> {
        match &mut *self.sandbox_failure() {
            None => return Ok(()),
            Some(failure) if failure.tried.elapsed() < RETRY_INTERVAL => return Err(failure.public_reason()),
            Some(failure) => failure.tried = Instant::now(),
        }
        if self.try_sandbox().await.is_ok() {
            return Ok(());
        }
        self.sandbox_failure().as_ref().map_or(Ok(()), |failure| Err(failure.public_reason()))
    }

    /// Creates a sandbox without an interpreter, and removes it.
    async fn try_sandbox(&self) -> Result<(), Failure> {
        let SessionSettings { templates, flavors, default_template, default_flavor, .. } = &self.settings;
        let (Ok(template), Ok(flavor)) = (templates.find(default_template), flavors.find(default_flavor)) else {
            // Callers must name a template and a flavor, and get errors about those.
            *self.sandbox_failure() = None;
            return Ok(());
        };
        self.create_instance(template, flavor, InterpreterNeed::Never).await.map(drop)
    }
}
