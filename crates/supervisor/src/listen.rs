//! The socket that outlives every worker.

use std::io::Result;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};

use super::options::Listen;

/// Connections that may wait while there is no worker. The host may allow fewer (`net.core.somaxconn`).
const WAITING: i32 = 4096;

pub(crate) fn open(wanted: Listen) -> Result<TcpListener> {
    let address = match wanted {
        Listen::Address(address) => address,
        Listen::Socket(listener) => return Ok(listener),
    };
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, WAITING)?;
    Ok(socket.into())
}

/// Where this host reaches what listens on an address.
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
    fn what_listens_everywhere_is_reached_here() {
        for (address, reached) in [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.5:1", "10.0.0.5:1")] {
            assert_eq!(reachable(address.parse().unwrap()), reached.parse().unwrap());
        }
    }

    #[test]
    fn a_port_that_is_taken_is_refused() {
        let first = open(Listen::Address((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
        let second = open(Listen::Address(first.local_addr().unwrap()));
        assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    }
}
