//! The commands: one file for each, one folder for each group of commands.

pub(crate) mod allow;
pub(crate) mod audit;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod code;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod run;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod template;
pub(crate) mod up;
