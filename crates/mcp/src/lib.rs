//! The MCP protocol: messages, eras, headers, and the transports of servers and clients. Knows nothing of sessions.

pub mod handover;
