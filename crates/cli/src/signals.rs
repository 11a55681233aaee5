//! The signals that stop a server or its supervisor.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// SIGHUP: the terminal was closed. `None` if the process was started with the signal ignored, as by nohup(1).
    hangup: Option<Signal>,
}

/// The way in which a signal asks a server to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// SIGTERM or SIGHUP: requests in progress may finish.
    Graceful,
    /// SIGINT: a person is waiting at the terminal.
    Immediate,
}

impl Signals {
    pub(crate) fn watch() -> Result<Self, Failure> {
        let watch = |kind| signal(kind).map_err(|error| Failure::new("cannot watch for signals").caused_by(&error));
        let hangup = if is_hangup_ignored() { None } else { Some(watch(SignalKind::hangup())?) };
        Ok(Self { interrupt: watch(SignalKind::interrupt())?, terminate: watch(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> StopRequest {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => StopRequest::Immediate,
            _ = terminate.recv() => StopRequest::Graceful,
            () = hung_up => StopRequest::Graceful,
        }
    }
}

/// See `proc_pid_status(5)`: the lowest bit of the mask is SIGHUP, signal 1.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
