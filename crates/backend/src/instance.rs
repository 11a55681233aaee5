//! A session's sandbox, as seen from asynchronous code.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Command, WORKSPACE};
use ringfence_sandbox::cgroup::MemoryGauge;
use ringfence_sandbox::launcher::{BackgroundStreams, InitialProcess, Launched};
use ringfence_sandbox::{Control, Enforcement, Error, Event, SignalTarget, pipe};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::time::{sleep, timeout};

use super::meter::Meter;
use super::processes::Processes;
use crate::kernel_socket::KernelSocket;
use crate::native::background_output::BackgroundOutput;
use crate::native::launcher::{LauncherHandle, Told};
use crate::native::launcher_sockets::address;

/// The sandbox. Dropped, it is killed.
pub struct Instance {
    control: Arc<Control>,
    /// The same socket once more, to be told when it has something to say.
    told: UnixStream,
    pidfd: Arc<OwnedFd>,
    pid: Pid,
    gauge: Option<Arc<MemoryGauge>>,
    pub enforcement: Enforcement,
    /// Its interpreter can be forked. Only once, and before anything of the guest's has run.
    is_warm: bool,
    launcher: LauncherHandle,
    environment: BTreeMap<String, String>,
    processes: Arc<Processes>,
    leftovers: BackgroundOutput,
    last_process: u32,
}

/// Each owner has numbers of its own for its processes, below those of managed ones.
const OWNER_SHIFT: u32 = 16;
const OWNERS: u32 = 0x3fff;

/// How a process begins.
enum Beginning {
    Fork,
    Exec(Vec<OsString>),
}

/// Far more than an init takes for an order.
const INIT_PATIENCE: Duration = Duration::from_secs(5);

/// When it has no room for a question.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// How long somebody waits for a launcher to have what a next server would need. It has been asked by then, and takes it
/// whenever it comes to it.
const KEEP_PATIENCE: Duration = Duration::from_secs(2);

/// Streams on their way to the launcher.
pub struct Kept(Told);

impl Kept {
    /// Waits until the launcher has them, unless it takes too long.
    pub async fn confirm(self) -> Result<(), String> {
        let Ok(kept) = timeout(KEEP_PATIENCE, self.0).await else { return Err("the launcher does not answer".into()) };
        kept.unwrap_or(Err(Error::LauncherLost)).map_err(|error| error.to_string())
    }
}

/// The process that a sandbox is to start with: its ends of all that it is given, and copies of the host's, which the
/// launcher keeps for a next server.
pub struct Opening {
    pub first: InitialProcess,
    theirs: [OwnedFd; InitialProcess::DESCRIPTORS],
    kept: [OwnedFd; 3],
}

/// Its number in a new sandbox.
const FIRST: u32 = 1;

impl Opening {
    /// Prepares it, with the host's ends: the process and its control channel.
    pub fn new(
        argv: Vec<OsString>,
        environment: BTreeMap<String, String>,
    ) -> std::io::Result<(Self, Process, KernelSocket)> {
        let ([stdin, stdout, stderr], [_, from_stdout, from_stderr]) = pipe::standard_streams()?;
        let (control, their_control) = KernelSocket::new()?;
        let kept = [control.as_fd(), from_stdout.as_fd(), from_stderr.as_fd()].map(|fd| fd.try_clone_to_owned());
        let [kept_control, kept_stdout, kept_stderr] = kept;
        let first =
            InitialProcess { process: FIRST, command: Command { argv, workdir: WORKSPACE.into() }, environment };
        let opening = Self {
            first,
            theirs: [stdin, stdout, stderr, their_control],
            kept: [kept_control?, kept_stdout?, kept_stderr?],
        };
        let (stdout, stderr) = (Receiver::from_owned_fd(from_stdout)?, Receiver::from_owned_fd(from_stderr)?);
        Ok((opening, Process { number: FIRST, stdout, stderr }, control))
    }

    /// In the order in which the launcher takes them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.theirs.iter().chain(&self.kept).map(AsFd::as_fd).collect()
    }
}

pub struct Killer(Arc<OwnedFd>);

