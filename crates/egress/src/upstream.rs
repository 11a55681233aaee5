//! Connecting to a destination: find the rule or wait for approval, resolve once, check every address, connect.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::context::Context;
use crate::decision::Decision;
use crate::peer_socket::mark_proxied;
use crate::refusal::Refusal;
use crate::rules::{Denial, Host, HostPort, Policy, Rule};

/// Maximum number of addresses of a host to try.
const MAX_ATTEMPTS: usize = 4;

/// Connects to `target` and records the rule and the address in `decision`.
pub(crate) async fn connect(
    context: &Context,
    target: &HostPort,
    decision: &mut Decision,
) -> Result<TcpStream, Refusal> {
    let rule = context.authorize(target).await?;
    decision.rule = Some(rule.clone());
    let addresses = match &target.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            let lookup = context.lookup.lookup(name);
            match timeout(context.limits.resolve_timeout, lookup).await {
                Err(_) => return Err(Refusal::ResolveTimeout),
                Ok(Err(error)) => return Err(Refusal::Resolve(error.kind())),
                Ok(Ok(addresses)) => addresses,
            }
        }
    };
    Policy::check_addresses(&rule, &addresses)?;
    if let Host::Name(_) = &target.host {
        check_own_addresses(&rule, &addresses, is_own_address)?;
    }
    let (stream, address) = connect_to_any(&addresses, target.port, context.limits.connect_timeout).await?;
    decision.address = Some(address);
    Ok(stream)
}

/// Refuses public addresses of this host: its firewall does not see connections that do not leave it.
fn check_own_addresses(rule: &Rule, addresses: &[IpAddr], is_own: impl Fn(IpAddr) -> bool) -> Result<(), Denial> {
    let own = addresses.iter().find(|address| !rule.allows_private() && is_own(**address));
    own.map_or(Ok(()), |address| Err(Denial::Private(*address)))
}

/// Returns whether a network interface of this host has an address: the kernel connects to it from the same address.
/// Nothing is sent.
fn is_own_address(address: IpAddr) -> bool {
    let unspecified = match address {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let source = || {
        let socket = UdpSocket::bind((unspecified, 0))?;
        // Any port.
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == address)
}

/// Tries the addresses in order; returns the first connection, or the reason why the last attempt failed.
async fn connect_to_any(
    addresses: &[IpAddr],
    port: u16,
    attempt_timeout: Duration,
) -> Result<(TcpStream, IpAddr), Refusal> {
    let mut last = Refusal::Resolve(io::ErrorKind::NotFound);
    for &address in addresses.iter().take(MAX_ATTEMPTS) {
        match timeout(attempt_timeout, open(SocketAddr::new(address, port))).await {
            Ok(Ok(stream)) => {
                // Small writes of a tunnelled protocol must not be delayed.
                stream.set_nodelay(true).map_err(|error| Refusal::Connect(error.kind()))?;
                return Ok((stream, address));
            }
            Ok(Err(error)) => last = Refusal::Connect(error.kind()),
            Err(_) => last = Refusal::ConnectTimeout,
        }
    }
    Err(last)
}

/// Opens a connection. Connections to loopback are marked, so that a server on this host does not mistake a guest for
/// the user who runs the proxy.
async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    mark_proxied(&socket, address.ip())?;
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_of_this_host_need_the_private_flag() {
        let addresses = ["1.1.1.1".parse().unwrap(), "8.8.8.8".parse().unwrap()];
        let check = |rule: &str, own: &str| {
            let own: IpAddr = own.parse().unwrap();
            check_own_addresses(&rule.parse().unwrap(), &addresses, |address| address == own)
        };
        assert_eq!(check("a.com", "8.8.8.8"), Err(Denial::Private(addresses[1])));
        assert_eq!(check("a.com+private", "8.8.8.8"), Ok(()));
        assert_eq!(check("a.com", "9.9.9.9"), Ok(()));
    }

    #[test]
    fn own_addresses_are_recognized() {
        let is_own = |text: &str| is_own_address(text.parse().unwrap());
        assert!(is_own("127.0.0.1"));
        assert!(!is_own("192.0.2.1") && !is_own("2001:db8::1"));
    }
}
