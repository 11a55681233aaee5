//! The kernel driver: starts the interpreter of a session on first use, runs cells in it, and replaces it when it ends.
//!
//! A cell is the code of one call. All data from the interpreter is untrusted. `ringfence_guest::protocol` defines the
//! frames.

mod adaptive_spin;
mod resynchronize;
mod starting;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ringfence_backend::{Event, ExitStatus, Instance, KernelSocket, Process, SignalTarget};
use ringfence_core::Language;
use ringfence_guest::{Display, Done, KernelBuffer, Message, protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use crate::api::Status;
use crate::calls::{
    CallDeadline, Code, DeadlineStep, EarlyEnd, KILL_TIMEOUT, Outcome, SANDBOX_KILLED, StateAfterCall, exit_code,
};
use crate::host_calls::{HostCalls, OpenCalls, Outbox};
use crate::outputs::ProcessCapture;
use adaptive_spin::{CellTimes, Spin};
pub(crate) use starting::Starting;

/// Maximum time until an interpreter is ready. The slowest interpreter on the slowest host needs less.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The notice after an interpreter has ended.
pub(crate) const INTERPRETER_DIED: &str = "the interpreter died; its state is lost, files in /workspace are kept";

/// Pause between two reads of output while no cell runs.
const BACKGROUND_READ_INTERVAL: Duration = Duration::from_millis(50);

const CODE_TOO_LONG: &str = "the code is too long for its interpreter: write it to a file with write_file and run that";

/// The notice after a bash cell has replaced the shell with `exec`.
const SHELL_REPLACED: &str =
    "the shell, or the program that replaced it by `exec`, has ended; its state is lost, files in /workspace are kept";

/// Maximum size of a cell that the kernels accept.
const MAX_REQUEST_BYTES: usize = 16 << 20;

/// A running interpreter.
pub(crate) struct Kernel {
    language: Language,
    process: Process,
    socket: KernelSocket,
    inbox: KernelBuffer,
    /// The part of the kernel program's source that did not fit into its socket and is not sent yet.
    unsent_kernel_code: Vec<u8>,
    last_cell: u64,
    last_host_call: u64,
    /// The preface that was sent last.
    sent_preface: Option<Arc<str>>,
    /// Whether this kernel was adopted from another server, which may have died while a cell ran.
    is_adopted: bool,
    /// Whether the kernel has sent `ready`.
    is_ready: bool,
    /// The time of `ready`, if it arrived after the first cell was sent.
    ready_at: Option<Instant>,
    cell_times: CellTimes,
    /// Output that arrived while no cell ran, of background tasks and processes. The next call reports it.
    background: ProcessCapture,
}

impl Kernel {
    fn new(language: Language, process: Process, socket: KernelSocket) -> Self {
        Self {
            language,
            process,
            socket,
            inbox: KernelBuffer::default(),
            unsent_kernel_code: Vec::new(),
            last_cell: 0,
            last_host_call: 0,
            sent_preface: None,
            is_adopted: false,
            is_ready: false,
            ready_at: None,
            cell_times: CellTimes::default(),
            background: ProcessCapture::default(),
        }
    }

    /// Starts the interpreter and waits until it is ready.
    pub(crate) async fn start(instance: &Instance, language: Language) -> Result<Self, String> {
        Starting::begin(instance, language)?.finish(instance).await
    }

    /// Takes over the interpreter of another server.
    pub(crate) fn adopt(language: Language, (process, socket): (Process, KernelSocket), previous_owners: u32) -> Self {
        Self {
            // Each server numbers its cells in a separate range, so late results of a previous server's cells are
            // ignored.
            last_cell: u64::from(previous_owners) << 32,
            is_adopted: true,
            is_ready: true,
            ..Self::new(language, process, socket)
        }
    }

    /// Returns whether the kernel has neither closed its socket nor sent unread input since it was ready.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())) == Ok(0)
    }

    /// Captures the output that arrives while no cell runs. Cancel-safe.
    pub(crate) async fn capture_background(&mut self) -> Infallible {
        loop {
            self.background.read(&mut self.process).await;
            // A guest that writes without end is blocked most of the time, so it does not load the host.
            sleep(BACKGROUND_READ_INTERVAL).await;
        }
    }

    async fn wait_until_ready(&mut self, instance: &Instance, capture: &mut ProcessCapture) -> Result<(), String> {
        // Set after an error of the socket: until this time an event may report the cause; then the error is returned.
        let mut socket_error: Option<(Instant, String)> = None;
        loop {
            let give_up_at = socket_error.as_ref().map_or_else(Instant::now, |(until, _)| *until);
            tokio::select! {
                biased;
                event = instance.event() => match event {
                    Event::StartFailed { process, errno } if process == self.process.number => {
                        return Err(format!("the interpreter cannot be executed: {errno}"));
                    }
                    Event::Ended { process, .. } if process == self.process.number => {
                        return Err("the interpreter ended immediately".into());
                    }
                    Event::Lost => return Err("the sandbox has ended".into()),
                    _ => {}
                },
                sent = self.socket.send_some(&self.unsent_kernel_code),
                    if !self.unsent_kernel_code.is_empty() && socket_error.is_none() =>
                {
                    match sent {
                        Ok(length) => drop(self.unsent_kernel_code.drain(..length)),
                        Err(error) => socket_error = Some((Instant::now() + KILL_TIMEOUT, error.to_string())),
                    }
                }
                received = self.socket.receive(&mut self.inbox), if socket_error.is_none() => match received {
                    Ok(()) => {
                        let message = protocol::next_message(self.language, 0, &mut self.inbox)?;
                        if matches!(message, Some(Message::Ready)) {
                            self.is_ready = true;
                            return Ok(());
                        }
                    }
                    Err(error) => socket_error = Some((Instant::now() + KILL_TIMEOUT, error.to_string())),
                },
                () = sleep_until(give_up_at), if socket_error.is_some() => {
                    return Err(socket_error.map(|(_, error)| error).unwrap_or_default());
                }
                () = capture.read(&mut self.process) => {}
            }
        }
    }

    /// Encodes a cell, after all bytes that must precede it. Returns `None` if the cell exceeds [`MAX_REQUEST_BYTES`].
    fn encode_request(&mut self, code: &Code) -> Option<Vec<u8>> {
        let encode = if code.rich_html { protocol::encode_rich_cell } else { protocol::encode_cell };
        let cell = encode(self.language, self.last_cell + 1, &code.text);
        if cell.len() > MAX_REQUEST_BYTES {
            return None;
        }
        self.last_cell += 1;
        self.inbox.reset_ignored();
        let mut request = std::mem::take(&mut self.unsent_kernel_code);
        let preface = code.host.as_ref().and_then(|host| host.preface.as_ref());
        if let Some(preface) = preface.filter(|preface| self.sent_preface.as_ref() != Some(preface)) {
            self.sent_preface = Some(Arc::clone(preface));
            request.extend(protocol::encode_preface(self.language, preface));
        }
        request.extend(cell);
        Some(request)
    }

    /// Imports modules before a session uses the interpreter, so that its first cell does not wait for them. Those that
    /// cannot be imported are left out. Returns whether the interpreter can still be used.
    pub(crate) async fn preload(&mut self, instance: &Instance, modules: &[String], deadline: CallDeadline) -> bool {
        self.last_cell += 1;
        let mut request = std::mem::take(&mut self.unsent_kernel_code);
        request.extend(protocol::encode_preload(self.last_cell, modules));
        let (outcome, state_after) = self.run(instance, request, None, deadline).await;
        outcome.status == Status::Ok && state_after == StateAfterCall::Alive
    }

    /// Runs one cell.
    pub(crate) async fn execute(
        &mut self,
        instance: &Instance,
        code: Code,
        deadline: CallDeadline,
    ) -> (Outcome, StateAfterCall) {
        match self.encode_request(&code) {
            Some(request) => self.run(instance, request, code.host, deadline).await,
            None => (Outcome::not_run(Status::Error, CODE_TOO_LONG.into()), StateAfterCall::Alive),
        }
    }

    /// Sends a request and waits for its `done`.
    async fn run(
        &mut self,
        instance: &Instance,
        request: Vec<u8>,
        host: Option<HostCalls>,
        mut deadline: CallDeadline,
    ) -> (Outcome, StateAfterCall) {
        let mut spin = Spin::begin(&mut self.cell_times);
        // An idle kernel receives the request immediately. The loop below handles errors of the socket.
        let sent = self.socket.try_send(&request);
        let mut outbox = Outbox::new(request, sent);
        let mut calls = OpenCalls::new(self.language, host);
        let mut capture = std::mem::take(&mut self.background);
        let mut display = Display::default();
        let started = Instant::now();
        // Set when the interpreter was killed: the time until which to wait for the event about its end.
        let mut killed_until: Option<Instant> = None;
        let mut start_timeout = std::pin::pin!(sleep(START_TIMEOUT));
        let mut start_error = "the interpreter ended immediately".to_owned();
        let (mut has_closed_socket, mut exit_status) = (false, None);
        let ended = loop {
            tokio::select! {
                biased;
                event = instance.event() => match event {
                    Event::Ended { process, status } if process == self.process.number => {
                        exit_status = Some(status);
                        break Err(StateAfterCall::InterpreterEnded);
                    }
                    Event::StartFailed { process, errno } if process == self.process.number => {
                        start_error = format!("the interpreter cannot be executed: {errno}");
                        break Err(StateAfterCall::InterpreterEnded);
                    }
                    Event::Lost => break Err(StateAfterCall::SandboxLost),
                    _ => {}
                },
                sent = self.socket.send_some(outbox.front()), if !outbox.is_empty() && killed_until.is_none() => {
                    match sent {
                        Ok(length) => outbox.advance(length),
                        Err(_) => killed_until = Some(self.kill(instance)),
                    }
                }
                (number, response) = calls.next_response() => outbox.add_response(self.language, number, response),
                // No event arrives if an earlier call has already consumed the one about the interpreter's end.
                () = sleep_until(killed_until.unwrap_or_else(Instant::now)), if killed_until.is_some() => {
                    let is_lost = instance.kill_if_stuck().await;
                    break Err(if is_lost { StateAfterCall::SandboxLost } else { StateAfterCall::InterpreterEnded });
                }
                // SIGINT would kill an interpreter that is not ready.
                step = deadline.next_step(), if self.is_ready => {
                    calls.cancel_all();
                    match step {
                        DeadlineStep::Interrupt(previous) => self.interrupt(instance, previous),
                        DeadlineStep::Kill => killed_until = killed_until.or_else(|| Some(self.kill(instance))),
                    }
                }
                () = &mut start_timeout, if !self.is_ready && killed_until.is_none() => {
                    start_error = "the interpreter was not ready in time".into();
                    killed_until = Some(self.kill(instance));
                }
                received = self.socket.receive(&mut self.inbox),
                    if killed_until.is_none() && !has_closed_socket && !outbox.is_full() =>
                {
                    // `exec` closes the socket of a shell. The program that replaces the shell runs until it exits.
                    has_closed_socket = received.is_err() && self.language == Language::Bash;
                    if has_closed_socket {
                        continue;
                    }
                    let mut cell = CellMessages { display: &mut display, calls: &mut calls, outbox: &mut outbox };
                    let received = received.map_err(|error| error.to_string());
                    match received.and_then(|()| self.handle_messages(&mut cell)) {
                        Ok(Some(done)) => break Ok(done),
                        // An interpreter may send without end, so other tasks must get a chance to run.
                        Ok(None) => yield_now().await,
                        Err(_) => killed_until = Some(self.kill(instance)),
                    }
                }
                () = capture.read(&mut self.process) => {}
                () = spin.wait(|| self.socket.has_input()),
                    if spin.is_active() && killed_until.is_none() && !has_closed_socket && !outbox.is_full() => {}
            }
        };
        spin.end(&mut self.cell_times);
        let duration = self.time_since(started);
        let ended = match ended {
            Ok(done) if deadline.reason.is_some() => {
                let settled = self.wait_for_late_interrupts(instance, &mut capture).await;
                settled.map(|()| done).map_err(|_| StateAfterCall::InterpreterEnded)
            }
            ended => ended,
        };
        capture.drain(&mut self.process);
        let (output, open_calls) = (capture.finish(), calls.finish());
        let exit_code = exit_status.map(exit_code);
        let outcome =
            Outcome { exit_code, display: display.items, open_calls, duration, ..Outcome::new(Status::Killed) }
                .with_output(output);
        let has_exited = matches!(exit_status, Some(ExitStatus::Exited(_)));
        // After `exec` of a short program, the event about its exit may arrive before the end of file on the socket.
        has_closed_socket |= self.language == Language::Bash && has_exited && deadline.reason.is_none();
        let is_shell_replaced =
            has_closed_socket && (has_exited || deadline.reason.is_some()) && !deadline.has_killed();
        match ended {
            Ok(done) => (complete(outcome, done, deadline.reason), StateAfterCall::Alive),
            Err(StateAfterCall::InterpreterEnded) if !self.is_ready => never_ready(outcome, &start_error),
            Err(StateAfterCall::InterpreterEnded) if is_shell_replaced => shell_replaced(outcome, deadline.reason),
            Err(state_after) => {
                (Outcome { notices: vec![loss_notice(state_after, deadline.reason)], ..outcome }, state_after)
            }
        }
    }

    /// The duration of a cell, without the start of the interpreter, which belongs to that of the session.
    fn time_since(&self, cell_start: Instant) -> Duration {
        if self.is_ready {
            self.ready_at.map_or(cell_start, |ready| ready.max(cell_start)).elapsed()
        } else {
            Duration::ZERO
        }
    }

    /// Kills the interpreter. Returns the time until which to wait for the event about its end.
    fn kill(&self, instance: &Instance) -> Instant {
        instance.signal(self.process.number, Signal::KILL, SignalTarget::ProcessTree);
        Instant::now() + KILL_TIMEOUT
    }

    /// Sends SIGINT to stop the running cell. `previous` is the number of earlier interrupts of this cell. In Python
    /// and Node, the first interrupt goes only to the interpreter, which handles its children, so that processes of
    /// earlier cells continue. A shell waits for its children, so its first interrupt goes to the whole process group.
    /// Later interrupts reach every process that the interpreter may wait for.
    fn interrupt(&self, instance: &Instance, previous: usize) {
        let target = match (previous, self.language) {
            (0, Language::Python | Language::Node) => SignalTarget::Process,
            (0, Language::Bash) | (1, _) => SignalTarget::ProcessGroup,
            _ => SignalTarget::ProcessTree,
        };
        instance.signal(self.process.number, Signal::INT, target);
    }

    /// Returns whether the event reports the end of this interpreter.
    pub(crate) fn is_ended_by(&self, event: Event) -> bool {
        matches!(event, Event::Ended { process, .. } if process == self.process.number)
    }

    /// Handles the received messages. Returns the result of the cell if it is among them.
    fn handle_messages(&mut self, cell: &mut CellMessages<'_>) -> Result<Option<Done>, String> {
        while let Some(message) = protocol::next_message(self.language, self.last_cell, &mut self.inbox)? {
            match message {
                Message::Display(items) if !cell.display.is_full() => cell.display.add(items),
                Message::Done(done) => return Ok(Some(done)),
                Message::Ready if !self.is_ready => (self.is_ready, self.ready_at) = (true, Some(Instant::now())),
                Message::Call(call) if call.cell != self.last_cell => {
                    self.inbox.count_ignored()?;
                    cell.calls.report_forged("the call belongs to a cell that is not running");
                }
                Message::Call(call) => cell.calls.handle_call(call, &mut self.last_host_call, cell.outbox),
                // A cancellation of a call that already has a response or was cancelled is valid and has no effect.
                Message::Cancel(number) if cell.calls.withdraw(number) || number <= self.last_host_call => {}
                Message::Display(_) | Message::Ready | Message::Cancel(_) => self.inbox.count_ignored()?,
            }
        }
        Ok(None)
    }
}

