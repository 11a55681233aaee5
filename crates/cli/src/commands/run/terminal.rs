//! The terminal of this process, in raw mode while the command runs.

use std::os::fd::OwnedFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

use crate::failure::Failure;

/// The terminal in raw mode. Its previous mode is restored when this value is dropped.
pub(super) struct RawTerminal {
    before: Termios,
    controlling: OwnedFd,
}

impl RawTerminal {
    /// Enters raw mode: every key is passed on unchanged to the terminal in the sandbox, which interprets it.
    /// `controlling` is the controlling side of that terminal.
    pub(super) fn enter(controlling: OwnedFd) -> Result<Self, Failure> {
        let failed = |errno: rustix::io::Errno| Failure::new("cannot use the terminal").caused_by(&errno);
        let before = tcgetattr(rustix::stdio::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        let terminal = Self { before, controlling };
        // The size may have changed since the sandbox was started.
        terminal.resize();
        Ok(terminal)
    }

    /// Gives the terminal in the sandbox the size of this one.
    pub(super) fn resize(&self) {
        if let Ok(size) = tcgetwinsize(rustix::stdio::stdin()) {
            let _ = tcsetwinsize(&self.controlling, size);
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}
