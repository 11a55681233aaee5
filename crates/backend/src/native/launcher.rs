//! One launcher process, and the thread that sends requests to it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_core::Spec;
use ringfence_core::sync::Mutex;
use ringfence_sandbox::Error;
use ringfence_sandbox::launcher::{Adopted, BackgroundStreams, Launched, Launcher, LauncherConfig, ZygoteStatus};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use tokio::sync::{mpsc, oneshot};

use super::initial_interpreter::InitialInterpreter;
use crate::process::PendingStore;

/// First argument of the ringfence program in the role of a launcher.
pub const LAUNCHER_ROLE: &str = "launcher";

/// Maximum number of queued requests to a launcher.
const MAX_QUEUED_REQUESTS: usize = 4096;

/// Timeout for a launcher to end its sandboxes and free their resources. Then it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Time in which a launcher that was killed becomes a zombie that can be reaped.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of the checks whether a launcher has exited.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The variables that a launcher inherits. It gets no others, because they may contain values of secrets, and the launcher
/// outlives this process and is cloned for each init. The launcher does not use `RINGFENCE_STATE_DIR`: the variable shows
/// operators to which state directory it belongs.
const LAUNCHER_VARIABLES: [&str; 4] = ["HOME", "LD_LIBRARY_PATH", "PATH", "RINGFENCE_STATE_DIR"];

type LauncherCall = Box<dyn FnOnce(&Launcher) + Send>;

/// A request for a sandbox, with the channel for its result.
struct LaunchRequest {
    spec: Box<Spec>,
    warm: bool,
    initial: Option<Arc<InitialInterpreter>>,
    reply: oneshot::Sender<Result<Unclaimed, Error>>,
}

/// A new sandbox that its requester has not received yet. It is killed if the requester has stopped waiting.
struct Unclaimed(Option<Launched>);

impl Unclaimed {
    fn claim(mut self) -> Result<Launched, Error> {
        self.0.take().ok_or(Error::LauncherLost)
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(launched) = &self.0 {
            let _ = pidfd_send_signal(&launched.pidfd, Signal::KILL);
        }
    }
}

enum Message {
    Launch(LaunchRequest),
    Call(LauncherCall),
    /// Wakes the thread, because an urgent call is queued.
    Wake,
    End(oneshot::Sender<()>),
}

/// A handle of a launcher. If the last handle is dropped without [`Self::end`], the launcher waits for another server
/// to adopt it.
#[derive(Clone)]
pub(super) struct LauncherHandle {
    messages: mpsc::Sender<Message>,
    /// Calls that run before the queued messages. Each is short, and a response to a client waits for it.
    urgent: Arc<Mutex<VecDeque<LauncherCall>>>,
    /// The path of the socket through which another server can adopt the launcher. Empty if it has no such socket.
    socket: PathBuf,
}

impl LauncherHandle {
    /// Starts a launcher. `program` is ringfence itself.
    pub(super) async fn start(program: &Path, config: LauncherConfig) -> Result<Self, Error> {
        let (program, socket) = (program.to_owned(), config.listen.clone().unwrap_or_default());
        let started = tokio::task::spawn_blocking(move || {
            let (connection, process) = spawn(&program).map_err(|_| Error::LauncherLost)?;
            match Launcher::configure(connection, config) {
                Ok(launcher) => Ok((launcher, process)),
                Err(error) => {
                    wait_or_kill(process);
                    Err(error)
                }
            }
        });
        let (launcher, process) = started.await.map_err(|_| Error::LauncherLost)??;
        Self::run(launcher, Some(process), socket)
    }

    /// Returns a handle of a launcher that this server has adopted from a server that died.
    pub(super) fn adopted(launcher: Launcher, socket: PathBuf) -> Result<Self, Error> {
        Self::run(launcher, None, socket)
    }

