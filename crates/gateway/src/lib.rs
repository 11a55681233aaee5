//! The MCP server: sandbox sessions offered as tools, over stdio and HTTP.
//!
//! A call goes one way: transport → principal → [`Gateway`] → sessions → `reply`. Both protocol eras
//! are served without any state of the transport: what lasts is named by `session_id` alone.

mod arguments;
mod busy;
mod call;
mod clean;
mod client;
mod code;
mod era;
mod failure;
mod fleet;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gateway;
mod hosting;
mod http;
mod in_flight;
mod json_values;
mod operator;
mod policy;
mod reply;
mod resource;
mod rest;
mod rpc;
mod search;
mod share;
mod stdio;
mod to_its_end;
mod tools;
mod upstream;

pub use gateway::Gateway;
pub use hosting::{Hosting, HostingOptions, KnownServer, KnownServers, stored_servers};
pub use http::{
    HttpOptions, Incoming, ListenError, MIN_TOKEN_BYTES, ServeError, Token, check, serve_http, short_token,
};
pub use operator::serve_operator;
pub use search::{Hit, Index, Searched};
pub use stdio::{StdioError, serve_stdio};
pub use tools::code_mode_tools;
