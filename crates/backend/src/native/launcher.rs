//! One launcher process, and the thread that speaks with it.

use ringfence_core::sync::Mutex;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_core::Spec;
use ringfence_sandbox::launcher::{Launcher, LauncherConfig};
use ringfence_sandbox::{Error, launcher};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use tokio::sync::{mpsc, oneshot};

use crate::instance::Opening;

/// The argument with which this program becomes a launcher.
pub const LAUNCHER_ROLE: &str = "launcher";

/// Requests that may wait for the launcher.
const QUEUED: usize = 4096;

/// How long a launcher may take to free everything.
const FAREWELL: Duration = Duration::from_secs(20);

type Question = Box<dyn FnOnce(&Launcher) + Send>;

/// Says when the launcher has heard something, and what came of it.
pub(crate) type Told = oneshot::Receiver<Result<(), Error>>;

/// A sandbox to make, and who waits for it.
struct Launch {
    spec: Box<Spec>,
    warm: bool,
    opening: Option<Arc<Opening>>,
    reply: oneshot::Sender<Result<Unclaimed, Error>>,
}

/// A sandbox on its way to whoever asked for it. Where nobody takes it, it ends.
struct Unclaimed(Option<launcher::Launched>);

impl Unclaimed {
    fn claim(mut self) -> Result<launcher::Launched, Error> {
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
    Launch(Launch),
    Ask(Question),
    /// Something urgent waits.
    Wake,
    End(oneshot::Sender<()>),
}

/// A handle on a launcher. When the last is gone without [`Self::end`], the launcher waits for another server.
#[derive(Clone)]
pub struct LauncherHandle {
    messages: mpsc::Sender<Message>,
    /// Goes before all that waits: each holds up an answer, and takes no time.
    urgent: Arc<Mutex<VecDeque<Question>>>,
    /// Where another server would find it.
    door: PathBuf,
}

impl LauncherHandle {
    /// Starts a launcher: `program` is ringfence itself, which becomes one by [`LAUNCHER_ROLE`].
    pub async fn start(program: &Path, charter: LauncherConfig) -> Result<Self, Error> {
        let (program, door) = (program.to_owned(), charter.listen.clone().unwrap_or_default());
        let started = tokio::task::spawn_blocking(move || {
            let (socket, process) = spawn(&program).map_err(|_| Error::LauncherLost)?;
            match Launcher::configure(socket, charter) {
                Ok(launcher) => Ok((launcher, process)),
                Err(error) => {
                    await_end(process);
                    Err(error)
                }
            }
        });
        let (launcher, process) = started.await.map_err(|_| Error::LauncherLost)??;
        Self::run(launcher, Some(process), door)
    }

    /// Takes one that another server has left behind.
    pub fn adopted(launcher: Launcher, door: PathBuf) -> Result<Self, Error> {
        Self::run(launcher, None, door)
    }

    fn run(launcher: Launcher, process: Option<Child>, door: PathBuf) -> Result<Self, Error> {
        let (messages, mut inbox) = mpsc::channel(QUEUED);
        let urgent: Arc<Mutex<VecDeque<Question>>> = Arc::default();
        let first = Arc::clone(&urgent);
        let (hand_over, handed_over) = std::sync::mpsc::sync_channel(1);
        // It ends with its last handle. Detached: nothing waits for it but through `end`.
        let begun = std::thread::Builder::new().spawn(move || {
            let Ok((launcher, process)): Result<(Launcher, Option<Child>), _> = handed_over.recv() else { return };
            let mut launches = Launches::default();
            while let Some(message) = launches.next_message(&launcher, &mut inbox) {
                if let Message::Launch(launch) = message {
                    launches.begin(&launcher, launch);
                    continue;
                }
                // Answers have the order of the questions.
                launches.finish_all(&launcher);
                while let Some(question) = next(&first) {
                    question(&launcher);
                }
                match message {
                    Message::Ask(question) => question(&launcher),
                    Message::Wake | Message::Launch(_) => {}
                    Message::End(done) => {
                        launcher.end();
                        if let Some(process) = process {
                            await_end(process);
                        }
                        let _ = done.send(());
                        return;
                    }
                }
            }
            // One that has died is not left a zombie; one that lives waits for another server.
            if let Some(mut process) = process {
                let _ = process.try_wait();
            }
        });
        if let Err(error) = begun {
            // One that was another's is left to whoever comes within its lease.
            if let Some(process) = process {
                launcher.end();
                await_end(process);
            }
            let source = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            return Err(Error::Setup { step: "start a thread".into(), source });
        }
        // It waits for this.
        let _ = hand_over.send((launcher, process));
        Ok(Self { messages, urgent, door })
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.messages.same_channel(&other.messages)
    }

