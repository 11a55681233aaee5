//! Connections to peers that behave, and to peers that do not.

mod eras;
mod hostile;
mod http;
mod lines;
mod loopback;
mod peer;
mod real;
mod sse;
mod websocket;

pub(super) use self::peer::who;
