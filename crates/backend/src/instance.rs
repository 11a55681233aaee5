//! One instance, as seen from asynchronous code.
//!
//! Every backend has the same init in its instances, which is reached through [`Control`]: processes, signals, events
//! and files work alike. [`Platform`] is the part that differs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ringfence_core::sync::Mutex;
use ringfence_core::{Command, WORKSPACE};
use ringfence_sandbox::launcher::BackgroundStreams;
use ringfence_sandbox::{Control, EgressPortError, Error, Event, SignalTarget, pipe};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{sleep, timeout};

use crate::background_output::BackgroundOutput;
use crate::command_ends::{CommandEnd, CommandEnds};
use crate::egress_ports::EgressPorts;
use crate::files::InstanceFiles;
use crate::kernel_socket::KernelSocket;
use crate::limits::{Enforcement, Meter};
use crate::monitor::{EndWatch, KillHandle, Monitor};
use crate::native::NativeInstance;
use crate::process::{InterpreterProcess, PendingStore, PipedProcess, Process};
use crate::processes::Processes;

/// An instance. Dropping it kills every process in it, unless it was left to the next server.
pub struct Instance {
    platform: Platform,
    monitor: Monitor,
    control: Arc<Control>,
    /// A duplicate of the control socket, through which the runtime reports that it is readable.
    control_readiness: UnixStream,
    /// Whether its interpreter can be forked: only once, and before any other process of the guest has run.
    is_warm: AtomicBool,
    environment: BTreeMap<String, String>,
    processes: Arc<Processes>,
    command_ends: CommandEnds,
    background_output: Mutex<BackgroundOutput>,
    last_process: AtomicU32,
    /// Whether the sandbox continues after this value is dropped.
    is_left: AtomicBool,
}

/// The part of an instance that its backend implements.
pub(crate) enum Platform {
    Native(NativeInstance),
}

/// Each owner of an instance numbers its processes from here on, below the numbers of managed processes.
const OWNER_SHIFT: u32 = 16;
const MAX_OWNERS: u32 = 0x3fff;

/// Far more time than an init needs for a request.
const INIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause before a request is repeated for which the init's queue had no space.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

enum Start {
    Fork,
    Exec(Vec<OsString>),
}

impl Instance {
    /// Takes ownership of a running instance, which is killed if this fails.
    pub(crate) fn new(
        platform: Platform,
        control: Control,
        environment: BTreeMap<String, String>,
        is_warm: bool,
    ) -> std::io::Result<Self> {
        let Platform::Native(native) = &platform;
        let monitor = Monitor::Native(native.init().clone());
        let control_readiness = duplicate(&control).inspect_err(|_| monitor.kill())?;
        let control = Arc::new(control);
        Ok(Self {
            processes: Processes::new(Arc::clone(&control), environment.clone()),
            platform,
            monitor,
            control,
            control_readiness,
            is_warm: AtomicBool::new(is_warm),
            environment,
            command_ends: CommandEnds::default(),
            background_output: Mutex::default(),
            last_process: AtomicU32::new(0),
            is_left: AtomicBool::new(false),
        })
    }

    /// Numbers processes after this one, which was started together with the instance.
    pub(crate) fn number_processes_after(&mut self, process: u32) {
        *self.last_process.get_mut() = process;
    }

    /// Numbers processes from where no previous owner has.
    pub(crate) fn number_processes_of_owner(&mut self, previous_owners: u32) {
        let last = previous_owners.min(MAX_OWNERS) << OWNER_SHIFT;
        *self.last_process.get_mut() = last;
        self.processes.number_after(last);
    }

    /// Reads the output of processes that a previous owner's commands have left running.
    pub(crate) fn resume_background_output(&mut self, streams: Vec<BackgroundStreams>) {
        for streams in streams {
            self.background_output.lock().resume(streams);
        }
    }

    /// The name under which the next server finds the instance.
    pub fn address(&self) -> String {
        let Platform::Native(native) = &self.platform;
        native.address()
    }

    /// The name under which an operator finds the instance: the pid of its init.
    pub fn id(&self) -> String {
        let Platform::Native(native) = &self.platform;
        native.init().pid().as_raw_nonzero().to_string()
    }

    /// Whether the instance has not ended.
    pub fn is_alive(&self) -> bool {
        self.monitor.is_alive()
    }

    /// Returns the mechanism that enforces each limit.
    pub fn enforcement(&self) -> Enforcement {
        let Platform::Native(native) = &self.platform;
        native.enforcement().into()
    }

