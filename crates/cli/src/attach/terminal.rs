//! The person's terminal, lent to the command: raw while it runs, as it was afterwards.

use std::os::fd::OwnedFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

use crate::failure::Failure;

/// Dropped, it gives the terminal back.
pub(super) struct Borrowed {
    before: Termios,
    controlling: OwnedFd,
}

impl Borrowed {
    /// Passes every key on as it is; the terminal inside makes sense of them.
    pub(super) fn new(controlling: OwnedFd) -> Result<Self, Failure> {
        let failed = |errno: rustix::io::Errno| Failure::new("cannot use the terminal").because(&errno);
        let before = tcgetattr(rustix::stdio::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        let terminal = Self { before, controlling };
        // It may have changed since the sandbox was begun.
        terminal.resize();
        Ok(terminal)
    }

    /// Tells the terminal inside how large the one outside is.
    pub(super) fn resize(&self) {
        if let Ok(size) = tcgetwinsize(rustix::stdio::stdin()) {
            let _ = tcsetwinsize(&self.controlling, size);
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}
