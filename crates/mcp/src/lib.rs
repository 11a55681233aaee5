//! The MCP protocol: messages, eras and transports, for servers and for clients.
//!
//! A transport reads requests, identifies their sender and passes them to a [`Service`]; it knows nothing of sessions,
//! sandboxes or policies. `http` and `stdio` serve clients, `upstream` connects to other MCP servers, and `handover`
//! keeps connections open while the process that serves them is replaced.

pub mod client;
pub mod clients;
pub mod connection;
pub mod era;
pub mod failure;
pub mod fair_pool;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod handover;
pub mod http;
pub mod in_flight;
pub mod json_size;
mod pending_response;
mod replay;
pub mod rpc;
pub mod sanitize;
pub mod service;
pub mod stdio;
pub mod upstream;

pub use service::Service;
