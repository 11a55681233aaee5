//! Takes over the sandboxes of a server that died, from the launchers that it left behind.
//!
//! A launcher has one client at a time, so a sandbox never has two owners.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_sandbox::launcher::{AdoptOutcome, Launcher};
use rustix::process::Pid;
use tokio::task::JoinHandle;

use super::launcher::LauncherHandle;
use super::launcher_sockets::{LauncherSockets, address, is_abandoned};
use crate::instance::Instance;
use crate::supervisor_identity::Identity;

/// Timeout for a launcher that may still be busy with requests of the server that died. The server does not serve
/// requests in the meantime.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a launcher whose sandboxes would end with its lease anyway.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What launchers of earlier servers have.
#[derive(Default)]
pub struct Orphans {
    pub instances: Vec<Orphan>,
    /// Sockets of launchers that another server uses, or that did not answer.
    pub held: Vec<PathBuf>,
}

/// A running sandbox without an owner.
pub struct Orphan {
    launcher: LauncherHandle,
    pid: Pid,
    pub address: String,
}

/// An orphan that is ours now.
pub struct Adopted {
    pub instance: Instance,
    /// The kernel's number and streams, if one was running.
    pub kernel: Option<(u32, Vec<OwnedFd>)>,
    /// The number of owners that the sandbox has had.
    pub generation: u32,
}

impl Orphan {
    /// Takes it over. If this fails the sandbox ends.
    pub async fn adopt(self, environment: BTreeMap<String, String>) -> Option<Adopted> {
        let adopted = self.launcher.take(self.pid).await.ok()?;
        let mut instance = Instance::new(adopted.launched, self.launcher, environment).ok()?;
        instance.count_from(adopted.generation);
        instance.resume(adopted.background_streams);
        Some(Adopted { instance, kernel: adopted.interpreter_streams, generation: adopted.generation })
    }
}

impl LauncherSockets {
    /// Connects to every launcher that has no server and is ours, and removes the sockets of dead ones.
    pub async fn find_orphans(&self, lease: Duration) -> Orphans {
        let mut orphans = Orphans::default();
        let (ours, others): (Vec<PathBuf>, _) = self.all().into_iter().partition(|socket| self.is_ours(socket));
        let (abandoned, held): (Vec<_>, _) = others.into_iter().partition(|socket| is_abandoned(socket));
        orphans.held = held;
        for socket in abandoned {
            let _ = std::fs::remove_file(&socket);
        }
        // Concurrently: a launcher that does not answer costs no more time than all together.
        let attempts: Vec<_> = ours.into_iter().map(|socket| (connect(socket.clone(), lease), socket)).collect();
        for (attempt, socket) in attempts {
            match attempt.await.unwrap_or(AdoptOutcome::Busy) {
                AdoptOutcome::Adopted(launcher, pids) => match LauncherHandle::adopted(launcher, socket.clone()) {
                    Ok(launcher) => orphans.instances.extend(pids.into_iter().map(|pid| Orphan {
                        launcher: launcher.clone(),
                        pid,
                        address: address(&socket, pid),
                    })),
                    Err(_) => orphans.held.push(socket),
                },
                AdoptOutcome::Busy => orphans.held.push(socket),
                AdoptOutcome::Gone => {
                    let _ = std::fs::remove_file(&socket);
                }
            }
        }
        orphans
    }
}

fn connect(socket: PathBuf, lease: Duration) -> JoinHandle<AdoptOutcome> {
    tokio::task::spawn_blocking(move || Launcher::adopt(&socket, lease, ADOPT_TIMEOUT))
}

/// Ends every sandbox that workers of one supervisor made and that has no owner, instead of waiting for its lease.
/// `directory` has the sockets of launchers, `mark` is that of the scope. Blocks.
pub fn end_orphans(directory: &Path, mark: Option<String>, keeper: Identity) {
    let sockets = LauncherSockets { directory: directory.to_owned(), mark, keeper: Some(keeper) };
    for socket in sockets.all().into_iter().filter(|socket| sockets.was_made_by_us(socket)) {
        if let AdoptOutcome::Adopted(launcher, _) = Launcher::adopt(&socket, Duration::ZERO, END_TIMEOUT) {
            launcher.end();
        }
    }
}
