//! The user at the other end of a TCP connection over loopback.
//!
//! TCP has no `SO_PEERCRED`. The socket diagnostics of the kernel (`sock_diag(7)`) report the uid of a socket by its
//! addresses, to every user. The egress proxy opens connections for guests with the uid of the server, so it marks its
//! connections to loopback with a type of service, which socket diagnostics report too. `/proc/net/tcp` is no substitute
//! because it does not show the mark.

mod sock_diag;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};

/// The mark: DSCP 43 of the pool for local use (RFC 2474, section 6). It never leaves loopback.
const PROXIED_TOS: u8 = 43 << 2;

/// The socket at the other end of a connection within this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerSocket {
    /// The user who created the socket, as seen from the user namespace of this process.
    pub uid: u32,
    /// Whether an egress proxy opened the connection for a guest.
    pub is_proxied: bool,
}

impl PeerSocket {
    /// Finds the socket that is connected from `peer` to `local`. Fails if the kernel reports no such socket, or one that
    /// no process has open any more.
    pub fn find(local: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let socket = sock_diag::query(canonical(peer), canonical(local))?;
        // The kernel reports a socket that no process has open with the uid of root.
        if socket.inode == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the peer has closed the socket"));
        }
        Ok(Self { uid: socket.uid, is_proxied: [socket.tos, socket.tclass].contains(&Some(PROXIED_TOS)) })
    }
}

/// Marks a socket that will be connected to `destination` for a guest. Only connections to loopback are marked.
pub(crate) fn mark_proxied(socket: impl AsFd, destination: IpAddr) -> io::Result<()> {
    if !destination.to_canonical().is_loopback() {
        return Ok(());
    }
    match destination {
        IpAddr::V4(_) => set_ip_tos(socket, PROXIED_TOS)?,
        IpAddr::V6(_) => {
            // An IPv6 socket uses the IPv4 option for IPv4-mapped addresses.
            set_ip_tos(&socket, PROXIED_TOS)?;
            set_ipv6_tclass(socket, PROXIED_TOS.into())?;
        }
    }
    Ok(())
}

/// Returns the effective uid of this process; `None` if the kernel may report other users with the same uid. In a user
/// namespace, it reports every uid without a mapping as the overflow uid.
pub fn distinct_own_uid() -> Option<u32> {
    let uid = rustix::process::geteuid().as_raw();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    is_distinct(uid, &read("/proc/sys/kernel/overflowuid"), &read("/proc/self/uid_map")).then_some(uid)
}

fn is_distinct(uid: u32, overflow_uid: &str, uid_map: &str) -> bool {
    let maps_all = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    maps_all || overflow_uid.trim().parse::<u32>().is_ok_and(|overflow| overflow != uid)
}

/// Converts IPv4-mapped addresses to IPv4, because the kernel lists such sockets as IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns both ends of a connection: the client's and the accepted one.
    fn connection(listen: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listen).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn find(accepted: &TcpStream) -> io::Result<PeerSocket> {
        PeerSocket::find(accepted.local_addr().unwrap(), accepted.peer_addr().unwrap())
    }

    #[test]
    fn owner_is_found_for_every_address_family() {
        let uid = rustix::process::geteuid().as_raw();
        for listen in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0", "127.9.9.9:0"] {
            let (_client, accepted) = connection(listen);
            assert_eq!(find(&accepted).unwrap(), PeerSocket { uid, is_proxied: false }, "{listen}");
        }
    }

    #[test]
    fn half_closed_peer_is_found_and_closed_peer_is_not() {
        let (client, accepted) = connection("127.0.0.1:0");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(find(&accepted).is_ok());
        drop(client);
        assert!(find(&accepted).is_err(), "a socket without an owner must not count as a socket of root");
    }

    #[test]
    fn listener_on_peer_port_is_not_the_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = "127.0.0.1:9".parse().unwrap();
        assert!(PeerSocket::find(local, listener.local_addr().unwrap()).is_err());
    }

    #[tokio::test]
    async fn marked_sockets_are_recognized() {
        for (listen, connect) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("127.0.0.1:0", "::ffff:127.0.0.1"),
        ] {
            let listener = tokio::net::TcpListener::bind(listen).await.unwrap();
            let address: IpAddr = connect.parse().unwrap();
            let socket = match address {
                IpAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
                IpAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
            };
            let socket = socket.unwrap();
            mark_proxied(&socket, address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let (client, accepted) = tokio::join!(socket.connect((address, port).into()), listener.accept());
            let (_client, (accepted, peer)) = (client.unwrap(), accepted.unwrap());
            let found = PeerSocket::find(accepted.local_addr().unwrap(), peer).unwrap();
            assert!(found.is_proxied, "{connect} to {listen}");
        }
    }

    #[test]
    fn overflow_uid_in_user_namespace_is_not_distinct() {
        let (all, some) = ("         0          0 4294967295\n", "65534 1000 1\n");
        assert!(is_distinct(65534, "65534\n", all));
        assert!(!is_distinct(65534, "65534\n", some));
        assert!(is_distinct(1000, "65534\n", "1000 1000 1\n"));
        assert!(!is_distinct(1000, "", some), "an unknown overflow uid is not distinct");
    }

    #[test]
    fn only_loopback_connections_are_marked() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        mark_proxied(&socket, "10.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(rustix::net::sockopt::ip_tos(&socket).unwrap(), 0);
    }
}
