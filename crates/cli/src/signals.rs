//! The signals that tell a server, or its supervisor, to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// That the terminal is gone; not heard by one that was started not to mind, as by nohup(1).
    hangup: Option<Signal>,
}

/// What a signal says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    ToEnd,
    /// By a person who waits for it.
    ToEndAtOnce,
}

impl Signals {
    pub(crate) fn watch() -> Result<Self, Failure> {
        let watch = |kind| signal(kind).map_err(|error| Failure::new("cannot watch for signals").because(&error));
        let hangup = if is_hangup_ignored() { None } else { Some(watch(SignalKind::hangup())?) };
        Ok(Self { interrupt: watch(SignalKind::interrupt())?, terminate: watch(SignalKind::terminate())?, hangup })
    }

    /// Waits for one of them.
    pub(crate) async fn next(&mut self) -> Told {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => Told::ToEndAtOnce,
            _ = terminate.recv() => Told::ToEnd,
            () = hung_up => Told::ToEnd,
        }
    }
}

/// See `proc_pid_status(5)`: the lowest bit is that of the first signal, SIGHUP.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
