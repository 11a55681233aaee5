//! The listening socket, which outlives every worker.

use std::io::Result;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};

use super::options::Listen;

/// Length of the queue of unaccepted connections. The host may allow fewer (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

pub(crate) fn open(listen_on: Listen) -> Result<TcpListener> {
    let address = match listen_on {
        Listen::Address(address) => address,
        Listen::Socket(listener) => return Ok(listener),
    };
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Returns the address at which this host reaches a listening socket.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_address_is_reached_on_loopback() {
        for (address, expected) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.5:1", "10.0.0.5:1")] {
            assert_eq!(reachable(address.parse().unwrap()), expected.parse().unwrap());
        }
    }

    #[test]
    fn port_in_use_is_an_error() {
        let first = open(Listen::Address((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
        let second = open(Listen::Address(first.local_addr().unwrap()));
        assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    }
}
