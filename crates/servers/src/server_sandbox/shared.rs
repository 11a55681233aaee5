//! Sandboxes that several servers share, because their entries have `shared = true`.
//!
//! Servers with the same limits, image and network rules share one sandbox; it ends with the last of them. They run with
//! the same uid and see each other's processes and files, so each must trust the others.
//!
//! A server is stopped without affecting the others: its process group is killed, and then every process whose
//! environment contains the server's marker variable, which descendants inherit even if they leave the group. A
//! descendant that removed the marker runs until the sandbox ends. A server for which this is not acceptable should not
//! be shared.

use ringfence_core::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ringfence_core::{Command, WORKSPACE};
use rustix::process::Signal;

use super::{ProcessExit, ProcessHandle, ServerSandbox};

/// The environment variable that marks the processes of a server; its value is the UUID of the entry.
pub(crate) const MARKER_VARIABLE: &str = "RINGFENCE_SERVER";

/// Shell script that kills marked processes until it finds none, and removes the server's directory.
const CLEANUP_SCRIPT: &str = r#"
for round in 1 2 3 4 5 6 7 8 9 10; do
    found=
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qxF "$1"; then
            kill -KILL "${process#/proc/}" 2>/dev/null && found=1
        fi
    done
    [ -n "$found" ] || break
done
rm -rf -- "$2"
"#;

/// Timeout for the cleanup script; it is not repeated.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A shared sandbox, as long as it has servers. The lock is held during a launch.
type Slot = Arc<tokio::sync::Mutex<Weak<ServerSandbox>>>;

/// The running shared sandboxes, by the settings that their servers have in common.
#[derive(Default)]
pub(crate) struct SharedSandboxes(Mutex<BTreeMap<String, Slot>>);

impl SharedSandboxes {
    /// Returns the sandbox with these settings. If there is none, `launch` makes one; concurrent callers wait for it.
    pub(crate) async fn get_or_launch<E>(
        &self,
        settings: String,
        launch: impl Future<Output = Result<ServerSandbox, E>>,
    ) -> Result<Arc<ServerSandbox>, E> {
        let slot = {
            let mut slots = self.0.lock();
            // Removes slots without servers and without waiting callers.
            slots.retain(|_, slot| {
                Arc::strong_count(slot) > 1 || slot.try_lock().map_or(true, |sandbox| sandbox.strong_count() > 0)
            });
            Arc::clone(slots.entry(settings).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some(sandbox) = slot.upgrade().filter(|sandbox| !sandbox.is_lost()) {
            return Ok(sandbox);
        }
        let sandbox = Arc::new(launch.await?);
        *slot = Arc::downgrade(&sandbox);
        Ok(sandbox)
    }
}

/// A server in a shared sandbox. It exists before its process, because files are copied in first. Dropping it kills its
/// processes in the background.
pub(crate) struct SharedServer {
    /// `None` after the server was stopped.
    sandbox: Option<Arc<ServerSandbox>>,
    process: Option<ProcessHandle>,
    uuid: String,
}

impl SharedServer {
    pub(crate) fn new(sandbox: Arc<ServerSandbox>, uuid: &str) -> Self {
        Self { sandbox: Some(sandbox), process: None, uuid: uuid.into() }
    }

    pub(crate) fn set_process(&mut self, process: ProcessHandle) {
        self.process = Some(process);
    }

    /// Returns the directory of a server's files inside the sandbox.
    pub(crate) fn directory(uuid: &str) -> String {
        format!("{WORKSPACE}/.mcp/{uuid}")
    }

    pub(crate) fn sandbox(&self) -> Option<&ServerSandbox> {
        self.sandbox.as_deref()
    }

    pub(crate) async fn wait_for_exit(&self) -> ProcessExit {
        match &self.process {
            Some(process) => process.wait_for_exit().await,
            None => ProcessExit::SandboxLost { is_out_of_memory: false },
        }
    }

    /// Stops the server's processes: SIGTERM first, SIGKILL after the grace period.
    pub(crate) async fn stop(mut self, grace_period: Duration) {
        let Some(sandbox) = self.sandbox.take() else { return };
        if let Some(process) = &self.process {
            sandbox.signal(process, Signal::TERM);
            let _ = tokio::time::timeout(grace_period, process.wait_for_exit()).await;
        }
        remove_server(sandbox, self.process.as_ref(), &self.uuid).await;
    }
}

impl Drop for SharedServer {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        if let Some(process) = &self.process {
            sandbox.signal(process, Signal::KILL);
        }
        let (process, uuid) = (self.process.take(), std::mem::take(&mut self.uuid));
        // Without a runtime the program is about to end, and the sandbox with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { remove_server(sandbox, process.as_ref(), &uuid).await });
        }
    }
}

/// Kills all processes of a server and removes its files. If it is the last server, ends the sandbox.
async fn remove_server(sandbox: Arc<ServerSandbox>, process: Option<&ProcessHandle>, uuid: &str) {
    if let Some(process) = process {
        sandbox.signal(process, Signal::KILL);
    }
    let sandbox = match Arc::try_unwrap(sandbox) {
        Ok(last) => return last.end().await,
        Err(shared) => shared,
    };
    let marker = format!("{MARKER_VARIABLE}={uuid}");
    let argv = ["sh", "-c", CLEANUP_SCRIPT, "sweep", &marker, &SharedServer::directory(uuid)].map(Into::into).to_vec();
    let environment = [("PATH".to_owned(), ringfence_core::PATH.to_owned())].into();
    if let Ok(cleanup) = sandbox.start(&Command { argv, workdir: "/".into() }, &environment) {
        let _ = tokio::time::timeout(CLEANUP_TIMEOUT, cleanup.handle().wait_for_exit()).await;
    }
    // The other servers may have been stopped meanwhile.
    if let Ok(last) = Arc::try_unwrap(sandbox) {
        last.end().await;
    }
}
