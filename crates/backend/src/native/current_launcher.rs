//! The launcher that creates this server's sandboxes: started when first needed, and again if it is lost.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::Spec;
use ringfence_sandbox::Error;
use ringfence_sandbox::launcher::{Launched, LauncherConfig, ZygoteStatus};
use tokio::sync::Mutex;

use super::initial_interpreter::InitialInterpreter;
use super::launcher::LauncherHandle;
use super::launcher_sockets::LauncherSockets;
use super::zygote::python_zygote;
use crate::config::BackendConfig;
use crate::error::CreateError;

/// The interval at which a launcher is asked whether its zygote is warm.
const WARM_UP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Cheap to clone; clones share the launcher.
#[derive(Clone)]
pub(super) struct CurrentLauncher(Arc<Inner>);

struct Inner {
    config: BackendConfig,
    state: Mutex<State>,
}

enum State {
    NotStarted,
    Started(LauncherHandle),
    /// No launcher is started any more.
    Ended,
}

impl CurrentLauncher {
    pub(super) fn new(config: BackendConfig) -> Self {
        Self(Arc::new(Inner { config, state: Mutex::new(State::NotStarted) }))
    }

    /// Creates a sandbox. Also returns the launcher that owns it.
    pub(super) async fn launch(
        &self,
        spec: Spec,
        warm: bool,
        initial: Option<Arc<InitialInterpreter>>,
    ) -> Result<(Launched, LauncherHandle), CreateError> {
        let mut launcher = self.get_or_start().await?;
        let mut launched = launcher.launch(spec.clone(), warm, initial.clone()).await;
        if matches!(launched, Err(Error::LauncherLost | Error::Protocol(_))) {
            // The launcher was killed: one more attempt, with a new launcher.
            self.forget(&launcher).await;
            launcher = self.get_or_start().await?;
            launched = launcher.launch(spec, warm, initial).await;
        }
        launched.map(|launched| (launched, launcher)).map_err(|error| refused(&error))
    }

    /// Waits until sandboxes can be created warm; `false` if they cannot.
    pub(super) async fn warm_up(&self) -> bool {
        if self.0.config.warm_python.is_none() {
            return false;
        }
        loop {
            let Ok(launcher) = self.get_or_start().await else { return false };
            match launcher.warm_up().await {
                Ok(ZygoteStatus::Warm) => return true,
                Ok(ZygoteStatus::WarmingUp) => tokio::time::sleep(WARM_UP_POLL_INTERVAL).await,
                Ok(ZygoteStatus::Unavailable) | Err(_) => return false,
            }
        }
    }

    /// Ends the launcher and every sandbox of it. No other is started.
    pub(super) async fn end(&self) {
        let last = std::mem::replace(&mut *self.0.state.lock().await, State::Ended);
        if let State::Started(launcher) = last {
            launcher.end().await;
        }
    }

    async fn get_or_start(&self) -> Result<LauncherHandle, CreateError> {
        let mut state = self.0.state.lock().await;
        match &*state {
            State::Started(launcher) => return Ok(launcher.clone()),
            State::Ended => return Err(CreateError::ShuttingDown),
            State::NotStarted => {}
        }
        let BackendConfig { program, persistence, warm_python } = &self.0.config;
        let config = LauncherConfig {
            listen: persistence.as_ref().map(|persistence| LauncherSockets::from(persistence).new_path()),
            // Without a socket to find it by, a launcher ends with its server.
            lease: persistence.as_ref().map_or(Duration::ZERO, |persistence| persistence.lease),
            zygote: warm_python.as_ref().and_then(python_zygote),
        };
        let started = LauncherHandle::start(program, config).await;
        let started = started.map_err(|error| CreateError::LauncherUnavailable(error.to_string()))?;
        *state = State::Started(started.clone());
        Ok(started)
    }

    async fn forget(&self, lost: &LauncherHandle) {
        let mut state = self.0.state.lock().await;
        if matches!(&*state, State::Started(launcher) if launcher.is_same(lost)) {
            *state = State::NotStarted;
        }
    }
}

fn refused(error: &Error) -> CreateError {
    let message = match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    CreateError::Refused { message, hints: error.hints() }
}