/// The outcome of a cell that replaced its shell by `exec`, when the new program has ended.
fn shell_replaced(outcome: Outcome, reason: Option<EarlyEnd>) -> (Outcome, StateAfterCall) {
    let status = reason.map_or(Status::of_exit(outcome.exit_code), EarlyEnd::status);
    let notices = vec![SHELL_REPLACED.into()];
    (Outcome { status, notices, ..outcome }, StateAfterCall::InterpreterEnded)
}

/// The outcome of a cell whose interpreter did not become ready.
fn never_ready(outcome: Outcome, start_error: &str) -> (Outcome, StateAfterCall) {
    let stderr = String::from_utf8_lossy(&outcome.stderr.head);
    let notice = format!("{start_error} {}", stderr.trim()).trim().to_owned();
    (Outcome { notices: vec![notice], ..outcome }, StateAfterCall::NeverReady)
}

/// Adds the content of the kernel's `done` message to the outcome of a cell.
fn complete(outcome: Outcome, done: Done, reason: Option<EarlyEnd>) -> Outcome {
    let Done { is_interrupted, result, error, exit_code, is_truncated } = done;
    let status = match reason {
        // Even if the code caught the interrupt and completed, it has exceeded its timeout or was cancelled.
        Some(reason) => reason.status(),
        None if is_interrupted || error.is_some() || exit_code.is_some_and(|code| code != 0) => Status::Error,
        None => Status::Ok,
    };
    Outcome { status, exit_code, result, error, is_truncated, ..outcome }
}

/// The notice for a cell whose kernel ended before it sent `done`.
fn loss_notice(state_after: StateAfterCall, reason: Option<EarlyEnd>) -> String {
    let cause = match (state_after, reason) {
        (StateAfterCall::SandboxLost, _) => return SANDBOX_KILLED.into(),
        (_, Some(EarlyEnd::Timeout)) => "the call reached its timeout",
        (_, Some(EarlyEnd::Cancelled)) => "the call was cancelled",
        (_, None) => return INTERPRETER_DIED.into(),
    };
    format!(
        "{cause}, but did not stop when interrupted and was killed; the interpreter's state is lost, files in \
         /workspace are kept"
    )
}

/// The destinations of a kernel's messages while a cell runs.
struct CellMessages<'a> {
    display: &'a mut Display,
    calls: &'a mut OpenCalls,
    outbox: &'a mut Outbox,
}
