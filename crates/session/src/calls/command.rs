//! Runs one shell command.

use ringfence_backend::{Event, ExitStatus, Instance, SignalTarget};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::{CallDeadline, DeadlineStep, EarlyEnd, KILL_TIMEOUT, Outcome, SANDBOX_KILLED, StateAfterCall, exit_code};
use crate::api::Status;
use crate::outputs::ProcessCapture;

/// Runs a shell command to its end. Events of other processes are added to `other_events`.
pub(crate) async fn run_command(
    instance: &mut Instance,
    command: &str,
    mut deadline: CallDeadline,
    other_events: &mut Vec<Event>,
) -> (Outcome, StateAfterCall) {
    let argv = ["bash", "-c", command].map(Into::into).to_vec();
    let mut capture = ProcessCapture::default();
    let not_started = |notice: String| (Outcome::not_run(Status::Error, notice), StateAfterCall::Alive);
    let mut process = match instance.spawn(argv) {
        Ok(process) => process,
        Err(error) => return not_started(format!("the command could not be started: {error}")),
    };
    let mut killed_until: Option<Instant> = None;
    let status = loop {
        tokio::select! {
            biased;
            event = instance.event() => match event {
                Event::Ended { process: number, status } if number == process.number => break Some(status),
                Event::StartFailed { process: number, errno } if number == process.number => {
                    return not_started(explain_start_failure(errno));
                }
                Event::Lost => break None,
                other => other_events.push(other),
            },
            step = deadline.next_step(), if killed_until.is_none() => match step {
                // To all descendants at once: one that the shell waits for may have left its process group.
                DeadlineStep::Interrupt(_) => instance.signal(process.number, Signal::TERM, SignalTarget::ProcessTree),
                DeadlineStep::Kill => {
                    instance.signal(process.number, Signal::KILL, SignalTarget::ProcessTree);
                    killed_until = Some(Instant::now() + KILL_TIMEOUT);
                }
            },
            // A guest can keep its init from handling requests, or the kernel takes long to end the process.
            () = sleep_until(killed_until.unwrap_or_else(Instant::now)), if killed_until.is_some() => {
                if instance.kill_if_stuck().await {
                    break None;
                }
                break Some(ExitStatus::Killed(Signal::KILL.as_raw()));
            }
            () = capture.read(&mut process) => {}
        }
    };
    capture.drain(&mut process);
    let output = capture.finish();
    let Some(status) = status else {
        let outcome = Outcome::not_run(Status::Killed, SANDBOX_KILLED.into()).with_output(output);
        return (outcome, StateAfterCall::SandboxLost);
    };
    instance.release(process).await;
    let exit_code = exit_code(status);
    let status = deadline.reason.map_or(Status::of_exit(Some(exit_code)), EarlyEnd::status);
    (Outcome { exit_code: Some(exit_code), ..Outcome::new(status).with_output(output) }, StateAfterCall::Alive)
}

/// Returns the reason with the next step, for a caller that cannot inspect the sandbox.
fn explain_start_failure(errno: rustix::io::Errno) -> String {
    let remedy = match errno {
        rustix::io::Errno::AGAIN => "; the session has reached its limit of processes: end some of them first",
        rustix::io::Errno::NOENT => "; the template has no bash",
        _ => "",
    };
    format!("the command could not be started: {errno}{remedy}")
}
