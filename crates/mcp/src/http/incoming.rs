//! The source of connections: a listening socket, or a supervisor that has accepted them.

use std::io;
use std::net::SocketAddr;

use crate::handover::{CrashReplySlot, HandedConnections};
use tokio::net::{TcpListener, TcpStream};

pub enum Incoming {
    Listener(TcpListener),
    Handed(Box<HandedConnections>),
}

impl From<TcpListener> for Incoming {
    fn from(listener: TcpListener) -> Self {
        Self::Listener(listener)
    }
}

impl Incoming {
    /// The address of the endpoint.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Listener(listener) => listener.local_addr(),
            Self::Handed(handed) => Ok(handed.address()),
        }
    }

    /// Waits for the next connection. It has a crash reply if a supervisor continues it when this process dies. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<(TcpStream, Option<CrashReplySlot>)> {
        match self {
            Self::Listener(listener) => listener.accept().await.map(|(stream, _)| (stream, None)),
            Self::Handed(handed) => handed.next().await.map(|(stream, slot)| (stream, Some(slot))),
        }
    }
}
