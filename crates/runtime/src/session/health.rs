//! Whether sessions can be started: what has failed is remembered, and tried again.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::prepare::{self, Interpreter, Prepared};
use super::sessions::{Inner, Sessions};
use super::{Failure, Settings};
use crate::flavor::Flavor;
use crate::template::Template;

/// Why the last sandbox of the usual kind could not be made, and when that was tried.
pub(super) struct Trouble {
    why: String,
    tried: Instant,
}

const BETWEEN_TRIALS: Duration = Duration::from_secs(2);

impl Sessions {
    /// Why no session could be started now, if so.
    pub fn health(&self) -> Result<(), String> {
        if self.0.tasks.is_closed() { Err("the server is shutting down".into()) } else { Ok(()) }
    }

    /// Why the last sandbox of the usual kind could not be made, if so.
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble().as_ref().map(|trouble| trouble.why.clone())
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
    pub(super) async fn make(
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
    pub(super) fn made(&self, template: &Template, flavor: &Flavor, prepared: Prepared) -> Prepared {
        if self.is_usual(template, flavor) {
            *self.trouble() = None;
        }
        prepared
    }

    fn is_usual(&self, template: &Template, flavor: &Flavor) -> bool {
        *template.name == *self.settings.default_template && *flavor.name == *self.settings.default_flavor
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why no sandbox could be made when that was last tried; tried once more where it failed, but not by everybody
    /// who asks.
    async fn check_sandboxes(&self) -> Result<(), String> {
        // Anybody may ask; what exactly it is, and where, is for those with a token, and for the log.
        let failed = || Err("no sandbox can be made: `GET /` and the log say why".to_owned());
        let Settings { templates, flavors, default_template, default_flavor, .. } = &self.settings;
        match &mut *self.trouble() {
            None => return Ok(()),
            Some(trouble) if trouble.tried.elapsed() < BETWEEN_TRIALS => return failed(),
            Some(trouble) => trouble.tried = Instant::now(),
        }
        let (Ok(template), Ok(flavor)) = (templates.find(default_template), flavors.find(default_flavor)) else {
            return Ok(());
        };
        let made = self.make(template, flavor, Interpreter::MaybeLater).await;
        made.map(drop).or_else(|_| failed())
    }
}
