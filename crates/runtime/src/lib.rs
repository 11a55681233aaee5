//! What stands around a sandbox: templates, flavors, interpreters, and the way out to the network.

pub mod audit;
mod cache;
pub mod config;
pub mod egress;
pub mod flavor;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod handover;
pub mod hidden_text;
mod image;
pub mod interpreter;
pub mod loopback;
mod named;
pub mod own;
mod protected_names;
pub mod scope;
pub mod servers;
pub mod session;
pub mod store;
pub mod supervision;
pub mod template;
