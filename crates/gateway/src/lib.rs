//! The MCP gateway: sandbox sessions and the tools of other MCP servers, offered as one server.
//!
//! Every request follows one path: transport → principal → `router` → `authorize` → session, or `relay` → server →
//! `reply`. The transports are in the `mcp` crate; `http`, `rest` and `operator` add the routes of this product.

mod authorize;
mod builtin_resources;
mod catalogue;
mod code;
mod connection;
mod content;
mod default_sessions;
mod detach_on_drop;
mod fleet;
mod hosting;
mod http;
mod operator;
mod relay;
mod reply;
mod rest;
mod router;
mod session_uri;
mod tools;

pub use authorize::{AuthenticationOptions, ListenError, MIN_TOKEN_BYTES, Token, check_listen_address, short_token};
pub use catalogue::search::{Hit, Index, SearchableServer};
pub use catalogue::{KnownServer, KnownServers};
pub use hosting::{Hosting, HostingOptions, stored_servers};
pub use http::{ServeError, serve_http};
pub use operator::serve_operator;
pub use ringfence_session::SessionOptions;
pub use router::Gateway;
pub use tools::{code_mode_tools, session_tools};