    /// Returns a handle that reads the usage of the instance while another task owns it.
    pub fn meter(&self, max_tasks: u32) -> Meter {
        Meter::new(self.monitor.clone(), Arc::clone(&self.control), max_tasks)
    }

    /// The memory that the instance uses; cheap. None on hosts where no cgroup counts it.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.monitor.memory_bytes()
    }

    /// The number of processes that were killed because the memory limit was exceeded.
    pub fn memory_kills(&self) -> u64 {
        self.monitor.memory_kills()
    }

    /// Whether the whole instance was killed for its memory. Always false where [`Self::memory_kills`] counts.
    pub async fn has_exceeded_memory(&self) -> bool {
        let Platform::Native(native) = &self.platform;
        native.has_exceeded_memory().await
    }

    /// Leaves the sandbox to the next server, as if this process were killed: it continues until its lease ends. Without
    /// [`crate::Persistence`] it ends with this process.
    pub fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
    }

    /// Kills every process in it, without waiting for their end.
    pub fn kill(&self) {
        self.monitor.kill();
    }

    /// Kills every process in it, and waits until the host has freed its resources.
    pub async fn stop(&self) {
        self.kill();
        self.end_watch().ended().await;
        let Platform::Native(native) = &self.platform;
        native.freed().await;
    }

    /// Returns a handle that kills the instance while another task uses it.
    pub fn kill_handle(&self) -> KillHandle {
        KillHandle::new(self.monitor.clone())
    }

    /// Returns a handle that waits for the end of the instance after it was dropped.
    pub fn end_watch(&self) -> EndWatch {
        EndWatch::new(self.monitor.clone())
    }

    /// Stores a record of the instance's credentials for the next server, in memory only. The guest has no access to it.
    pub fn store_credentials(&self, record: &str) -> Result<PendingStore, String> {
        let Platform::Native(native) = &self.platform;
        native.store_credentials(record)
    }

    /// Returns a handle on its files.
    pub fn files(&self) -> InstanceFiles {
        InstanceFiles::new(Arc::clone(&self.control))
    }

    /// Returns a handle that opens ports while another task owns the instance.
    pub fn egress_ports(&self) -> EgressPorts {
        let Platform::Native(native) = &self.platform;
        EgressPorts::native(Arc::clone(&self.control), native.egress_listeners())
    }

    /// See [`EgressPorts::open`].
    pub async fn open_egress_port(&self, port: u16) -> Result<TcpListener, EgressPortError> {
        self.egress_ports().open(port).await
    }

    /// Its long-lived processes, which are independent of the calls in it.
    pub fn processes(&self) -> Arc<Processes> {
        Arc::clone(&self.processes)
    }

    /// Waits for the next event. Cancel-safe: nothing is read before an event is complete. Only one task may wait. The
    /// events of managed processes and of commands are handled here, so a task must wait while there are any.
    pub async fn event(&self) -> Event {
        loop {
            if self.control_readiness.readable().await.is_err() {
                self.command_ends.report_loss();
                return Event::Lost;
            }
            if self.control.has_event() {
                let event = self.processes.handle_event(self.control.next_event());
                match event.and_then(|event| self.command_ends.handle_event(event)) {
                    Some(event) => return event,
                    None => continue,
                }
            }
            // Clears the readiness, so that the next wait is a real one.
            let not_ready = || Err::<(), _>(std::io::ErrorKind::WouldBlock.into());
            let _ = self.control_readiness.try_io(Interest::READABLE, not_ready);
        }
    }

    /// Starts an interpreter with a socket for code as descriptor 3: forks the warm one, if there is one, else executes
    /// `argv`. Its streams are stored for the next server meanwhile.
    pub fn start_interpreter(&self, argv: Vec<OsString>) -> Result<InterpreterProcess, String> {
        let (socket, guest_socket) = KernelSocket::new().map_err(|error| error.to_string())?;
        let is_forked = self.is_warm.swap(false, Ordering::Relaxed);
        let start = if is_forked { Start::Fork } else { Start::Exec(argv) };
        let process = self.start(self.next_number(), start, Some(&guest_socket))?;
        // While this process has the guest's end, it does not see that the interpreter closes it.
        drop(guest_socket);
        let Platform::Native(native) = &self.platform;
        let pending_store = Some(native.store_interpreter(&process, &socket)?);
        Ok(InterpreterProcess { process, socket, is_forked, pending_store })
    }

    /// Starts a process in the workspace, with its output on pipes and its standard input at its end. An event reports
    /// the result.
    pub fn spawn(&self, argv: Vec<OsString>) -> Result<Process, String> {
        self.is_warm.store(false, Ordering::Relaxed);
        self.start(self.next_number(), Start::Exec(argv), None)
    }

    /// Like [`Self::spawn`], but reports the end of the process to the caller and not as an event.
    pub fn spawn_command(&self, argv: Vec<OsString>) -> Result<(Process, CommandEnd), String> {
        self.is_warm.store(false, Ordering::Relaxed);
        let number = self.next_number();
        let end = self.command_ends.register(number);
        let process = self.start(number, Start::Exec(argv), None);
        Ok((process.inspect_err(|_| self.command_ends.forget(number))?, end))
    }

    fn next_number(&self) -> u32 {
        self.last_process.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn start(&self, number: u32, start: Start, socket: Option<&OwnedFd>) -> Result<Process, String> {
        let streams = pipe::standard_streams().map_err(|errno| format!("cannot create a pipe: {errno}"))?;
        let (guest_ends, [_, from_stdout, from_stderr]) = streams;
        let descriptors: Vec<_> = guest_ends.iter().chain(socket).map(AsFd::as_fd).collect();
        let environment = &self.environment;
        let sent = match start {
            Start::Fork => self.control.fork_interpreter(number, Path::new(WORKSPACE), environment, &descriptors),
            Start::Exec(argv) => {
                let command = Command { argv, workdir: WORKSPACE.into() };
                self.control.spawn(number, &command, environment, &descriptors)
            }
        };
        sent.map_err(|error| error.to_string())?;
        let receive = |fd: OwnedFd| Receiver::from_owned_fd(fd).map_err(|error| error.to_string());
        Ok(Process { number, stdout: receive(from_stdout)?, stderr: receive(from_stderr)? })
    }

    /// Starts a process with pipes for its three standard streams. An event reports the result.
    ///
    /// The caller chooses the number: an instance whose processes are started this way has no others.
    pub fn spawn_piped(
        &self,
        process: u32,
        command: &Command,
        environment: &BTreeMap<String, String>,
    ) -> Result<PipedProcess, String> {
        let streams = pipe::standard_streams().map_err(|errno| errno.to_string())?;
        let (guest_ends, [to_stdin, from_stdout, from_stderr]) = streams;
        let receive = |fd: OwnedFd| Receiver::from_owned_fd(fd).map_err(|error| error.to_string());
        let stdin = Sender::from_owned_fd(to_stdin).map_err(|error| error.to_string())?;
        let piped = PipedProcess { stdin, stdout: receive(from_stdout)?, stderr: receive(from_stderr)? };
        let descriptors = guest_ends.each_ref().map(AsFd::as_fd);
        self.control.spawn(process, command, environment, &descriptors).map_err(|error| error.to_string())?;
        Ok(piped)
    }

    /// Sends a signal to a process. If the instance has ended, an event says so.
    pub fn signal(&self, process: u32, signal: Signal, target: SignalTarget) {
        let _ = self.control.signal(process, signal, target);
    }

    /// Waits until the init has handled all earlier requests. A guest can prevent that; then the instance is killed
    /// after a timeout, and the result is true.
    pub async fn kill_if_stuck(&self) -> bool {
        let is_stuck = timeout(INIT_TIMEOUT, self.requests_handled()).await.is_err();
        if is_stuck {
            self.kill();
        }
        is_stuck
    }

    async fn requests_handled(&self) {
        loop {
            match self.control.request_barrier() {
                Ok(reply) => {
                    if let Ok(reply) = Receiver::from_owned_fd_unchecked(reply) {
                        let _ = reply.readable().await;
                    }
                    return;
                }
                Err(Error::SandboxBusy) => sleep(RETRY_INTERVAL).await,
                // The instance has ended, or this process has no free descriptors, which is not the guest's fault.
                Err(_) => return,
            }
        }
    }

    /// Releases the streams of a process that has ended. Processes that it left running can still write to them: the
    /// output is read and discarded, also by the next server.
    pub async fn release(&self, process: Process) {
        let Platform::Native(native) = &self.platform;
        let copies = self.background_output.lock().add(process);
        if let Some(copies) = copies
            && let Ok(pending) = native.store_background_streams(copies)
        {
            // Streams that cannot be stored are read as long as this server lives.
            let _ = pending.confirm().await;
        }
    }
}

/// Duplicates the control socket for the runtime.
fn duplicate(control: &Control) -> std::io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(control.as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

impl Drop for Instance {
    fn drop(&mut self) {
        if !*self.is_left.get_mut() {
            self.kill();
        }
        self.processes.end_all();
    }
}
