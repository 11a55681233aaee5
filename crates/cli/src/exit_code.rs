//! Exit codes of the program, as shells, timeout(1) and container tools use them.

/// The output may be incomplete because the state database was damaged and replaced.
pub(crate) const INCOMPLETE: u8 = 1;

/// `ringfence up` gave up: `EX_TEMPFAIL` of sysexits(3).
pub(crate) const GAVE_UP: u8 = 75;

/// The command was stopped by its timeout.
pub(crate) const TIMED_OUT: u8 = 124;

/// ringfence itself failed.
pub(crate) const RINGFENCE_FAILED: u8 = 125;

/// The command exists, but cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// The command does not exist.
pub(crate) const NOT_FOUND: u8 = 127;

/// Added to the number of the signal that ended the command.
pub(crate) const SIGNAL_BASE: u8 = 128;
