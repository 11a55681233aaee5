//! The explicit proxy: serves the connections of guests that use it, and checks the traffic inside of tunnels.

mod connection;
mod forward;
mod request;
#[cfg(test)]
mod tests;
mod tunnel;

pub(crate) use connection::{close, reject_connection, send, send_refusal, serve_connection};
#[cfg(fuzzing)]
pub(crate) use forward::ResponseHead;
#[cfg(fuzzing)]
pub(crate) use request::{ProxyRequest, RequestKind};
#[cfg(test)]
pub(crate) use tests::{LOOPBACK, OK_RESPONSE, start_server, within_timeout};
pub(crate) use tunnel::{Ended, Tunnel, TunnelError};