    fn run(launcher: Launcher, process: Option<Child>, socket: PathBuf) -> Result<Self, Error> {
        let (messages, mut inbox) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let urgent: Arc<Mutex<VecDeque<LauncherCall>>> = Arc::default();
        let urgent_of_thread = Arc::clone(&urgent);
        let (hand_over, handed_over) = std::sync::mpsc::sync_channel(1);
        // The thread is detached: it ends when the last handle is dropped, and only `end` waits for it.
        let spawned = std::thread::Builder::new().spawn(move || {
            let Ok((launcher, process)): Result<(Launcher, Option<Child>), _> = handed_over.recv() else { return };
            let mut launches = Launches::default();
            while let Some(message) = launches.next_message(&launcher, &mut inbox) {
                if let Message::Launch(request) = message {
                    launches.begin(&launcher, request);
                    continue;
                }
                // The launcher replies in the order of the requests, so the replies to pending launches come first.
                launches.finish_all(&launcher);
                while let Some(call) = pop_front(&urgent_of_thread) {
                    call(&launcher);
                }
                match message {
                    Message::Call(call) => call(&launcher),
                    Message::Wake | Message::Launch(_) => {}
                    Message::End(done) => {
                        launcher.end();
                        if let Some(process) = process {
                            wait_or_kill(process);
                        }
                        let _ = done.send(());
                        return;
                    }
                }
            }
            if let Some(process) = process {
                reap_if_dead(process);
            }
        });
        if let Err(error) = spawned {
            // An adopted launcher is not ended: another server may adopt it until its lease expires.
            if let Some(process) = process {
                launcher.end();
                wait_or_kill(process);
            }
            let source = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            return Err(Error::Setup { step: "start a thread".into(), source });
        }
        let _ = hand_over.send((launcher, process));
        Ok(Self { messages, urgent, socket })
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.messages.same_channel(&other.messages)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Creates a sandbox without a command.
    pub(super) async fn launch(
        &self,
        spec: Spec,
        warm: bool,
        initial: Option<Arc<InitialInterpreter>>,
    ) -> Result<Launched, Error> {
        let (reply, result) = oneshot::channel();
        let request = LaunchRequest { spec: Box::new(spec), warm, initial, reply };
        self.messages.send(Message::Launch(request)).await.map_err(|_| Error::LauncherLost)?;
        result.await.map_err(|_| Error::LauncherLost)??.claim()
    }

    pub(super) async fn warm_up(&self) -> Result<ZygoteStatus, Error> {
        self.call(Launcher::warm_up).await
    }

    /// Takes over a sandbox of the launcher's previous client.
    pub(super) async fn take_over(&self, pid: Pid) -> Result<Adopted, Error> {
        self.call(move |launcher| launcher.take_over(pid)).await
    }

    /// Returns whether a sandbox without a memory cgroup was killed because it exceeded its memory limit.
    pub(super) async fn has_exceeded_memory(&self, pid: Pid) -> bool {
        self.call(move |launcher| launcher.has_exceeded_memory(pid)).await.unwrap_or_default()
    }

    /// Stores in the launcher, for the next server, the streams of an interpreter.
    pub(super) fn store_streams(&self, pid: Pid, process: u32, streams: Vec<OwnedFd>) -> Result<PendingStore, Error> {
        self.call_urgently(move |launcher| launcher.store_streams(pid, process, &streams))
    }

    /// Stores in the launcher, for the next server, the output streams of an ended command that its background
    /// processes still write to.
    pub(super) fn store_background_streams(&self, pid: Pid, streams: BackgroundStreams) -> Result<PendingStore, Error> {
        self.call_urgently(move |launcher| launcher.store_background_streams(pid, &streams))
    }

    /// Stores in the launcher, for the next server, a listener for transparent connections.
    pub(super) fn store_egress_listener(&self, pid: Pid, listener: OwnedFd) -> Result<PendingStore, Error> {
        self.call_urgently(move |launcher| launcher.store_egress_listener(pid, &listener))
    }

    /// Stores in the launcher, for the next server, the record of a sandbox's credentials.
    pub(super) fn store_credentials(&self, pid: Pid, record: OwnedFd) -> Result<PendingStore, Error> {
        self.call_urgently(move |launcher| launcher.store_credentials(pid, &record))
    }

    /// Returns the record of a sandbox's credentials that the launcher's previous client has stored.
    pub(super) async fn credentials(&self, pid: Pid) -> Result<Option<OwnedFd>, Error> {
        self.call(move |launcher| launcher.credentials(pid)).await
    }

    /// Calls the launcher before all queued messages are handled.
    fn call_urgently(
        &self,
        request: impl FnOnce(&Launcher) -> Result<(), Error> + Send + 'static,
    ) -> Result<PendingStore, Error> {
        let (reply, result) = oneshot::channel();
        let call: LauncherCall =
            Box::new(move |launcher| drop(reply.send(request(launcher).map_err(|error| error.to_string()))));
        self.urgent.lock().push_back(call);
        // `Wake` may be dropped if the queue is full: the queued messages wake the thread too.
        match self.messages.try_send(Message::Wake) {
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Error::LauncherLost),
            _ => Ok(PendingStore(result)),
        }
    }

