//! Where connections come from: a socket of our own, or a supervisor that has accepted them.

use std::io;
use std::net::SocketAddr;

use ringfence_mcp::handover::{Handed, Place};
use tokio::net::{TcpListener, TcpStream};

pub enum Incoming {
    Listener(TcpListener),
    Handed(Box<Handed>),
}

impl From<TcpListener> for Incoming {
    fn from(listener: TcpListener) -> Self {
        Self::Listener(listener)
    }
}

impl Incoming {
    /// Where clients find the endpoint.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Listener(listener) => listener.local_addr(),
            Self::Handed(handed) => Ok(handed.address()),
        }
    }

    /// The next, with its place among the wills if somebody looks after it when we die. Cancelled, it has lost none.
    pub(super) async fn next(&mut self) -> io::Result<(TcpStream, Option<Place>)> {
        match self {
            Self::Listener(listener) => listener.accept().await.map(|(stream, _)| (stream, None)),
            Self::Handed(handed) => handed.next().await.map(|(stream, place)| (stream, Some(place))),
        }
    }
}
