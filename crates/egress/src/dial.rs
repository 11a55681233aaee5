//! From a host and port to a connection: admit, resolve once, check every answer, connect.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::decision::Decision;
use super::host::{Host, Target};
use super::policy::Policy;
use super::proxy::Proxy;
use super::refusal::Refusal;
use crate::loopback;

/// How many of a host's addresses are tried.
const MAX_ATTEMPTS: usize = 4;

/// Opens a connection, noting in `decision` what was found on the way.
pub(super) async fn dial(proxy: &Proxy, target: &Target, decision: &mut Decision) -> Result<TcpStream, Refusal> {
    let rule = proxy.policy.admit(target)?;
    decision.rule = Some(rule.clone());
    let addresses = match &target.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            let lookup = proxy.resolver.lookup(name);
            match timeout(proxy.limits.resolve, lookup).await {
                Err(_) => return Err(Refusal::ResolveTimeout),
                Ok(Err(error)) => return Err(Refusal::Resolve(error.kind())),
                Ok(Ok(addresses)) => addresses,
            }
        }
    };
    Policy::check(rule, &addresses)?;
    let (stream, address) = connect(&addresses, target.port, proxy.limits.connect).await?;
    decision.address = Some(address);
    Ok(stream)
}

async fn connect(addresses: &[IpAddr], port: u16, limit: Duration) -> Result<(TcpStream, IpAddr), Refusal> {
    let mut last = Refusal::Resolve(io::ErrorKind::NotFound);
    for &address in addresses.iter().take(MAX_ATTEMPTS) {
        match timeout(limit, open(SocketAddr::new(address, port))).await {
            Ok(Ok(stream)) => {
                // small writes of a tunnelled protocol must not wait for each other
                stream.set_nodelay(true).map_err(|error| Refusal::Connect(error.kind()))?;
                return Ok((stream, address));
            }
            Ok(Err(error)) => last = Refusal::Connect(error.kind()),
            Err(_) => last = Refusal::ConnectTimeout,
        }
    }
    Err(last)
}

/// Connections to loopback are marked: a server on this host must not take a guest for the user who runs the proxy.
async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    loopback::mark_proxied(&socket, address.ip())?;
    socket.connect(address).await
}
