//! The interpreter of a session: started when first needed, spoken to cell by cell, replaced when it dies.

mod settling;
mod starting;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{Event, ExitStatus, SignalTarget};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use super::Status;
use super::call::{Captured, Impatience, LAST_WORD, Outcome, Patience, Reason, SANDBOX_KILLED, code_of};
use super::host_calls::{Calls, HostCalls, Outbox};
use crate::adaptive_spin::{Attention, Experience};
use crate::session_task::DIED;
use ringfence_backend::KernelSocket;
use ringfence_backend::{Instance, Process};
use ringfence_core::Language;
use ringfence_guest::Display;
use ringfence_guest::KernelBuffer;
use ringfence_guest::protocol;
use ringfence_guest::{Done, Message};
pub(crate) use starting::Starting;

/// More than the slowest interpreter takes on the slowest host.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Told after `exec` in a shell.
const LEFT: &str = "the shell, or the program that took its place, has ended; its state is lost, files in /workspace are \
                    kept";

/// As much as the kernels take.
const MOST_REQUEST_BYTES: usize = 16 << 20;

/// A live interpreter.
pub(crate) struct Kernel {
    spoken: Language,
    process: Process,
    line: KernelSocket,
    inbox: KernelBuffer,
    /// Of itself, if that did not fit its socket.
    untaught: Vec<u8>,
    last_cell: u64,
    last_call: u64,
    /// What it was last told before a cell.
    prefaced: Option<Arc<str>>,
    /// It was another's before, and may be in the middle of something.
    is_foreign: bool,
    /// It has said so.
    is_ready: bool,
    /// How its cells are best waited for.
    experience: Experience,
}

/// What became of the kernel in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lives,
    /// It died or was killed; the sandbox lives on.
    Died,
    /// It ended before it was ready for anything. The notice says why.
    NeverReady,
    /// The whole sandbox is gone.
    SandboxLost,
}

impl Kernel {
    fn new(spoken: Language, process: Process, line: KernelSocket) -> Self {
        Self {
            spoken,
            process,
            line,
            inbox: KernelBuffer::default(),
            untaught: Vec::new(),
            last_cell: 0,
            last_call: 0,
            prefaced: None,
            is_foreign: false,
            is_ready: false,
            experience: Experience::default(),
        }
    }

    /// Starts the interpreter and waits until it is ready.
    pub(crate) async fn start(guest: &mut Instance, spoken: Language) -> Result<Self, String> {
        Starting::begin(guest, spoken)?.finish(guest).await
    }

    /// Takes over the interpreter of another server, by the streams that it left.
    pub(crate) fn resume(spoken: Language, process: u32, streams: Vec<OwnedFd>, generation: u32) -> Option<Self> {
        let mut streams = streams.into_iter();
        let line = KernelSocket::resume(streams.next()?).ok()?;
        let mut receive = || Receiver::from_owned_fd(streams.next()?).ok();
        let process = Process { number: process, stdout: receive()?, stderr: receive()? };
        Some(Self {
            spoken,
            process,
            line,
            inbox: KernelBuffer::default(),
            untaught: Vec::new(),
            // Answers to a server before are then not taken for answers to this one.
            last_cell: u64::from(generation) << 32,
            last_call: 0,
            prefaced: None,
            is_foreign: true,
            is_ready: true,
            experience: Experience::default(),
        })
    }