    pub fn door(&self) -> &Path {
        &self.door
    }

    /// Makes a sandbox without a command of its own.
    pub async fn launch(
        &self,
        spec: Spec,
        warm: bool,
        opening: Option<Arc<Opening>>,
    ) -> Result<launcher::Launched, Error> {
        let (reply, answered) = oneshot::channel();
        let launch = Launch { spec: Box::new(spec), warm, opening, reply };
        self.messages.send(Message::Launch(launch)).await.map_err(|_| Error::LauncherLost)?;
        answered.await.map_err(|_| Error::LauncherLost)??.claim()
    }

    pub async fn warm_up(&self) -> Result<launcher::ZygoteStatus, Error> {
        self.ask(Launcher::warm_up).await
    }

    pub async fn take(&self, pid: Pid) -> Result<launcher::Adopted, Error> {
        self.ask(move |launcher| launcher.take_over(pid)).await
    }

    /// Whether a sandbox without a memory cgroup was killed for its memory.
    pub async fn is_breached(&self, pid: Pid) -> bool {
        self.ask(move |launcher| launcher.has_exceeded_memory(pid)).await.unwrap_or_default()
    }

    /// Leaves the streams of an interpreter with the launcher, for a next server.
    pub fn keep(&self, pid: Pid, process: u32, streams: Vec<OwnedFd>) -> Result<Told, Error> {
        self.tell(move |launcher| launcher.store_streams(pid, process, &streams))
    }

    /// Leaves the output of a command that has ended with the launcher, for a next server.
    pub fn keep_leftover(&self, pid: Pid, leftover: launcher::BackgroundStreams) -> Result<Told, Error> {
        self.tell(move |launcher| launcher.store_background_streams(pid, &leftover))
    }

    /// Before all that waits.
    fn tell(&self, what: impl FnOnce(&Launcher) -> Result<(), Error> + Send + 'static) -> Result<Told, Error> {
        let (reply, heard) = oneshot::channel();
        let question: Question = Box::new(move |launcher| drop(reply.send(what(launcher))));
        self.urgent.lock().push_back(question);
        // Where no more messages fit, one is on its way that wakes it as well.
        match self.messages.try_send(Message::Wake) {
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Error::LauncherLost),
            _ => Ok(heard),
        }
    }

    /// Ends the launcher, and with it every sandbox of it.
    pub async fn end(&self) {
        let (done, ended) = oneshot::channel();
        if self.messages.send(Message::End(done)).await.is_ok() {
            let _ = ended.await;
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Launcher) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answered) = oneshot::channel();
        let question: Question = Box::new(move |launcher| {
            let _ = reply.send(question(launcher));
        });
        self.messages.send(Message::Ask(question)).await.map_err(|_| Error::LauncherLost)?;
        answered.await.map_err(|_| Error::LauncherLost)?
    }
}

/// Sandboxes that the launcher has been asked for and has not given yet.
#[derive(Default)]
struct Launches(VecDeque<oneshot::Sender<Result<Unclaimed, Error>>>);

/// What the launcher is asked for at once. It makes some side by side; the others need not wait for this thread.
const LAUNCHES_AT_ONCE: usize = 4;

impl Launches {
    /// The next message. While sandboxes are on their way and nothing else is to be done, waits for those.
    fn next_message(&mut self, launcher: &Launcher, inbox: &mut mpsc::Receiver<Message>) -> Option<Message> {
        while !self.0.is_empty() {
            if self.0.len() < LAUNCHES_AT_ONCE
                && let Ok(message) = inbox.try_recv()
            {
                return Some(message);
            }
            self.finish_oldest(launcher);
        }
        inbox.blocking_recv()
    }

    fn begin(&mut self, launcher: &Launcher, launch: Launch) {
        let Launch { spec, warm, opening, reply } = launch;
        let asked = match &opening {
            Some(opening) => launcher.request_launch(spec, warm, Some((&opening.first, &opening.descriptors()))),
            None => launcher.request_launch(spec, warm, None),
        };
        match asked {
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

fn next(urgent: &Mutex<VecDeque<Question>>) -> Option<Question> {
    urgent.lock().pop_front()
}

fn spawn(program: &Path) -> std::io::Result<(OwnedFd, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    // It may outlive this process, so it must not hold the streams of this process open.
    let process = Command::new(program)
        .arg(LAUNCHER_ROLE)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((ours.into(), process))
}

fn await_end(mut process: Child) {
    let deadline = Instant::now() + FAREWELL;
    while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = process.kill();
    let _ = process.wait();
}
