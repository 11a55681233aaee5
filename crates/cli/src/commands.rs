//! One module a command.

pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod escape;
pub(crate) mod launcher;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod up;