    /// Whether it has neither ended nor said anything since it was ready.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut watched = [PollFd::new(&self.line, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())) == Ok(0)
    }

    async fn await_ready(&mut self, guest: &Instance, captured: &mut Captured) -> Result<(), String> {
        // When it is taken for dead, and what it died of if nothing better is told by then.
        let mut lost: Option<(Instant, String)> = None;
        loop {
            let last_word = lost.as_ref().map_or_else(Instant::now, |(until, _)| *until);
            tokio::select! {
                biased;
                event = guest.event() => match event {
                    Event::StartFailed { process, errno } if process == self.process.number => {
                        return Err(format!("the interpreter cannot be executed: {errno}"));
                    }
                    Event::Ended { process, .. } if process == self.process.number => {
                        return Err("the interpreter ended at once".into());
                    }
                    Event::Lost => return Err("the sandbox is gone".into()),
                    _ => {}
                },
                sent = self.line.send_some(&self.untaught), if !self.untaught.is_empty() && lost.is_none() => {
                    match sent {
                        Ok(length) => drop(self.untaught.drain(..length)),
                        Err(error) => lost = Some((Instant::now() + LAST_WORD, error.to_string())),
                    }
                }
                received = self.line.receive(&mut self.inbox), if lost.is_none() => match received {
                    Ok(()) => {
                        let message = protocol::next_message(self.spoken, 0, &mut self.inbox)?;
                        if matches!(message, Some(Message::Ready)) {
                            self.is_ready = true;
                            return Ok(());
                        }
                    }
                    Err(error) => lost = Some((Instant::now() + LAST_WORD, error.to_string())),
                },
                () = sleep_until(last_word), if lost.is_some() => {
                    return Err(lost.map(|(_, why)| why).unwrap_or_default());
                }
                () = captured.take(&mut self.process) => {}
            }
        }
    }

    /// What is sent for a cell, unless it is more than its interpreter takes.
    fn request(&mut self, code: &str, preface: Option<&Arc<str>>) -> Option<Vec<u8>> {
        let cell = protocol::encode_cell(self.spoken, self.last_cell + 1, code);
        if cell.len() > MOST_REQUEST_BYTES {
            return None;
        }
        self.last_cell += 1;
        self.inbox.reset_ignored();
        let mut request = std::mem::take(&mut self.untaught);
        if let Some(preface) = preface.filter(|preface| self.prefaced.as_ref() != Some(preface)) {
            self.prefaced = Some(Arc::clone(preface));
            request.extend(protocol::encode_preface(self.spoken, preface));
        }
        request.extend(cell);
        Some(request)
    }

    /// Runs one cell.
    pub(crate) async fn execute(
        &mut self,
        guest: &Instance,
        code: &str,
        host: Option<HostCalls>,
        mut patience: Patience,
    ) -> (Outcome, Fate) {
        let Some(request) = self.request(code, host.as_ref().and_then(|host| host.preface.as_ref())) else {
            let why = "the code is too long for its interpreter: write it to a file with write_file and run that";
            return (Outcome::not_run(Status::Error, why.into()), Fate::Lives);
        };
        let mut attention = Attention::begin(&mut self.experience);
        // A kernel at rest takes it at once; if not, that is found out below.
        let sent = self.line.send_at_once(&request);
        let mut outbox = Outbox::of(request, sent);
        let mut calls = Calls::new(self.spoken, host);
        let mut captured = Captured::default();
        let mut display = Display::default();
        let mut lost: Option<Instant> = None;
        let unready = sleep(START_DEADLINE);
        tokio::pin!(unready);
        let mut why_unready = "the interpreter ended at once".to_owned();
        let (mut has_left, mut end_of_process) = (false, None);
        let ended = loop {
            tokio::select! {
                biased;
                event = guest.event() => match event {
                    Event::Ended { process, status } if process == self.process.number => {
                        end_of_process = Some(status);
                        break Err(Fate::Died);
                    }
                    Event::StartFailed { process, errno } if process == self.process.number => {
                        why_unready = format!("the interpreter cannot be executed: {errno}");
                        break Err(Fate::Died);
                    }
                    Event::Lost => break Err(Fate::SandboxLost),
                    _ => {}
                },
                sent = self.line.send_some(outbox.front()), if !outbox.is_empty() && lost.is_none() => match sent {
                    Ok(length) => outbox.advance(length),
                    Err(_) => lost = Some(self.give_up(guest)),
                },
                (number, answer) = calls.answer() => outbox.answer(self.spoken, number, answer),
                // Its end may have been told already, to somebody who did not wait for it.
                () = sleep_until(lost.unwrap_or_else(Instant::now)), if lost.is_some() => {
                    break Err(if guest.kill_if_stuck().await { Fate::SandboxLost } else { Fate::Died });
                }
                // Before it is ready, an interrupt would end it.
                impatience = patience.lose(), if self.is_ready => {
                    calls.give_up();
                    match impatience {
                        Impatience::Interrupt(before) => self.interrupt(guest, before),
                        Impatience::Kill => lost = lost.or_else(|| Some(self.give_up(guest))),
                    }
                }
                () = &mut unready, if !self.is_ready && lost.is_none() => {
                    why_unready = "it was not ready in time".into();
                    lost = Some(self.give_up(guest));
                }
                received = self.line.receive(&mut self.inbox), if lost.is_none() && !has_left && !outbox.is_full() => {
                    // A shell that is told to `exec` hangs up, and what has taken its place runs to its end.
                    has_left = received.is_err() && self.spoken == Language::Bash;
                    if has_left {
                        continue;
                    }
                    let mut heard = Heard { display: &mut display, calls: &mut calls, outbox: &mut outbox };
                    match received.map_err(|error| error.to_string()).and_then(|()| self.take_messages(&mut heard)) {
                        Ok(Some(done)) => break Ok(done),
                        // It may never fall silent: others have their turn in between.
                        Ok(None) => yield_now().await,
                        Err(_) => lost = Some(self.give_up(guest)),
                    }
                }
                () = captured.take(&mut self.process) => {}
                () = attention.hold(|| self.line.has_word()),
                    if attention.is_awake() && lost.is_none() && !has_left && !outbox.is_full() => {}
            }
        };
        attention.end(&mut self.experience);
        let ended = match ended {
            Ok(done) if patience.reason.is_some() => {
                self.let_interrupts_pass(guest, &mut captured).await.map(|()| done).map_err(|_| Fate::Died)
            }
            ended => ended,
        };
        captured.drain(&mut self.process);
        let (stdout, stderr) = captured.finish();
        let open_calls = calls.end();
        let exit_code = end_of_process.map(code_of);
        let outcome =
            Outcome { exit_code, stdout, stderr, display: display.items, open_calls, ..Outcome::new(Status::Killed) };
        let has_exited = matches!(end_of_process, Some(ExitStatus::Exited(_)));
        let ended_by_itself = has_exited || patience.reason.is_some();
        // One that ends at once may be heard of before it is seen to have hung up.
        has_left |= self.spoken == Language::Bash && has_exited && patience.reason.is_none();
        match ended {
            Ok(done) => (complete(outcome, done, patience.reason), Fate::Lives),
            Err(Fate::Died) if !self.is_ready => {
                let said = String::from_utf8_lossy(&outcome.stderr.head);
                let why = format!("{why_unready} {}", said.trim()).trim().to_owned();
                (Outcome { notices: vec![why], ..outcome }, Fate::NeverReady)
            }
            Err(Fate::Died) if has_left && ended_by_itself && !patience.is_lost() => {
                let status = patience.reason.map_or(Status::of_exit(exit_code), Reason::status);
                (Outcome { status, notices: vec![LEFT.into()], ..outcome }, Fate::Died)
            }
            Err(fate) => (Outcome { notices: vec![obituary(fate, patience.reason)], ..outcome }, fate),
        }
    }

    /// Kills an interpreter that cannot be spoken to any more; its end is reported as any other's, or else it is taken
    /// for dead at the time that is given back.
    fn give_up(&self, guest: &Instance) -> Instant {
        guest.signal(self.process.number, Signal::KILL, SignalTarget::ProcessTree);
        Instant::now() + LAST_WORD
    }

    /// Interrupts what runs, after so many attempts. At first the interpreter alone, which knows what to do about what it
    /// has started, and what an earlier cell has left running goes on; a shell waits for what it runs. Then whatever
    /// the interpreter may be waiting for.
    fn interrupt(&self, guest: &Instance, before: usize) {
        let target = match (before, self.spoken) {
            (0, Language::Python | Language::Node) => SignalTarget::Process,
            (0, Language::Bash) | (1, _) => SignalTarget::ProcessGroup,
            _ => SignalTarget::ProcessTree,
        };
        guest.signal(self.process.number, Signal::INT, target);
    }

    /// Whether this says that it has ended.
    pub(crate) fn is_ended_by(&self, event: Event) -> bool {
        matches!(event, Event::Ended { process, .. } if process == self.process.number)
    }

    fn take_messages(&mut self, heard: &mut Heard<'_>) -> Result<Option<Done>, String> {
        while let Some(message) = protocol::next_message(self.spoken, self.last_cell, &mut self.inbox)? {
            match message {
                Message::Display(items) if !heard.display.is_full() => heard.display.add(items),
                Message::Done(done) => return Ok(Some(done)),
                Message::Ready if !self.is_ready => self.is_ready = true,
                Message::Call(call) if call.cell != self.last_cell => {
                    self.inbox.count_ignored()?;
                    heard.calls.forged("a call of another piece of code than the one that runs");
                }
                Message::Call(call) => heard.calls.take(call, &mut self.last_call, heard.outbox),
                // Those that are answered or given up already may be cancelled too.
                Message::Cancel(number) if heard.calls.withdraw(number) || number <= self.last_call => {}
                Message::Display(_) | Message::Ready | Message::Cancel(_) => self.inbox.count_ignored()?,
            }
        }
        Ok(None)
    }
}

