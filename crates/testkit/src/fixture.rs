//! An MCP server, written with rmcp, that has everything the official conformance suite asks servers for, in both
//! eras of the protocol: what the suite finds here it must find through the gateway too.
//!
//! What the server offers is data (`fixtures/conformance`): a tool's definition beside the script of its call. The
//! modules play scripts.
#![allow(deprecated)] // what older clients ask for

mod fill;
mod jobs;
mod play;
mod prompts;
mod resources;
mod rounds;
mod script;
mod serve;
mod server;
mod subscribers;

pub use serve::{serve_http, serve_stdio};
