//! Connects hosted and remote MCP servers: from a server's entry to a link with it.

mod connector;
mod link;

pub(crate) use connector::{Connector, ServerMessage};
pub(crate) use link::ServerLink;
