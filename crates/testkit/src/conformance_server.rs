//! An MCP server, written with rmcp, that offers everything the official conformance suite needs, in both protocol
//! eras. The suite must find the same here as through the gateway.
//!
//! The content is data in `fixtures/conformance`: the definition of each tool with the script of its calls. The modules
//! execute these scripts.
#![allow(deprecated)] // methods of older protocol versions

mod calls;
mod handler;
mod input_rounds;
mod prompts;
mod resources;
mod script;
mod subscribers;
mod tasks;
mod template;
mod transports;

pub use transports::{serve_http, serve_stdio};
