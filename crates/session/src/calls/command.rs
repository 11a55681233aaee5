//! Runs one shell command.

use ringfence_backend::{Event, ExitStatus, Instance, SignalTarget};
use rustix::process::Signal;
use tokio::time::{Instant, sleep_until};

use super::{CallDeadline, DeadlineStep, EarlyEnd, KILL_TIMEOUT, Outcome, SANDBOX_KILLED, exit_code};
use crate::api::Status;
use crate::outputs::ProcessCapture;

/// Runs a shell command to its end. Another task must wait for the events of the instance meanwhile.
pub(crate) async fn run_command(instance: &Instance, command: &str, mut deadline: CallDeadline) -> Outcome {
    let started = Instant::now();
    let argv = ["bash", "-c", command].map(Into::into).to_vec();
    let mut capture = ProcessCapture::default();
    let (mut process, mut end) = match instance.spawn_command(argv) {
        Ok(spawned) => spawned,
        Err(error) => return Outcome::not_run(Status::Error, format!("the command could not be started: {error}")),
    };
    let mut killed_until: Option<Instant> = None;
    let status = loop {
        tokio::select! {
            biased;
            event = end.wait() => match event {
                Event::Ended { status, .. } => break Some(status),
                Event::StartFailed { errno, .. } => {
                    return Outcome::not_run(Status::Error, explain_start_failure(errno));
                }
                _ => break None,
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
    let duration = started.elapsed();
    capture.drain(&mut process);
    let output = capture.finish();
    let Some(status) = status else {
        let outcome = Outcome::not_run(Status::Killed, SANDBOX_KILLED.into()).with_output(output);
        return Outcome { duration, ..outcome };
    };
    instance.release(process).await;
    let exit_code = exit_code(status);
    let status = deadline.reason.map_or(Status::of_exit(Some(exit_code)), EarlyEnd::status);
    Outcome { exit_code: Some(exit_code), duration, ..Outcome::new(status).with_output(output) }
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
