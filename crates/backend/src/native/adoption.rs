//! Takes over the sandboxes of a server that died. Its launcher processes outlive it and own the sandboxes.
//!
//! A launcher accepts one client at a time, so two servers never own the same sandbox.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_core::EgressSockets;
use ringfence_sandbox::Control;
use ringfence_sandbox::launcher::{AdoptOutcome, BackgroundStreams, Launched, Launcher};
use rustix::process::Pid;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use super::NativeInstance;
use super::credential_record;
use super::init_process::InitProcess;
use super::launcher::LauncherHandle;
use super::launcher_sockets::{LauncherSockets, address, is_abandoned};
use crate::kernel_socket::KernelSocket;
use crate::process::Process;
use crate::supervisor_id::SupervisorId;

/// Timeout for a launcher that may still be busy with requests of the server that died. This server serves no requests
/// until then.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for ending a launcher. It is short, because the sandboxes of a launcher that does not respond end with its
/// lease.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The sandboxes of launchers of earlier servers.
#[derive(Default)]
pub(crate) struct Orphans {
    pub(crate) instances: Vec<Orphan>,
    /// Address prefixes of sandboxes that cannot be adopted, because another server owns them or their launcher did not
    /// respond in time.
    pub(crate) address_prefixes_in_use: Vec<String>,
}

/// A running sandbox without an owner.
pub(crate) struct Orphan {
    launcher: LauncherHandle,
    pid: Pid,
    pub(crate) address: String,
}

/// A sandbox that this server has taken over.
pub(crate) struct AdoptedSandbox {
    pub(crate) control: Control,
    pub(crate) instance: NativeInstance,
    pub(crate) is_warm: bool,
    pub(crate) egress: Option<EgressSockets>,
    pub(crate) interpreter: Option<(Process, KernelSocket)>,
    pub(crate) background_streams: Vec<BackgroundStreams>,
    /// The number of previous owners.
    pub(crate) previous_owners: u32,
}

impl Orphan {
    /// Returns the record of the sandbox's credentials, if the last server has stored one.
    pub(crate) async fn credentials(&self) -> Result<Option<Zeroizing<String>>, String> {
        let record = self.launcher.credentials(self.pid).await.map_err(|error| error.to_string())?;
        record.map(|record| credential_record::read(&record)).transpose().map_err(|error| error.to_string())
    }

    /// Takes the sandbox over. Returns `None` if the sandbox or its launcher has ended.
    pub(crate) async fn adopt(self) -> Option<AdoptedSandbox> {
        let adopted = self.launcher.take_over(self.pid).await.ok()?;
        let Launched { control, pid, pidfd, enforcement, is_warm, egress, memory_counters } = adopted.launched;
        Some(AdoptedSandbox {
            control,
            instance: NativeInstance {
                init: InitProcess::new(pid, pidfd, memory_counters),
                launcher: self.launcher,
                enforcement,
            },
            is_warm,
            egress,
            interpreter: adopted.interpreter_streams.and_then(|(number, streams)| open_streams(number, streams)),
            background_streams: adopted.background_streams,
            previous_owners: adopted.previous_owners,
        })
    }
}

/// Opens the socket and the streams of an interpreter. `streams` has the order in which they were stored: socket,
/// stdout, stderr.
fn open_streams(number: u32, streams: Vec<OwnedFd>) -> Option<(Process, KernelSocket)> {
    let mut streams = streams.into_iter();
    let socket = KernelSocket::from_socket(streams.next()?).ok()?;
    let mut receive = || Receiver::from_owned_fd(streams.next()?).ok();
    Some((Process { number, stdout: receive()?, stderr: receive()? }, socket))
}

impl LauncherSockets {
    /// Connects to every launcher that has no client and that this server may adopt. Removes the sockets of launchers
    /// that have ended.
    pub(super) async fn find_orphans(&self, lease: Duration) -> Orphans {
        let mut orphans = Orphans::default();
        let (ours, others): (Vec<PathBuf>, _) = self.all().into_iter().partition(|socket| self.is_ours(socket));
        let (abandoned, in_use): (Vec<_>, _) = others.into_iter().partition(|socket| is_abandoned(socket));
        let prefix = |socket: &Path| socket.to_string_lossy().into_owned();
        orphans.address_prefixes_in_use = in_use.iter().map(|socket| prefix(socket)).collect();
        for socket in abandoned {
            let _ = std::fs::remove_file(&socket);
        }
        // The attempts run concurrently, so that several unresponsive launchers cost one timeout, not one each.
        let attempts: Vec<_> = ours.into_iter().map(|socket| (connect(socket.clone(), lease), socket)).collect();
        for (attempt, socket) in attempts {
            match attempt.await.unwrap_or(AdoptOutcome::Busy) {
                AdoptOutcome::Adopted(launcher, pids) => match LauncherHandle::adopted(launcher, socket.clone()) {
                    Ok(launcher) => orphans.instances.extend(pids.into_iter().map(|pid| Orphan {
                        launcher: launcher.clone(),
                        pid,
                        address: address(&socket, pid),
                    })),
                    Err(_) => orphans.address_prefixes_in_use.push(prefix(&socket)),
                },
                AdoptOutcome::Busy => orphans.address_prefixes_in_use.push(prefix(&socket)),
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

/// Ends every sandbox that has no owner and was created by a server of this supervisor, instead of waiting for the end
/// of its lease. `directory` and `scope_tag` are those of [`crate::Persistence`]. This function blocks.
pub fn end_orphans(directory: &Path, scope_tag: Option<String>, supervisor: SupervisorId) {
    let sockets = LauncherSockets { directory: directory.to_owned(), scope_tag, supervisor: Some(supervisor) };
    for socket in sockets.all().into_iter().filter(|socket| sockets.is_of_same_server(socket)) {
        if let AdoptOutcome::Adopted(launcher, _) = Launcher::adopt(&socket, Duration::ZERO, END_TIMEOUT) {
            launcher.end();
        }
    }
}