    /// Ends the launcher and all of its sandboxes.
    pub(super) async fn end(&self) {
        let (done, ended) = oneshot::channel();
        if self.messages.send(Message::End(done)).await.is_ok() {
            let _ = ended.await;
        }
    }

    async fn call<T: Send + 'static>(
        &self,
        request: impl FnOnce(&Launcher) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, result) = oneshot::channel();
        let call: LauncherCall = Box::new(move |launcher| {
            let _ = reply.send(request(launcher));
        });
        self.messages.send(Message::Call(call)).await.map_err(|_| Error::LauncherLost)?;
        result.await.map_err(|_| Error::LauncherLost)?
    }
}

/// The pending launch requests: sent to the launcher, which has not replied yet. Oldest first.
#[derive(Default)]
struct Launches(VecDeque<oneshot::Sender<Result<Unclaimed, Error>>>);

/// Maximum number of pending launch requests. The launcher handles a few of them concurrently.
const MAX_CONCURRENT_LAUNCHES: usize = 4;

impl Launches {
    /// Returns the next message. While launches are pending and the queue is empty, receives the results of launches.
    fn next_message(&mut self, launcher: &Launcher, inbox: &mut mpsc::Receiver<Message>) -> Option<Message> {
        while !self.0.is_empty() {
            if self.0.len() < MAX_CONCURRENT_LAUNCHES
                && let Ok(message) = inbox.try_recv()
            {
                return Some(message);
            }
            self.finish_oldest(launcher);
        }
        inbox.blocking_recv()
    }

    fn begin(&mut self, launcher: &Launcher, request: LaunchRequest) {
        let LaunchRequest { spec, warm, initial, reply } = request;
        let sent = match &initial {
            Some(initial) => launcher.request_launch(spec, warm, Some((&initial.request, &initial.descriptors()))),
            None => launcher.request_launch(spec, warm, None),
        };
        match sent {
            Ok(()) => self.0.push_back(reply),
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    fn finish_oldest(&mut self, launcher: &Launcher) {
        if let Some(reply) = self.0.pop_front() {
            let _ = reply.send(launcher.next_launched().map(|launched| Unclaimed(Some(launched))));
        }
    }

    fn finish_all(&mut self, launcher: &Launcher) {
        while !self.0.is_empty() {
            self.finish_oldest(launcher);
        }
    }
}

fn pop_front(urgent: &Mutex<VecDeque<LauncherCall>>) -> Option<LauncherCall> {
    urgent.lock().pop_front()
}

fn spawn(program: &Path) -> std::io::Result<(OwnedFd, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    // The launcher may outlive this process, so it must not have this process's standard streams open.
    let process = Command::new(program)
        .arg(LAUNCHER_ROLE)
        .env_clear()
        .envs(LAUNCHER_VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((ours.into(), process))
}

/// Reaps a launcher that has died, or is about to: its sockets close before its process has exited. A running launcher
/// waits for another server, and is left alone.
fn reap_if_dead(mut process: Child) {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(EXIT_CHECK_INTERVAL);
    }
}

fn wait_or_kill(mut process: Child) {
    let deadline = Instant::now() + END_TIMEOUT;
    while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = process.kill();
    let _ = process.wait();
}
