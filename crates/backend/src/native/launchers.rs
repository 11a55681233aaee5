//! The launcher that makes this server's sandboxes: started when first needed, and again when it is lost.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::Spec;
use ringfence_sandbox::launcher::{Launched, LauncherConfig, ZygoteStatus};
use ringfence_sandbox::{Error, ZygoteConfig};
use tokio::sync::Mutex;

use super::launcher::LauncherHandle;
use crate::instance::Opening;
use crate::native::launcher_sockets::LauncherSockets;
use ringfence_core::{Failure, Kind};

/// How often a launcher that warms up is asked whether it is warm.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

#[derive(Clone)]
pub struct Launchers(Arc<Inner>);

struct Inner {
    program: PathBuf,
    /// Where launchers are found by a next server; without one they end with this server.
    doors: Option<LauncherSockets>,
    lease: Duration,
    warmth: Option<ZygoteConfig>,
    current: Mutex<Current>,
}

enum Current {
    NotNeeded,
    Launcher(LauncherHandle),
    /// No more are started.
    Ended,
}

impl Launchers {
    pub fn new(
        program: PathBuf,
        doors: Option<LauncherSockets>,
        lease: Duration,
        warmth: Option<ZygoteConfig>,
    ) -> Self {
        Self(Arc::new(Inner { program, doors, lease, warmth, current: Mutex::new(Current::NotNeeded) }))
    }

    /// Makes a sandbox, and tells who keeps it.
    pub async fn launch(
        &self,
        spec: Spec,
        warm: bool,
        opening: Option<Arc<Opening>>,
    ) -> Result<(Launched, LauncherHandle), Failure> {
        let mut launcher = self.current().await?;
        let mut launched = launcher.launch(spec.clone(), warm, opening.clone()).await;
        if matches!(launched, Err(Error::LauncherLost | Error::Protocol(_))) {
            // It has been killed: another takes its place.
            self.forget(&launcher).await;
            launcher = self.current().await?;
            launched = launcher.launch(spec, warm, opening).await;
        }
        launched.map(|launched| (launched, launcher)).map_err(|error| not_made(&error))
    }

    /// Waits until sandboxes can be made warm; `false` if they cannot.
    pub async fn warm_up(&self) -> bool {
        if self.0.warmth.is_none() {
            return false;
        }
        loop {
            let Ok(launcher) = self.current().await else { return false };
            match launcher.warm_up().await {
                Ok(ZygoteStatus::Warm) => return true,
                Ok(ZygoteStatus::WarmingUp) => tokio::time::sleep(BETWEEN_LOOKS).await,
                Ok(ZygoteStatus::Unavailable) | Err(_) => return false,
            }
        }
    }

    /// Ends the launcher, and with it every sandbox, for good.
    pub async fn end(&self) {
        let last = std::mem::replace(&mut *self.0.current.lock().await, Current::Ended);
        if let Current::Launcher(launcher) = last {
            launcher.end().await;
        }
    }

    async fn current(&self) -> Result<LauncherHandle, Failure> {
        let mut current = self.0.current.lock().await;
        match &*current {
            Current::Launcher(launcher) => return Ok(launcher.clone()),
            Current::Ended => return Err(Failure::new(Kind::Busy, "the server is shutting down")),
            Current::NotNeeded => {}
        }
        let charter = LauncherConfig {
            listen: self.0.doors.as_ref().map(LauncherSockets::new_door),
            lease: self.0.lease,
            zygote: self.0.warmth.clone(),
        };
        let started = LauncherHandle::start(&self.0.program, charter).await.map_err(|error| {
            Failure::new(Kind::Connection, format!("the launcher of sandboxes cannot be started: {error}"))
                .hint("try again")
        })?;
        *current = Current::Launcher(started.clone());
        Ok(started)
    }

    async fn forget(&self, lost: &LauncherHandle) {
        let mut current = self.0.current.lock().await;
        if matches!(&*current, Current::Launcher(launcher) if launcher.is_same(lost)) {
            *current = Current::NotNeeded;
        }
    }
}

fn not_made(error: &Error) -> Failure {
    let mut message = format!("the sandbox could not be made: {error}");
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    error.hints().into_iter().fold(Failure::new(Kind::SandboxCreation, message), Failure::hint)
}
