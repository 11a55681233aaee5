//! The native backend: sandboxes made of Linux namespaces, created by a launcher process that outlives the server.

mod adoption;
mod credential_record;
mod current_launcher;
mod egress_listeners;
mod init_process;
mod initial_interpreter;
mod launcher;
mod launcher_sockets;
mod zygote;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringfence_core::{EgressSockets, Spec};
use ringfence_sandbox::launcher::{BackgroundStreams, Launched};
use ringfence_sandbox::{Control, Enforcement, Error};

use crate::config::BackendConfig;
use crate::error::CreateError;
use crate::kernel_socket::KernelSocket;
use crate::process::{InterpreterProcess, PendingStore, Process};
use current_launcher::CurrentLauncher;
use initial_interpreter::InitialInterpreter;
use launcher::LauncherHandle;
use launcher_sockets::{LauncherSockets, address};

pub use adoption::end_orphans;
pub(crate) use adoption::{Orphan, Orphans};
pub(crate) use egress_listeners::EgressListeners;
pub(crate) use init_process::InitProcess;
pub use launcher::LAUNCHER_ROLE;

/// Runs the launcher process of a server: serves requests from `socket` until the server ends it, or the lease expires.
/// The process must have one thread.
pub fn run_launcher(socket: OwnedFd) -> Result<(), Error> {
    ringfence_sandbox::launcher::serve(socket, zygote::LIBRARY)
}

/// The number of an interpreter that is started together with its sandbox.
const INITIAL_PROCESS: u32 = 1;

/// Creates sandboxes through a launcher process. Cheap to clone; clones share the launcher.
#[derive(Clone)]
pub struct Native {
    launcher: CurrentLauncher,
    /// The directory in which the next server finds launchers, and the lease of launchers that this server adopts.
    persistence: Option<Arc<crate::config::Persistence>>,
}

/// A sandbox of this server.
pub(crate) struct NativeInstance {
    init: InitProcess,
    launcher: LauncherHandle,
    enforcement: Enforcement,
}

/// A new sandbox, with the channel to its init.
pub(crate) struct NewSandbox {
    pub(crate) control: Control,
    pub(crate) instance: NativeInstance,
    /// Whether the sandbox has a warm interpreter to fork.
    pub(crate) is_warm: bool,
    /// If one was requested. A sandbox with one is not warm any more.
    pub(crate) interpreter: Option<InterpreterProcess>,
    pub(crate) egress: Option<EgressSockets>,
}

impl Native {
    pub(crate) fn new(config: BackendConfig) -> Self {
        let persistence = config.persistence.clone().map(Arc::new);
        Self { launcher: CurrentLauncher::new(config), persistence }
    }

    /// Creates a sandbox. `interpreter` is the command of an interpreter to start in it: where the sandbox is warm,
    /// it is forked instead.
    pub(crate) async fn create(
        &self,
        spec: Spec,
        warm: bool,
        interpreter: Option<(Vec<OsString>, BTreeMap<String, String>)>,
    ) -> Result<NewSandbox, CreateError> {
        let prepared = interpreter.map(|(argv, environment)| InitialInterpreter::new(argv, environment)).transpose()?;
        let (initial, process) = prepared.unzip();
        let (launched, launcher) = self.launcher.launch(spec, warm, initial.map(Arc::new)).await?;
        let Launched { control, pid, pidfd, enforcement, is_warm, egress, memory_counters } = launched;
        let interpreter = process.map(|(process, socket): (Process, KernelSocket)| InterpreterProcess {
            process,
            socket,
            is_forked: is_warm,
            pending_store: None,
        });
        Ok(NewSandbox {
            control,
            instance: NativeInstance { init: InitProcess::new(pid, pidfd, memory_counters), launcher, enforcement },
            is_warm: is_warm && interpreter.is_none(),
            interpreter,
            egress,
        })
    }

    /// Waits until sandboxes can be created warm; `false` if they cannot.
    pub(crate) async fn warm_up(&self) -> bool {
        self.launcher.warm_up().await
    }

    /// Lists the sandboxes of servers that died. See [`Orphans`].
    pub(crate) async fn find_orphans(&self) -> Orphans {
        match &self.persistence {
            Some(persistence) => LauncherSockets::from(&**persistence).find_orphans(persistence.lease).await,
            None => Orphans::default(),
        }
    }

    /// Ends the launcher and every sandbox of it. Later requests fail.
    pub(crate) async fn end(&self) {
        self.launcher.end().await;
    }
}

impl NativeInstance {
    pub(crate) fn init(&self) -> &InitProcess {
        &self.init
    }

    pub(crate) fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    /// The name under which the next server finds the sandbox.
    pub(crate) fn address(&self) -> String {
        address(self.launcher.socket(), self.init.pid())
    }

    /// Whether the sandbox was killed for its memory, on hosts where no cgroup enforces that limit.
    pub(crate) async fn has_exceeded_memory(&self) -> bool {
        !self.enforcement.memory_by_cgroup && self.launcher.has_exceeded_memory(self.init.pid()).await
    }

    /// Waits until the launcher has freed the resources of a sandbox that has ended: a launcher reaps before it
    /// responds to any request.
    pub(crate) async fn freed(&self) {
        let _ = self.launcher.has_exceeded_memory(self.init.pid()).await;
    }

    /// Gives copies of an interpreter's socket and streams to the launcher, from which the next server gets them.
    pub(crate) fn store_interpreter(&self, process: &Process, socket: &KernelSocket) -> Result<PendingStore, String> {
        let streams: [BorrowedFd<'_>; 3] = [socket.as_fd(), process.stdout.as_fd(), process.stderr.as_fd()];
        let owned = streams.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>();
        let owned = owned.map_err(|error| error.to_string())?;
        self.launcher.store_streams(self.init.pid(), process.number, owned).map_err(|error| error.to_string())
    }

    /// Gives the record of the sandbox's credentials to the launcher, from which the next server gets it.
    pub(crate) fn store_credentials(&self, record: &str) -> Result<PendingStore, String> {
        let record = credential_record::write(record).map_err(|error| error.to_string())?;
        self.launcher.store_credentials(self.init.pid(), record).map_err(|error| error.to_string())
    }

    /// Returns a handle that stores listeners for transparent connections.
    pub(crate) fn egress_listeners(&self) -> EgressListeners {
        EgressListeners::new(self.launcher.clone(), self.init.pid())
    }

    /// Gives the output of a command that has ended to the launcher, from which the next server gets it.
    pub(crate) fn store_background_streams(&self, streams: BackgroundStreams) -> Result<PendingStore, Error> {
        self.launcher.store_background_streams(self.init.pid(), streams)
    }
}
