//! The end of a sandbox: the messages for the user, and the exit code.

use std::process::ExitCode;
use std::time::Duration;

use ringfence_core::{Spec, bytes};
use ringfence_sandbox::{ExitStatus, LimitBreach};
use rustix::process::Signal;

use crate::exit_code::{SIGNAL_BASE, TIMED_OUT};
use crate::output::notice;

/// The reason why a sandbox ended.
pub(super) enum Outcome {
    /// The command ended.
    Ended(ExitStatus),
    /// The whole sandbox was killed from outside.
    Lost,
    TimedOut(Duration),
    LimitExceeded(LimitBreach),
}

impl Outcome {
    /// Reports what the command's own output does not show, and returns the exit code.
    pub(super) fn report(&self, memory_kills: u64, spec: &Spec) -> ExitCode {
        let limit = bytes::format(spec.limits.memory_bytes);
        if memory_kills > 0 {
            let killed = match memory_kills {
                1 => "a process in the sandbox was".into(),
                count => format!("{count} processes in the sandbox were"),
            };
            notice(&format!(
                "{killed} killed because the sandbox exceeded its memory limit of {limit} (raise it with --memory)"
            ));
        }
        let code = match self {
            Self::Ended(ExitStatus::Exited(code)) => u8::try_from(*code).unwrap_or(u8::MAX),
            Self::Ended(ExitStatus::Killed(signal)) => signal_code(*signal),
            Self::Lost => {
                notice("the sandbox was killed from outside");
                signal_code(Signal::KILL.as_raw())
            }
            Self::TimedOut(timeout) => {
                notice(&format!("the command was stopped after its timeout of {} s", timeout.as_secs_f64()));
                TIMED_OUT
            }
            Self::LimitExceeded(breach) => {
                notice(&format!("the sandbox was killed: {}", describe(breach, &limit)));
                signal_code(Signal::KILL.as_raw())
            }
        };
        ExitCode::from(code)
    }
}

fn describe(breach: &LimitBreach, memory_limit: &str) -> String {
    match breach {
        LimitBreach::Memory { used, .. } => {
            let used = bytes::format(*used);
            format!("it used {used} and exceeded its memory limit of {memory_limit} (raise it with --memory)")
        }
        LimitBreach::Sockets { count, limit } => format!(
            "it had {count} sockets, but its memory limit allows the buffers of {limit} (raise it with --memory)"
        ),
        LimitBreach::Unobservable => {
            "its processes are not visible in /proc any more, so its memory limit cannot be enforced".into()
        }
    }
}

fn signal_code(signal: i32) -> u8 {
    SIGNAL_BASE.saturating_add(u8::try_from(signal).unwrap_or(0))
}
