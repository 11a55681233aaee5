//! Whether sessions can be started. A server is healthy from its first successful start of a sandbox until a start
//! fails.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::prepare::{self, Interpreter, Prepared};
use super::sessions::{Inner, Sessions};
use ringfence_config::SessionSettings;
use ringfence_core::Flavor;
use ringfence_core::Template;
use ringfence_core::{Failure, Kind};

/// Why the last sandbox of the default template and flavor could not be made, and when that was tried.
pub(crate) struct Trouble {
    why: String,
    tried: Instant,
}

impl Trouble {
    /// The state of a server that has not made a sandbox yet.
    pub(crate) fn unproven() -> Self {
        Self { why: "no sandbox has been started yet".into(), tried: Instant::now() }
    }

    /// The reason for `/health`, which needs no token. A protection that the host lacks is named; other messages may
    /// contain paths of this host.
    fn public_reason(&self) -> String {
        match self.why.split_once(LACK) {
            Some((_, lack)) => format!("no sandbox can be started: {LACK}{lack}"),
            None => "no sandbox can be started: `GET /` and the log give the reason".to_owned(),
        }
    }
}

/// The prefix of the sandbox's error message about a missing protection.
const LACK: &str = "this host lacks ";

const BETWEEN_TRIALS: Duration = Duration::from_secs(2);

/// Timeout for the test start of a sandbox.
const PROOF_TIMEOUT: Duration = Duration::from_secs(10);

impl Sessions {
    /// Why no session could be started now, if so.
    pub fn health(&self) -> Result<(), String> {
        if self.0.tasks.is_closed() { Err("the server is shutting down".into()) } else { Ok(()) }
    }

    /// Why the last sandbox of the usual kind could not be made, if so.
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble().as_ref().map(|trouble| trouble.why.clone())
    }

    /// Makes a sandbox of the default template and flavor, unless one has been made already, and removes it again.
    pub async fn prove(&self) -> Result<(), Failure> {
        if self.0.trouble().is_none() {
            return Ok(());
        }
        let proved = tokio::time::timeout(PROOF_TIMEOUT, self.0.try_sandbox()).await;
        proved.unwrap_or_else(|_| {
            let message = format!("no sandbox could be started within {} s", PROOF_TIMEOUT.as_secs());
            Err(Failure::new(Kind::SandboxCreation, message).hint("`ringfence doctor` checks this host"))
        })
    }

    /// Whether sandboxes can be made and what happens be written down. What has failed is tried again.
    pub async fn check_health(&self) -> Result<(), String> {
        self.health()?;
        self.0.check_sandboxes().await?;
        match &self.0.keeping {
            Some(keeping) => keeping.store.check().await.map_err(|error| format!("the store fails: {error}")),
            None => Ok(()),
        }
    }
}

impl Inner {
    /// Makes a sandbox, and remembers if that fails for what everybody gets who asks for nothing special.
    pub(crate) async fn make(
        &self,
        template: &Template,
        flavor: &Flavor,
        interpreter: Interpreter,
    ) -> Result<Prepared, Failure> {
        let prepared = prepare::sandbox(&self.launchers, template, flavor, &self.settings, interpreter).await;
        match prepared {
            Ok(prepared) => Ok(self.made(template, flavor, prepared)),
            Err(failure) => {
                if self.is_usual(template, flavor) {
                    if self.trouble().is_none() {
                        tracing::error!("sandboxes cannot be made any more: {failure}");
                    }
                    *self.trouble() = Some(Trouble { why: failure.message.clone(), tried: Instant::now() });
                }
                Err(failure)
            }
        }
    }

    /// Notes that there is a sandbox.
    pub(crate) fn made(&self, template: &Template, flavor: &Flavor, prepared: Prepared) -> Prepared {
        if self.is_usual(template, flavor) {
            *self.trouble() = None;
        }
        prepared
    }

    fn is_usual(&self, template: &Template, flavor: &Flavor) -> bool {
        *template.name == *self.settings.default_template && *flavor.name == *self.settings.default_flavor
    }

    pub(crate) fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock()
    }

    /// Retries if the last attempt failed, but at a limited rate.
    async fn check_sandboxes(&self) -> Result<(), String> {
        match &mut *self.trouble() {
            None => return Ok(()),
            Some(trouble) if trouble.tried.elapsed() < BETWEEN_TRIALS => return Err(trouble.public_reason()),
            Some(trouble) => trouble.tried = Instant::now(),
        }
        if self.try_sandbox().await.is_ok() {
            return Ok(());
        }
        self.trouble().as_ref().map_or(Ok(()), |trouble| Err(trouble.public_reason()))
    }

    /// Makes a sandbox without an interpreter, and removes it.
    async fn try_sandbox(&self) -> Result<(), Failure> {
        let SessionSettings { templates, flavors, default_template, default_flavor, .. } = &self.settings;
        let (Ok(template), Ok(flavor)) = (templates.find(default_template), flavors.find(default_flavor)) else {
            // Callers must name a template and a flavor, and get errors about those.
            *self.trouble() = None;
            return Ok(());
        };
        self.make(template, flavor, Interpreter::Never).await.map(drop)
    }
}
