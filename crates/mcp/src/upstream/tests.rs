//! Connections to peers that behave, and to peers that do not.

mod eras;
mod hostile;
mod http;
mod large;
mod lines;
mod loopback;
pub(super) mod peer;
mod real;
mod sse;
mod websocket;