impl Killer {
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// A process of the guest, with the host's ends of what it was given.
pub struct Process {
    pub number: u32,
    pub stdout: Receiver,
    pub stderr: Receiver,
}

impl Instance {
    pub fn new(
        launched: Launched,
        launcher: LauncherHandle,
        environment: BTreeMap<String, String>,
    ) -> std::io::Result<Self> {
        let pidfd = Arc::new(launched.pidfd);
        // Nobody else would end one that cannot be listened to.
        let told = listen(&launched.control).inspect_err(|_| Killer(Arc::clone(&pidfd)).kill())?;
        let control = Arc::new(launched.control);
        Ok(Self {
            processes: Processes::new(Arc::clone(&control), environment.clone()),
            control,
            told,
            pidfd,
            pid: launched.pid,
            gauge: launched.gauge.map(Arc::new),
            enforcement: launched.enforcement,
            is_warm: launched.is_warm,
            launcher,
            environment,
            leftovers: BackgroundOutput::default(),
            last_process: 0,
        })
    }

    /// Numbers processes from where no owner before has.
    pub fn count_from(&mut self, generation: u32) {
        self.last_process = generation.min(OWNERS) << OWNER_SHIFT;
        self.processes.count_from(self.last_process);
    }

    /// The sandbox has been started with a process, which may have been its one fork.
    pub fn count_first(&mut self) {
        (self.last_process, self.is_warm) = (FIRST, false);
    }

    /// How a next server finds it.
    pub fn address(&self) -> String {
        address(self.launcher.door(), self.pid)
    }

    /// Whether the sandbox has not ended.
    pub fn is_alive(&self) -> bool {
        is_alive(&self.pidfd)
    }

    pub fn gauge(&self) -> Option<Arc<MemoryGauge>> {
        self.gauge.clone()
    }

    /// By which others see what it uses.
    pub fn meter(&self, most_tasks: u32) -> Meter {
        let (pidfd, control) = (Arc::clone(&self.pidfd), Arc::clone(&self.control));
        Meter::new(self.pid, pidfd, self.gauge(), control, most_tasks)
    }

    /// Processes that were killed for want of memory.
    pub fn memory_kills(&self) -> u64 {
        self.gauge.as_ref().map_or(0, |gauge| gauge.kills())
    }

    /// Whether the whole sandbox was killed for its memory, where no cgroup keeps that limit.
    pub async fn is_breached(&self) -> bool {
        !self.enforcement.memory_by_cgroup && self.launcher.is_breached(self.pid).await
    }

    /// Ends every process in it, without waiting for that.
    pub fn kill(&self) {
        self.killer().kill();
    }

    /// By which its end is seen when it is dropped.
    pub fn witness(&self) -> Witness {
        Witness(Arc::clone(&self.pidfd))
    }

    /// By which it can be ended while it is lent.
    pub fn killer(&self) -> Killer {
        Killer(Arc::clone(&self.pidfd))
    }

    /// The init's number on the host.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Once it has ended, waits until its launcher has freed what it had: a launcher reaps before it answers.
    pub async fn freed(&self) {
        let _ = self.launcher.is_breached(self.pid).await;
    }

    /// Leaves an interpreter's streams with the launcher, from whom a next server gets them.
    pub fn keep(&self, process: &Process, control: &KernelSocket) -> Result<Kept, String> {
        let streams = [control.as_fd(), process.stdout.as_fd(), process.stderr.as_fd()];
        let owned = streams.into_iter().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>();
        let owned = owned.map_err(|error| error.to_string())?;
        self.launcher.keep(self.pid, process.number, owned).map(Kept).map_err(|error| error.to_string())
    }

    /// Orders to the init besides those of the session's own task.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Processes that outlive the calls, which the session's task does not look after.
    pub fn processes(&self) -> Arc<Processes> {
        Arc::clone(&self.processes)
    }

    /// The next thing that the sandbox has to say. Cancel-safe: nothing is read before it is there.
    pub async fn event(&self) -> Event {
        loop {
            if self.told.readable().await.is_err() {
                return Event::Lost;
            }
            if self.control.has_event() {
                match self.processes.hear(self.control.next_event()) {
                    Some(event) => return event,
                    None => continue,
                }
            }
            // Nothing yet: say so, to be told again.
            let nothing = || Err::<(), _>(std::io::ErrorKind::WouldBlock.into());
            let _ = self.told.try_io(Interest::READABLE, nothing);
        }
    }

