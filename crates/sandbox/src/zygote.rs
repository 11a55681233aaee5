//! A warm interpreter from which sandboxes are forked.
//!
//! The zygote is an interpreter (`zygote.py` of `crates/guest`) that has loaded this crate as a library and imported what
//! sessions will want. It never runs a guest's code and is told nothing secret: whoever is forked from it can read
//! its memory. For a sandbox it forks the init, as a child of its own parent, so that its own end takes none along.
//! The init is the same code, behind the same walls, wherever it is forked from.

mod birth;
mod memory;
mod process;
mod scratch;

pub(crate) use birth::serve;
pub use process::ZygoteConfig;
pub(crate) use process::Zygote;
