//! Zygotes: warm interpreters from which the inits of sandboxes are forked.
//!
//! A zygote is a Python process (`crates/guest/kernels/python/zygote.py`) that has loaded this crate as a shared
//! library and imported the modules that sessions need. For each sandbox it forks an init, as a child of its own
//! parent, so that the sandbox survives the end of the zygote. The init runs the same code and has the same
//! restrictions as one that was forked from the launcher.
//!
//! A zygote never runs code of a guest and never receives secrets: each fork can read its memory.
//!
//! `export` and `serve` run in the zygote; `process` and `scratch_directory` run in its parent.

mod export;
mod huge_pages;
mod process;
mod protocol;
mod scratch_directory;
mod serve;

pub(crate) use process::Zygote;
pub use process::ZygoteConfig;
