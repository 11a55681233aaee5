//! Processes in a server's sandbox: their states, how they exit, and the table of those that have not exited yet.

use std::collections::BTreeMap;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::watch;

/// Maximum number of bytes that [`read_head`] returns.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The exit status of a server's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    Exited(i32),
    Killed {
        signal: i32,
        is_out_of_memory: bool,
    },
    /// The process ended together with its sandbox.
    SandboxLost {
        is_out_of_memory: bool,
    },
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed { is_out_of_memory: true, .. } | Self::SandboxLost { is_out_of_memory: true } => {
                f.write_str("was killed for going over its memory limit")
            }
            Self::Killed { signal, .. } => write!(f, "was killed by signal {signal}"),
            Self::SandboxLost { .. } => f.write_str("ended together with its sandbox"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProcessState {
    Starting,
    Running,
    /// The process could not be started, for this reason.
    StartFailed(String),
    Exited(ProcessExit),
}

impl ProcessState {
    fn is_final(&self) -> bool {
        matches!(self, Self::Exited(_) | Self::StartFailed(_))
    }
}

/// A process in a sandbox, with the host's ends of its pipes.
pub(crate) struct Process {
    pub(super) number: u32,
    pub(super) state: watch::Receiver<ProcessState>,
    pub(crate) stdin: Sender,
    pub(crate) stdout: Receiver,
    pub(crate) stderr: Receiver,
}

/// Identifies a process and observes its state; it does not own the pipes.
#[derive(Clone)]
pub(crate) struct ProcessHandle {
    pub(super) number: u32,
    state: watch::Receiver<ProcessState>,
}

impl Process {
    pub(crate) fn handle(&self) -> ProcessHandle {
        ProcessHandle { number: self.number, state: self.state.clone() }
    }
}

impl ProcessHandle {
    /// Waits until the process runs, or returns the reason why it could not be started.
    pub(crate) async fn wait_until_started(&mut self) -> Result<(), String> {
        match self.state.wait_for(|state| *state != ProcessState::Starting).await.map(|state| state.clone()) {
            Ok(ProcessState::StartFailed(reason)) => Err(reason),
            Ok(_) => Ok(()),
            Err(_) => Err("the sandbox ended".into()),
        }
    }

    pub(crate) async fn wait_for_exit(&self) -> ProcessExit {
        let mut state = self.state.clone();
        match state.wait_for(ProcessState::is_final).await.as_deref() {
            Ok(ProcessState::Exited(exit)) => *exit,
            _ => ProcessExit::SandboxLost { is_out_of_memory: false },
        }
    }

    pub(super) fn has_exited(&self) -> bool {
        self.state.borrow().is_final()
    }
}

/// The processes of one sandbox that have not exited, by the number that the host gave them.
#[derive(Default)]
pub(super) struct ProcessTable {
    last_number: u32,
    running: BTreeMap<u32, watch::Sender<ProcessState>>,
    /// The process whose exit ends the whole sandbox.
    pub(super) main: Option<u32>,
    pub(super) is_lost: bool,
}

impl ProcessTable {
    pub(super) fn add(&mut self) -> (u32, watch::Receiver<ProcessState>) {
        self.last_number += 1;
        let (sender, state) = watch::channel(ProcessState::Starting);
        if self.is_lost {
            sender.send_replace(ProcessState::Exited(ProcessExit::SandboxLost { is_out_of_memory: false }));
        } else {
            self.running.insert(self.last_number, sender);
        }
        (self.last_number, state)
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.running.remove(&number);
    }

    pub(super) fn set_state(&mut self, number: u32, state: ProcessState) {
        let is_final = state.is_final();
        if let Some(sender) = self.running.get(&number) {
            sender.send_replace(state);
        }
        if is_final {
            self.running.remove(&number);
        }
    }

    /// Marks the sandbox as lost; all remaining processes get this exit.
    pub(super) fn set_lost(&mut self, exit: ProcessExit) {
        self.is_lost = true;
        for sender in std::mem::take(&mut self.running).into_values() {
            sender.send_replace(ProcessState::Exited(exit));
        }
    }
}

/// Reads a stream to its end and returns its first 64 KiB as trimmed text. The rest is discarded, so that the writer
/// never blocks.
pub(crate) async fn read_head(mut stream: impl AsyncRead + Unpin) -> String {
    let mut head = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        let free = MAX_HEAD_BYTES.saturating_sub(head.len());
        head.extend_from_slice(&buffer[..length.min(free)]);
        // A stream that is always readable would otherwise starve other tasks of this thread.
        tokio::task::yield_now().await;
    }
    String::from_utf8_lossy(&head).trim().to_owned()
}