/// What came of a cell, with what its kernel says of it.
fn complete(outcome: Outcome, done: Done, reason: Option<Reason>) -> Outcome {
    let Done { is_interrupted, result, error, exit_code, is_truncated: is_cut } = done;
    let status = match reason {
        // Also where the code went on after its interrupt: its time was up.
        Some(reason) => reason.status(),
        None if is_interrupted || error.is_some() || exit_code.is_some_and(|code| code != 0) => Status::Error,
        None => Status::Ok,
    };
    Outcome { status, exit_code, result, error, is_cut, ..outcome }
}

/// Why a cell has no end of its own.
fn obituary(fate: Fate, reason: Option<Reason>) -> String {
    let why = match (fate, reason) {
        (Fate::SandboxLost, _) => return SANDBOX_KILLED.into(),
        (_, Some(Reason::Timeout)) => "its time was up",
        (_, Some(Reason::Cancelled)) => "it was cancelled",
        (_, None) => return DIED.into(),
    };
    format!(
        "{why}, but it did not stop when interrupted and was killed; the interpreter's state is lost, files in \
         /workspace are kept"
    )
}

/// Where the messages of a kernel go.
struct Heard<'a> {
    display: &'a mut Display,
    calls: &'a mut Calls,
    outbox: &'a mut Outbox,
}