    /// Forks the interpreter of a warm sandbox, if this is one, with `control` as descriptor 3.
    pub fn fork(&mut self, control: &OwnedFd) -> Option<Result<Process, String>> {
        let is_warm = std::mem::take(&mut self.is_warm);
        is_warm.then(|| self.begin(Beginning::Fork, Some(control)))
    }

    /// Starts a process with its output on pipes, its input at its end, and `control` as descriptor 3.
    pub fn spawn(&mut self, argv: Vec<OsString>, control: Option<&OwnedFd>) -> Result<Process, String> {
        self.is_warm = false;
        self.begin(Beginning::Exec(argv), control)
    }

    fn begin(&mut self, beginning: Beginning, control: Option<&OwnedFd>) -> Result<Process, String> {
        let streams = pipe::standard_streams().map_err(|errno| format!("no pipe: {errno}"))?;
        let (theirs, [_, from_stdout, from_stderr]) = streams;
        let descriptors: Vec<_> = theirs.iter().chain(control).map(AsFd::as_fd).collect();
        self.last_process += 1;
        let (process, environment) = (self.last_process, &self.environment);
        let ordered = match beginning {
            Beginning::Fork => self.control.fork_interpreter(process, Path::new(WORKSPACE), environment, &descriptors),
            Beginning::Exec(argv) => {
                let command = Command { argv, workdir: WORKSPACE.into() };
                self.control.spawn(process, &command, environment, &descriptors)
            }
        };
        ordered.map_err(|error| error.to_string())?;
        let receive = |fd: OwnedFd| Receiver::from_owned_fd(fd).map_err(|error| error.to_string());
        Ok(Process { number: self.last_process, stdout: receive(from_stdout)?, stderr: receive(from_stderr)? })
    }

    /// Waits until the init has done all that it was told; not for long: one that does not is stuck, since a guest can
    /// keep it from that, and the sandbox is then ended. Whether it was so.
    pub async fn kill_if_stuck(&self) -> bool {
        let is_stuck = timeout(INIT_PATIENCE, self.orders_carried_out()).await.is_err();
        if is_stuck {
            self.kill();
        }
        is_stuck
    }

    async fn orders_carried_out(&self) {
        loop {
            match self.control.request_barrier() {
                Ok(answer) => {
                    if let Ok(answer) = Receiver::from_owned_fd_unchecked(answer) {
                        let _ = answer.readable().await;
                    }
                    return;
                }
                Err(Error::SandboxBusy) => sleep(ASK_AGAIN).await,
                // It is gone, or cannot be asked for want of descriptors, which is not its fault.
                Err(_) => return,
            }
        }
    }

    pub fn signal(&self, process: u32, signal: Signal, target: SignalTarget) {
        // A sandbox that is gone says so by itself.
        let _ = self.control.signal(process, signal, target);
    }

    /// Lets go of a process that has ended; what it has left running can write on.
    pub async fn leave(&mut self, process: Process) {
        if let Some(leftover) = self.leftovers.take(process)
            && let Ok(kept) = self.launcher.keep_leftover(self.pid, leftover)
        {
            // Where it cannot be kept for a next owner, it goes on with this one all the same.
            let _ = Kept(kept).confirm().await;
        }
    }

    /// Goes on with what an owner before has left running.
    pub fn resume(&mut self, leftovers: Vec<BackgroundStreams>) {
        for leftover in leftovers {
            self.leftovers.resume(leftover);
        }
    }
}

/// Whether a process has not ended.
pub(crate) fn is_alive(pidfd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())) == Ok(0)
}

/// The socket of a sandbox once more, for the runtime.
fn listen(control: &Control) -> std::io::Result<UnixStream> {
    let told = std::os::unix::net::UnixStream::from(control.as_fd().try_clone_to_owned()?);
    told.set_nonblocking(true)?;
    UnixStream::from_std(told)
}

/// Sees whether a sandbox is gone.
pub struct Witness(Arc<OwnedFd>);

/// More than a kernel takes to free what a guest had.
const GONE_WITHIN: Duration = Duration::from_secs(5);

impl Witness {
    /// Waits until every process of the sandbox has ended; not for ever.
    pub async fn gone(self) {
        let pidfd = self.0.try_clone().and_then(Receiver::from_owned_fd_unchecked);
        if let Ok(pidfd) = pidfd {
            let _ = timeout(GONE_WITHIN, pidfd.readable()).await;
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
        self.processes.lose();
    }
}
