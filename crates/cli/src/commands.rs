//! One module a command.

pub(crate) mod doctor;
pub(crate) mod escape;
pub(crate) mod run;
