//! Connections to scripted, HTTP and real servers, including ones that violate the protocol.

mod http;
mod http_servers;
mod large_results;
mod misbehaving_servers;
mod negotiation;
mod real_servers;
pub(super) mod scripted_server;
mod sse;
mod stdio;
mod websocket;
